"""The libraries of ``examples/clients`` build and refuse the same URLs as `audioproxy.urls`."""

from __future__ import annotations

import json
import os
import re
from dataclasses import fields
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.formats import FORMATS
from audioproxy.urls import Variant
from tests.deploy.balancer import installed
from tests.support.runs import output_of, run_program
from tests.support.service import PROJECT
from tests.urls.calls import answer, mismatch, more_calls, vectors

#: Environments that `Signer.from_env` accepts or refuses.
ENVIRONMENTS = (
    {"AP_KEY": "0A" * 32, "AP_SALT": "ff"},
    {"AP_KEY": "00" * 32},
    {"AP_KEY": "", "AP_SALT": "01"},
    {"AP_KEY": "00" * 31, "AP_SALT": "01"},
    {"AP_KEY": "0" * 65, "AP_SALT": "01"},
    {"AP_KEY": "00" * 32 + "\n", "AP_SALT": "01"},
    {"AP_KEY": "00" * 32, "AP_SALT": "0x01"},
)


class ClientTests(SynchronousTestCase):
    """Clients in other languages"""

    def answers(self, program: str, *words: str, calls: list[Any]) -> list[dict[str, Any]]:
        """Return the answers of a program in ``tests/urls/clients``, the last of its words."""
        *options, file = words
        options += [PROJECT / "tests/urls/clients" / file]
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
        path = installed(program, "AUDIOPROXY_LANGUAGES")
        text = output_of(path, *options, environment=environment, input=json.dumps(calls))
        answers: list[dict[str, Any]] = json.loads(text)
        self.assertEqual(len(calls), len(answers))
        return answers

    def check(self, program: str, *words: str) -> None:
        """Compare the answers of a client with the vectors and with those of `audioproxy.urls`."""
        published = list(vectors())
        environments = [{"call": "from_env", "environ": each} for each in ENVIRONMENTS]
        calls = [call for call, _ in published] + environments + list(more_calls())
        found = self.answers(program, *words, calls=calls)
        wrong = [mismatch(*row, got) for row, got in zip(published, found, strict=False)]
        for call, got in zip(calls, found, strict=True):
            here = answer(call)
            # The functions `local`, `s3` and `https` may name things of their language.
            if here.get("code") and call["call"] in ("read", "read_source", "url"):
                here["says"] = here["message"]
            wrong.append(mismatch(call, here, got))
        differences = [text for text in wrong if text]
        self.assertFalse(differences, "\n".join(differences[:20]))

    def test_javascript(self) -> None:
        """The JavaScript client answers all vectors, and more calls as `audioproxy.urls` does."""
        self.check("node", "run.mjs")

    def test_javascript_options(self) -> None:
        """Options that a method does not have are refused: an expiry is never ignored."""
        module = (PROJECT / "examples/clients/javascript/index.js").as_uri()
        start = f"""
            import {{ Signer }} from "{module}";
            const signer = new Signer(new Uint8Array(32), new Uint8Array(1));
        """
        for call, reason in (
            ("url('local://a', {}, 3600)", "options: 'number' is not accepted"),
            ("url('local://a', {}, { expires: 1 })", "url: expires is not an option"),
            (
                "url('local://a', {}, { expiresAt: '2030' })",
                "use a number of Unix seconds or a Date",
            ),
            ("audioElement('local://a', {}, { formats: 'mp3' })", "formats: 'string' is not"),
            ("infoUrl('local://a', { expiresIn: 1 })", "infoUrl: it has no options"),
        ):
            command = (installed("node", "AUDIOPROXY_LANGUAGES"), "--input-type=module", "-")
            ended = run_program(*command, input=f"{start}signer.{call};")
            self.assertIn("TypeError", ended.err, call)
            self.assertIn(reason, ended.err, call)

    def test_php(self) -> None:
        """The PHP client answers all vectors, and more calls as `audioproxy.urls` does."""
        for precision in ("17", "5"):
            self.check("php", "-d", f"precision={precision}", "run.php")

    def test_ruby(self) -> None:
        """The Ruby client answers all vectors, and more calls as `audioproxy.urls` does."""
        self.check("ruby", "run.rb")

    def test_types(self) -> None:
        """The types of JavaScript have every option, every format and every name of the module."""
        folder = PROJECT / "examples/clients/javascript"
        types = (folder / "index.d.ts").read_text()
        exported = r"^export (?:declare )?(?:class|function) (\w+)"
        names = re.findall(exported, (folder / "index.js").read_text(), re.MULTILINE)
        self.assertEqual(sorted(names), sorted(re.findall(exported, types, re.MULTILINE)))
        options = re.search(r"interface Options \{(.*?)^\}", types, re.DOTALL | re.MULTILINE)
        assert options is not None
        self.assertEqual(
            [row.name for row in fields(Variant) if row.init],
            re.findall(r"^  (\w+)\?:", options[1], re.MULTILINE),
        )
        union = re.search(r"type Format =([^;]*);", types)
        assert union is not None
        self.assertEqual(list(FORMATS), re.findall(r'"(\w+)"', union[1]))
