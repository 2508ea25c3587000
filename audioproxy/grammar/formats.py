"""The table of output formats: what a URL may combine with each, and what it gives.

`audioproxy.media.command.encoders` is its other half: how each format is encoded. For type
checkers, `audioproxy.urls.variant.Format` repeats the tokens.

The bounds of ``br`` are those that the encoders honor (D6). The ranges of ``q`` are those of the
contract (Format and encoding options).
"""

from __future__ import annotations

from dataclasses import dataclass

#: An explicit ``sr`` above this is refused for a lossy format, in Hz.
LOSSY_RATE_CEILING = 48000


@dataclass(frozen=True, slots=True)
class Rates:
    """The sample rates of a format in Hz: those ``listed``, or all up to ``highest``.

    Rates above ``step_10_above`` must be multiples of 10.
    """

    listed: tuple[int, ...] = ()
    highest: int = 384000
    step_10_above: int = 384000

    def accepts(self, rate: int) -> bool:
        if self.listed:
            return rate in self.listed
        return 1 <= rate <= self.highest and (rate <= self.step_10_above or rate % 10 == 0)

    def nearest(self, rate: int) -> int:
        """Return ``rate`` if it is supported, else the next higher one, else the highest (D8)."""
        if self.accepts(rate):
            return rate
        if self.listed:
            return min((r for r in self.listed if r > rate), default=max(self.listed))
        return min(max(rate + -rate % 10, 1), self.highest)

    def describe(self, ceiling: int) -> str:
        if self.listed:
            return "one of " + ", ".join(str(rate) for rate in self.listed if rate <= ceiling)
        return f"only multiples of 10 above {self.step_10_above}"


@dataclass(frozen=True, slots=True)
class Format:
    """One output format.

    :ivar content_type: None for peaks, where ``pk_fmt`` decides.
    :ivar br: bounds of ``br`` in kbps, or None where it cannot change the output.
    :ivar q_whole: ``q`` is a compression level, a whole number.
    :ivar default_br: kbps where a URL sets neither ``br`` nor ``q`` (D9).
    :ivar default_q: the value of ``q`` where a URL omits it, in place of a default bit rate.
    :ivar depths: values of ``bd``.
    :ivar in_browsers: browsers play it. The test of the player plays it in Chromium.
    :ivar revision: the format's byte revision, part of every cache key (D5). Raise it with each
        change that alters the bytes of the format, such as new encoder arguments or filters.
    """

    token: str
    description: str
    content_type: str | None
    rates: Rates
    br: tuple[int, int] | None = None
    q: tuple[str, str] | None = None
    q_whole: bool = False
    default_br: int | None = None
    default_q: str = ""
    depths: tuple[str, ...] = ()
    in_browsers: bool = True
    revision: int = 7

    @property
    def lossy(self) -> bool:
        return self.br is not None


# ISO/IEC 11172-3, 13818-3 and LAME's MPEG 2.5.
_MPEG_RATES = Rates((8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000))
# RFC 6716, 2.
_OPUS_RATES = Rates((8000, 12000, 16000, 24000, 48000))
# ISO/IEC 14496-3, table 1.18.
_AAC_RATES = Rates((7350, *_MPEG_RATES.listed, 64000, 88200, 96000))

FORMATS = {
    row.token: row
    for row in (
        Format(
            "mp3",
            "MPEG audio, layer III",
            "audio/mpeg",
            _MPEG_RATES,
            br=(8, 320),
            q=("0", "9"),
            default_br=192,
            revision=9,
        ),
        Format(
            "opus",
            "Opus in Ogg",
            "audio/ogg",
            _OPUS_RATES,
            br=(6, 510),
            q=("0", "10"),
            q_whole=True,
            default_br=128,
            default_q="10",
            revision=8,
        ),
        Format(
            "ogg",
            "Vorbis in Ogg",
            "audio/ogg",
            Rates(highest=200000),
            br=(32, 500),
            q=("-1", "10"),
            default_q="5",
            revision=8,
        ),
        Format(
            "aac",
            "AAC in ADTS",
            "audio/aac",
            _AAC_RATES,
            br=(8, 512),
            q=("0.1", "2"),
            default_br=160,
        ),
        Format(
            "m4a",
            "AAC in fragmented MP4",
            "audio/mp4",
            _AAC_RATES,
            br=(8, 512),
            q=("0.1", "2"),
            default_br=160,
            revision=8,
        ),
        Format(
            "flac",
            "FLAC, lossless",
            "audio/flac",
            # RFC 9639, 9.1.2: from 65535 Hz on, ffmpeg writes the rate in units of 10 Hz.
            Rates(step_10_above=65534),
            q=("0", "12"),
            q_whole=True,
            default_q="5",
            depths=("16", "24"),
            revision=9,
        ),
        Format(
            "wav",
            "PCM in WAVE, lossless",
            "audio/wav",
            Rates(),
            depths=("16", "24", "32f"),
            revision=8,
        ),
        # Nothing is encoded: the rate is that of the source.
        Format(
            "peaks",
            "a waveform",
            None,
            Rates(highest=2**31 - 1, step_10_above=2**31 - 1),
            in_browsers=False,
        ),
    )
}
