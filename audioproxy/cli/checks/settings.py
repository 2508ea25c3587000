"""The settings: what is wrong with them, and what is left to go on with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from audioproxy.cli.checks.results import Finding, Verdict, about_setting, bad, good
from audioproxy.config import VARIABLES, BucketStore, Config, ConfigError, FileStore, load
from audioproxy.config.values import listed

# What makes peace where a setting is in conflict with another one; all others are left out.
_HARMLESS = {"AP_ALLOW_INSECURE": "1", "AP_SERVE_MODE": "proxy"}
_NAMES = re.compile(r"\b(?:AP|AWS)_[A-Z0-9_]+")
_OF_SOURCES = {
    "AP_LOCAL_ROOT",
    "AP_SOURCE_ALLOWLIST",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
}


@dataclass(frozen=True, slots=True)
class Settled:
    """The settings as far as they can be used.

    :ivar refused: names of those that cannot, and that `config` is without.
    :ivar findings: what there is to say of them.
    """

    config: Config
    refused: frozenset[str]
    findings: tuple[Finding, ...]


def settle(environment: Mapping[str, str]) -> Settled:
    """Read the settings, and where that is refused, those that can be read."""
    try:
        config, warnings = load(environment)
    except ConfigError as error:
        problems, warnings = error.problems, error.warnings
        config, refused = _rescue(environment)
    else:
        problems, refused = (), frozenset()
    findings = [about_setting(Verdict.BAD, problem) for problem in problems]
    findings += [about_setting(Verdict.NOTE, warning) for warning in warnings]
    if not problems:
        findings.insert(0, good("settings", _sum_up(config)))
    if not _kinds(config) and _OF_SOURCES.isdisjoint(refused):
        findings.append(
            bad(
                "sources",
                "there are none; set AP_LOCAL_ROOT to the directory that they lie in, or"
                " AP_SOURCE_ALLOWLIST to https hosts, or AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY"
                " and AWS_REGION for those in buckets",
            )
        )
    return Settled(config, refused, tuple(findings))


def _rescue(environment: Mapping[str, str]) -> tuple[Config, frozenset[str]]:
    """Leave settings out, or make them harmless, until nothing is wrong with the others."""
    kept = {**environment, "AP_ALLOW_INSECURE": "1"}
    refused: set[str] = set()
    while True:
        try:
            return load(kept)[0], frozenset(refused)
        except ConfigError as error:
            problems = error.problems
        # First what a problem begins with; where that is not set, all that is in conflict with it.
        blamed = _changeable(kept, {problem.partition(":")[0] for problem in problems})
        blamed = blamed or _changeable(kept, set(_NAMES.findall("\n".join(problems))))
        if not blamed:
            return Config(allow_insecure=True), frozenset(VARIABLES)
        refused |= blamed
        for name in blamed:
            kept.pop(name, None)
            if name in _HARMLESS:
                kept[name] = _HARMLESS[name]


def _changeable(kept: Mapping[str, str], names: set[str]) -> set[str]:
    known = names.intersection(VARIABLES)
    return {name for name in known if kept.get(name) != _HARMLESS.get(name)}


def _sum_up(config: Config) -> str:
    where = config.variant_store
    store = {FileStore: "variants in a folder", BucketStore: "variants in a bucket"}
    urls = "URLs signed or insecure" if config.allow_insecure else "URLs signed"
    kept = store.get(type(where), "no variants kept")
    hits = {"redirect": ", hits redirected there", "proxy": ", hits served from here"}
    how = "" if where is None else hits[config.serve_mode]
    return f"{urls}; sources: {listed(_kinds(config) or ['none'])}; {kept}{how}"


def _kinds(config: Config) -> list[str]:
    kinds = {
        "local files": config.local_root is not None,
        "buckets": config.source_s3.configured,
        "https": config.source_allowlist is not None,
    }
    return [kind for kind, there in kinds.items() if there]
