"""Nodes and commands on one store, whose changes are recorded, and a power cut after each change.

    python -m tests.faults.store_load [--rounds N] [--seed N]

prints the prefixes, the states and the findings.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from threading import Condition, Thread
from urllib.request import urlopen

from tests.faults.calls import Change, Changed, read_changes, recorded
from tests.faults.power import Promise, check_record, is_variant
from tests.support.service import (
    PATIENCE,
    TWISTD,
    WITHOUT_FFMPEG_CHECK,
    basic_environment,
    long_flac,
    short_flac,
    signed,
)

#: Bytes of the bounded node's store: less than one round stores.
BOUND = 120_000

_STORED = re.compile(r"the render of ([0-9a-f]{64}) is stored")
_PRUNED = re.compile(r"the store is pruned: [1-9]\d* variants removed")


class StoreLoad:
    """A folder of sources, a store, and the record of its changes.

    :ivar promises: what nodes and commands have said, each with the changes until then.
    """

    def __init__(self, base: Path) -> None:
        self.root, self.store = base / "root", base / "store"
        for folder in (self.root, self.store):
            folder.mkdir()
        self.promises: list[Promise] = []
        self._record = base / "record"
        self._prunes: list[int] = []

    @property
    def changes(self) -> list[Changed]:
        return list(read_changes(self._record))

    def run_steps(self) -> None:
        """Run `tests.faults.store_steps`, which says what has ended."""
        with self.spawn("-m", "tests.faults.store_steps", str(self.store)) as process:
            assert process.stdin is not None and process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                what, _, key = line.rstrip().partition(" ")
                if what in ("stored", "removed"):
                    promise = Promise(len(self.changes), key or None, process.pid)
                    self.promises.append(promise)
                    process.stdin.write("\n")
                    process.stdin.flush()
        assert not process.returncode, "".join(lines)

    def spawn(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        """Start a Python program that is recorded."""
        environ = {
            **basic_environment(self.root, self.store),
            **recorded(self.store, self._record),
            **variables,
        }
        return subprocess.Popen(
            [sys.executable, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environ,
            cwd=self.root,
        )

    @contextmanager
    def node(self, **variables: str) -> Iterator[Node]:
        """Start a node, which is killed at the end."""
        program = WITHOUT_FFMPEG_CHECK + TWISTD
        settings = {"AP_PORT": "0", "AP_METRICS_PORT": "0", "AP_LOG_LEVEL": "debug", **variables}
        words = ("-c", program, "--nodaemon", "--pidfile=", "audioproxy")
        with self.spawn(*words, **settings) as process:
            try:
                yield Node(self, process)
            finally:
                process.kill()

    def purge(self, *words: str) -> None:
        """Purge variants, which stay away from the end of the command on."""
        command = ("-m", "audioproxy.cli.main", "store", "purge", *words)
        with self.spawn(*command) as process:
            output, _ = process.communicate(timeout=PATIENCE)
        assert not process.returncode, output
        self.promises.append(Promise(len(self.changes), None, process.pid))

    def pruned(self) -> None:
        """Note that one more prune has removed variants."""
        self._prunes.append(len(self.changes))

    def add_prunes(self) -> None:
        """Add the promises of all prunes, each in a process of its own."""
        # The last removal of each process. The last one before a prune has ended is of the prune,
        # since only one process prunes at a time.
        last = {
            changed.process: number
            for number, changed in enumerate(self.changes, 1)
            if changed.change is Change.UNLINKED and is_variant(changed.path)
        }
        for purge in [each for each in self.promises if each.stored is None]:
            last.pop(purge.process or 0, None)
        for since in self._prunes:
            ended = [pid for pid, number in last.items() if number <= since]
            self.promises.append(Promise(since, None, max(ended, key=last.__getitem__)))


class Node:
    """A service in a process of its own."""

    def __init__(self, load: StoreLoad, process: subprocess.Popen[str]) -> None:
        self._load, self._process = load, process
        self._lines: list[str] = []
        self._printed = Condition()
        Thread(target=self._read, daemon=True).start()
        port = self.wait_for(r"listening on port (\d+)")[1]
        self._address = f"http://127.0.0.1:{port}"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if (stored := _STORED.search(line)) is not None:
                count = len(self._load.changes)
                self._load.promises.append(Promise(count, stored[1], self._process.pid))
            elif _PRUNED.search(line):
                self._load.pruned()
            with self._printed:
                self._lines.append(line)
                self._printed.notify_all()

    def wait_for(self, pattern: str, number: int = 1) -> re.Match[str]:
        """Wait until so many lines match, and return the last of the matches."""
        with self._printed:
            if not self._printed.wait_for(lambda: len(self._matches(pattern)) >= number, PATIENCE):
                raise AssertionError("".join(self._lines))
            return self._matches(pattern)[-1]

    def _matches(self, pattern: str) -> list[re.Match[str]]:
        return [found for line in self._lines if (found := re.search(pattern, line))]

    def fetch(self, *targets: str, stores: bool = True) -> None:
        """Fetch variants at a time, and wait until those that were rendered are stored.

        :param stores: whether the store has room for them.
        """
        before = len(self._matches(_STORED.pattern))
        with ThreadPoolExecutor(len(targets)) as threads:
            states = list(threads.map(self._fetch, targets))
        if stores:
            self.wait_for(_STORED.pattern, before + sum(state == "MISS" for state in states))

    def _fetch(self, target: str) -> str:
        with urlopen(self._address + signed(target).decode(), timeout=PATIENCE) as response:
            response.read()
            return str(response.headers["X-Audio-Proxy"])

    def begin(self, target: str) -> None:
        """Begin a render of which nobody needs the end."""
        before = len(self._matches("has a slot"))
        Thread(target=self._try, args=(target,), daemon=True).start()
        self.wait_for("has a slot", before + 1)

    def _try(self, target: str) -> None:
        # The node is killed meanwhile.
        with suppress(OSError, HTTPException):
            self._fetch(target)

    def end(self, number: int) -> None:
        """Send a signal, and wait until the node has ended."""
        self._process.send_signal(number)
        self._process.wait(PATIENCE)


def record_load(load: StoreLoad, rounds: int) -> None:
    """Run two nodes on a store: misses at a time, one variant by both, purges, prunes, restarts.

    :param rounds: each ends with a restart.
    """
    bound = {"AP_VARIANT_STORE_MAX_BYTES": str(BOUND)}
    with ExitStack() as stack:
        other = stack.enter_context(load.node())
        for number in range(rounds):
            node = stack.enter_context(load.node(**bound))
            node.wait_for("the store is pruned")
            formats = ("mp3", "opus", "m4a")
            node.fetch(*(_target(f"f:{each}/cb:{number}") for each in formats), stores=not number)
            _fetch_at_once(_target(f"f:flac/cb:{number}"), node, other)
            load.purge("--options", f"f:mp3/cb:{number}", "local://short.flac")
            node.fetch(_target(f"f:mp3/cb:{number}"), stores=not number)
            # A node without a bound passes that of the other one, which then prunes.
            more = (f"f:{each}/cb:{number}-{place}" for each in ("flac", "ogg") for place in "123")
            other.fetch(*map(_target, more))
            node.fetch(_target(f"f:aac/cb:{number}"), stores=False)
            node.wait_for(_PRUNED.pattern)
            if number % 2:
                node.end(signal.SIGTERM)
            else:
                node.begin(_target(f"f:wav/cb:{number}", "long.flac"))
                node.end(signal.SIGKILL)
        load.purge("--prefix", "local://")
        other.fetch(_target("f:mp3"))
        other.end(signal.SIGTERM)
    load.add_prunes()


def _fetch_at_once(target: str, *nodes: Node) -> None:
    with ThreadPoolExecutor(len(nodes)) as threads:
        list(threads.map(lambda node: node.fetch(target, stores=False), nodes))


def _target(options: str, source: str = "short.flac") -> str:
    return f"/{options}/plain/local://{source}"


def main() -> int:
    parser = ArgumentParser()
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="store-load-") as folder, contextlib.chdir(folder):
        load = StoreLoad(Path(folder).resolve())
        for name, source in (("short.flac", short_flac()), ("long.flac", long_flac())):
            (load.root / name).hardlink_to(source)
        record_load(load, arguments.rounds)
        report = check_record(load.changes, load.promises, seed=arguments.seed)
    print(report)
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
