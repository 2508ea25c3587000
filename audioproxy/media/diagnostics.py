"""Diagnostics of ffmpeg and ffprobe: which refusal they imply, and their form in logs."""

from __future__ import annotations

from audioproxy.errors import (
    DiskFailed,
    DiskFull,
    EncryptedSource,
    MemoryExceeded,
    NothingDecoded,
    OutputTooLarge,
    Refusal,
    RenderTimeout,
    UndecodableSource,
)
from audioproxy.media.messages import Meaning, messages

# The refusals that messages imply, in the order of the search. After sources that cannot be opened,
# failures of the service come before those of sources: an encoder that ran out of disk space may
# have reported an error of the source earlier.
_REFUSALS: tuple[tuple[Meaning, type[Refusal] | None], ...] = (
    (Meaning.NOT_OPENED, UndecodableSource),
    (Meaning.SERVICE_FAILURE, None),
    (Meaning.NO_MEMORY, MemoryExceeded),
    (Meaning.NOTHING_DECODED, NothingDecoded),
    (Meaning.ENCRYPTED, EncryptedSource),
    (Meaning.UNDECODABLE, UndecodableSource),
)

# The most characters of a diagnostic in a log line. Its end names the cause.
_LONGEST = 500


def verdict(ended_by: str | None, stderr: bytes, *, writes: bool = True) -> type[Refusal] | None:
    """Return the refusal for a run of ffmpeg or ffprobe that failed; None for an unknown failure.

    :param ended_by: the name of the signal that ended the child, if one did.
    :param writes: the child has an output; ffprobe has none.
    """
    if ended_by == "SIGXCPU":
        return RenderTimeout
    # At the limit the child gets SIGXFSZ. If it ignores the signal, each write fails with EFBIG.
    if ended_by == "SIGXFSZ" or (writes and exceeded_file_size(stderr)):
        return OutputTooLarge
    # The stderr of a child that a signal ended explains nothing but a failed allocation.
    if ended_by is not None:
        return MemoryExceeded if lacked_memory(stderr) else None
    if writes and filled_disk(stderr):
        return DiskFull
    return DiskFailed if writes and lost_output(stderr) else classify(stderr)


def classify(stderr: bytes) -> type[Refusal] | None:
    """Return the refusal for a fault of the source, or None where no such fault is recognized."""
    without_cover_art = messages(Meaning.COVER_ART).sub(b"", stderr)
    for meaning, refusal in _REFUSALS:
        if messages(meaning).search(without_cover_art):
            return refusal
    return None


def decoder_complained(stderr: bytes, codec: str, index: object) -> bool:
    """Return whether ffprobe has found a fault of an audio stream's decoder, or has no decoder.

    :param index: of the stream.
    """
    faults = messages(Meaning.DECODER_FAULT).findall(stderr)
    # The decoder of amr_nb is amrnb, and that of adpcm_g722 is g722.
    plain, number = codec.replace("_", "").encode(), str(index).encode()
    return any(
        (name and plain.endswith(name.replace(b"_", b""))) or stream == number
        for name, stream in faults
    )


def unsupported_container(stderr: bytes) -> str | None:
    """Return ffprobe's first name of a container that is not supported; None for other failures."""
    found = messages(Meaning.UNSUPPORTED_CONTAINER).search(stderr)
    return found[found.lastindex or 0].decode() if found else None


def lacks_end(stderr: bytes) -> bool:
    """Return whether the last bytes of the output could not be written."""
    return _has(Meaning.END_LOST, stderr)


def lacks_silence(stderr: bytes) -> bool:
    """Return whether the silence of a gap in time stamps could not be inserted."""
    return _has(Meaning.SILENCE_LOST, stderr)


def lost_reader(stderr: bytes) -> bool:
    """Return whether the reader of a pipe ended before the end of the output."""
    return _has(Meaning.READER_LOST, stderr)


def lacked_memory(stderr: bytes) -> bool:
    """Return whether memory could not be allocated."""
    return _has(Meaning.NO_MEMORY, stderr)


def exceeded_file_size(stderr: bytes) -> bool:
    """Return whether a write failed at the file size limit (EFBIG)."""
    return _has(Meaning.FILE_TOO_LARGE, stderr)


def filled_disk(stderr: bytes) -> bool:
    """Return whether a write failed since the disk is full or a quota is reached."""
    return _has(Meaning.DISK_FULL, stderr)


def lost_output(stderr: bytes) -> bool:
    """Return whether a write failed since the disk is faulty."""
    return _has(Meaning.OUTPUT_LOST, stderr)


def _has(meaning: Meaning, stderr: bytes) -> bool:
    return messages(meaning).search(stderr) is not None


def one_line(stderr: bytes) -> str:
    """Return the end of a diagnostic as one printable line."""
    text = stderr.decode("utf-8", "replace")
    line = " / ".join(part.strip() for part in text.splitlines() if part.strip())
    printable = "".join(c if c.isprintable() else "?" for c in line)
    return printable if len(printable) <= _LONGEST else "..." + printable[-_LONGEST:]
