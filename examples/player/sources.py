"""The list of files that the user can choose as sources."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote_from_bytes

#: Suffixes of audio files. The service itself checks the contents.
SUFFIXES = frozenset(
    b".aac .ac3 .aif .aiff .alac .ape .au .caf .dsf .flac .m4a .m4b .mka .mp2 .mp3 .oga .ogg .opus"
    b" .tta .w64 .wav .wma .wv".split()
)

#: Maximum number of listed files, and of names that are examined. A folder may be a large
#: collection, or the wrong folder.
MAX_LISTED = 500
MAX_EXAMINED = 20_000


def list_sources(root: Path) -> dict[str, object]:
    """Return the document of the sources below a folder.

    File names are bytes and may have any values. ``source`` has those bytes, percent-encoded;
    ``name`` has the name as text, for display.
    """
    found = []
    complete = True
    for examined, path in enumerate(_files(os.fsencode(root), b"")):
        if examined == MAX_EXAMINED:
            complete = False
            break
        if os.path.splitext(path)[1].lower() in SUFFIXES:
            found.append(path)
    found.sort(key=lambda path: (path.lower(), path))
    shown = found[:MAX_LISTED]
    return {
        "sources": [
            {"source": quote_from_bytes(path), "name": path.decode("utf-8", "replace")}
            for path in shown
        ],
        "complete": complete and len(shown) == len(found),
    }


def _files(root: bytes, folder: bytes) -> Iterator[bytes]:
    """Yield the regular files below a folder, as paths relative to it.

    Hidden files are left out, and links are not followed: the service refuses links that lead out
    of the root.
    """
    try:
        with os.scandir(os.path.join(root, folder)) as entries:
            names = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        # The folder is gone, or this process may not read it.
        return
    for entry in names:
        path = os.path.join(folder, entry.name)
        if entry.name.startswith(b"."):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _files(root, path)
        elif entry.is_file(follow_symlinks=False):
            yield path
