"""A node whose calls fail, and the checks after each fault."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from audioproxy.variants.stored_file import open_variant
from audioproxy.variants.usage import StoreUsage
from tests.faults.calls import Call, Page
from tests.faults.fitting import Fault
from tests.support.http import Response
from tests.support.service import Process, children, send, until

#: Seconds for a response, and for the node to be at rest after it.
LIMIT = 15.0

#: The errors that a client may get because a call has failed.
_DOCUMENTED = {"render_failed", "upstream_unavailable", "not_found", "undecodable_source"}
_BAD_LINE = re.compile(r"Traceback|Unhandled|crash|\[(?:error|critical)\]|Error in ")


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
        if found.texts:
            what = "; ".join(found.texts)
            self.findings.append(f"{self.name}: {fault} {failed[:1]}: {what}\n{lines}")


class Node:
    """A node in a process of its own, with a control page, and with sources and variants."""

    def __init__(self, process: Process, page: Page, port: int, store: Path | None) -> None:
        self.process, self.page, self.port, self.store = process, page, port, store
        self._idle = Counter[str]()
        self._read = 0

    async def rest(self) -> None:
        """Wait until the node is idle, and take that for the state without a leak."""
        await until(lambda: not children(self.process.pid), "the children to end")
        await until(lambda: not self._files(), "files to be closed")
        self._idle = self.descriptors()

    def begin(self) -> None:
        """Forget the lines of the log."""
        self._read = len(self.process.out)

    @property
    def lines(self) -> str:
        return self.process.out[self._read :].decode("utf-8", "replace")

    def descriptors(self) -> Counter[str]:
        """Return the open descriptors by their kind or the path of their file."""
        found = Counter[str]()
        folder = f"/proc/{self.process.pid}/fd"
        for name in os.listdir(folder):
            with suppress(FileNotFoundError):
                target = os.readlink(f"{folder}/{name}")
                found[target.partition("[")[0] if ":[" in target else target] += 1
        return found

    def _files(self) -> list[str]:
        """Return the open files of sources, variants and renders."""
        names = [name for name in self.descriptors() if name.startswith("/")]
        return [name for name in names if not name.startswith("/dev/") and ".lock" not in name]

    def leaks(self) -> list[str]:
        """Return what is open or runs, and was not when the node was idle."""
        found = [f"open: {name}" for name in (self.descriptors() - self._idle).elements()]
        found += [f"child {child}" for child in children(self.process.pid)]
        if self.store is not None:
            found += [f"scratch file {name}" for name in self.store.glob(".scratch/*/*")]
        return found

    async def until_at_rest(self, found: Findings) -> None:
        """Wait until the node is idle; the first time, that is the state without a leak."""
        try:
            if not self._idle:
                await self.rest()
            await until(lambda: not self.leaks(), seconds=LIMIT)
        except AssertionError:
            found.check(False, f"it leaks {self.leaks()}")

    async def get(self, path: bytes) -> Response | None:
        """Return the response, as far as it has arrived; None without a head."""
        client = await send(self.port, path)
        with suppress(AssertionError):
            await until(lambda: client.closed is not None, seconds=LIMIT)
        if client.closed is None:
            await client.leave()
        response: Response | None = client.response
        return response

    def check_log(self, found: Findings) -> None:
        bad = [line for line in self.lines.splitlines() if _BAD_LINE.search(line)]
        found.check(not bad, f"the log has {bad[:3]}")


def judge(response: Response | None, right: bytes, fault: Fault | None, found: Findings) -> None:
    """Check a response during a fault: right bytes, a documented refusal, or a torn stream."""
    if response is not None and response.complete and response.status == 200:
        found.check(response.body == right, "a whole response has wrong bytes")
    elif fault is None or fault.is_harmless:
        found.check(False, f"no right response, but {_describe(response)}")
    elif response is None:
        found.check(fault.step.object == "socket", "the connection is closed without a response")
    elif response.status == 200:
        found.check(right.startswith(response.body), "a torn response has wrong bytes")
    else:
        code = None
        with suppress(ValueError, KeyError):
            code = json.loads(response.body)["error"]
        found.check(code in _DOCUMENTED, f"no documented refusal, but {_describe(response)}")


def _describe(response: Response | None) -> str:
    if response is None:
        return "nothing"
    end = "" if response.complete else ", torn"
    return f"{response.status}{end}: {response.body[:200]!r}"


def check_store(store: Path, right: Callable[[str], bytes], found: Findings) -> None:
    """Check that all variants of a folder are whole, and that the ledger states enough bytes."""
    total = 0
    for path in store.glob("??/*"):
        total += path.stat().st_size
        stored = open_variant(str(path))
        found.check(stored is not None, f"the variant {path.name} is torn")
        if stored is not None:
            data = stored.read(0, stored.size)
            stored.close()
            found.check(data == right(path.name), f"the variant {path.name} has wrong bytes")
    stated = StoreUsage(str(store)).read()
    found.check(stated is None or stated >= total, f"the ledger states {stated} for {total} bytes")
