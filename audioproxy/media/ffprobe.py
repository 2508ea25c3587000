"""The JSON of ffprobe, which may be cut off."""

from __future__ import annotations

import json
from typing import Any

from audioproxy.media.streams import has_uncounted_pictures

#: What is raised for a document that does not have the form of ffprobe's.
FORM_ERRORS = (AttributeError, RecursionError, TypeError)

# The start of the last object in ffprobe's output. Strings in the output have no line ends.
_FORMAT_START = b'\n    "format": {'
_VIDEO = b'"codec_type": "video"'


def parse_output(stdout: bytes, *, cut_off: bool = False) -> Any:
    """Parse the output of ffprobe.

    :param cut_off: it was longer than its limit, and ``stdout`` is its beginning.
    :raises ValueError, RecursionError: for output that is not JSON.
    """
    text = stdout.decode("utf-8", "replace")
    return json.loads(_close_brackets(text) if cut_off else text)


def read_streams(output: Any) -> list[dict[str, Any]]:
    """Return the streams, each with its ``disposition``.

    :raises AttributeError, TypeError: where the output does not have the form of ffprobe's.
    """
    streams = output.get("streams", [])
    return [{**stream, "disposition": {**stream.get("disposition", {})}} for stream in streams]


def has_container(stdout: bytes) -> bool:
    """Return whether output that was cut off has the fields of the container."""
    return _FORMAT_START in stdout


def lacks_pictures(stdout: bytes) -> bool:
    """Return whether more packets are needed to tell a film from pictures (D72)."""
    # Most sources have no video stream, not even a cover.
    if _VIDEO not in stdout:
        return False
    try:
        return has_uncounted_pictures(read_streams(parse_output(stdout)))
    except (*FORM_ERRORS, ValueError):
        return False


def _close_brackets(text: str) -> str:
    """Return the whole lines of output that was cut off, with all brackets and braces closed.

    ffprobe writes each field, bracket and brace on a line of its own.
    """
    *lines, _ = text.split("\n")
    unclosed: list[str] = []
    for line in map(str.strip, lines):
        if line.endswith(("{", "[")):
            unclosed.append("}" if line.endswith("{") else "]")
        elif line.startswith(("}", "]")) and unclosed:
            unclosed.pop()
    return "".join(["\n".join(lines).rstrip().removesuffix(","), *reversed(unclosed)])
