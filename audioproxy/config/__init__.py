"""The configuration: environment variables become one frozen `Config`."""

from audioproxy.config.environment import VARIABLES, load
from audioproxy.config.model import Config, cpu_count
from audioproxy.config.problems import BootError, ConfigError, Problem
from audioproxy.config.settings import (
    BucketStore,
    FileStore,
    Limits,
    S3Config,
    SourceSettings,
    StoreSettings,
)
from audioproxy.config.source_headers import read_source_headers

__all__ = [
    "VARIABLES",
    "BootError",
    "BucketStore",
    "Config",
    "ConfigError",
    "FileStore",
    "Limits",
    "Problem",
    "S3Config",
    "SourceSettings",
    "StoreSettings",
    "cpu_count",
    "load",
    "read_source_headers",
]
