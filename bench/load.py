"""Load tests with wrk, for which one core is enough."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.programs import Program, pinned

_SUMMARY = re.compile(r"^summary: (\d+) (\d+) (\d+) (\d+) (\d+)$", re.MULTILINE)

# Requests the paths of a list in turn, so that a server cannot serve everything from one cache
# entry.
_SCRIPT = """\
local requests = {}
local next = 0
function init(arguments)
  for path in io.lines(arguments[1]) do
    table.insert(requests, wrk.format("GET", path%s))
  end
end
function request()
  next = next %% #requests + 1
  return requests[next]
end
%s
function done(summary, latency)
  local e = summary.errors
  local errors = e.connect + e.read + e.write + e.status + e.timeout
  print("summary: " .. string.format("%%d %%d %%d %%d %%d",
    summary.duration, summary.requests, summary.bytes, errors, latency:percentile(99)))
end
"""


# The longest test of a server that sends no response.
_MOST_SECONDS = 16


class NoResponse(RuntimeError):
    """There was no response in the time of the test."""


@dataclass(frozen=True, slots=True)
class Load:
    """Results of a load test.

    :ivar requests: requests per second.
    :ivar megabytes: 10^6 bytes per second.
    :ivar cpu: CPU seconds of the server per second.
    :ivar p99: milliseconds within which 99 of 100 responses arrived.
    """

    requests: float
    megabytes: float
    cpu: float
    p99: float

    @property
    def cpu_per_gigabyte(self) -> float:
        """CPU seconds per 10^9 bytes."""
        return self.cpu / self.megabytes * 1000

    @property
    def cpu_per_request(self) -> float:
        """CPU seconds per request."""
        return self.cpu / self.requests


def load(
    program: Program,
    paths: Sequence[str],
    *,
    connections: int,
    core: int | None,
    folder: Path,
    headers: Mapping[str, str] | None = None,
    seconds: int = 1,
    pause: int = 0,
) -> Load:
    """Request paths in turn from a server, on keep-alive connections.

    :param core: core on which wrk runs.
    :param folder: folder for the list of paths.
    :param seconds: a server on a busy machine gets more, until it has sent a response.
    :param pause: milliseconds between a response and the next request of its connection.
    :raises RuntimeError: if any response was an error.
    """
    script, listed = folder / "wrk.lua", folder / "paths.txt"
    words = "".join(f', {{["{name}"]=[[{text}]]}}' for name, text in (headers or {}).items())
    # Even a pause of 0 would cost each request a timer.
    delay = f"function delay() return {pause} end" if pause else ""
    script.write_text(_SCRIPT % (words, delay))
    listed.write_text("".join(f"{path}\n" for path in paths))
    before = program.cpu_seconds()
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s"]
    ended = subprocess.run(
        pinned(core, [*command, "-s", script, program.base, "--", listed]),
        capture_output=True,
        text=True,
        timeout=10 * seconds + 30,
    )
    used = program.cpu_seconds() - before
    if ended.returncode or ended.stderr.strip():
        raise RuntimeError(f"{program.base}: {ended.stdout} {ended.stderr}")
    try:
        return read_report(ended.stdout, used)
    except NoResponse:
        if seconds >= _MOST_SECONDS:
            raise
    return load(
        program,
        paths,
        connections=connections,
        core=core,
        folder=folder,
        headers=headers,
        seconds=4 * seconds,
        pause=pause,
    )


def read_report(text: str, used: float) -> Load:
    """Return the results in wrk's output.

    It has microseconds, requests, bytes, errors, and the 99th percentile in microseconds.

    :param used: CPU seconds of the server.
    :raises RuntimeError: if any response was an error.
    :raises NoResponse: if there was none.
    """
    found = _SUMMARY.search(text)
    microseconds, requests, size, errors, p99 = map(int, found.groups() if found else [0] * 5)
    if errors or not found:
        raise RuntimeError(f"wrk says: {text}")
    if not requests:
        raise NoResponse(f"wrk says: {text}")
    seconds = microseconds / 1e6
    return Load(requests / seconds, size / 1e6 / seconds, used / seconds, p99 / 1000)
