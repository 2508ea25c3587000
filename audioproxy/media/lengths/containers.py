"""The table of containers whose length can be known, and the search for the length of a source."""

from __future__ import annotations

from collections.abc import Callable

from audioproxy.media.lengths.amr import read_amr
from audioproxy.media.lengths.flac import read_flac
from audioproxy.media.lengths.lower_bounds import read_adts, read_matroska
from audioproxy.media.lengths.mp3 import read_mp3
from audioproxy.media.lengths.mp4 import read_mp4
from audioproxy.media.lengths.ogg import read_opus, read_vorbis
from audioproxy.media.lengths.pcm import read_aiff, read_caf, read_w64, read_wav
from audioproxy.media.lengths.reading import Malformed, Reader, ReadRange, SourceLength, T
from audioproxy.media.probe import Probe

#: The reader for each container and codec, as ffprobe names them. ``pcm`` stands for all codecs of
#: uncompressed audio, and None for all codecs.
READERS: dict[tuple[str, str | None], Callable[[int, Probe], Reader[SourceLength]]] = {
    ("wav", "pcm"): read_wav,
    ("w64", "pcm"): read_w64,
    ("aiff", "pcm"): read_aiff,
    ("caf", "pcm"): read_caf,
    ("flac", "flac"): read_flac,
    ("mov", "alac"): read_mp4,
    ("mov", "aac"): read_mp4,
    ("mov", "mp3"): read_mp4,
    ("ogg", "opus"): read_opus,
    ("ogg", "vorbis"): read_vorbis,
    ("mp3", "mp3"): read_mp3,
    ("aac", "aac"): read_adts,
    ("amr", None): read_amr,
    ("matroska", None): read_matroska,
}

# Bytes of the first two reads, which are mostly those of the start and of the end: many small
# structures are next to each other. Each further read is twice as large, up to a limit: it may be a
# request to a server.
_FIRST_WINDOW = 64 * 1024
_LARGEST_WINDOW = 1024 * 1024
_MOST_READS = 16


async def read_length(read: ReadRange, size: int, probe: Probe) -> SourceLength | None:
    """Return the length of a source; None where nothing confirms it.

    The result depends on the bytes of the source alone.

    :param size: bytes of the source.
    """
    codec = "pcm" if probe.codec.startswith("pcm_") else probe.codec
    container = probe.container
    reader = READERS.get((container, codec)) or READERS.get((container, None))
    if reader is None:
        return None
    length = await run_reader(read, size, reader(size, probe))
    # Of a source that can be sought in, not even a least length may be known.
    if length and (length.samples > 0 or (length.seekable and not length.exact)):
        return length
    return None


async def run_reader(read: ReadRange, size: int, running: Reader[T]) -> T | None:
    """Return the result of a reader; None where the source does not have the expected form.

    :param size: bytes of the source.
    """
    windows: list[tuple[int, bytes]] = []
    try:
        offset, count = next(running)
        while True:
            for start, window in windows:
                if start <= offset and offset + count <= start + len(window):
                    break
            else:
                if len(windows) == _MOST_READS or offset >= size:
                    return None
                length = min(_FIRST_WINDOW << max(0, len(windows) - 1), _LARGEST_WINDOW)
                # A window at the end reaches back, since several structures are searched there.
                start = max(0, min(offset, size - length))
                window = await read(start, min(size, offset + max(count, length)) - start)
                windows.append((start, window))
            data = window[offset - start :][:count]
            offset, count = running.send(data)
    except StopIteration as ended:
        result: T = ended.value
    except Malformed:
        return None
    return result
