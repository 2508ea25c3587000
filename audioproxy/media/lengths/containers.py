"""The table of containers whose length can be known, and the search for the length of a source."""

from __future__ import annotations

from collections.abc import Callable

from audioproxy.media.lengths.amr import read_amr
from audioproxy.media.lengths.flac import read_flac
from audioproxy.media.lengths.lossless import read_ape, read_tak, read_tta
from audioproxy.media.lengths.lower_bounds import read_adts, read_matroska
from audioproxy.media.lengths.mp3 import read_mp3
from audioproxy.media.lengths.mp4 import read_mp4, read_whole_mp4
from audioproxy.media.lengths.musepack import read_musepack
from audioproxy.media.lengths.ogg import read_flac_in_ogg, read_opus, read_vorbis
from audioproxy.media.lengths.pcm import read_chunked, read_dsf, read_iff
from audioproxy.media.lengths.wav import read_wav
from audioproxy.media.lengths.wavpack import read_wavpack
from audioproxy.media.probe import Probe
from audioproxy.media.reading import Malformed, Reader, ReadRange, SourceLength, T

#: The reader for each container and codec, as ffprobe names them. ``pcm`` stands for all codecs of
#: uncompressed audio, and None for all codecs.
READERS: dict[tuple[str, str | None], Callable[[int, Probe], Reader[SourceLength]]] = {
    ("wav", "pcm"): read_wav,
    ("w64", "pcm"): read_chunked,
    ("aiff", "pcm"): read_chunked,
    ("caf", "pcm"): read_chunked,
    ("iff", None): read_iff,
    ("dsf", None): read_dsf,
    ("flac", "flac"): read_flac,
    ("wv", "wavpack"): read_wavpack,
    ("tta", "tta"): read_tta,
    ("ape", None): read_ape,
    ("tak", None): read_tak,
    ("mov", "alac"): read_mp4,
    ("mov", "aac"): read_mp4,
    ("mov", "mp3"): read_mp4,
    ("mpc8", None): read_musepack,
    ("ogg", "opus"): read_opus,
    ("ogg", "vorbis"): read_vorbis,
    ("ogg", "flac"): read_flac_in_ogg,
    ("mp3", "mp3"): read_mp3,
    ("aac", "aac"): read_adts,
    ("amr", None): read_amr,
    ("mov", "amr_nb"): read_whole_mp4,
    ("mov", "amr_wb"): read_whole_mp4,
    ("matroska", None): read_matroska,
}

# Readers that know a least length at most.
_LOWER_BOUNDS = (read_adts, read_matroska)

# Bytes of the first two reads, which are mostly those of the start and of the end: many small
# structures are next to each other. Each further read is twice as large, up to a limit: it may be a
# request to a server. A large range is read alone.
_FIRST_WINDOW = 64 * 1024
_LARGEST_WINDOW = 1024 * 1024
_LARGE_RANGE = 128 * 1024
_MOST_READS = 16


async def read_length(read: ReadRange, size: int, probe: Probe) -> SourceLength | None:
    """Return the length of a source, by its bytes alone; None where nothing confirms it."""
    if probe.stored is not None:
        return probe.stored
    reader = _reader_of(probe)
    if reader is None:
        return None
    inner = size - probe.skipped
    length = await run_reader(read_behind(read, probe), inner, reader(inner, probe))
    # Of a source that can be sought in, not even a least length may be known.
    if length and (length.samples > 0 or (length.seekable and not length.exact)):
        return length.moved(probe.skipped)
    return None


def may_be_exact(probe: Probe) -> bool:
    reader = _reader_of(probe)
    return reader is not None and reader not in _LOWER_BOUNDS


def _reader_of(probe: Probe) -> Callable[[int, Probe], Reader[SourceLength]] | None:
    container, codec = probe.container, probe.codec
    kind = "pcm" if codec.startswith("pcm_") else codec
    return READERS.get((container, kind)) or READERS.get((container, None))


def read_behind(read: ReadRange, probe: Probe) -> ReadRange:
    """Return a function that reads a source from the start of its container."""

    async def read_inner(offset: int, count: int) -> bytes:
        return await read(probe.skipped + offset, count)

    return read_inner if probe.skipped else read


async def run_reader(read: ReadRange, size: int, running: Reader[T]) -> T | None:
    """Return the result of a reader; None where the source does not have the expected form."""
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
                length = count
                if count < _LARGE_RANGE:
                    length = min(_FIRST_WINDOW << max(0, len(windows) - 1), _LARGEST_WINDOW)
                # A window at the end reaches back, since several structures are searched there.
                start = max(0, min(offset, size - length))
                window = await read(start, min(size, offset + max(count, length)) - start)
                windows.append((start, window))
            offset, count = running.send(window[offset - start :][:count])
    except StopIteration as ended:
        result: T = ended.value
        return result
    except Malformed:
        return None
