"""What the samples of an uncompressed source are, where ffprobe is wrong about them or fails.

ffmpeg reads the samples of RIFX as little-endian ones, and believes the sizes of wav files. Such
samples are opened as they are, without their container. Encoded audio in the place of samples is
refused.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from audioproxy.errors import NothingDecoded, UndecodableSource
from audioproxy.media.bursts import encoded_in, find_burst
from audioproxy.media.command.decoding import PIECE_FORM
from audioproxy.media.flac_frames import find_noise
from audioproxy.media.info_document import SourceInfo
from audioproxy.media.inputs import RAW_DEMUXERS, RawSamples
from audioproxy.media.lengths.containers import run_reader
from audioproxy.media.lengths.ends import skip_id3
from audioproxy.media.lengths.padded import resolve_padding
from audioproxy.media.lengths.pcm import SampleForm, count_samples, sample_bytes
from audioproxy.media.lengths.sphere import read_sphere
from audioproxy.media.lengths.wav import WavFile, find_samples, read_form
from audioproxy.media.probe import FLOAT_BITS, AudioStream, Check, Container, Probe, check_limits
from audioproxy.media.reading import Reader, ReadRange, SourceLength, read_inner, read_range

# Codecs of which ffmpeg takes a part in the middle for something else. It keeps a decoder that is
# named.
_SWITCHING = (("wav", "pcm_s16le"), ("w64", "pcm_s16le"))
# Codecs that ffmpeg detects in the samples of a wav file, and the bytes of zeros at their start
# after which the service does not rely on that.
_DETECTED = {"dts": "DTS", "ac3": "AC-3"}
_ZEROS = 32 * 1024
_CHANNELS_OF_BURSTS = 2
_BITS = {"pcm_alaw": 16, "pcm_mulaw": 16}

# AIFF, and AU with samples of a fixed size, in which ffmpeg does not look for other codecs.
_PLAIN = re.compile(rb"FORM....AIFF|\.snd.{8}\0\0\0[\1-\7\x1b]", re.DOTALL)
_PLAIN_BYTES = 16

#: Returns the samples of a source after a number of them (`decoding.piece_arguments`).
Decode: TypeAlias = Callable[[int], Awaitable[bytes]]


@dataclass(frozen=True, slots=True)
class Start:
    """What the start of a source tells ahead of ffprobe.

    :ivar has_space: it is a wav file in which ffprobe would look for chunks in vain.
    """

    is_pcm: bool
    has_space: bool = False


async def check_samples(read: ReadRange, size: int, probe: Probe, decode: Decode) -> Probe:
    """Return the probe of a source whose samples have `Check.SAMPLES` pending, with what they are.

    :param decode: called where only the samples tell.
    """
    if Check.PADDED_SAMPLES in probe.pending:
        probe = await resolve_padding(read, size, probe)
    probe = probe.checked(Check.PADDED_SAMPLES, Check.SAMPLES)
    if probe.container == "flac":
        await _refuse_encoded_flac(read, size, probe, decode)
        return probe
    return await run_reader(read, size, _check(size, probe)) or probe


async def _refuse_encoded_flac(read: ReadRange, size: int, probe: Probe, decode: Decode) -> None:
    audio = probe.audio
    if audio.first_byte is None or audio.channels != _CHANNELS_OF_BURSTS:
        return
    finding = find_noise(audio.first_byte, size, audio.sample_rate, audio.bit_depth)
    zeros = await run_reader(read, size, finding)
    if zeros is not None:
        _refuse(encoded_in(await decode(zeros), f"pcm_{PIECE_FORM}"))


async def probe_samples(read: ReadRange, size: int) -> Probe | None:
    """Return the probe of a source that ffprobe does not read, though its samples are plain."""
    return await run_reader(read, size, _probe_behind(size))


def examine_start(size: int) -> Reader[Start]:
    """Return what the start of a source tells ahead of ffprobe, if it is wav, plain AIFF or AU."""
    if _PLAIN.match((yield from read_range(0, _PLAIN_BYTES))):
        return Start(is_pcm=True)
    found = yield from find_samples(size)
    form = yield from read_form(found)
    is_pcm = form is not None and not (
        yield from find_burst(found.start, found.end, form.codec, form.sample_rate * form.channels)
    )
    return Start(is_pcm, found.has_space)


def _probe_behind(size: int) -> Reader[Probe]:
    start = yield from skip_id3()
    return _moved((yield from read_inner(start, _probe(size - start))), start)


def _probe(size: int) -> Reader[Probe]:
    if (yield from read_range(0, 4)) == b"RIFX":
        # ffmpeg does not read the extension of its format.
        return (yield from _describe_wav((yield from find_samples(size))))
    form, start, end = yield from read_sphere(size)
    return (yield from _describe("nistsphere", form, start, end))


def _describe_wav(found: WavFile) -> Reader[Probe]:
    form = yield from read_form(found)
    if form is None:
        raise UndecodableSource("The codec of the wav file is not supported.")
    return (yield from _describe("wav", form, found.start, found.end))


def _describe(container: str, form: SampleForm, start: int, end: int) -> Reader[Probe]:
    is_float = form.codec.startswith("pcm_f")
    bits = FLOAT_BITS if is_float else _BITS.get(form.codec, form.bits)
    probe = Probe(
        Container(container),
        AudioStream(
            form.codec, form.sample_rate, form.channels, form.bits, bits, layout=form.layout
        ),
        duration=None,
        exact=False,
        description=SourceInfo(
            format=container,
            sample_rate=form.sample_rate,
            channels=form.channels,
            bit_depth=form.bits,
        ),
    )
    check_limits(probe.sample_rate, probe.channels)
    yield from _refuse_bursts(probe, start, end)
    return _open_raw(probe, _count_some(start, end, end, probe))


def _count_some(start: int, end: int, size: int, probe: Probe) -> SourceLength:
    length = count_samples(start, end, size, probe)
    if not length.samples:
        raise NothingDecoded
    return length


def _check(size: int, probe: Probe) -> Reader[Probe]:
    if probe.container != "wav":
        return (yield from _check_pcm(probe, probe.audio.first_byte, size))
    # ffmpeg finds the container behind small tags itself.
    start = yield from skip_id3(probe.skipped)
    first = probe.audio.first_byte
    inner = probe.with_audio(first_byte=None if first is None else first - start)
    checked = yield from read_inner(start, _check_wav(size - start, inner))
    return _moved(checked, start).with_audio(first_byte=first)


def _check_wav(size: int, probe: Probe) -> Reader[Probe]:
    found = yield from find_samples(size)
    if found.big_endian:
        described = yield from _describe_wav(found)
        return described.described(tags=probe.description.tags)
    # ffmpeg plays the last one alone.
    first = probe.audio.first_byte
    if first is not None and first >= found.end > found.start:
        raise UndecodableSource("The wav file has more than one data chunk.")
    if not probe.codec.startswith("pcm_"):
        return (yield from _check_encoded(probe, found))
    probe = yield from _check_pcm(probe, found.start, found.end)
    length = _count_some(found.start, found.end, size, probe)
    is_raw = probe.codec.removeprefix("pcm_") in RAW_DEMUXERS
    if is_raw and (found.end != found.stated_end or found.has_space):
        return _open_raw(probe, length)
    return replace(probe, stored=length)


def _check_pcm(probe: Probe, start: int | None, end: int) -> Reader[Probe]:
    if start is not None:
        yield from _refuse_bursts(probe, start, end)
    if probe.audio.decoder is None and probe.kind in _SWITCHING:
        return probe.with_audio(decoder=probe.codec)
    return probe


def _check_encoded(probe: Probe, found: WavFile) -> Reader[Probe]:
    if probe.codec in _DETECTED:
        # How many zeros ffmpeg examines differs between versions, and between codecs.
        first = yield from read_range(found.start, min(_ZEROS, found.end - found.start))
        if not any(first):
            _refuse(_DETECTED[probe.codec])
    if found.end <= found.stated_end:
        return probe
    # The samples reach to the end of the file. Their number is unknown.
    probe = probe.with_file(ignore_length=True).described(duration=None, bitrate=None)
    return replace(probe, duration=None, exact=False)


def _refuse_bursts(probe: Probe, start: int, end: int) -> Reader[None]:
    if probe.channels > 1:
        per_second = probe.sample_rate * probe.channels
        _refuse((yield from find_burst(start, end, probe.codec, per_second)))


def _refuse(encoded: str | None) -> None:
    if encoded is not None:
        raise UndecodableSource(
            f"The source holds {encoded} in the place of samples, as a digital output sends it."
        )


def _moved(probe: Probe, count: int) -> Probe:
    """Return the probe of samples that were found behind a number of bytes."""
    raw, stored, length = probe.file.raw, probe.stored, probe.length
    return replace(
        probe.with_file(raw=raw and replace(raw, offset=raw.offset + count)),
        stored=stored and stored.moved(count),
        length=length and length.moved(count),
    )


def _open_raw(probe: Probe, length: SourceLength) -> Probe:
    """Return the probe of samples that ffmpeg reads without their container."""
    form, rate = probe.codec.removeprefix("pcm_"), probe.sample_rate
    # What follows the samples is neither played nor counted.
    length = replace(length, ends_in_padding=True)
    raw = RawSamples(form, length.data_offset, rate, probe.channels)
    probe = replace(probe.with_length(length), stored=length, measured=True)
    probe = probe.with_audio(decoder=None, bitrate=None)
    probe = probe.with_file(raw=raw, demuxer=None, skipped=0, ignore_length=False)
    bitrate = 8 * sample_bytes(probe.codec) * probe.channels * rate
    return probe.described(duration=probe.duration, bitrate=bitrate)
