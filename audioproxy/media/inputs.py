"""Arguments that open a source in ffmpeg and ffprobe, and keep them from opening anything else."""

from __future__ import annotations

from dataclasses import dataclass

#: Containers that can hold audio alone; the last row lists broadcast containers. The probe and the
#: encoder use the same list, so that /info and a render agree. Containers that can refer to another
#: file (HLS, DASH, concat scripts, image sequences) are left out. A source in one of those is
#: undecodable, whatever its name (D43).
DEMUXERS = (
    "mp3,flac,wav,w64,ogg,mov,matroska,aac,aiff,caf,amr,wv,ape,tta,dsf,mpc,mpc8,asf,ac3,eac3,au"
    ",dts,loas,tak,iff,avi,mpegts,mpeg,mxf,flv"
)

#: The demuxers of samples without a container, which have the names of ffmpeg's codecs. The service
#: itself finds the place of the samples and their form (`audioproxy.media.samples`).
RAW_DEMUXERS = frozenset(
    "alaw f32be f32le f64be f64le mulaw s16be s16le s24be s24le s32be s32le s8 u8".split()
)

# Bytes of samples that are examined if these are certainly uncompressed.
_PCM_PROBE_BYTES = "65536"

#: The descriptor number at which a child finds its source. Where blocks of it arrive on demand, it
#: asks for them at the second one, and the third one is the map of those that are there: see
#: ``cell.c``.
SOURCE_DESCRIPTOR, QUESTIONS_DESCRIPTOR, MAP_DESCRIPTOR = 3, 4, 5


@dataclass(frozen=True, slots=True)
class RawSamples:
    """Uncompressed samples that are read from a place on, whatever the container says.

    :ivar form: ffmpeg's demuxer, such as ``s16be``.
    :ivar offset: of the first sample, in bytes.
    """

    form: str
    offset: int
    sample_rate: int
    channels: int

    def arguments(self) -> list[str]:
        return [
            *("-f", self.form, "-skip_initial_bytes", str(self.offset)),
            *("-ar", str(self.sample_rate), "-ac", str(self.channels)),
        ]


@dataclass(frozen=True, slots=True)
class Input:
    """A source as ffmpeg and ffprobe open it: a file, of which the child has a descriptor.

    :ivar seekable: False where only the start of the source can be read now.
    :ivar decoded: the format of the samples that another process decodes, such as ``f64le``, and
        writes to the child's stdin; None for a source that is not decoded.
    :ivar options: arguments for the format of decoded samples.
    :ivar demuxer: the one that the source's signature proves; None for that which ffmpeg detects.
    :ivar skipped: bytes ahead of the container, which only the signature has shown.
    :ivar starts_at_place: what ffmpeg reads begins where decoding starts, so it does not seek.
    :ivar decoder: the audio decoder; None for the one that ffmpeg chooses.
    :ivar ignore_length: the samples of a wav file reach to its end, whatever its header states.
    :ivar raw: the samples, where ffmpeg does not read the container.
    :ivar is_pcm: the source is certainly uncompressed samples. ffmpeg and ffprobe examine few of
        them. By default they read up to 3.3 MB, to find encoded audio in their place.
    :ivar forward: ffprobe reads the start of a wav file, and does not look for chunks behind it.
    """

    seekable: bool = True
    decoded: str | None = None
    options: tuple[str, ...] = ()
    demuxer: str | None = None
    skipped: int = 0
    starts_at_place: bool = False
    decoder: str | None = None
    ignore_length: bool = False
    raw: RawSamples | None = None
    is_pcm: bool = False
    forward: bool = False

    @property
    def url(self) -> str:
        """The URL of the inherited descriptor.

        ``file:`` with the descriptor's path can seek, which ``pipe:`` cannot, and the file cannot
        be swapped for another one.
        """
        return f"file:/dev/fd/{SOURCE_DESCRIPTOR if self.decoded is None else 0}"

    def probe_arguments(self) -> list[str]:
        seeking = [] if self.seekable and not self.forward else ["-seekable", "0"]
        # It looks for chunks at the end of the header, and again at the end of the samples.
        length = ["-ignore_length", "1"] if self.forward else []
        return [*self._whitelists(), *seeking, *length, "-i", self.url]

    def encoder_arguments(self, seek: str | None = None) -> list[str]:
        """Return the arguments that open the source in ffmpeg, which can always seek in it.

        :param seek: where decoding starts, in seconds. What is decoded already starts there.
        """
        start = [] if seek is None or self.decoded or self.starts_at_place else ["-ss", seek]
        decoder = [] if self.decoder is None else ["-c:a", self.decoder]
        length = ["-ignore_length", "1"] if self.ignore_length else []
        return [*self._whitelists(), *length, *decoder, *start, "-i", self.url]

    def _whitelists(self) -> list[str]:
        return [
            *("-protocol_whitelist", "file"),
            *("-format_whitelist", self.decoded or (self.raw.form if self.raw else DEMUXERS)),
            *([] if self.demuxer is None else ["-f", self.demuxer]),
            *([] if not self.skipped else ["-skip_initial_bytes", str(self.skipped)]),
            *([] if self.raw is None else self.raw.arguments()),
            *(["-probesize", _PCM_PROBE_BYTES] if self.is_pcm else []),
            *self.options,
        ]


def local_input(*, seekable: bool = True) -> Input:
    return Input(seekable=seekable)
