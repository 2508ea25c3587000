"""Files that the user drops on the page, in a folder of their own below the sources.

The service reads them there, as it reads every source. Only the page itself may add files: a page
of another site can send the same request from the user's browser, but not with the page's origin.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO

from audioproxy.errors import Refusal, SourceTooLarge
from examples.player.sources import describe_file

#: Maximum length of a name in bytes. A file system has 255; the number of a clash needs some.
MAX_NAME_BYTES = 200


class OtherOrigin(Refusal):
    """The request is not from the page: its Origin header names another site, or is missing."""

    status = 403
    code = "other_origin"
    default_message = "Only the page of this player may add files."


class NotWritten(Refusal):
    """The file cannot be written, for example because the disk is full."""

    status = 507
    code = "not_written"

    def __init__(self, error: OSError) -> None:
        super().__init__(f"The file cannot be written: {error.strerror}.")


class Uploads:
    """The dropped files, in a folder that exists from the first file until `remove`.

    :ivar limit: maximum size of a file, in bytes.
    """

    def __init__(self, root: Path, limit: int) -> None:
        """Store files below a folder.

        :param root: AP_LOCAL_ROOT, an absolute path.
        :param limit: AP_MAX_SRC_BYTES: the service refuses larger sources.
        """
        self.limit = limit
        self._root = root
        self._folder: Path | None = None

    def create(self) -> IO[bytes]:
        """Return a new file. It is hidden, so the list of sources leaves it out.

        :raises OSError: if the folder cannot be written.
        """
        # A new name in each run: the store may have variants of a file of an earlier run.
        self._folder = self._folder or Path(tempfile.mkdtemp(prefix="dropped-", dir=self._root))
        return tempfile.NamedTemporaryFile(dir=self._folder, prefix=".", delete=False)

    def store(self, upload: Upload, name: str) -> dict[str, str]:
        """Give a received file its name, and return its row in the list of sources.

        :param name: the name on the user's disk, with any characters.
        :raises Refusal: if the file was refused, or cannot be written.
        """
        try:
            hidden = upload.complete()
            stem, suffix = os.path.splitext(os.fsdecode(clean_name(os.fsencode(name))))
            number, target = 1, hidden.with_name(stem + suffix)
            while target.exists():
                number += 1
                target = hidden.with_name(f"{stem}-{number}{suffix}")
            hidden.rename(target)
        except OSError as error:
            raise NotWritten(error) from None
        return describe_file(os.fsencode(target.relative_to(self._root)))

    def remove(self) -> None:
        """Remove all dropped files."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


class Upload:
    """Body of a request, which is written to a file while it arrives.

    It has the methods of a file that Twisted calls.
    """

    def __init__(self, uploads: Uploads, refusal: Refusal | None) -> None:
        """Write to a new file, or discard the body because of a refusal."""
        self._uploads = uploads
        self._refusal = refusal
        self._file: IO[bytes] | None = None
        self._size = 0

    def write(self, data: bytes) -> None:
        """Add data, or discard it after a refusal."""
        self._size += len(data)
        if self._size > self._uploads.limit:
            text = f"The file has more than {self._uploads.limit} bytes."
            self._refusal = self._refusal or SourceTooLarge(text)
        if self._refusal:
            self.close()
            return
        try:
            self._file = self._file or self._uploads.create()
            self._file.write(data)
        except OSError as error:
            self._refusal = NotWritten(error)

    def complete(self) -> Path:
        """Return the path of the file, which has all its data now.

        :raises Refusal: if the body was discarded.
        :raises OSError: if the last data cannot be written.
        """
        # An empty body has caused no call so far.
        self.write(b"")
        if self._refusal:
            raise self._refusal
        assert self._file
        self._file.close()
        return Path(self._file.name)

    def tell(self) -> int:
        """Return 0: Twisted reads a form from the body otherwise."""
        return 0

    def seek(self, offset: int, whence: int = 0) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Remove the file, unless it has got its name."""
        if self._file:
            with suppress(OSError):
                self._file.close()
            Path(self._file.name).unlink(missing_ok=True)


def clean_name(name: bytes) -> bytes:
    """Return the name of a file without folders, and without what is no part of a visible name.

    The result is UTF-8 of at most MAX_NAME_BYTES bytes. It keeps the suffix.
    """
    last = re.split(r"[/\\]", name.decode("utf-8", "replace"))[-1]
    # Control characters, and those that change the order of the others. A leading dot hides a file.
    visible = "".join(filter(str.isprintable, last)).strip().lstrip(".")
    stem, suffix = os.path.splitext(visible)
    ending = suffix.encode()[: MAX_NAME_BYTES // 2]
    whole = (stem or "audio").encode()[: MAX_NAME_BYTES - len(ending)] + ending
    return whole.decode("utf-8", "ignore").encode()
