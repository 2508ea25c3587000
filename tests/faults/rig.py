"""A node whose calls fail, and the checks after each fault."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from audioproxy.variants.stored_file import open_variant
from audioproxy.variants.usage import StoreUsage
from tests.faults.calls import Call, Page
from tests.faults.fitting import Fault
from tests.support.http import Response
from tests.support.service import Process, children, send, until

#: The end of the names of files of output.
OUTPUT = ".output"

#: Seconds for a response, and for the node to be at rest after it.
LIMIT = 15.0

#: The errors that a client may get because a call has failed.
_DOCUMENTED = {"render_failed", "probe_failed", "upstream_unavailable"}
_BAD_LINE = re.compile(r"Traceback|Unhandled|crash|\[critical\]")
# Twisted goes on, and has a traceback for that.
_HANDLED = "Could not reserve EMFILE recovery file descriptor."
# The findings that no line of a log decides.
_OF_STORE = ("the variant", "the ledger", "it leaks")
# The access log line of a response that was cut.
_CUT = re.compile(r"\] \w+ 200 \w+ ")


@dataclass
class Findings:
    """What is wrong after a fault."""

    texts: list[str] = field(default_factory=list)

    def check(self, is_right: object, text: str) -> None:
        if not is_right:
            self.texts.append(text)


@dataclass
class Report:
    """The counts of one scenario.

    :ivar calls: of one run without a fault.
    :ivar runs: those in which the fault has happened. In others, the call did not.
    """

    name: str
    calls: int = 0
    faults: int = 0
    runs: int = 0
    findings: list[str] = field(default_factory=list)

    def add(self, fault: Fault, calls: list[Call], found: Findings, lines: str) -> None:
        failed = [call for call in calls if call.failed]
        self.faults += 1
        self.runs += bool(failed)
        texts = found.texts
        if any(call.name.endswith(OUTPUT) for call in failed):
            # What a lost line of the log would say is not known.
            texts = [text for text in texts if text.startswith(_OF_STORE)]
        if texts:
            what = "; ".join(texts)
            where = failed[0] if failed else fault.step
            self.findings.append(f"{self.name}, {fault.name} at {where}: {what}\n{lines[-4000:]}")

    def __str__(self) -> str:
        numbers = f"{self.calls:5} calls {self.faults:5} faults {self.runs:5} injected"
        firsts = [finding.partition("\n")[0] for finding in self.findings]
        return "\n".join([f"{self.name:30} {numbers} {len(firsts):4} findings", *firsts])


class Subject(Protocol):
    """What runs a scenario.

    :ivar lines: what it has printed since `begin`.
    """

    process: Process
    page: Page

    @property
    def lines(self) -> str: ...
    @property
    def is_usable(self) -> bool: ...
    def begin(self) -> None: ...


class Node:
    """A node in a process of its own, with a control page, and with a store of its own.

    :ivar spare: descriptors of connections to a bucket that may stay open.
    """

    def __init__(self, process: Process, page: Page, port: int, store: Path) -> None:
        self.process, self.page, self.port, self.store = process, page, port, store
        self.spare = 0
        self._idle = Counter[str]()
        self._read = 0

    def begin(self) -> None:
        """Forget the lines of the log."""
        self._read = len(self.process.out)

    @property
    def lines(self) -> str:
        return self.process.out[self._read :].decode("utf-8", "replace")

    @property
    def is_usable(self) -> bool:
        return self.process.code is None and not self.leaks()

    async def until_at_rest(self, found: Findings) -> None:
        """Wait until the node is idle; the first time, that is the state without a leak."""
        if not self._idle:
            await until(lambda: not children(self.process.pid), "the children to end")
            await until(lambda: not self._open_files(), "files to be closed")
            self._idle = self._descriptors() + Counter({"socket:": self.spare})
        try:
            await until(lambda: not self.leaks(), seconds=LIMIT)
        except AssertionError:
            found.check(False, f"it leaks {self.leaks()}")

    def leaks(self) -> list[str]:
        """Return what is open or runs, and was not when the node was idle."""
        found = [f"open: {name}" for name in (self._descriptors() - self._idle).elements()]
        found += [f"child {child}" for child in children(self.process.pid)]
        return found + [f"scratch file {name}" for name in self.store.glob(".scratch/*/*")]

    def _descriptors(self) -> Counter[str]:
        """Return the open descriptors by their kind or the path of their file."""
        found = Counter[str]()
        folder = f"/proc/{self.process.pid}/fd"
        for name in os.listdir(folder):
            with suppress(FileNotFoundError):
                target = os.readlink(f"{folder}/{name}")
                found[target.partition("[")[0] if ":[" in target else target] += 1
        return found

    def _open_files(self) -> list[str]:
        """Return the open files of sources, variants and renders; libffi keeps its library open."""
        names = [name for name in self._descriptors() if name.startswith("/")]
        elsewhere = ("/dev/", "/usr/", "/lib")
        return [name for name in names if not name.startswith(elsewhere) and ".lock" not in name]


class Forks:
    """The program `tests.faults.forks`, which runs one program at a time.

    :ivar store: a folder for it.
    """

    is_usable = True

    def __init__(self, process: Process, page: Page, store: Path) -> None:
        self.process, self.page, self.store = process, page, store
        self._lines_read = 0
        self._output = page.path.with_suffix(OUTPUT)

    def begin(self) -> None:
        """Do nothing: each program has an output of its own."""

    @property
    def lines(self) -> str:
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    async def start(
        self,
        program: str,
        words: Sequence[str],
        environ: Mapping[str, str],
        fault: Fault | None,
        counted: bool = True,
    ) -> int:
        """Start a program, and return its process."""
        if counted:
            self.page.prepare(*(() if fault is None else (fault.step, fault.number, fault.times)))
        self._output.write_text("")
        order = {
            "program": program,
            "words": words,
            "environ": environ,
            "page": str(self.page.path) if counted else "",
            "output": str(self._output),
        }
        self.process.transport.write(json.dumps(order).encode() + b"\n")  # type: ignore[union-attr]
        return await self._number()

    async def ended(self) -> int:
        """Return the exit status of the program."""
        return await self._number()

    async def port(self) -> int | None:
        """Return the port of the node; None if it has ended."""

        def find() -> re.Match[str] | bool | None:
            return self._has_line() or re.search(r"listening on port (\d+)", self.lines)

        found = await until(find, "the node to start")
        return int(found[1]) if isinstance(found, re.Match) else None

    def _has_line(self) -> bool:
        return self.process.stdout.count("\n") > self._lines_read

    async def _number(self) -> int:
        await until(self._has_line, "the program")
        self._lines_read += 1
        return int(self.process.stdout.split("\n")[self._lines_read - 1])


async def get(port: int, path: bytes) -> Response | None:
    """Return the response, as far as it has arrived; None without a head."""
    client = await send(port, path)
    with suppress(AssertionError):
        await until(lambda: client.closed is not None, seconds=LIMIT)
    if client.closed is None:
        await client.leave()
    response: Response | None = client.response
    return response


def check_log(lines: str, found: Findings) -> None:
    bad = [line for line in lines.splitlines() if _BAD_LINE.search(line)]
    # Such an event has one line, and a traceback.
    found.check(len(bad) <= 2 * lines.count(_HANDLED), f"the log has {bad[:3]}")


def judge(
    response: Response | None, right: bytes, fault: Fault | None, found: Findings, lines: str
) -> None:
    """Check a response during a fault: right bytes, a documented refusal, or a torn stream."""
    if response is not None and response.complete and response.status == 200:
        found.check(response.body == right, "a whole response has wrong bytes")
    elif fault is None or fault.is_harmless:
        found.check(False, f"no right response, but {_describe(response)}")
    elif response is None:
        is_cut = fault.step.object == "socket" or _CUT.search(lines)
        found.check(is_cut, "the connection is closed without a response")
    elif response.status == 200:
        found.check(right.startswith(response.body), "a torn response has wrong bytes")
    else:
        code = None
        with suppress(ValueError, KeyError):
            code = json.loads(response.body)["error"]
        found.check(code in _DOCUMENTED, f"no documented refusal, but {_describe(response)}")


# What a render does in its store for the write-back, or can do in TMPDIR.
_BEHIND_CLIENT = {"create", "pwrite", "fsync", "rename", "mkdir", "flock", "statfs", "unlink"}


def is_behind_client(call: Call, store: Path) -> bool:
    """Return whether no client may see that this one call has failed."""
    return call.step.kind in _BEHIND_CLIENT and f"/{store.name}/" in call.name


def _describe(response: Response | None) -> str:
    if response is None:
        return "nothing"
    end = "" if response.complete else ", torn"
    return f"{response.status}{end}: {response.body[:200]!r}"


def check_store(store: Path, is_right: Callable[[bytes], object], found: Findings) -> None:
    """Check that all variants of a folder are whole, and that the ledger states enough bytes."""
    total = 0
    for path in store.glob("??/*"):
        total += path.stat().st_size
        stored = open_variant(str(path))
        found.check(stored is not None, f"the variant {path.name} is torn")
        if stored is not None:
            data = stored.read(0, stored.size)
            stored.close()
            found.check(is_right(data), f"the variant {path.name} has wrong bytes")
    stated = StoreUsage(str(store)).read()
    found.check(stated is None or stated >= total, f"the ledger states {stated} for {total} bytes")
