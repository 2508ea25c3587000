"""The rights of each kind of child."""

from __future__ import annotations

import shutil
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.process.cell import CellStarter, ConfinedProgram


def options(words: list[str]) -> dict[str, list[str]]:
    """Return the arguments of each option of audioproxy-cell."""
    found: dict[str, list[str]] = {}
    rest = iter(words[1 : words.index("--")])
    for option in rest:
        arguments = found.setdefault(option, [])
        if option not in ("-k", "-c", "-s"):
            arguments.append(next(rest))
    return found


class RightsTests(SynchronousTestCase):
    """The command lines of `CellStarter`"""

    cells = CellStarter("/x/cell", {"/x/ffmpeg": ConfinedProgram(("/x/ffmpeg", "/ld.so"), False)})

    def rights(self, *arguments: str, descriptors: tuple[int, ...] = ()) -> dict[str, list[str]]:
        """Return the rights of ffmpeg with arguments."""
        words = self.cells.command_line(["/x/ffmpeg", *arguments], descriptors, {})
        self.assertEqual(["--", "/x/ffmpeg", *arguments], words[words.index("--") :])
        return options(words)

    def test_no_source(self) -> None:
        """A child without a source, or that reads a pipe, opens its program and no other file."""
        for descriptors in (), (0, 1):
            rights = self.rights("-version", descriptors=descriptors)
            self.assertEqual({"-k", "-n", "-c", "-r", "-w", "-x"}, rights.keys())
            self.assertEqual(["/x/ffmpeg", "/ld.so"], rights["-x"])
            self.assertEqual(["/dev/null"], rights["-w"])
            readable = set(rights["-r"])
            others = {path for path in readable if not path.endswith(("/lib", "/lib64"))}
            self.assertEqual({"/etc/ld.so.cache", "/dev/urandom"}, others)

    def test_libraries(self) -> None:
        """The libraries beside a program are those of the version that a link leads to."""
        folder = Path(self.mktemp()).resolve()
        link = folder / "link"
        folder.mkdir()
        program = f"{link}/bin/ffmpeg"
        cells = CellStarter("/x/cell", {program: ConfinedProgram((program,), False)})
        for version in "1", "2":
            link.unlink(missing_ok=True)
            link.symlink_to(version)
            words = cells.command_line([program], (), {})
            found = [path for path in options(words)["-r"] if path.startswith(str(folder))]
            self.assertEqual([f"{folder}/{version}/lib"], found)

    def test_local(self) -> None:
        """A child with an open source may open that file again, and has no network."""
        rights = self.rights("-i", "file:/dev/fd/3", descriptors=(1, 3))
        self.assertEqual((["3"], None), (rights["-d"], rights.get("-p")))

    def test_linked(self) -> None:
        """A linked program reads its source and random numbers; none reads a remote source."""
        words = self.cells.request(["/x/ffmpeg", "-i", "file:/dev/fd/3"], (1, 3), {})
        assert words is not None
        rights = options(["", *words])
        self.assertEqual({"-k", "-n", "-c", "-r", "-w", "-d"}, rights.keys())
        self.assertEqual((["/dev/urandom"], ["3"]), (rights["-r"], rights["-d"]))
        self.assertIsNone(self.cells.request(["/x/ffmpeg", "-i", "https://x.test/a"], (1,), {}))

    def test_remote(self) -> None:
        """A child with a URL may connect to its port, look up names and read the authorities."""
        for url, port in (
            ("https://origin.test/a.wav", "443"),
            ("https://origin.test:8443/a.wav", "8443"),
            ("http://[::1]:9000/bucket/a.wav?X-Amz-Date=1", "9000"),
            ("http://store.test/a.wav", "80"),
        ):
            rights = self.rights("-ca_file", "/x/ca.pem", "-i", url, descriptors=(1,))
            self.assertEqual((None, [port, "53"]), (rights.get("-d"), rights["-p"]), url)
            self.assertLessEqual({"/etc/resolv.conf", "/x/ca.pem"}, set(rights["-r"]))

    def test_words_that_look_like_a_source(self) -> None:
        """Values of other options grant nothing."""
        words = ("-i", "file:/dev/fd/3", "-metadata", "title=-i", "-metadata", "https://x.test")
        self.assertNotIn("-p", self.rights(*words, descriptors=(3,)))

    def test_other_programs(self) -> None:
        """Other programs have limits and the parent-death signal, but no cell (D40)."""
        words = self.cells.command_line(["/x/python", "-m", "a"], (), {"core": (0, 1)})
        self.assertEqual(
            ["/x/cell", "-k", "-n", "10", "-l", "4=0:1", "--", "/x/python", "-m", "a"], words
        )
        bare = self.cells.command_line(["true"], (), {})
        self.assertEqual(["/x/cell", "-k", "-n", "10", "--", shutil.which("true")], bare)
