"""The tags of a source that its variants carry (D61)."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: As ffprobe names them, in the order in which they are stored.
CARRIED_TAGS = (
    *("title", "artist", "album", "album_artist", "track", "disc", "date", "genre", "composer"),
    *("copyright", "publisher"),
)

# The most bytes of their keys and values together, in UTF-8.
_MOST_BYTES = 8192

# The category Cc of Unicode.
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def carried_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tags that a variant carries, without control characters.

    A tag that would exceed the limit of bytes is left out as a whole.
    """
    carried, left = {}, _MOST_BYTES
    for key in CARRIED_TAGS:
        value = _CONTROL_CHARACTERS.sub("", tags.get(key, ""))
        size = len(f"{key}{value}".encode())
        if value and size <= left:
            carried[key] = value
            left -= size
    return carried
