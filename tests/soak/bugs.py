"""Bugs that the tests have to detect, each a small change of the service."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Bug:
    """Change of one source file that breaks a promise of the service.

    :ivar path: path of the changed file, relative to the package.
    :ivar old: source text that the bug replaces; it occurs exactly once in the file.
    :ivar detected_by: name of the check of a fault run that has to fail. If a short run cannot
        provoke the bug, this is the test module that has to fail.
    """

    name: str
    path: str
    old: str
    new: str
    detected_by: str


BUGS = [
    Bug(
        "a failed stream ends as if it were complete",
        "web/exchange.py",
        "            abort(self._request.channel)\n            return\n",
        "            self._request.finish()\n            return\n",
        "responses",
    ),
    Bug(
        "a request is logged only if its client stays",
        "web/exchange.py",
        "            self._instrumentation.access_log(self._log_entry(status))\n",
        "            if not isinstance(outcome, Failure):\n"
        "                self._instrumentation.access_log(self._log_entry(status))\n",
        "log",
    ),
    Bug(
        "requests are counted twice",
        "web/exchange.py",
        "        self._instrumentation.metrics.request_ended(self.endpoint, status)\n",
        "        self._instrumentation.metrics.request_ended(self.endpoint, status)\n" * 2,
        "counters",
    ),
    Bug(
        "renders are counted twice",
        "metrics.py",
        "            self._renders.labels(form, outcome).inc()\n",
        "            self._renders.labels(form, outcome).inc(2)\n",
        "rehearsal",
    ),
    Bug(
        "a joined request is counted as a miss",
        "web/variant.py",
        "self.metrics.miss if subscription.started else self.metrics.coalesced",
        "self.metrics.miss if subscription.started else self.metrics.miss",
        "rehearsal",
    ),
    Bug(
        "a range ends one byte early",
        "web/ranges.py",
        "min(_offset(last) + 1, size)",
        "min(_offset(last) + (size < 3), size)",
        "responses",
    ),
    Bug(
        "the service keeps reading an endless request body",
        "server/request.py",
        "            if self._body_length > _LONGEST_BODY:\n",
        "            if self._body_length > 1 << 40:\n",
        "responses",
    ),
    Bug(
        "a failed render is stored",
        "render/render.py",
        "why=refusal.message)\n            self._fail(refusal)\n",
        "why=refusal.message)\n            self._fail(refusal)\n"
        "            if self._output is not None:\n"
        "                await self._write_back.commit(self._request, self._output)\n",
        "store",
    ),
    Bug(
        "a client that leaves the queue keeps its place",
        "render/render.py",
        "        if not self._subscribers and self.state not in _ENDED and not self._continues:\n",
        "        if not self._subscribers and self.state is State.STREAMING:\n",
        "rehearsal",
    ),
    Bug(
        "a client that leaves ends the render for all clients",
        "render/render.py",
        "        if not self._subscribers and self.state not in _ENDED and not self._continues:\n",
        "        if self.state not in _ENDED:\n",
        "responses",
    ),
    Bug(
        "a render has no deadline",
        "render/deadline.py",
        "        return left\n",
        "        return left + 1000\n",
        "remarks",
    ),
    Bug(
        "clients wait for a child that does not die",
        "render/render.py",
        "Deadline(limits.clock, limits.timeout, lambda: self._fail(RenderTimeout()))",
        "Deadline(limits.clock, limits.timeout)",
        "tests.render.test_render",
    ),
    Bug(
        "a changed source is not noticed",
        "render/preparation.py",
        "        if not await self._opened.unchanged():\n",
        "        if not self._opened:\n",
        "responses",
    ),
    Bug(
        "the source stays open",
        "render/render.py",
        "        finally:\n            preparation.close()\n",
        "        finally:\n            pass\n",
        "leaks",
    ),
    Bug(
        "the output stays open",
        "render/render.py",
        "            self._output.release()\n",
        "            pass\n",
        "leaks",
    ),
    Bug(
        "a client that joins late misses the beginning",
        "streams.py",
        "            self._unfollow = self._growing.follow(self._send)\n",
        "            self._unfollow = self._growing.follow(self._send)\n"
        "            self.sent = self._growing.size if self._growing.size > 300_000 else 0\n",
        "responses",
    ),
    Bug(
        "no request can join a render",
        "render/registry.py",
        "        self._joinable[request.key] = render\n",
        "",
        "rehearsal",
    ),
    Bug(
        "a shutdown does not wait for renders",
        "render/registry.py",
        "        await self._in_flight.wait_until_idle(clock, seconds)\n",
        "",
        "responses",
    ),
    Bug(
        "one more render runs than there are slots",
        "process/slots.py",
        "        if self.held < self.capacity:\n",
        "        if self.held <= self.capacity:\n",
        "slots",
    ),
    Bug(
        "a slot held for long is never released",
        "process/slots.py",
        "            self._release()\n",
        "            if held_for < 4:\n                self._release()\n",
        "counters",
    ),
    Bug(
        "a slot is released before its child is dead",
        "process/child.py",
        "        deadline = self._clock.callLater(timeout, self.stop)\n",
        "        def late() -> None:\n"
        "            self.stop()\n"
        "            self._reaped.fire(Failure(ChildTimeout()))\n"
        "        deadline = self._clock.callLater(timeout, late)\n",
        "slots",
    ),
    Bug(
        "no SIGKILL follows SIGTERM",
        "process/child.py",
        "            self._schedule_escalation(_TERM_GRACE, self.kill)\n",
        "            self._schedule_escalation(_TERM_GRACE, self._log_survival)\n",
        "responses",
    ),
    Bug(
        "children outlive the service",
        "process/spawn.py",
        '"--pdeathsig", "KILL"',
        '"--reset-env"',
        "remarks",
    ),
    Bug(
        "a damaged record is read",
        "variants/files.py",
        "(magic, len(record), zlib.crc32(record)) != (_MAGIC, record_length, checksum)",
        "(magic, len(record)) != (_MAGIC, record_length)",
        "responses",
    ),
    Bug(
        "a truncated variant is read",
        "variants/files.py",
        "found if found and found[0] + record_length + _FOOTER.size == length else None",
        "found",
        "responses",
    ),
    Bug(
        "scratch files of a dead node are never removed",
        "variants/scratch_folder.py",
        "        self._remove_abandoned()\n",
        "",
        "end",
    ),
    Bug(
        "a store that was away is not used again",
        "variants/scratch_folder.py",
        "            self._release()\n            self.open()\n",
        "            self.close()\n            self.open()\n",
        "remarks",
    ),
    Bug(
        "renders fail if the store accepts no file",
        "render/write_back.py",
        '        except OSError as error:\n            _log.warn("the store accepts',
        '        except KeyError as error:\n            _log.warn("the store accepts',
        "responses",
    ),
    Bug(
        "the size of an output is not limited",
        "render/render.py",
        "        if size > output.limit:\n",
        "        if size < 0:\n",
        "tests.render.test_render",
    ),
    Bug(
        "a full disk is not noticed",
        "variants/files.py",
        "        if disk.f_bavail * disk.f_frsize < reserve:\n",
        "        if disk.f_bavail < 0:\n",
        "tests.variants.test_files",
    ),
    Bug(
        "calls to a hanging disk have no timeout",
        "blocking_calls.py",
        "addTimeout(seconds, ",
        "addTimeout(1000 * seconds, ",
        "tests.test_blocking_calls",
    ),
    Bug(
        "a hanging disk gets more and more calls",
        "blocking_calls.py",
        "        if self._overdue:\n",
        "        if self._overdue < 0:\n",
        "tests.test_blocking_calls",
    ),
    Bug(
        "a file opened after the timeout stays behind",
        "blocking_calls.py",
        "                undo(outcome)\n",
        "                pass\n",
        "tests.test_blocking_calls",
    ),
    Bug(
        "a cancelled call does not wait for its thread",
        "threads.py",
        "    while not ended.fired:\n",
        "    while not ended.fired and not cancelled:\n",
        "tests.test_threads",
    ),
    Bug(
        "each request runs a probe of its own",
        "process/prober.py",
        "        shared = self._running.get(identity)\n",
        "        shared = None if identity else self._running.get(identity)\n",
        "tests.process.test_prober",
    ),
    Bug(
        "a diagnostic is quoted with its query string",
        "media/diagnostics.py",
        '_QUERY.sub("", text)',
        "text",
        "tests.media.test_diagnostics",
    ),
    Bug(
        "reading a request has no timeout",
        "server/connections.py",
        "Phase.READING: 60.0",
        "Phase.READING: 60e9",
        "tests.server.test_channel",
    ),
    Bug(
        "a stalled response has no timeout",
        "server/connections.py",
        "STALL_TIMEOUT = 600.0\n",
        "STALL_TIMEOUT = 600e9\n",
        "tests.server.test_channel",
    ),
    Bug(
        "pipelined bytes are not limited",
        "server/channel.py",
        "            if self._pipelined_bytes > _MOST_PIPELINED:\n",
        "            if self._pipelined_bytes < 0:\n",
        "tests.server.test_channel",
    ),
    Bug(
        "all requests of one packet are handled at once",
        "server/channel.py",
        "_MOST_IN_A_ROW = 4\n",
        "_MOST_IN_A_ROW = 4000\n",
        "tests.server.test_channel",
    ),
    Bug(
        "a response is cut off to make room for a connection",
        "server/connections.py",
        "            if connection.all_sent and connection.phase",
        "            if connection.phase",
        "tests.server.test_site",
    ),
    Bug(
        "clients use up all descriptors",
        "server/listener.py",
        "_PER_CHILD * children",
        "0 * children",
        "tests.server.test_listener",
    ),
]
