"""The containers and codecs that ffmpeg can write and the service reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tests.matrix.regions import KIND_SECONDS as SECONDS
from tests.support.audio import Sound, convert, noise, read_wav, run, write_wav
from tests.support.programs import FFMPEG

#: ffmpeg's muxers for the containers of `audioproxy.media.inputs.DEMUXERS`. Those without a
#: header take any codec, so their own codecs are listed.
MUXERS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys("wav w64 ogg mov mp4 matroska webm aiff caf asf au avi mpegts".split(), ()),
    **dict.fromkeys("mpeg vob flv wv tta flac mp3 amr".split(), ()),
    "mp2": ("mp2",),
    "adts": ("aac",),
    "ac3": ("ac3",),
    "eac3": ("eac3",),
}

# Encoders for whose codec another one is in the list too, and experiments.
_OTHERS = {"libtwolame", "ac3_fixed", "mp2fixed", "libshine", "sonic", "sonicls", "opus", "vorbis"}
_OTHERS |= {"comfortnoise", "libvo_amrwbenc"}
_ENCODER = re.compile(rb"^ A\S{5} (\S+)", re.MULTILINE)

_RATES = dict.fromkeys("g723_1 libgsm libgsm_ms g726 g726le nellymoser real_144".split(), 8000)
_RATES |= {"libcodec2": 8000, "libspeex": 16000, "g722": 16000, "adpcm_ima_amv": 22050}
_RATES |= {"roq_dpcm": 22050, "pcm_s24daud": 96000}
_RATES |= dict.fromkeys("libopus s302m pcm_dvd pcm_bluray".split(), 48000)
_MONO = "g723_1 libgsm libgsm_ms g726 g726le nellymoser g722 real_144 libcodec2".split()
_MONO += ["adpcm_ima_amv", "libspeex"]
# The decoder of AAC replaces some noise with its own, which depends on where decoding starts.
_ARGUMENTS = {"aac": "-aac_pns 0", "libcodec2": "-mode 3200", "libopus": "-b:a 128k"}

#: Streams that a source may have beside its audio, as options of ffmpeg: a longer track, and
#: pictures.
STREAMS = {
    "track": f"-f lavfi -i sine=duration={2 * SECONDS} -map 0 -map 1",
    "pictures": f"-f lavfi -i testsrc=s=32x32:r=1/3:d={SECONDS} -map 0 -map 1 -c:v mjpeg",
}
_WITH_STREAMS = "mov mp4 matroska webm ogg avi asf mpegts mpeg".split()
_ENCODERS_WITH_STREAMS = "flac aac alac libopus libvorbis pcm_s16le mp2".split()


# Kinds that are tried without some of their packets, too.
_WITH_GAPS = (("mp4", "aac"), ("mp4", "alac"), ("mov", "ac3"), ("matroska", "flac"))
_WITH_GAPS += (("webm", "libopus"), ("ogg", "libopus"), ("flv", "libmp3lame"), ("mpegts", "mp2"))
_WITH_GAPS += (("asf", "wmav2"),)
#: A kind whose time stamps have a gap that the audio has not, as FFmpeg 5.1 reads what it writes.
FALSE_GAP = ("asf", "flac")
_DROP = r"noise=drop=between(pts*tb\,3\,4.5)"


class Kind(NamedTuple):
    """A container and a codec, as ffmpeg's muxer and encoder.

    :ivar beside: what else the source has, a key of `STREAMS`; empty for audio alone.
    :ivar has_gap: some packets are missing, and the time stamps of the others tell.
    """

    muxer: str
    encoder: str
    beside: str = ""
    has_gap: bool = False


def list_kinds() -> Iterator[Kind]:
    """Yield all combinations of muxers and encoders, whether they fit each other or not."""
    listed = run([FFMPEG, "-hide_banner", "-encoders"]).stdout
    encoders = [name.decode() for name in _ENCODER.findall(listed) if name != b"="]
    for muxer, codecs in MUXERS.items():
        for encoder in encoders:
            if encoder not in _OTHERS and (not codecs or encoder in codecs):
                yield Kind(muxer, encoder)
                if muxer in _WITH_STREAMS and encoder in _ENCODERS_WITH_STREAMS:
                    yield from (Kind(muxer, encoder, beside) for beside in STREAMS)
    for muxer, encoder in _WITH_GAPS:
        yield Kind(muxer, encoder, has_gap=True)


def make_source(kind: Kind) -> bytes | None:
    """Return noise as a file of a kind; None if the container does not hold the codec."""
    rate = _RATES.get(kind.encoder, 48000 if kind.muxer == "webm" else 44100)
    sound = noise(rate, SECONDS * rate, 1 if kind.encoder in _MONO else 2)
    words = f"{STREAMS.get(kind.beside, '')} -ac {len(sound.channels)} -ar {rate}"
    words += f" -c:a {kind.encoder} {_ARGUMENTS.get(kind.encoder, '')} -strict -2 -f {kind.muxer}"
    try:
        source = convert(write_wav(sound), *words.split())
        if kind.has_gap:
            source = convert(source, *f"-c copy -bsf:a {_DROP} -f {kind.muxer}".split())
        # Some muxers write what no demuxer reads.
        decoded = decode_whole(source)
    except AssertionError:
        return None
    if not decoded.rate:
        return None
    lost = SECONDS - len(decoded) / decoded.rate
    return source if abs(lost) < (2 if kind.has_gap else 0.5) else None


def decode_whole(source: bytes) -> Sound:
    """Decode a file with ffmpeg, also DTS in wav, which looks like uncompressed audio."""
    return read_wav(convert(source, *"-map 0:a:0 -c:a pcm_f32le -f wav".split()))
