"""The sources: the list of files to choose from, and the source that the user typed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote_from_bytes

from audioproxy.errors import NotFound
from audioproxy.grammar.sources import HttpsSource, S3Source, Source
from audioproxy.urls import local, read_source

#: Suffixes of audio files. The service itself checks the contents.
SUFFIXES = frozenset(
    b".aac .ac3 .aif .aiff .alac .ape .au .caf .dsf .flac .m4a .m4b .mka .mp2 .mp3 .oga .ogg .opus"
    b" .tta .w64 .wav .wma .wv".split()
)


@dataclass(frozen=True, slots=True)
class Sources:
    """The sources of the player.

    :ivar folder: AP_LOCAL_ROOT, an absolute path.
    :ivar allowlist: the entries of AP_SOURCE_ALLOWLIST, or None where it is unset.
    :ivar max_listed: how many files are listed at most.
    :ivar max_examined: how many names are examined at most. A folder may be a large collection, or
        the wrong folder.
    """

    folder: Path
    allowlist: Sequence[str] | None
    max_listed: int = 500
    max_examined: int = 20_000

    def find(self, text: str) -> Source:
        """Return the source that the user chose or typed.

        :param text: a source string, or a path: absolute, or relative to the folder.
        :raises NotFound: for text that is not a source, and for a source that is not on the
            allowlist. The service hides the reasons from its clients. The user of this page is also
            its operator, so the text of this error says why.
        """
        if "://" not in text:
            return local(self._relative(os.fsencode(text)))
        source = read_source(text)
        if self.allowlist is None and isinstance(source, HttpsSource):
            raise NotFound(
                f"AP_SOURCE_ALLOWLIST is not set, so no host is allowed, not even {source.host}"
            )
        if self.allowlist is not None and not source.is_allowed(self.allowlist):
            assert isinstance(source, S3Source | HttpsSource)
            name = source.host if isinstance(source, HttpsSource) else source.bucket
            raise NotFound(f"{name} is not on the list in AP_SOURCE_ALLOWLIST")
        return source

    def _relative(self, path: bytes) -> bytes:
        root = os.path.join(os.fsencode(self.folder), b"")
        if path.startswith(b"/") and not path.startswith(root):
            raise NotFound(f"the path is not below {self.folder}")
        return path.removeprefix(root)

    def describe(self) -> dict[str, object]:
        """Return the document of the files below the folder.

        ``complete`` is false if the list has only some of the files.
        """
        found = []
        complete = True
        for examined, path in enumerate(_files(os.fsencode(self.folder), b"")):
            if examined == self.max_examined:
                complete = False
                break
            if os.path.splitext(path)[1].lower() in SUFFIXES:
                found.append(path)
        found.sort(key=lambda path: (path.lower(), path))
        shown = found[: self.max_listed]
        return {
            "folder": os.fsencode(self.folder).decode("utf-8", "replace"),
            "sources": [describe_file(path) for path in shown],
            "complete": complete and len(shown) == len(found),
        }


def describe_file(path: bytes) -> dict[str, str]:
    """Return the row of a file in the list of sources.

    File names are bytes and may have any values. ``source`` has those bytes, percent-encoded;
    ``name`` has the name as text, for display.

    :param path: relative to the folder.
    """
    return {"source": quote_from_bytes(path, safe="/:"), "name": path.decode("utf-8", "replace")}


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
