"""The Prometheus rules: valid, tested, and about series that the service exposes."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.config import Config
from audioproxy.observe.metrics import Metrics
from audioproxy.web.metrics_resource import exposition
from tests.deploy.promql import PROMETHEUS, rules, run_promtool, unknown
from tests.observe.test_metrics import FakePool, full, parse
from tests.support.service import PROJECT

ALERTS = (PROJECT / "docs/operations.md").read_text().partition("\n## Alerts\n")[2]


@cache
def load(name: str) -> Any:
    """Return the parsed content of a file of the folder."""
    return yaml.safe_load((PROMETHEUS / name).read_text())


class PromtoolTests(SynchronousTestCase):
    """promtool accepts the files."""

    def assert_passes(self, *words: str | Path, stdin: str = "") -> None:
        """Assert that promtool finds no error."""
        status, output = run_promtool(*words, stdin=stdin)
        self.assertEqual(0, status, output)

    def test_exposition(self) -> None:
        """promtool accepts what the service exposes."""
        self.assert_passes("check", "metrics", stdin=exposition(full().registry).decode())

    def test_rules(self) -> None:
        """promtool loads every rule."""
        self.assert_passes("check", "rules", PROMETHEUS / "rules.yml")

    def test_configuration(self) -> None:
        """promtool loads the example configuration, with all files that it names."""
        self.assert_passes("check", "config", PROMETHEUS / "scrape.yml")

    def test_alerts(self) -> None:
        """Every alert fires when it should, with the right texts, and not earlier."""
        self.assert_passes("test", "rules", PROMETHEUS / "tests.yml")

    def test_fresh_node(self) -> None:
        """A new node without requests fires no alert."""
        metrics = Metrics()
        metrics.watch(FakePool(held=0, depth=0))
        lines = {'up{job="audioproxy", instance="a:9568"}': 1.0}
        for (name, labels), value in parse(exposition(metrics.registry)).items():
            all_labels = (*labels, ("job", "audioproxy"), ("instance", "a:9568"))
            text = ", ".join(f'{label}="{word}"' for label, word in all_labels)
            lines[f"audio_proxy_{name}{{{text}}}"] = value
        document = {
            "rule_files": [str(PROMETHEUS / "rules.yml")],
            "tests": [
                {
                    "interval": "1m",
                    "input_series": [
                        {"series": series, "values": f"{value}x90"}
                        for series, value in lines.items()
                    ],
                    "alert_rule_test": [
                        {"alertname": alert, "eval_time": time, "exp_alerts": []}
                        for alert in rules("alert")
                        for time in ("1m", "20m", "90m")
                    ],
                }
            ],
        }
        path = Path(self.mktemp())
        path.write_text(yaml.safe_dump(document))
        self.assert_passes("test", "rules", path)


class RulesTests(SynchronousTestCase):
    """Checks that promtool does not make."""

    def test_every_alert_is_tested(self) -> None:
        """Each alert has a test in which it fires, and one in which it does not."""
        cases = [
            case
            for group in load("tests.yml")["tests"]
            for case in group.get("alert_rule_test", ())
        ]
        firing = {case["alertname"] for case in cases if case["exp_alerts"]}
        not_firing = {case["alertname"] for case in cases if not case["exp_alerts"]}
        alerts = rules("alert").keys()
        self.assertEqual((alerts, alerts), (firing, not_firing))

    def test_every_record_is_tested(self) -> None:
        """Each recorded series has a test that states its value."""
        groups = load("tests.yml")["tests"]
        cases = [case for group in groups for case in group.get("promql_expr_test", ())]
        tested = {name for name in rules("record") if any(name in case["expr"] for case in cases)}
        self.assertEqual(rules("record").keys(), tested)

    def test_what_rules_read(self) -> None:
        """Rules read only series and label values of the service (Metrics, 1)."""
        for rule in (*rules("record").values(), *rules("alert").values()):
            self.assertEqual(set(), unknown(rule["expr"]))
        for wrong in (
            "sum(rate(audio_proxy_http_request_total[5m]))",
            'audio_proxy_http_requests_total{status=~"5xx|500"}',
            'audio_proxy_renders_running{format="mp3"}',
            "job:audio_proxy_nothing:rate5m > 1",
        ):
            self.assertEqual(1, len(unknown(wrong)), wrong)

    def test_what_tests_feed(self) -> None:
        """The rule tests use only series of the service."""
        groups = load("tests.yml")["tests"]
        fed = [row["series"] for group in groups for row in group["input_series"]]
        self.assertEqual(set(), unknown(*fed))

    def test_instructions(self) -> None:
        """The section of each alert has commands to type."""
        for name in rules("alert"):
            (section,) = re.findall(
                rf"^### {name}\n(.*?)(?=^###|\Z)", ALERTS, re.DOTALL | re.MULTILINE
            )
            self.assertIn("\n```sh\n", section, name)

    def test_names_agree(self) -> None:
        """The rules use the scrape job's name, and the target is the default metrics address."""
        (job,) = load("scrape.yml")["scrape_configs"]
        for name, rule in rules("alert").items():
            for selector in re.findall(r"\bup\b(.{,20})", rule["expr"]):
                self.assertTrue(selector.startswith(f'{{job="{job["job_name"]}"}}'), name)
        (target,) = load("targets.yml")[0]["targets"]
        self.assertEqual(
            f"{Config(allow_insecure=True).metrics_bind}:{Config(allow_insecure=True).metrics_port}",
            target,
        )
