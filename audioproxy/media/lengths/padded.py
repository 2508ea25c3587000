"""Samples that fill only a part of their containers, in wav, rf64, w64 and caf.

WAVE_FORMAT_EXTENSIBLE states the bits of a container, such as 32, and the bits that are valid in
it, such as 24. The valid bits are the upper ones, and the others are 0. Core Audio files state the
same in other words. ffmpeg takes the valid bits for those of the container, and reads noise (seen
in 5.1; 7.1 has the same code).
"""

from __future__ import annotations

import struct

from audioproxy.media.lengths.containers import read_behind, read_length, run_reader
from audioproxy.media.lengths.ends import skip_id3
from audioproxy.media.lengths.pcm import find_chunk
from audioproxy.media.probe import Probe
from audioproxy.media.reading import Malformed, Reader, ReadRange, read_fields

# The chunk of the sample format.
_FORMAT_CHUNKS = {"wav": b"fmt ", "w64": bytes.fromhex("666d7420f3acd3118cd100c04f8edb8a")}

# The sample format: tag, channels, rate, bytes a second, bytes of a frame, bits of a container;
# then the size of the extension, the valid bits, the speakers, and the GUID of the format.
_FORMAT = struct.Struct("<HHIIHHHHI16s")
_EXTENSIBLE = 0xFFFE
_PCM = bytes.fromhex("0100000000001000800000aa00389b71")
# The description of a Core Audio file: chunk, size, rate, codec, flags, bytes and frames of a
# packet, channels, bits.
_DESCRIPTION = struct.Struct(">4sQd4sIIIII")
_IS_FLOAT = 1
_CONTAINERS = (16, 24, 32)


async def resolve_padding(read: ReadRange, size: int, probe: Probe) -> Probe:
    """Return the probe of a source with `Check.PADDED_SAMPLES`, with the true codec and length."""
    # ffmpeg finds the container behind small tags itself.
    start = await run_reader(read, size, skip_id3(probe.skipped))
    if start is not None and start > probe.skipped:
        probe = probe.with_file(skipped=start, demuxer=probe.container)
    inner = read_behind(read, probe)
    bits = await run_reader(inner, size - probe.skipped, _read_bits(probe.container))
    if bits is not None:
        container, valid = bits
        order = "be" if probe.codec.endswith("be") else "le"
        codec = f"pcm_s{container}{order}"
        probe = probe.with_audio(codec=codec, decoder=codec, bit_depth=valid, decoded_bits=valid)
    probe = probe.with_length(await read_length(read, size, probe))
    if probe.length is None:
        return probe
    # ffprobe has derived both from the wrong size of a sample.
    bitrate = int(8 * size * probe.sample_rate / probe.length.samples)
    return probe.described(duration=probe.duration, bitrate=bitrate)


def _read_bits(container: str) -> Reader[tuple[int, int]]:
    """Read the bits of a container, and the valid ones, of integers that do not fill it."""
    if container == "caf":
        fields = yield from read_fields(8, _DESCRIPTION)
        name, _, _, codec, flags, frame, frames, channels, valid = fields
        is_integer = (name, codec, frames, flags & _IS_FLOAT) == (b"desc", b"lpcm", 1, 0)
        bits = 8 * frame // (channels or 1)
    else:
        start, _ = yield from find_chunk(container, _FORMAT_CHUNKS[container])
        fields = yield from read_fields(start, _FORMAT)
        tag, channels, _, _, frame, bits, _, valid, _, kind = fields
        is_integer = (tag, kind) == (_EXTENSIBLE, _PCM)
    if not is_integer or bits not in _CONTAINERS or 8 * frame != channels * bits:
        raise Malformed
    if not 0 < valid < bits:
        raise Malformed
    return bits, valid
