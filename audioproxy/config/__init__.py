"""The configuration: environment variables become one frozen `Config`."""

from audioproxy.config.environment import VARIABLES, load
from audioproxy.config.model import (
    BucketStore,
    Config,
    ConfigError,
    FileStore,
    Problem,
    S3Config,
    cpu_count,
)
from audioproxy.config.source_headers import read_source_headers

__all__ = [
    "VARIABLES",
    "BucketStore",
    "Config",
    "ConfigError",
    "FileStore",
    "Problem",
    "S3Config",
    "cpu_count",
    "load",
    "read_source_headers",
]
