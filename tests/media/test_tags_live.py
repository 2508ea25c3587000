"""Tags of sources in all containers, as mutagen reads them in outputs (D61)."""

from __future__ import annotations

from functools import cache
from io import BytesIO

import mutagen
from mutagen.flac import FLAC
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.formats import FORMATS
from audioproxy.media.tags import CARRIED_TAGS
from tests.support.audio import (
    convert,
    convert_all,
    decode_all,
    noise,
    probe,
    render_all,
    render_once,
    write_wav,
)

TAGS = {
    "title": "Tïtle-日本",
    "artist": "A1;A2",
    "album": "Al=bum",
    "album_artist": "-Band",
    "track": "3/12",
    "disc": "1/2",
    "date": "2001-02-03",
    "genre": "Jazz",
    "composer": "Compöser",
    "copyright": "©2001",
    "publisher": "-f",
}
WITHOUT_PUBLISHER = tuple(TAGS)[:-1]
RIFF = ("title", "artist", "album", "track", "date", "genre", "copyright")

#: For each container: the options that write it, and the tags that ffprobe reads in it
#: (docs/sources.md).
CONTAINERS: dict[str, tuple[str, tuple[str, ...]]] = {
    **dict.fromkeys(("flac", "wv", "tta", "caf", "mka"), ("", tuple(TAGS))),
    "mp3": ("-id3v2_version 4", tuple(TAGS)),
    "3.mp3": ("-id3v2_version 3", tuple(TAGS)),
    "aiff": ("-write_id3v2 1", tuple(TAGS)),
    "aac": ("-write_id3v2 1 -f adts", tuple(TAGS)),
    "vorbis.ogg": ("-c:a libvorbis", tuple(TAGS)),
    "flac.ogg": ("-c:a flac", tuple(TAGS)),
    "opus": ("-c:a libopus -ar 48000", tuple(TAGS)),
    "wma": ("-c:a wmav2", tuple(TAGS)),
    "flv": ("-c:a libmp3lame", tuple(TAGS)),
    "m4a": ("-c:a aac", WITHOUT_PUBLISHER),
    "alac.m4a": ("-c:a alac", WITHOUT_PUBLISHER),
    "wav": ("", RIFF),
    "avi": ("-c:a mp2", tuple(key for key in RIFF if key != "album")),
    "plain.aiff": ("", ("title", "copyright")),
    "au": ("", ("title", "artist", "album", "track", "genre")),
    "w64": ("", ()),
    "ac3": ("", ()),
}

COMMENTS = {key: key for key in TAGS} | {"album_artist": "albumartist"}
COMMENTS |= {"track": "tracknumber", "disc": "discnumber"}
ID3 = "TIT2 TPE1 TALB TPE2 TRCK TPOS TDRC TCON TCOM TCOP TPUB".split()
MP4 = "©nam ©ART ©alb aART trkn disk ©day ©gen ©wrt cprt".split()
#: The names of tags in outputs.
NAMES = {
    **dict.fromkeys(("flac", "ogg", "opus"), COMMENTS),
    "mp3": dict(zip(TAGS, ID3, strict=True)),
    "m4a": dict(zip(WITHOUT_PUBLISHER, MP4, strict=True)),
}

#: Tags that are meant to do harm, and what is left of them.
GIVEN = {
    "title": "silencedetect\nARTIST=X\r\n-f\x1b\x7f",
    "artist": "=;\\'\"%s$(id)",
    "album": "\U0001f3b5" * 600,
    "composer": "日" * 2000,
    "genre": "x" * 100_000,
    "comment": "Secret",
}
TAKEN = {
    "title": "silencedetectARTIST=X-f",
    "artist": "=;\\'\"%s$(id)",
    "album": "\U0001f3b5" * 512,
    "composer": "日" * 512,
    "genre": "x" * 512,
}


@cache
def sources() -> dict[str, bytes]:
    """Return a file for each container, with all tags that ffmpeg writes into it."""
    words = " ".join(f"-metadata {key}={value}" for key, value in TAGS.items())
    others = "-metadata comment=Secret -metadata encoder=Secret -metadata own=Secret"
    wav = write_wav(noise(44100, 8820, 2))
    return convert_all(wav, {f"a.{n}": f"{words} {others} {w}" for n, (w, _) in CONTAINERS.items()})


def read_tags(output: bytes) -> dict[str, str]:
    """Return the tags of a file as mutagen reads them, by its names."""
    found = {}
    for name, value in dict(mutagen.File(BytesIO(output)).tags or {}).items():
        (text,) = getattr(value, "text", value)
        found[name] = "/".join(map(str, text)) if isinstance(text, tuple) else str(text)
    return found


class PairTests(SynchronousTestCase):
    """Every pair of the container of a source and an output format"""

    def test_values(self) -> None:
        """All outputs have the source's tags with equal values, and no others (D61)."""
        texts = [f"f:{form}" for form in NAMES] + ["f:mp3/t:0.1", "f:flac/t:0.05:0.1"]
        for name, (_, expected) in CONTAINERS.items():
            source = sources()[f"a.{name}"]
            info = probe(source).description.tags
            self.assertEqual(
                {key: TAGS[key] for key in expected},
                {key: info[key] for key in CARRIED_TAGS if key in info},
                name,
            )
            for text, output in render_all(source, texts).items():
                names = NAMES[text[2:].partition("/")[0]]
                found = read_tags(output)
                # The encoder tag of Ogg holds the codec's name.
                self.assertRegex(found.pop("encoder", "Lavc lib"), "^Lavc lib[a-z]*$")
                wanted = {names[key]: TAGS[key] for key in expected if key in names}
                self.assertEqual(wanted, found, (name, text))
                self.assertNotIn(b"Secret", output)


class HarmTests(SynchronousTestCase):
    """Tags that are meant to do harm"""

    def setUp(self) -> None:
        self.plain = convert(write_wav(noise(44100, 44100, 2)), name="a.flac")

    def tagged(self) -> bytes:
        """Return the plain file with tags, one of which is not UTF-8."""
        file = BytesIO(self.plain)
        tagged = FLAC(file)
        tagged.update({**GIVEN, "publisher": "broken"})
        file.seek(0)
        tagged.save(file)
        return file.getvalue().replace(b"broken", b"\xff\xfe\xc3x\xed\xa0")

    def test_audio_and_length(self) -> None:
        """Tags change neither the audio nor its stated length, and inject nothing (D57, D61)."""
        texts = [f"f:{form}" for form in FORMATS if form != "peaks"] + ["f:mp3/q:4/t:0.1:0.5"]
        source = self.tagged()
        for outputs in (render_all(source, texts), render_once(source, texts, irregular=True)):
            plain = render_all(self.plain, texts)
            self.assertEqual(*(decode_all(files, {}) for files in (outputs, plain)))
            for text, output in outputs.items():
                names = NAMES.get(text[2:].partition("/")[0])
                if names is None:
                    self.assertEqual(output, plain[text])
                    continue
                lengths = [
                    mutagen.File(BytesIO(each)).info.length for each in (output, plain[text])
                ]
                self.assertEqual(*lengths, text)
                found = read_tags(output)
                found.pop("encoder", None)
                broken = found.pop(names.get("publisher", ""), "\ufffdx")
                self.assertRegex(broken, "^\ufffd+x")
                self.assertEqual(found, {names[key]: value for key, value in TAKEN.items()})
