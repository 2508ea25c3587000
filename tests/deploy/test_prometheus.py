"""The rules that watch over nodes: sound, tested, and about what the service exposes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.config import Config
from audioproxy.metrics import Metrics
from audioproxy.web.metrics_resource import exposition
from tests.deploy.promql import PROMETHEUS, exposed, names, rules, run, unknown
from tests.test_metrics import FakePool, parse


def load(name: str) -> Any:
    """Return what a file of the folder says."""
    return yaml.safe_load((PROMETHEUS / name).read_text())


class PromtoolTests(SynchronousTestCase):
    """Prometheus's own tool agrees."""

    def assert_passes(self, *words: str | Path) -> None:
        """Require that promtool finds nothing."""
        status, said = run(*words)
        self.assertEqual(0, status, said)

    def test_rules(self) -> None:
        """Every rule can be loaded."""
        self.assert_passes("check", "rules", PROMETHEUS / "rules.yml")

    def test_configuration(self) -> None:
        """The example of a configuration can be loaded, with all the files that it names."""
        self.assert_passes("check", "config", PROMETHEUS / "scrape.yml")

    def test_alerts(self) -> None:
        """Every alert comes when it should, with the words that it should, and not before."""
        self.assert_passes("test", "rules", PROMETHEUS / "tests.yml")

    def test_fresh_node(self) -> None:
        """A node that has just started, and that nobody uses, sets off no alert."""
        metrics = Metrics()
        metrics.watch(FakePool(held=0, depth=0))
        lines = {'up{job="audioproxy", instance="a:9568"}': 1.0}
        for (name, labels), value in parse(exposition(metrics.registry)).items():
            told = (*labels, ("job", "audioproxy"), ("instance", "a:9568"))
            text = ", ".join(f'{label}="{word}"' for label, word in told)
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
    """What promtool does not look at."""

    def test_every_alert_is_tested(self) -> None:
        """Each alert has a test in which it comes, and one in which it stays away."""
        cases = [
            case
            for group in load("tests.yml")["tests"]
            for case in group.get("alert_rule_test", ())
        ]
        comes = {case["alertname"] for case in cases if case["exp_alerts"]}
        stays_away = {case["alertname"] for case in cases if not case["exp_alerts"]}
        alerts = rules("alert").keys()
        self.assertEqual((alerts, alerts), (comes, stays_away))

    def test_every_record_is_tested(self) -> None:
        """Each recorded series has a test that states its value."""
        tested: set[str] = set()
        for group in load("tests.yml")["tests"]:
            for case in group.get("promql_expr_test", ()):
                tested |= names(case["expr"])
        self.assertEqual(rules("record").keys(), tested)

    def test_what_rules_read(self) -> None:
        """Rules read series and values of labels that the service has (contract: Metrics 1)."""
        every = rules("record") | rules("alert")
        self.assertEqual([], unknown({title: rule["expr"] for title, rule in every.items()}))

    def test_what_tests_feed(self) -> None:
        """The tests feed the rules with series that the service has."""
        fed = {
            f"{group['name']}, {number}": row["series"].replace(", ", ",")
            for group in load("tests.yml")["tests"]
            for number, row in enumerate(group["input_series"])
        }
        self.assertEqual([], unknown(fed))

    def test_annotations(self) -> None:
        """Whoever is called learns what is wrong, and where it says what to do."""
        for name, alert in rules("alert").items():
            notes = alert["annotations"]
            self.assertEqual({"summary", "description", "runbook"}, notes.keys(), name)
            self.assertEqual(f"docs/operations.md#{name.lower()}", notes["runbook"])
            self.assertIn(alert["labels"]["severity"], ("critical", "warning"), name)

    def test_names_agree(self) -> None:
        """Rules ask for the job as it is scraped, at the place where a node listens by itself."""
        (job,) = load("scrape.yml")["scrape_configs"]
        for name, rule in rules("alert").items():
            if "up" in names(rule["expr"]):
                self.assertIn(f'up{{job="{job["job_name"]}"}}', rule["expr"], name)
        (target,) = load("targets.yml")[0]["targets"]
        self.assertEqual(
            f"{Config(allow_insecure=True).metrics_bind}:{Config(allow_insecure=True).metrics_port}",
            target,
        )


class ReadingTests(SynchronousTestCase):
    """The tests' own reading of expressions sees what is wrong."""

    def test_wrong_names_and_values(self) -> None:
        """A series, a label or a value that the service does not have is found."""
        for expression, complaint in (
            ("sum(rate(audio_proxy_http_request_total[5m]))", "no audio_proxy_http_request_total"),
            ('audio_proxy_http_requests_total{status=~"5xx|500"}', "is 500"),
            ('audio_proxy_renders_total{outcome!="canceled"}', "is canceled"),
            ('audio_proxy_renders_running{format="mp3"}', "has no format"),
            ("job:audio_proxy_nothing:rate5m > 1", "no job:audio_proxy_nothing:rate5m"),
        ):
            self.assertEqual(1, len(found := unknown({"it": expression})), expression)
            self.assertIn(complaint, found[0])

    def test_right_ones(self) -> None:
        """What the service has is not complained of, nor are functions and variables."""
        expression = (
            "histogram_quantile(0.9, sum by (le) (rate("
            'audio_proxy_render_duration_seconds_bucket{outcome="success",job="$job"}[5m])))'
        )
        self.assertEqual([], unknown({"it": expression}))
        self.assertEqual({"audio_proxy_render_duration_seconds_bucket"}, names(expression))
        self.assertIn("audio_proxy_renders_running", exposed())
