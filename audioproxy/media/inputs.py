"""How a source is opened by ffmpeg and ffprobe, and what they may open besides: nothing."""

from __future__ import annotations

from dataclasses import dataclass

#: Containers that can hold audio alone; the last row is those of broadcasters. One list serves
#: probe and encoder, so that /info and a render agree. Containers that can name another file (HLS,
#: DASH, concat scripts, image sequences) are missing: under any name they are undecodable (D43).
_DEMUXERS = (
    "mp3,flac,wav,w64,ogg,mov,matroska,aac,aiff,caf,amr,wv,ape,tta,dsf,mpc,mpc8,asf,ac3,eac3,au"
    ",avi,mpegts,mpeg,mxf,flv"
)

# Contract: Format and encoding options, rule 5. Cleartext is for an object store at a development
# endpoint, never for an https source.
_REMOTE = ("https", "tls", "tcp")
_CLEARTEXT = ("http",)
# Microseconds without a byte, after which a connection is given up.
_STALL = 20_000_000
# A connection that is lost is made again, at once and a second later. That heals most, and says so
# where it does not: a seek that fails is otherwise no word to ffmpeg, which reads on where it was.
# So it does in a source that it takes for one without ranges, whatever was proved before.
_RANGES = ["-seekable", "1", "-reconnect", "1", "-reconnect_on_network_error", "1"]
_RANGES += ["-reconnect_delay_max", "2"]

#: The descriptor number under which a child finds a local source.
SOURCE_DESCRIPTOR = 3


@dataclass(frozen=True, slots=True)
class Input:
    """A source as the programs see it.

    :ivar protocols: the protocol whitelist, derived from the kind of source alone.
    :ivar options: words that the source's protocol takes, such as what it trusts.
    :ivar bounded: its length is known, so that a source which ends early is told from a short one.
    """

    url: str
    protocols: tuple[str, ...]
    options: tuple[str, ...] = ()
    bounded: bool = True

    @property
    def verbosity(self) -> str:
        """How much ffmpeg should say: of a remote source, what it does not take for an error."""
        return "error" if self.protocols == ("file",) else "warning"

    def probe_arguments(self) -> list[str]:
        """Return the words that open the source in ffprobe."""
        return [*self._whitelists(), "-i", self.url]

    def encoder_arguments(self, seek: str | None = None) -> list[str]:
        """Return the words that open the source in ffmpeg.

        :param seek: where decoding starts, in seconds.
        """
        start = [] if seek is None else ["-ss", seek]
        return [*self._whitelists(), *start, "-i", self.url]

    def _whitelists(self) -> list[str]:
        return [
            "-protocol_whitelist",
            ",".join(self.protocols),
            "-format_whitelist",
            _DEMUXERS,
            *self.options,
        ]


def local_input() -> Input:
    """Return the input for a file that the child inherits, opened and checked.

    ``file:`` on the descriptor's path seeks, as ``pipe:`` would not, and cannot be swapped
    for another file.
    """
    return Input(f"file:/dev/fd/{SOURCE_DESCRIPTOR}", ("file",))


def remote_input(
    url: str,
    user_agent: str,
    ca_file: str | None = None,
    *,
    if_match: str | None = None,
    ranges: bool = True,
) -> Input:
    """Return the input for an https URL, or for an http one of an object store's own endpoint.

    No redirect is followed: where this one leads was found out and checked before. Unasked,
    ffmpeg would neither verify a certificate nor do without the titles of an Icecast server.

    :param ca_file: PEM bundle to trust; None is the system's.
    :param if_match: a strong entity tag. A request for a further range is refused where the source
        has another one by then.
    :param ranges: the server is known to serve them. One that gives its whole body in place of a
        range would be read in a wrong order, and nothing would tell.
    """
    options = ["-max_redirects", "0", "-icy", "0", "-rw_timeout", str(_STALL)]
    options += ["-user_agent", user_agent]
    options += _RANGES if ranges else ["-seekable", "0"]
    if if_match is not None:
        options += ["-headers", f"If-Match: {if_match}\r\n"]
    if not url.startswith("https:"):
        return Input(url, (*_REMOTE, *_CLEARTEXT), tuple(options), bounded=ranges)
    options += ["-tls_verify", "1"]
    if ca_file is not None:
        options += ["-ca_file", ca_file]
    return Input(url, _REMOTE, tuple(options), bounded=ranges)
