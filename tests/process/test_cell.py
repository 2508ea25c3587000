"""The rights of each kind of child."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.process import cell
from audioproxy.process.cell import CellStarter, ConfinedProgram
from audioproxy.process.fork_server import VARIABLES


def options(words: list[str]) -> dict[str, list[str]]:
    """Return the arguments of each option of audioproxy-cell."""
    found: dict[str, list[str]] = {}
    rest = iter(words[1 : words.index("--")])
    for option in rest:
        arguments = found.setdefault(option, [])
        if option not in ("-k", "-c", "-m", "-s"):
            arguments.append(next(rest))
    return found


class LibraryTests(SynchronousTestCase):
    """What ``cell.c`` repeats"""

    def test_variables(self) -> None:
        """The library removes all variables of a server, and no others."""
        source = Path(cell.__file__).with_suffix(".c").read_text("utf-8")
        (names,) = re.findall(r"own_variables\[\] = \{(.*?)\}", source, re.DOTALL)
        self.assertEqual([*VARIABLES], re.findall(r'"(\w+)"', names))


class RightsTests(SynchronousTestCase):
    """The command lines of `CellStarter`"""

    cells = CellStarter("/x/cell", {"/x/ffmpeg": ConfinedProgram(("/x/ffmpeg", "/ld.so"), False)})

    def rights(self, *arguments: str, descriptors: tuple[int, ...] = ()) -> dict[str, list[str]]:
        """Return the rights of ffmpeg with arguments."""
        words = self.cells.command_line(["/x/ffmpeg", *arguments], descriptors, {})
        self.assertEqual(["--", "/x/ffmpeg", *arguments], words[words.index("--") :])
        return options(words)

    def test_rights(self) -> None:
        """A child opens its program, and the file of its source, if it has one, but no other file.

        A linked program reads its source and random numbers. Only where it has a map of its source,
        it asks for what is missing. It may not open the map.
        """
        executing, linked = {"-k", "-n", "-c", "-r", "-w", "-x"}, {"-k", "-n", "-c", "-r", "-w"}
        for descriptors, own in (((), set()), ((0, 1), set()), ((1, 3, 7), {"-d"})):
            rights = self.rights("-i", "file:/dev/fd/3", descriptors=descriptors)
            self.assertEqual(executing | own, rights.keys())
            self.assertEqual(["/x/ffmpeg", "/ld.so"], rights["-x"])
            self.assertEqual(["/dev/null"], rights["-w"])
            self.assertEqual(["3"] if own else None, rights.get("-d"))
            others = {path for path in rights["-r"] if not path.endswith(("/lib", "/lib64"))}
            self.assertEqual({"/etc/ld.so.cache", "/dev/urandom"}, others)
        for descriptors, own in (((1, 3), {"-d"}), ((1, 3, 4, 5), {"-d", "-m"})):
            words = self.cells.request(["/x/ffmpeg", "-i", "file:/dev/fd/3"], descriptors, {})
            rights = options(["", *words])
            self.assertEqual(linked | own, rights.keys())
            self.assertEqual((["/dev/urandom"], ["3"]), (rights["-r"], rights["-d"]))

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

    def test_other_programs(self) -> None:
        """Other programs have limits and the parent-death signal, but no cell (D40)."""
        words = self.cells.command_line(["/x/python", "-m", "a"], (), {"core": (0, 1)})
        self.assertEqual(
            ["/x/cell", "-k", "-n", "10", "-l", "4=0:1", "--", "/x/python", "-m", "a"], words
        )
        bare = self.cells.command_line(["true"], (), {})
        self.assertEqual(["/x/cell", "-k", "-n", "10", "--", shutil.which("true")], bare)
