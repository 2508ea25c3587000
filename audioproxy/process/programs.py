"""Checks of ffmpeg and ffprobe: they can be run, and ffmpeg has what the formats need (D34)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass, field
from typing import NamedTuple

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import deferLater

from audioproxy.concurrency.shared_result import SharedResult
from audioproxy.media.command.decoding import PIECE_FORM, STREAM_FORMATS
from audioproxy.media.command.encoders import ENCODERS
from audioproxy.media.command.filters import FILTERS
from audioproxy.media.conversion import SOXR, SWRESAMPLE
from audioproxy.media.diagnostics import one_line
from audioproxy.observe.log_context import Logger
from audioproxy.process.child import ChildTimeout, describe_exit
from audioproxy.process.executables import identify
from audioproxy.process.spawn import Launcher, SpawnFailed

# Those of decoders for irregular sources, and of the pass that measures a source.
_OTHER_ENCODERS = [f"pcm_{form}" for form in (*STREAM_FORMATS, PIECE_FORM)]
_ENCODERS = [name for row in ENCODERS.values() for name, _ in row.encoders.values()]

# A line of `-encoders` or `-filters`: flags, a name, a description.
_LIST_ENTRY = re.compile(rb"^ [A-Z.|]{2,6} +(\S+)", re.MULTILINE)

#: The lists that ffmpeg prints. Each row has the option that prints the list, the kind of entry,
#: and the names that must be listed.
LISTS: tuple[tuple[str, str, list[str]], ...] = (
    ("-encoders", "encoder", list(dict.fromkeys(_ENCODERS + _OTHER_ENCODERS))),
    ("-filters", "filter", FILTERS),
)

_LISTING_LIMIT = 1024 * 1024
_RUN_TIMEOUT = 20.0
# Seconds between two checks of programs that cannot be run.
_RETRY = 10.0
_VERSION = re.compile(rb"\S+ version ([!-~]{1,60})")
# Of the digest of what a program prints of its build.
_DIGEST_DIGITS = 8
# In the build configuration, which follows the version.
_WITH_SOXR = b"--enable-libsoxr"

_log = Logger()


class _Run(NamedTuple):
    output: bytes = b""
    failure: str = ""


class Examined(NamedTuple):
    """What is known of the ffmpeg that was examined last."""

    identity: object = None
    version: str = ""
    resampler: str = ""
    build_name: str = ""


@dataclass(slots=True)
class Programs:
    """The paths of ffmpeg and ffprobe, and the launcher that starts them.

    :ivar examined: what is known of ffmpeg until its file is another one.
    """

    launcher: Launcher
    ffmpeg: str
    ffprobe: str
    examined: Examined = field(default=Examined(), init=False)

    @property
    def build(self) -> dict[str, str]:
        """The version and the resampler of ffmpeg, as of the last examination; empty before one."""
        names = {"": "", SOXR: "soxr", SWRESAMPLE: "swr"}
        return {"ffmpeg": self.examined.version, "resampler": names[self.examined.resampler]}

    @property
    def build_name(self) -> str:
        """The version, and a digest of what ``ffmpeg -version`` prints; empty before that is known.

        It shows the configuration, the compiler and the libraries of FFmpeg, but not those of
        encoders, such as libopus.
        """
        return self.examined.build_name

    async def probe_missing(self) -> list[str]:
        """Return what is missing, as text: unusable programs, or else encoders and filters."""
        return await self.probe_unusable() or await self.probe_missing_features()

    async def probe_unusable(self) -> list[str]:
        """Return why programs cannot be run, as text; an empty list if both can."""
        runs = [await self._run_for_version(program) for program in (self.ffmpeg, self.ffprobe)]
        return [run.failure for run in runs if run.failure]

    async def probe_missing_features(self) -> list[str]:
        """Return which encoders and filters ffmpeg lacks, as text."""
        missing = []
        for flag, kind, needed in LISTS:
            run = await self._run(list_arguments(self.ffmpeg, flag))
            if run.failure:
                missing.append(run.failure)
            else:
                lacking = missing_from(run.output, needed)
                missing += [f"{self.ffmpeg} lacks the {kind} {name}" for name in lacking]
        return missing

    async def probe_versions(self) -> dict[str, str]:
        """Return the version that each program reports, by path; empty where it reports none."""
        return {
            program: _read_version((await self._run_for_version(program)).output)
            for program in (self.ffmpeg, self.ffprobe)
        }

    async def probe_resampler(self) -> str:
        """Return the options of the best resampler (D60); renders report an unusable ffmpeg."""
        is_known = self.examined.resampler and self.examined.identity == identify(self.ffmpeg)
        if not is_known and (await self._run_for_version(self.ffmpeg)).failure:
            return SOXR
        return self.examined.resampler

    async def probe_shortcoming(self) -> str | None:
        """Return which library ffmpeg lacks that has a replacement, as text."""
        if await self.probe_resampler() == SOXR:
            return None
        return (
            f"{self.ffmpeg} lacks libsoxr, so sample rates are converted by libswresample, and"
            " variants differ from those of nodes with libsoxr"
        )

    async def _run_for_version(self, program: str) -> _Run:
        identity = identify(program)
        run = await self._run([program, "-hide_banner", "-version"])
        if program == self.ffmpeg and not run.failure:
            resampler = SOXR if _WITH_SOXR in run.output else SWRESAMPLE
            version = _read_version(run.output)
            digest = hashlib.sha256(run.output).hexdigest()[:_DIGEST_DIGITS]
            name = f"{version or 'unknown'}:{digest}"
            self.examined = Examined(identity, version, resampler, name)
        return run

    async def _run(self, arguments: list[str]) -> _Run:
        program = arguments[0]
        try:
            child = self.launcher.launch(arguments, {}, _RUN_TIMEOUT, stdout_limit=_LISTING_LIMIT)
            ended = await child.wait()
        except SpawnFailed as error:
            return _Run(failure=f"{program} cannot be run ({error})")
        except ChildTimeout:
            return _Run(failure=f"{program} did not respond within {_RUN_TIMEOUT:.0f} seconds")
        if not ended.ok:
            words = f"{describe_exit(ended)}: {one_line(ended.stderr)}".rstrip(": ")
            return _Run(failure=f"{program} cannot be run ({words})")
        return _Run(ended.stdout)


def _read_version(output: bytes) -> str:
    match = _VERSION.match(output)
    return match[1].decode("ascii") if match else ""


@dataclass(eq=False)
class ProgramsMonitor:
    """Checks the programs at the start, and whenever one of them could not be started (D34).

    :ivar report: called after each check with whether both programs can be run.
    :ivar settle: what a check waits for, so that it runs no program in a slower way.
    """

    programs: Programs
    report: Callable[[bool], object]
    settle: Callable[[], Awaitable[None]] | None = None
    _running: Deferred[None] | None = field(default=None, init=False)
    _wanted: SharedResult[None] = field(default_factory=SharedResult, init=False)

    def start(self) -> None:
        self.check()
        # An empty context: the log lines do not belong to the request that found a program missing.
        self._running = Context().run(Deferred.fromCoroutine, self._check_when_wanted())

    async def stop(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await self._running

    def check(self) -> None:
        """Check the programs; if a check is running, check again after it."""
        self._wanted.fire(None)

    async def _check_when_wanted(self) -> None:
        while True:
            try:
                await self._wanted.wait()
                self._wanted = SharedResult()
                if self.settle is not None:
                    await self.settle()
                await self._check_until_usable()
                if self._wanted.fired:
                    await self._pause()
            except CancelledError:
                return
            except Exception:
                _log.failure("the check of ffmpeg failed")

    async def _check_until_usable(self) -> None:
        """Check until both programs can be run, and log once what is missing."""
        logged = False
        while unusable := await self.programs.probe_unusable():
            self.report(False)
            if not logged:
                _log_missing(unusable)
            logged = True
            await self._pause()
        self.report(True)
        if lacking := await self.programs.probe_missing_features():
            _log_missing(lacking)
        elif shortcoming := await self.programs.probe_shortcoming():
            _log.warn("{shortcoming}; Debian's ffmpeg has it", shortcoming=shortcoming)

    async def _pause(self) -> None:
        await deferLater(self.programs.launcher.clock, _RETRY)


def _log_missing(missing: list[str]) -> None:
    _log.error(
        "renders will fail: {missing}; a complete ffmpeg on the PATH is required, such as Debian's"
        " package of that name",
        missing=", ".join(missing),
    )


def list_arguments(ffmpeg: str, flag: str) -> list[str]:
    return [ffmpeg, "-hide_banner", "-v", "error", flag]


def missing_from(listing: bytes, needed: list[str]) -> list[str]:
    listed = {match.decode("ascii", "replace") for match in _LIST_ENTRY.findall(listing)}
    return [name for name in needed if name not in listed]
