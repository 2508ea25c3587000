"""How a source is opened by ffmpeg and ffprobe, and what they may open besides: nothing."""

from __future__ import annotations

from dataclasses import dataclass

#: Containers of audio. Whatever can name another file (HLS, DASH, concat scripts, image
#: sequences) is missing, so that such a file is undecodable under any name (D43).
_AUDIO_DEMUXERS = (
    "mp3,flac,wav,w64,ogg,mov,matroska,aac,aiff,caf,amr,wv,ape,tta,dsf,mpc,mpc8,asf,ac3,eac3,au"
)
#: The probe knows these too, so that a film is refused as video and not as noise.
_VIDEO_DEMUXERS = "avi,mpegts,mpeg,flv"

#: The descriptor number under which a child finds a local source.
SOURCE_DESCRIPTOR = 3


@dataclass(frozen=True, slots=True)
class Input:
    """A source as the programs see it.

    :ivar protocols: the protocol whitelist, derived from the kind of source alone.
    """

    url: str
    protocols: tuple[str, ...]

    def probe_arguments(self) -> list[str]:
        """Return the words that open the source in ffprobe."""
        return [*self._whitelists(f"{_AUDIO_DEMUXERS},{_VIDEO_DEMUXERS}"), "-i", self.url]

    def encoder_arguments(self, seek: str | None = None) -> list[str]:
        """Return the words that open the source in ffmpeg.

        :param seek: where decoding starts, in seconds.
        """
        start = [] if seek is None else ["-ss", seek]
        return [*self._whitelists(_AUDIO_DEMUXERS), *start, "-i", self.url]

    def _whitelists(self, demuxers: str) -> list[str]:
        return [
            "-protocol_whitelist",
            ",".join(self.protocols),
            "-format_whitelist",
            demuxers,
        ]


def local_input() -> Input:
    """Return the input for a file that the child inherits, opened and checked.

    ``file:`` on the descriptor's path seeks, as ``pipe:`` would not, and cannot be swapped
    for another file.
    """
    return Input(f"file:/dev/fd/{SOURCE_DESCRIPTOR}", ("file",))
