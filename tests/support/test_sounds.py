"""The cache of sources."""

from __future__ import annotations

import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.support.sounds import keep


class KeepTests(SynchronousTestCase):
    """`keep`"""

    def setUp(self) -> None:
        self.folder = Path(self.mktemp())
        self.made = 0

    def keep(self, *words: str, program: str = sys.executable, source: bytes = b"") -> None:
        """Keep two files, and require the right ones."""

        def make() -> dict[str, bytes]:
            self.made += 1
            return files

        files = {"a.flac": b"\n\0 of\xff" + source, "b": b""}
        self.assertEqual(files, keep(program, words, make, source, self.folder))

    def test_kept(self) -> None:
        """A command runs once for the same program, words, content of files and source."""
        other = Path(self.mktemp()).absolute()
        other.write_bytes(b"one")
        for _ in range(2):
            self.keep()
            self.keep("-f", "flac")
            self.keep("-f flac")
            self.keep(source=b"RIFF")
            self.keep(program="/bin/sh")
            self.keep(str(other))
        self.assertEqual(6, self.made)
        other.write_bytes(b"two")
        self.keep(str(other))
        self.assertEqual(7, self.made)

    def test_damaged(self) -> None:
        """An entry that is not what was written is made anew, and no scratch file stays."""
        self.keep()
        (path,) = self.folder.iterdir()
        whole = path.read_bytes()
        for damaged in (b"", whole[:20], whole[:-1], whole + b"x", whole[:-3] + b"x" + whole[-2:]):
            path.write_bytes(damaged)
            self.keep()
            self.assertEqual((whole, [path]), (path.read_bytes(), list(self.folder.iterdir())))
        self.assertEqual(6, self.made)
