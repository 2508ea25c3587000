"""Checks of the settings, and the configuration without the invalid settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from audioproxy.cli.checks.results import CheckResult, Verdict, bad, good
from audioproxy.cli.output import format_count
from audioproxy.config import VARIABLES, BucketStore, Config, ConfigError, FileStore, load
from audioproxy.config.values import listed

# Values that resolve a conflict with another setting. All other invalid settings are omitted.
_HARMLESS = {"AP_ALLOW_INSECURE": "1", "AP_SERVE_MODE": "proxy"}
_SOURCE_SETTINGS = {
    "AP_LOCAL_ROOT",
    "AP_SOURCE_ALLOWLIST",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
}


@dataclass(frozen=True, slots=True)
class UsableSettings:
    """The configuration without the invalid settings, and the names of these (`refused`)."""

    config: Config
    refused: frozenset[str]
    results: tuple[CheckResult, ...]


def load_usable(environment: Mapping[str, str]) -> UsableSettings:
    refused: frozenset[str] = frozenset()
    try:
        config, warnings = load(environment)
        results = [good("settings", _summarize(config))]
    except ConfigError as error:
        warnings = error.warnings
        results = [CheckResult.of_setting(Verdict.BAD, problem) for problem in error.problems]
        config, refused = _drop_invalid(environment)
    results += [CheckResult.of_setting(Verdict.NOTE, warning) for warning in warnings]
    if not _source_kinds(config) and _SOURCE_SETTINGS.isdisjoint(refused):
        results.append(
            bad(
                "sources",
                "no kind of source is configured; set AP_LOCAL_ROOT for local files, or"
                " AP_SOURCE_ALLOWLIST for https hosts, or AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY"
                " and AWS_REGION for buckets",
            )
        )
    return UsableSettings(config, refused, tuple(results))


def _drop_invalid(environment: Mapping[str, str]) -> tuple[Config, frozenset[str]]:
    """Omit settings, or replace them with harmless values, until the others are valid."""
    kept = {**environment, "AP_ALLOW_INSECURE": "1"}
    refused: set[str] = set()
    while True:
        try:
            return load(kept)[0], frozenset(refused)
        except ConfigError as error:
            problems = error.problems
        # If none of these settings can be changed, those that they conflict with are changed.
        blamed = _changeable(kept, [problem.variable for problem in problems])
        blamed = blamed or _changeable(kept, [n for problem in problems for n in problem.related])
        if not blamed:
            return Config(allow_insecure=True), frozenset(VARIABLES)
        refused |= blamed
        for name in blamed:
            kept.pop(name, None)
            if name in _HARMLESS:
                kept[name] = _HARMLESS[name]


def _changeable(kept: Mapping[str, str], names: Iterable[str]) -> set[str]:
    return {n for n in names if n in VARIABLES and kept.get(n) != _HARMLESS.get(n)}


def place_of_variants(config: Config) -> tuple[str | None, str | None]:
    """Return the folder of the variants, or the name of their bucket."""
    match config.variant_store:
        case FileStore(path):
            return path, None
        case BucketStore(bucket):
            return None, bucket
    return None, None


def _summarize(config: Config) -> str:
    folder, bucket = place_of_variants(config)
    urls = "signed URLs, or insecure ones" if config.allow_insecure else "signed URLs"
    if previous := len(config.previous_key):
        urls += f", also of {previous} previous pair{'s' if previous > 1 else ''} of key and salt"
    kept = "variants are not stored"
    if folder or bucket:
        hits = {"redirect": "redirected to it", "proxy": "served by this service"}
        place = "folder" if folder else "bucket"
        kept = f"variants in a {place}, hits {hits[config.serve_mode]}"
    return f"{urls}; sources: {listed(_source_kinds(config) or ['none'])}; {kept}"


def _source_kinds(config: Config) -> list[str]:
    https = "https at public addresses" if config.source_deny_private else "https"
    if hosts := len(config.source_headers_file or ()):
        https += f" with headers for {format_count(hosts, 'host')}"
    kinds = {
        "local files": config.local_root is not None,
        "buckets": config.source_s3.configured,
        https: config.source_allowlist is not None,
    }
    return [kind for kind, there in kinds.items() if there]
