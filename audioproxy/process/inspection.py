"""Looks at boot whether the programs are there and can do what the formats need (D34)."""

from __future__ import annotations

from audioproxy.media.features import LISTS, list_arguments, missing_from
from audioproxy.process.child import ChildTimeout, Launcher, SpawnFailed

_LISTING_LIMIT = 1024 * 1024
_SECONDS = 20.0


async def find_missing(launcher: Launcher, ffmpeg: str, ffprobe: str) -> list[str]:
    """Return what is missing, in words: programs first, then encoders and filters."""
    missing = []
    for program in (ffmpeg, ffprobe):
        listing = await _run(launcher, [program, "-hide_banner", "-version"])
        if listing is None:
            missing.append(f"the program {program}")
    if missing:
        return missing
    for flag, kind, needed in LISTS:
        listing = await _run(launcher, list_arguments(ffmpeg, flag))
        missing += [f"ffmpeg's {kind} {name}" for name in missing_from(listing or b"", needed)]
    return missing


async def _run(launcher: Launcher, arguments: list[str]) -> bytes | None:
    try:
        child = launcher.launch(arguments, {}, stdout_limit=_LISTING_LIMIT)
        ended = await child.wait(_SECONDS)
    except (SpawnFailed, ChildTimeout):
        return None
    return ended.stdout if ended.ok else None
