"""The series that Prometheus expressions read, and the series that the service exposes."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from audioproxy.web.metrics_resource import exposition
from tests.deploy.balancer import installed
from tests.observe.test_metrics import full, parse
from tests.support.runs import run_program
from tests.support.service import PROJECT

PROMETHEUS = PROJECT / "deploy/prometheus"

#: The name of a series in an expression without its texts: one of the service, of its process, or a
#: recorded one.
_NAME = re.compile(r"(?<![\w:])(?:(?:audio_proxy|process|python)_\w+|\w+:[\w:]+)(?!\w)")
_SELECTOR = re.compile(r"([\w:]+)\{([^}]*)\}")
_MATCHER = re.compile(r'(\w+)(?:=~?|!=|!~)"([^"]*)"')
#: Labels whose values are not a fixed set; Prometheus adds the last two to each series.
_ANY_TEXT = {"version", "ffmpeg", "job", "instance"}


@cache
def exposed() -> dict[str, dict[str, set[str]]]:
    """Return the possible values of each label of each series of the service."""
    found: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for name, labels in parse(exposition(full().registry)):
        series = found[f"audio_proxy_{name}"]
        for label, value in labels:
            series[label].add(value)
    # A histogram has a series only after an event. Its labels are those of the counter of renders.
    outcomes = found["audio_proxy_renders_total"]
    for part in ("bucket", "sum", "count"):
        found[f"audio_proxy_render_duration_seconds_{part}"].update(outcomes)
    for name in _types():
        # Those of the process and the platform, whose labels no expression uses.
        found[name].update()
    return {name: dict(labels) for name, labels in found.items()}


@cache
def metrics() -> set[str]:
    """Return the names of the service's own metrics, as in their TYPE lines."""
    return {name for name in _types() if name.startswith("audio_proxy_")}


def _types() -> list[str]:
    return re.findall(r"^# TYPE (\w+)", exposition(full().registry).decode(), re.MULTILINE)


@cache
def rules(kind: str) -> dict[str, dict[str, Any]]:
    """Return the recording rules or the alerting rules, by their names."""
    groups = yaml.safe_load((PROMETHEUS / "rules.yml").read_text())["groups"]
    return {rule[kind]: rule for group in groups for rule in group["rules"] if kind in rule}


def unknown(*expressions: str) -> set[str]:
    """Return the series, labels and values in expressions that the service and rules lack."""
    series, found = exposed(), set[str]()
    for expression in expressions:
        names = set(_NAME.findall(re.sub('"[^"]*"', "", expression)))
        found |= names - series.keys() - rules("record").keys()
        for name, conditions in _SELECTOR.findall(expression):
            for label, text in _MATCHER.findall(conditions):
                known = series.get(name, {}).get(label, set())
                if label not in _ANY_TEXT:
                    wrong = {value for value in text.split("|") if value[:1] != "$"} - known
                    found |= {f"{label}={value} of {name}" for value in wrong}
    return found


def run_promtool(*words: str | Path, stdin: str = "") -> tuple[int, str]:
    """Return the exit status of promtool, and its output.

    :param stdin: its input.
    :raises SkipTest: where promtool is missing and not required.
    """
    # GOMAXPROCS leaves the other cores to parallel tests. GOGC delays garbage collection: promtool
    # ends before it is needed.
    environment = {"GOMAXPROCS": "1", "GOGC": "400"}
    ended = run_program(installed("promtool"), *words, environment=environment, input=stdin)
    return ended.status, ended.out + ended.err
