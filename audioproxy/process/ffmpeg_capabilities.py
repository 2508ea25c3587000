"""Checks that ffmpeg and ffprobe can be run, and that ffmpeg has what the formats need (D34)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from audioproxy.media.diagnostics import redact
from audioproxy.process.child import ChildTimeout, describe
from audioproxy.process.spawn import Launcher, SpawnFailed

_ENCODERS = "libmp3lame libopus libvorbis aac flac pcm_s16le pcm_s24le pcm_f32le".split()
_FILTERS = (
    "aformat aresample atrim asetpts apad channelmap pan volume afade loudnorm"
    " highpass afftdn deesser acompressor alimiter"
).split()

# A line of `-encoders` or `-filters`: flags, a name, a description.
_LISTED = re.compile(rb"^ [A-Z.|]{2,6} +(\S+)", re.MULTILINE)

#: Each list that ffmpeg is asked for, with what must be on it.
LISTS: tuple[tuple[str, str, list[str]], ...] = (
    ("-encoders", "encoder", _ENCODERS),
    ("-filters", "filter", _FILTERS),
)

_LISTING_LIMIT = 1024 * 1024
_SECONDS = 20.0
# Seconds between two checks of programs that cannot be run.
_RETRY = 10.0
_VERSION = re.compile(rb"\S+ version ([!-~]{1,60})")


_log = Logger()


async def find_missing(launcher: Launcher, ffmpeg: str, ffprobe: str) -> list[str]:
    """Return what is missing, in words: programs first, then encoders and filters."""
    unusable = await find_unusable(launcher, ffmpeg, ffprobe)
    return unusable or await _find_lacking(launcher, ffmpeg)


async def _find_lacking(launcher: Launcher, ffmpeg: str) -> list[str]:
    missing = []
    for flag, kind, needed in LISTS:
        answer = await _run(launcher, list_arguments(ffmpeg, flag))
        if answer.failure:
            missing.append(answer.failure)
        else:
            lacking = missing_from(answer.listing, needed)
            missing += [f"{ffmpeg} lacks the {kind} {name}" for name in lacking]
    return missing


async def find_unusable(launcher: Launcher, *programs: str) -> list[str]:
    """Return why programs cannot be run at all, in words."""
    answers = [await _run(launcher, _version_arguments(program)) for program in programs]
    return [answer.failure for answer in answers if answer.failure]


async def watch_programs(
    launcher: Launcher, ffmpeg: str, ffprobe: str, report: Callable[[bool], object]
) -> None:
    """Check ffmpeg and ffprobe, log what is missing, and come back when both can be run.

    :param report: called after each check with whether they can.
    """
    logged = False
    while unusable := await find_unusable(launcher, ffmpeg, ffprobe):
        report(False)
        if not logged:
            _log_missing(unusable)
            logged = True
        await pause(launcher.clock)
    report(True)
    if lacking := await _find_lacking(launcher, ffmpeg):
        _log_missing(lacking)


def _log_missing(missing: list[str]) -> None:
    _log.error(
        "renders will fail: {missing}; a complete ffmpeg on the PATH is required, such as Debian's"
        " package of that name",
        missing=", ".join(missing),
    )


async def pause(clock: IReactorTime) -> None:
    """Wait between two checks."""
    await deferLater(clock, _RETRY)


async def find_version(launcher: Launcher, program: str) -> str:
    """Return which version a program says it is; nothing where it says none."""
    match = _VERSION.match((await _run(launcher, _version_arguments(program))).listing)
    return match[1].decode("ascii") if match else ""


def _version_arguments(program: str) -> list[str]:
    return [program, "-hide_banner", "-version"]


class _Answer(NamedTuple):
    listing: bytes = b""
    failure: str = ""


async def _run(launcher: Launcher, arguments: list[str]) -> _Answer:
    program = arguments[0]
    try:
        child = launcher.launch(arguments, {}, stdout_limit=_LISTING_LIMIT)
        ended = await child.wait(_SECONDS)
    except SpawnFailed as error:
        return _Answer(failure=f"{program} cannot be run ({error})")
    except ChildTimeout:
        return _Answer(failure=f"{program} does not answer within {_SECONDS:.0f} seconds")
    if not ended.ok:
        words = f"{describe(ended)}: {redact(ended.stderr)}".rstrip(": ")
        return _Answer(failure=f"{program} cannot be run ({words})")
    return _Answer(ended.stdout)


def list_arguments(ffmpeg: str, flag: str) -> list[str]:
    """Return the command line that prints one list."""
    return [ffmpeg, "-hide_banner", "-v", "error", flag]


def missing_from(listing: bytes, needed: list[str]) -> list[str]:
    """Return what a list does not name."""
    listed = {match.decode("ascii", "replace") for match in _LISTED.findall(listing)}
    return [name for name in needed if name not in listed]
