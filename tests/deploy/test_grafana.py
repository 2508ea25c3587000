"""The dashboard: it has every metric, and only series of the service."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml
from twisted.trial.unittest import SynchronousTestCase

from tests.deploy.promql import metrics, rules, run_promtool, unknown
from tests.support.service import PROJECT

DASHBOARD = json.loads((PROJECT / "deploy/grafana/audioproxy.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]

#: The values with which Grafana replaces its variables.
VALUES = {"__rate_interval": "1m", "job": "audioproxy", "instance": "a:9568|b:9568"}


def expressions() -> dict[str, str]:
    """Return every expression by its panel's title and its refId, or by its annotation's name."""
    found = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in PANELS
        for target in panel["targets"]
    }
    return found | {note["name"]: note["expr"] for note in DASHBOARD["annotations"]["list"]}


class ExpressionTests(SynchronousTestCase):
    """Series, label values and alerts of the dashboard."""

    def test_every_metric(self) -> None:
        """Each of the metrics is on a panel (Metrics)."""
        shown = " ".join(target["expr"] for panel in PANELS for target in panel["targets"])
        for name in metrics():
            self.assertRegex(shown, rf"\b{name}(_bucket|_sum|_count)?\b")

    def test_what_panels_read(self) -> None:
        """Panels read only series and label values of the service."""
        notes = {note["name"] for note in DASHBOARD["annotations"]["list"]}
        read = [text for title, text in expressions().items() if title not in notes]
        self.assertEqual(set(), unknown(*read))

    def test_syntax(self) -> None:
        """Prometheus accepts every expression."""
        written = [
            {
                "record": f"panel:{number}",
                "expr": re.sub(r"\$(\w+)", lambda variable: VALUES[variable[1]], expression),
            }
            for number, expression in enumerate(expressions().values())
        ]
        path = Path(self.mktemp())
        path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": written}]}))
        status, output = run_promtool("check", "rules", path)
        self.assertEqual(0, status, output)
        self.assertIn(f"{len(written)} rules", output)

    def test_choice_of_nodes(self) -> None:
        """When a user selects nodes, every panel shows exactly the selected nodes."""
        for title, expression in expressions().items():
            if not expression.startswith("ALERTS"):
                for selector in re.findall(r"\w+\{([^}]*)\}", expression):
                    self.assertIn('job="$job", instance=~"$instance"', selector, title)
                self.assertNotRegex(expression, r"(audio_proxy_\w+|\bup)(?!\w|\{)", title)

    def test_alerts(self) -> None:
        """Every alert of the rules is shown as an annotation."""
        (note,) = DASHBOARD["annotations"]["list"]
        (pattern,) = re.findall(r'alertname=~"([^"]*)"', note["expr"])
        for alert in rules("alert"):
            self.assertRegex(alert, f"^(?:{pattern})$")
