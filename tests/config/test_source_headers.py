"""The file of AP_SOURCE_HEADERS_FILE (D59)."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from audioproxy.config import Config, ConfigError, read_source_headers
from audioproxy.config.source_headers import InvalidHeaders, check_access
from audioproxy.errors import InvalidValue
from tests.config.test_environment import SIGNED, ConfigCase

NAME = "AP_SOURCE_HEADERS_FILE"
HOSTS_REFUSED = "https://a.example *.example me:s3cret@a.example a.b?s3 a.b:0 é a,".split()
VALUES_REFUSED = ("", " s3cret\u2026", " s3\0cret", " s3\rcret", " s3cret\f")


class SourceHeadersTests(ConfigCase):
    """`read_source_headers`"""

    def write(self, text: str | bytes, mode: int = 0o600) -> str:
        """Write a file and return its path."""
        path = Path(self.mktemp()).resolve()
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        path.chmod(mode)
        return str(path)

    def test_lines(self) -> None:
        """A line is a host, a header with a colon, and a value; hosts are those of sources."""
        text = (
            "# Comments, é\r\n\r\n  media.example   Authorization:  Bearer a b:c, d==\r\n"
            "MEDIA.example.:443 X-Key:k#1\n\tmedia.example:8443\tX-Key: k2\n[0:0::1]:1 cookie: a=b"
        )
        headers = {
            "media.example": {"Authorization": "Bearer a b:c, d==", "X-Key": "k#1"},
            "media.example:8443": {"X-Key": "k2"},
            "[::1]:1": {"cookie": "a=b"},
        }
        allowlist = {"AP_SOURCE_ALLOWLIST": "*"}
        config = self.config(**allowlist, AP_SOURCE_HEADERS_FILE=self.write(text))
        self.assertEqual(headers, config.source_headers_file)
        self.assertNotIn("Bearer", repr(config))
        self.assertEqual({}, read_source_headers(self.write("")))
        self.assertIsNone(self.config().source_headers_file)

    def test_mistakes(self) -> None:
        """Every mistake is named with its line, and no text that may be a secret is quoted."""
        lines = {
            "s3cret": "the first word is not a host|no header and colon after the host",
            **dict.fromkeys(
                (f"{host} X: s3cret" for host in HOSTS_REFUSED), "the first word is not a host"
            ),
            "10.0.0.01:8443 X: s3cret": "the first word is a number",
            "0x7f.1 X: s3cret": "the first word is a number",
            "a.example X s3cret: s3cret": "no header and colon after the host",
            "a.example : s3cret": "no header and colon after the host",
            **dict.fromkeys(
                (f"a.example X:{value}" for value in VALUES_REFUSED), "the value is empty, or has"
            ),
            "a.example Y: one": "",
            "A.example y: s3cret": "the host and the header of line 18",
            **{
                f"a.example {name}: s3cret": f"the service itself decides about {name}"
                for name in (
                    "Host Connection Keep-Alive Proxy-Authorization Proxy-Connection TE Trailer"
                    " Transfer-Encoding Upgrade Content-Length Content-Type Expect Range If-Match"
                    " If-Range If-None-Match Accept-Encoding HTTP2-Settings"
                ).split()
            },
        }
        problems = self.problems(SIGNED | {NAME: self.write("\n".join(lines))})
        expected = [
            f"{NAME}: line {number}: ({text})"
            for number, text in enumerate(lines.values(), 1)
            if text
        ]
        self.assertEqual(len(expected), len(problems))
        for pattern, problem in zip(expected, problems, strict=True):
            self.assertRegex(problem, pattern)
            self.assertNotIn("cret", problem)
        path = self.write(b"a.example X: \xff\xfe\nb X:")
        error = self.assertRaises(InvalidHeaders, read_source_headers, path)
        self.assertEqual(2, len(error.mistakes))

    def test_encoding(self) -> None:
        """A byte-order mark and UTF-16, which editors of Windows write, are named once."""
        text = "a.example X: s3cret\nb.example X:"
        for data, lines in (
            (text.encode("utf-8-sig"), [2]),
            (f"# s3cret\n{text}".encode("utf-8-sig"), [3]),
            (text.encode("utf-16"), []),
            (text.encode("utf-16-be"), []),
        ):
            first, *others = self.problems(SIGNED | {NAME: self.write(data)})
            self.assertRegex(first, "is UTF-16|has a byte-order mark")
            self.assertIn("UTF-8 without a byte-order mark is required", first)
            self.assertNotIn("cret", first)
            self.assertEqual([f"{NAME}: line {n}" for n in lines], [o[:30] for o in others])

    def test_length(self) -> None:
        """The headers of one host have at most 16 KiB, which is the most that servers accept."""
        value = "v" * (16_384 - len("X: \r\n"))
        read_source_headers(self.write(f"a.example X: {value}\nb.example X: {value}"))
        for lines in (
            ["a.example X: 1", f"a.example Y: {value}", "a.example Z: 1"],
            ["b.example X: 1", f"a.example Y: {value}v", "a.example Z: 1"],
            [f"a.example X: {value[:9000]}", f"a.example Y: {value[:9000]}", "a.example Z: 1"],
            ["", f"a.example X: {'s3cret' * 40_000}"],
        ):
            (problem,) = self.problems(SIGNED | {NAME: self.write("\n".join(lines))})
            self.assertIn("line 2: the headers of the host have more than 16384 bytes", problem)
            self.assertLess(len(problem), 250)

    def test_empty(self) -> None:
        """A file without a header causes a warning."""
        path = self.write("# Authorization: s3cret\n")
        (warning,) = self.warnings(AP_SOURCE_HEADERS_FILE=path)
        self.assertIn("the file has no header", warning)

    def test_access(self) -> None:
        """Only the owner may read or change the file; its mistakes are named too.

        A file of root that another user can read was given to it by root.
        """
        for mode in (0o604, 0o640, 0o620, 0o602, 0o601):
            first, second = self.problems(SIGNED | {NAME: self.write("a X:", mode)})
            self.assertRegex(
                first, f"others than its owner can .* \\(mode {mode:04o}\\); chmod 600"
            )
            self.assertIn("line 1: ", second)
        read_source_headers(self.write("", 0o400))
        for owner, mode, is_refused in ((0, 0o440, False), (0, 0o444, True), (1000, 0o440, True)):
            status = os.stat_result((mode, 0, 0, 1, owner, 0, 0, 0, 0, 0))
            with self.assertRaises(InvalidValue) if is_refused else nullcontext():
                check_access(status, 1000)
        wanted = "an existing regular file, readable by this process, is required"
        self.assert_refused(NAME, (self.folder(), self.mktemp()), wanted)

    def test_never_sent(self) -> None:
        """A host whose sources are refused causes a warning."""
        path = self.write("a.example X: s3cret\nb.example:1 X: s3cret")
        self.assertEqual((), self.warnings(AP_SOURCE_HEADERS_FILE=path, AP_SOURCE_ALLOWLIST="*"))
        for allowlist, hosts in (
            ({"AP_SOURCE_ALLOWLIST": "b.example"}, ["a.example"]),
            ({}, ["a.example", "b.example:1"]),
        ):
            warnings = self.warnings(AP_SOURCE_HEADERS_FILE=path, **allowlist)
            for host, warning in zip(hosts, warnings, strict=True):
                self.assertIn(f"the headers for {host} are never sent", warning)

    def test_in_code(self) -> None:
        """An embedding application passes the headers by host, in any spelling."""
        headers = {"A.example:443": {"X": "s3cret"}}
        config = Config(allow_insecure=True, source_headers_file=headers, source_deny_private=True)
        self.assertEqual({"a.example": {"X": "s3cret"}}, config.source_headers_file)
        self.assertNotIn("s3cret", repr(config))

    def test_mistakes_in_code(self) -> None:
        """Mistakes in the headers that an application passes are named as those of a file."""
        no_text = "int in place of text; str is required"
        for headers, text in (
            ([], "list; a mapping of headers by host is required"),
            ({5: {"X": "s3cret"}}, f"host 1: {no_text}"),
            ({"b.example": {}, "a.example": "X: s3cret"}, "host 2: str; a mapping of values"),
            ({"a.example": {"X": 5}}, f"host 1: {no_text}"),
            ({"a.example": {5: "s3cret"}}, f"host 1: {no_text}"),
            ({"https://a.example": {"X": "s3cret"}}, "host 1: the key is not a host"),
            ({"a.example": {"X": "1"}, "A.example.": {"x": "2"}}, "host 2: the host and the"),
        ):
            settings: dict[str, Any] = {"allow_insecure": True, "source_headers_file": headers}
            error = self.assertRaises(ConfigError, Config, **settings)
            (problem,) = map(str, error.problems)
            self.assertTrue(problem.startswith(f"{NAME}: {text}"), problem)
            self.assertNotIn("cret", problem)
