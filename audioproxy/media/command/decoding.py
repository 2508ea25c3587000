"""How ffmpeg opens a source, and irregular sources: their detection, and their decoder.

An irregular source changes its sample rate, its channels or its sample format inside, or it holds
samples that are no audio: NaN, infinite or huge ones. At such a change ffmpeg builds its filters
anew, and all filters that count begin at zero. A sample that is no audio spoils all that follows it
in a filter with memory, and encoders do not accept it. A source is irregular, too, if it has more
audio than its header states, as joined files have: the header of the output would state too little.
So is a source in which a seek leads past the requested place.

A render in one process fails at each of these. It begins anew in two processes: a decoder outputs
one stream at the probed rate and channels, from the start of the source, and the encoder reads that
(D63). For the regular part of a source, both ways give the same bytes (D78). What has more audio
than its header states is repeated without a stated length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from itertools import pairwise

from audioproxy.errors import IrregularSource, WrongLength
from audioproxy.grammar.values import print_decimal
from audioproxy.media.bursts import LONGEST_PERIOD
from audioproxy.media.command.downmix import layout_of_filters
from audioproxy.media.command.exact_length import EXCESS
from audioproxy.media.command.gaps import jump_arguments, keep_time
from audioproxy.media.command.trim import LATE
from audioproxy.media.conversion import SWRESAMPLE
from audioproxy.media.inputs import Input
from audioproxy.media.messages import Meaning, messages
from audioproxy.media.probe import Probe

# The amplitude from which a sample is no audio: 96 dB over full scale. Conversions of larger ones
# to 16 bits overflow.
_LARGEST_SAMPLE = 65536

# Codecs whose samples have more bits than ffmpeg's other decoders output.
_DOUBLES = ("pcm_f64", "pcm_s64")
# The raw formats of integers, by the bits that they hold.
_INTEGERS = {8: "u8", 16: "s16le", 24: "s24le", 32: "s32le"}
_FLOAT, _DOUBLE = "f32le", "f64le"
#: The raw formats in which a decoder outputs samples.
STREAM_FORMATS = (*_INTEGERS.values(), _FLOAT, _DOUBLE)

# The most usual layout of each number of channels.
_USUAL_LAYOUTS = dict(enumerate("mono stereo 2.1 4.0 5.0 5.1 6.1 7.1".split(), 1))

# No sum of channels exceeds full scale.
_MIXING_RESAMPLER = f"{SWRESAMPLE}:rematrix_maxval=1"

# Reports samples that are no audio. To silencedetect, all audio is silence with this limit, so it
# reports the start of silence at the first sample, and an end at each sample that is no audio. The
# times are seconds; it counts samples from 1.
_SAMPLE_CHECK = (
    "asetpts=N,silencedetect=noise={limit}:duration=0,ametadata=mode=print:file=pipe\\\\:2:direct=1"
)
_START = re.compile(rb"^lavfi\.silence_start=(\S+)$", re.MULTILINE)
_REPORTS = rb"^lavfi\.silence_end=|" + LATE
_IRREGULAR = re.compile(messages(Meaning.IRREGULAR).pattern + rb"|" + _REPORTS, re.MULTILINE)
_EXCESS = re.compile(EXCESS)

#: Lines of stderr that are needed however much output follows them.
KEPT_LINES = re.compile(
    messages(Meaning.SILENCE_LOST).pattern
    + rb"|^lavfi\.silence_start=|"
    + EXCESS
    + rb"|"
    + _REPORTS,
    re.MULTILINE,
)


#: The form of the samples that `piece_arguments` outputs, and how many of each channel: those in
#: which every burst of encoded audio repeats (`audioproxy.media.bursts`).
PIECE_FORM = "s32le"
_PIECE = LONGEST_PERIOD
#: Bytes that the piece of two channels has at most.
PIECE_LIMIT = 8 * _PIECE


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The command lines of a render.

    :ivar decoder: for an irregular source, the process whose stdout is the encoder's stdin.
    :ivar checked_rate: the sample rate in Hz of the source, if the encoder checks its samples.
    :ivar seconds: the length of the output, as far as it is known.
    """

    encoder: list[str]
    decoder: list[str] | None = None
    checked_rate: int | None = None
    seconds: float | None = None

    def check(self, stderr: bytes, *, succeeded: bool = False) -> None:
        """Check what the encoder has found out about its source.

        :param succeeded: the encoder has ended without an error, so it has had all samples.
        :raises WrongLength: where the source has more audio than it states.
        :raises IrregularSource: where the source needs a decoder of its own.
        """
        if self.decoder is None and self._is_irregular(stderr, succeeded=succeeded):
            raise IrregularSource
        if _EXCESS.search(stderr) is not None:
            raise WrongLength

    def _is_irregular(self, stderr: bytes, *, succeeded: bool) -> bool:
        if _IRREGULAR.search(stderr) is not None:
            return True
        if self.checked_rate is None:
            return False
        start = _START.search(stderr)
        return succeeded if start is None else round(float(start[1]) * self.checked_rate) != 1

    def has_checked(self, stderr: bytes) -> bool:
        """Return whether the encoder has found a sample that is audio, where it checks samples."""
        return self.checked_rate is None or _START.search(stderr) is not None


def single_process(encoder: list[str], probe: Probe) -> Pipeline:
    # Tags may have any words.
    filters = [word for option, word in pairwise(encoder) if option == "-af"]
    is_checked = any("silencedetect" in word for word in filters)
    return Pipeline(encoder, checked_rate=probe.sample_rate if is_checked else None)


def seek_position(seek: int, probe: Probe) -> str | None:
    """Return the seconds of a seek by ffmpeg to a sample; None for the start.

    ffmpeg counts them from the first sample of any stream. Microseconds, which are its unit, are
    exact: it rounds them to the nearest sample.
    """
    seconds = round(Decimal(seek) / probe.sample_rate + probe.file.seek_offset, 6)
    return print_decimal(seconds) if seek else None


def open_source(
    ffmpeg: str, source: Input, probe: Probe, position: str | None = None, *, uniform: bool = True
) -> list[str]:
    """Return the beginning of a command line, up to the selection of the audio stream.

    :param position: where decoding starts, as `seek_position` returns it.
    :param uniform: fail at a change of rate, channels or sample format inside the source.
    """
    return [
        *(ffmpeg, "-nostdin", "-hide_banner"),
        # The source is decoded to its end, however many of its frames are damaged.
        *("-max_error_rate", "1", "-v", "error"),
        *(["-threads", "1"] if probe.in_parts else []),
        *(["-reinit_filter", "0"] if uniform and source.decoded is None else []),
        *(_source_arguments(probe) if source.decoded is None else []),
        *source.encoder_arguments(position),
        *("-map", "0:a:0", "-vn", "-sn", "-dn"),
    ]


def _source_arguments(probe: Probe) -> list[str]:
    """Return ffmpeg's arguments for what it decodes itself.

    Where AC-3 leaves out bits, decoders put noise, which must not depend on the frames ahead
    (findings/ffmpeg-ac3-noise.sh).
    """
    noise = ["-cons_noisegen", "1"] if probe.codec in ("ac3", "eac3") else []
    return [*noise, *jump_arguments(probe)]


def source_filters(source: Input, probe: Probe, seek: int, *, samples: bool) -> list[str]:
    """Return the first filters of a chain, which put silence into gaps, and check the source.

    The checks make a render of an irregular source fail, or report it.

    :param seek: the sample at which decoding starts. A change may precede it.
    :param samples: check stored floating-point samples.
    """
    if source.decoded is not None:
        return []
    filters = []
    if seek:
        expected = f"eq(sample_rate\\,{probe.sample_rate})*eq(nb_channels\\,{probe.channels})"
        # At the volume 1 and this precision, the filter passes on the samples of a decoder.
        precision = "fixed"
        if probe.audio.decodes_to_floats:
            precision = "double" if probe.codec.startswith(_DOUBLES) else "float"
        filters.append(f"volume=volume=if({expected}\\,1\\,nan):eval=once:precision={precision}")
    filters += keep_time(probe)
    if samples and probe.audio.stores_floats:
        filters.append(_SAMPLE_CHECK.format(limit=_LARGEST_SAMPLE))
    return filters


def decoded_stream(probe: Probe) -> Input:
    """Return the input of the encoder, whose stdin is what `decoder_arguments` outputs.

    Its format holds every sample of the decoder, is no wider than that, and converts to other
    formats as those would: integers are cut off, floating-point numbers are rounded.
    """
    form, layout = _stream_format(probe), _stream_layout(probe)
    # ffmpeg takes a number of channels for the most usual layout of so many.
    channels = ("-ac", str(probe.channels)) if layout is None else ("-ch_layout", layout)
    options = ("-f", form, "-ar", str(probe.sample_rate), *channels)
    return Input(decoded=form, options=options)


def _stream_layout(probe: Probe) -> str | None:
    """Return the layout of the channels in the stream; None where they have no labels."""
    layout = layout_of_filters(probe.channels, probe.audio.layout)
    return _USUAL_LAYOUTS.get(probe.channels) if _has_unmixable_labels(probe) else layout


def _has_unmixable_labels(probe: Probe) -> bool:
    """Return whether libswresample cannot mix the channels, whose labels it does not know."""
    return (
        probe.audio.layout is not None
        and layout_of_filters(probe.channels, probe.audio.layout) is None
    )


def _stream_format(probe: Probe) -> str:
    """Return the narrowest raw format that keeps every sample of the decoder."""
    if not probe.audio.decodes_to_floats:
        return next(form for bits, form in _INTEGERS.items() if probe.audio.decoded_bits <= bits)
    # No raw format has integers of 64 bits.
    return _DOUBLE if probe.codec.startswith(_DOUBLES) else _FLOAT


def decoder_arguments(
    ffmpeg: str, source: Input, probe: Probe, *, finite: bool = True
) -> list[str]:
    """Return the command line that decodes an irregular source to one stream.

    The stream has the probed rate and channels. The resampler is always that of libswresample: at
    each change ffmpeg drops what the resampler holds, which is 2 ms for this one, and up to 40 ms
    for libsoxr.

    :param finite: samples that are no audio become silence.
    """
    filters = keep_time(probe)
    if finite and probe.audio.stores_floats:
        filters.append(f"aeval=if(lte(abs(val(ch))\\,{_LARGEST_SAMPLE})\\,val(ch)\\,0):c=same")
    layout = _stream_layout(probe)
    if layout is not None and _has_unmixable_labels(probe):
        # The labels are taken away. The encoder mixes by the numbers of the channels.
        numbers = "|".join(map(str, range(probe.channels)))
        filters.append(f"channelmap=map={numbers}:channel_layout={layout}")
    if probe.channels == 2:
        # libswresample lowers mono by 3 dB on both sides. A filter of its own mixes the channels:
        # ffmpeg would mix them ahead of the volume.
        filters.append("volume=volume=if(eq(nb_channels\\,1)\\,sqrt(2)\\,1):precision=double")
    mixed = "" if layout is None else f"ochl={layout}:"
    filters.append(f"aresample={probe.sample_rate}:{mixed}{_MIXING_RESAMPLER}")
    channels = [] if layout is not None else ["-ac", str(probe.channels)]
    form = _stream_format(probe)
    return [
        *open_source(ffmpeg, source, probe, uniform=False),
        *("-af", ",".join(filters)),
        *("-ar", str(probe.sample_rate), *channels),
        *("-abort_on", "empty_output", "-c:a", f"pcm_{form}", "-f", form, "pipe:1"),
    ]


def measure_arguments(
    ffmpeg: str, source: Input, probe: Probe, *, frames: int | None = None
) -> list[str]:
    """Return the command line of a decode pass that counts the samples of a source.

    ffmpeg writes one byte for each sample of the stream that `decoder_arguments` describes, and
    reports their number. Filters that count begin anew at a change. One channel is counted:
    libswresample cannot mix Ambisonics, or nine unlabeled channels.

    :param frames: the pass ends after this number of decoded frames; None for the whole source.
    """
    one_rate = ["pan=mono|c0=c0", f"aresample={probe.sample_rate}:{_MIXING_RESAMPLER}"]
    return [
        *open_source(ffmpeg, source, probe, uniform=False),
        *("-progress", "pipe:1", "-stats_period", "3600"),
        *("-af", ",".join([*keep_time(probe), *one_rate])),
        *("-ar", str(probe.sample_rate), "-ac", "1"),
        *([] if frames is None else ["-frames:a", str(frames)]),
        *("-c:a", "pcm_u8", "-f", "u8", "-y", "/dev/null"),
    ]


def piece_arguments(ffmpeg: str, source: Input, probe: Probe, start: int) -> list[str]:
    """Return the command line that outputs samples from one on as they are, in `PIECE_FORM`."""
    return [
        *open_source(ffmpeg, source, probe, uniform=False),
        *("-af", f"atrim=start_sample={start}:end_sample={start + _PIECE}"),
        *("-c:a", f"pcm_{PIECE_FORM}", "-f", PIECE_FORM, "pipe:1"),
    ]
