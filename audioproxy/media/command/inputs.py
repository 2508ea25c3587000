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

# Microseconds without a byte, after which ffmpeg gives up a connection.
_STALL_TIMEOUT_US = 20_000_000
# ffmpeg tries to restore a lost connection at once, and again a second later. That repairs most
# losses, and ffmpeg reports the attempts. Without these options, ffmpeg reads on at the old offset
# after a failed seek, and does not report the failure. It also does so where it wrongly detects
# that a server does not serve ranges; `-seekable 1` overrides this detection.
_RANGE_OPTIONS = ["-seekable", "1", "-reconnect", "1", "-reconnect_on_network_error", "1"]
_RANGE_OPTIONS += ["-reconnect_delay_max", "2"]

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
        """Return the options that open the samples in ffmpeg."""
        return [
            *("-f", self.form, "-skip_initial_bytes", str(self.offset)),
            *("-ar", str(self.sample_rate), "-ac", str(self.channels)),
        ]


@dataclass(frozen=True, slots=True)
class Input:
    """A source as ffmpeg and ffprobe open it.

    :ivar protocols: the protocol whitelist, derived from the kind of source alone.
    :ivar options: arguments for the source's protocol, such as the trusted certificates.
    :ivar seekable: the source is a file, or its server is known to serve ranges. Only then can a
        connection that ends early be recognized.
    :ivar decoded: the format of the samples that another process decodes, such as ``f64le``; None
        for a source that is not decoded.
    :ivar demuxer: the demuxer that the source's signature proves; None for the one that ffmpeg
        detects.
    :ivar skipped: bytes ahead of the container, which only the signature has shown.
    :ivar decoder: the audio decoder; None for the one that ffmpeg chooses.
    :ivar ignore_length: the samples of a wav file reach to the end of the file, whatever its header
        states.
    :ivar raw: the samples, where ffmpeg does not read the container.
    :ivar forward: ffprobe reads the start of a wav file, and does not look for chunks behind it.
    """

    url: str
    protocols: tuple[str, ...]
    options: tuple[str, ...] = ()
    seekable: bool = True
    decoded: str | None = None
    demuxer: str | None = None
    skipped: int = 0
    decoder: str | None = None
    ignore_length: bool = False
    raw: RawSamples | None = None
    forward: bool = False

    @property
    def verbosity(self) -> str:
        """The log level for ffmpeg; for a remote source, warnings report lost connections."""
        return "error" if self.protocols == ("file",) else "warning"

    def probe_arguments(self) -> list[str]:
        """Return the arguments that open the source in ffprobe."""
        # It looks for them at the end of the header, and again at the end of the samples.
        forward = ["-seekable", "0", "-ignore_length", "1"] if self.forward else []
        return [*self._whitelists(), *forward, "-i", self.url]

    def encoder_arguments(self, seek: str | None = None) -> list[str]:
        """Return the arguments that open the source in ffmpeg.

        :param seek: where decoding starts, in seconds. What is decoded already starts there.
        """
        start = [] if seek is None or self.decoded else ["-ss", seek]
        decoder = [] if self.decoder is None else ["-c:a", self.decoder]
        length = ["-ignore_length", "1"] if self.ignore_length else []
        return [*self._whitelists(), *length, *decoder, *start, "-i", self.url]

    def _whitelists(self) -> list[str]:
        return [
            *("-protocol_whitelist", ",".join(self.protocols)),
            *("-format_whitelist", self.decoded or (self.raw.form if self.raw else DEMUXERS)),
            *([] if self.demuxer is None else ["-f", self.demuxer]),
            *([] if not self.skipped else ["-skip_initial_bytes", str(self.skipped)]),
            *([] if self.raw is None else self.raw.arguments()),
            *self.options,
        ]


def local_input(*, seekable: bool = True) -> Input:
    """Return the input for a checked local file, whose open descriptor the child inherits.

    ``file:`` with the descriptor's path can seek, which ``pipe:`` cannot, and the file cannot be
    swapped for another one.
    """
    return Input(f"file:/dev/fd/{SOURCE_DESCRIPTOR}", ("file",), seekable=seekable)


def remote_input(
    url: str,
    user_agent: str,
    ca_file: str | None = None,
    *,
    if_match: str | None = None,
    ranges: bool = True,
) -> Input:
    """Return the input for an https URL, or for an http URL of an object store's endpoint.

    Redirects are not followed: the service has already resolved and checked them. By default,
    ffmpeg would not verify certificates, and would request the titles of Icecast servers. Both
    defaults are overridden. By default, Nagle's algorithm would delay the first request of each
    connection until the server acknowledges the end of the TLS handshake, some 40 ms later.

    :param ca_file: PEM bundle to trust; None for the system's.
    :param if_match: a strong entity tag. The server refuses a request for a further range if the
        source's tag has changed.
    :param ranges: the server is known to serve ranges. If a server sent the whole body in place of
        a range, ffmpeg would read bytes in a wrong order without an error.
    """
    options = ["-tcp_nodelay", "1", "-max_redirects", "0", "-icy", "0"]
    options += ["-rw_timeout", str(_STALL_TIMEOUT_US), "-user_agent", user_agent]
    options += _RANGE_OPTIONS if ranges else ["-seekable", "0"]
    if if_match is not None:
        options += ["-headers", f"If-Match: {if_match}\r\n"]
    # Cleartext is for an object store at a development endpoint, never for an https source (Format
    # and encoding options, 5).
    protocols = ("https", "tls", "tcp")
    if not url.startswith("https:"):
        return Input(url, (*protocols, "http"), tuple(options), seekable=ranges)
    options += ["-tls_verify", "1"]
    if ca_file is not None:
        options += ["-ca_file", ca_file]
    return Input(url, protocols, tuple(options), seekable=ranges)
