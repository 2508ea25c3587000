"""What the README says is what the code does."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import get_args

from twisted.internet.task import Clock
from twisted.python.reflect import ModuleNotFound, ObjectNotFound, namedAny
from twisted.trial.unittest import SynchronousTestCase

from audioproxy import errors
from audioproxy.config import VARIABLES
from audioproxy.grammar.options import Options
from audioproxy.grammar.signature import sign
from audioproxy.grammar.sources import LocalSource, Source, read_source
from audioproxy.metrics import Metrics
from audioproxy.process.slots import Slots

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def section(title: str) -> str:
    """Return the text under one heading of the README."""
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(title: str, table: int = 0) -> list[list[str]]:
    """Return the cells of a table under a heading, without its two header lines."""
    tables = re.findall(r"(?:^\|.*\n?)+", section(title), re.MULTILINE)
    lines = tables[table].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


class ReadmeTests(SynchronousTestCase):
    """A reader can trust every table and every example."""

    def test_every_variable_is_explained(self) -> None:
        """An operator finds every variable in the configuration table, and no other (D33)."""
        named = re.findall(r"`(A(?:P|WS)_\w+)`", " ".join(row[0] for row in rows("Configuration")))
        self.assertEqual(sorted(VARIABLES), sorted(named))

    def test_every_error_is_explained(self) -> None:
        """A client finds every error, with its status and its Cache-Control (D20)."""
        listed = {(int(row[0]), row[1].strip("`"), row[3].strip("`")) for row in rows("Errors")}
        raised = {
            (error.status, error.code, error.cache_control)
            for error in vars(errors).values()
            if isinstance(error, type)
            and issubclass(error, errors.Refusal)
            and error is not errors.Refusal
        }
        self.assertEqual(raised, listed)

    def test_every_metric_is_explained(self) -> None:
        """An operator finds every metric in its table, and no other (contract: Metrics)."""
        metrics = Metrics()
        metrics.watch(Slots(Clock(), 1, 1, 1))
        exposed = re.findall(r"^# TYPE (\w+)", metrics.exposition().decode(), re.MULTILINE)
        table = README.split("\n### Metrics\n")[1].split("\n## ")[0]
        self.assertEqual(sorted(exposed), sorted(re.findall(r"`(audio_proxy_\w+)`", table)))

    def test_every_option_is_explained(self) -> None:
        """A client finds every option (contract: Option classes)."""
        listed = {row[0].strip("`") for row in rows("What a URL says")}
        known = set(Options.__dataclass_fields__) | {"exp"}
        self.assertEqual(known, listed)

    def test_every_source_is_explained(self) -> None:
        """A client finds every kind of source, spelled as the service reads it (D15)."""
        parts = {"host": "host.example", "base64url": "bG9jYWw6Ly9hLm1wMw"}
        kinds = set()
        for row in rows("What a URL says", 1):
            spelling = re.sub(
                r"<(\w+)>", lambda match: parts.get(match[1], "x1y"), row[0].strip("`")
            )
            form, _, source = spelling.partition("/")
            kinds.add((form, type(read_source(form.encode(), source.encode()))))
        expected = {("plain", kind) for kind in get_args(Source)} | {("enc", LocalSource)}
        self.assertEqual(expected, kinds)

    def test_signing_example(self) -> None:
        """The signing example prints a path that the service accepts (Authentication, 1)."""
        code = section("The first minute").split("```python\n")[1].split("```")[0]
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, {})
        _, signature, path = printed.getvalue().strip().split("/", 2)
        expected = sign(bytes(32), b"\x01", b"/" + path.encode("ascii"))
        self.assertEqual(expected.decode("ascii"), signature)

    def test_links_lead_somewhere(self) -> None:
        """Every relative link of the README leads to a file of the project."""
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
            self.assertTrue((ROOT / target).is_file(), target)


class SecurityTests(SynchronousTestCase):
    """The threat table is worth its words."""

    def test_every_proof_exists(self) -> None:
        """Each test that a row names is there, be it a module, a class or a method of one."""
        text = (ROOT / "docs/security.md").read_text()
        rows = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
        proofs = [re.findall(r"`(tests\.[\w.]+)`", row) for row in rows]
        self.assertGreater(sum(map(len, proofs)), 30)
        for row, names in zip(rows, proofs, strict=True):
            self.assertTrue(names or row.endswith("| Shown by |"), row)
            for name in names:
                self.assertTrue(exists(name), name)


def exists(name: str) -> bool:
    """Tell whether a dotted name leads to a module, or to something in one."""
    try:
        namedAny(name)
    except (AttributeError, ModuleNotFound, ObjectNotFound):
        return False
    return True
