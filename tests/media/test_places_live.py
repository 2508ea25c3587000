"""``t:a:d`` is that slice of the whole render, for any places, forms, rates and channels."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.matrix.regions import (
    FORMS,
    SECONDS,
    WHOLE,
    Region,
    find_differences,
    find_wrong,
    seeks,
    sources,
    wholes,
)
from tests.media.seeking.test_frames import read
from tests.support.audio import (
    Sound,
    convert,
    convert_all,
    decode_all,
    find_point,
    noise,
    options_of,
    probe,
    read_wav,
    render,
    write_wav,
)
from tests.support.mpeg import ID3
from tests.support.ogg import damage
from tests.support.strategies import DETERMINISTIC

#: The last thousandths of a second have less than a sample in none of the sources.
_STARTS = st.integers(0, 1000 * SECONDS - 100)
_DURATIONS = st.one_of(st.integers(10, 3000), st.just(2000 * SECONDS), st.none())
_REGIONS = st.builds(Region, _STARTS, _DURATIONS)


class RegionTests(SynchronousTestCase):
    """Regions of real files"""

    def test_any_region(self) -> None:
        """Each region has exactly the samples that the whole render has there."""

        @settings(DETERMINISTIC, max_examples=2)
        @given(st.lists(_REGIONS, min_size=len(FORMS), max_size=len(FORMS)))
        def check(regions: list[Region]) -> None:
            drawn = {name: [each] for name, each in zip(FORMS, regions, strict=True)}
            self.assertEqual([], list(find_wrong(drawn)))

        check()

    def test_places(self) -> None:
        """No such region of these files is decoded from the start of its file."""
        self.assertEqual([], [name for name, source in sources().items() if not seeks(source)])

    def test_behind_a_tag(self) -> None:
        """So it is in a file that has a tag ahead of its container.

        ffmpeg itself finds Ogg behind a tag, and decodes it from its start.
        """
        for name in ("vorbis.ogg", "a.opus", "variable.mp3", "adts.aac", "surround.wv"):
            source, region = ID3 + sources()[name], Region(9123, 456)
            self.assertIs(seeks(source), not name.endswith(("ogg", "opus")), name)
            self.assertEqual([], list(find_differences(source, [region], wholes()[name])), name)

    def test_damaged(self) -> None:
        """So it is near damaged pages of Ogg, which ffmpeg leaves out, and behind them (D70).

        Silence takes their place, if they have two frames at least.
        """
        # A small page of Vorbis has one frame.
        for name, count in (("small-pages.ogg", 3), ("large-pages.opus", 1), ("flac.ogg", 1)):
            source = sources()[name]
            first, damaged = source.count(b"OggS\0", 0, len(source) // 2) - 1, source
            for index in range(first, first + count):
                damaged = damage(damaged, index)
            whole = read_wav(render(damaged, WHOLE))
            self.assertNotEqual(whole, wholes()[name])
            regions = [Region(count * 1000, 400) for count in (8, 9, 10, 11, 12, 18)]
            self.assertEqual([], list(find_differences(damaged, regions, whole)), name)


class TransientTests(SynchronousTestCase):
    """Vorbis whose blocks change their size, where ffmpeg's time stamps are late"""

    def sound(self) -> Sound:
        """Return bursts of noise at random places, of 1 to 30 ms each."""
        draw, sound = random.Random("bursts"), noise(48000, 12 * 48000, 2, amplitude=0.8)
        levels = np.full(len(sound), 0.0003, np.float32)
        at = 0
        while at < len(sound):
            count = draw.randrange(48, 1440)
            levels[at : at + count] = draw.choice((0.1, 0.5, 1))
            at += count + draw.randrange(480, 24_000)
        sound.channels[:] *= levels
        return sound

    def test_transients(self) -> None:
        """Random places are slices of the whole, which has what ffmpeg alone decodes."""
        kinds = {f"{quality}.ogg": f"-c:a libvorbis -q:a {quality}" for quality in (2, 5, 8)}
        files = convert_all(write_wav(self.sound()), kinds)
        draw, bare = random.Random("transients"), decode_all(files)
        starts = [draw.randrange(2000, 11_000) for _ in range(12)]
        regions = [Region(start, draw.choice((10, 200, 3000, None))) for start in starts]
        for name, source in files.items():
            self.assertTrue(seeks(source), name)
            self.assertEqual(read_wav(render(source, WHOLE)), bare[name], name)
            self.assertEqual([], list(find_differences(source, regions, bare[name])), name)


#: Samples of a frame of mp3, and the number of frames that are decoded ahead of a place.
FRAME, AHEAD = 1152, 39


@cache
def parts() -> dict[str, bytes]:
    """Return mp3 files of three seconds of other noise each, which can be joined."""
    bare = "-b:a 128k -write_xing 0 -id3v2_version 0"
    made = {}
    for seed, kinds in enumerate(
        (
            {"bare": bare, "stereo": f"{bare} -joint_stereo 0"},
            {"info": "-b:a 128k -id3v2_version 0", "joint": f"{bare} -joint_stereo 1"},
        )
    ):
        sound = write_wav(noise(44100, 3 * 44100, 2, seed=seed + 1))
        forms = {f"{name}.mp3": kind for name, kind in kinds.items()}
        made |= {name[:-4]: file for name, file in convert_all(sound, forms).items()}
    # The bits of copyright, original and emphasis, which encoders of ffmpeg do not set.
    return made | {f"bit {bit}": change_headers(made["joint"], bit) for bit in (8, 4, 1)}


def change_headers(file: bytes, bit: int) -> bytes:
    """Return an mp3 file with another value of a bit in the header of each frame."""
    changed = bytearray(file)
    for at in read(file).form.follow(file)[0]:
        changed[at + 3] ^= bit
    return bytes(changed)


class JoinedTests(SynchronousTestCase):
    """Mp3 joined of files whose frames ffmpeg would misread at the start of one"""

    def assert_exact(self, first: str, second: str, *, steps: bool) -> None:
        """Require the audio of places at which decoding would start near a join.

        :param steps: there, it starts with an earlier frame.
        """
        source = parts()[first] + parts()[second]
        count = len(read(parts()[first]).form.follow(parts()[first])[0])
        places, regions = range(count - 2, count + 3), []
        whole, is_back = read_wav(render(source, WHOLE)), []
        for number in places:
            region = Region((number + AHEAD) * FRAME * 1000 // 44100 + 1, 250)
            regions.append(region)
            point = find_point(source, options_of(region.text), probe(source))
            assert point is not None
            is_back.append(point.sample != number * FRAME)
        self.assertEqual(any(is_back), steps, (first, second, is_back))
        wrong = list(find_differences(source, regions, whole))
        self.assertEqual([], wrong, (first, second))

    def test_header_frame(self) -> None:
        """The frame of an encoder's header inside is audio, and not the start of a file."""
        self.assert_exact("bare", "info", steps=True)

    def test_modes(self) -> None:
        """The frame ahead of one of another mode is not left out, nor are similar ones."""
        self.assert_exact("stereo", "joint", steps=True)
        self.assert_exact("joint", "stereo", steps=True)
        for bit in (8, 4, 1):
            self.assert_exact("bare", f"bit {bit}", steps=True)
        self.assert_exact("bare", "joint", steps=False)


class EndTests(SynchronousTestCase):
    """The end of mp3, where ffmpeg leaves out the encoder's padding"""

    def test_wrong_number(self) -> None:
        """A header that states half of the frames ends no region."""
        source = halve_frames(
            convert(write_wav(noise(44100, 9 * 44100)), "-q:a", "4", name="a.mp3")
        )
        whole = read_wav(render(source, WHOLE))
        self.assertEqual(len(whole), 9 * 44100)
        regions = [Region(3000, each) for each in (500, 4000, None)]
        found = find_differences(source, [*regions, Region(6000, 99)], whole)
        self.assertEqual([], list(found))


def halve_frames(file: bytes) -> bytes:
    """Return an mp3 file whose header states half of its frames, and no checksum."""
    at = file.index(b"Xing")
    checksum = file.index(b"Lav", at) + 34
    count = int.from_bytes(file[at + 8 : at + 12], "big") // 2
    stated = file[: at + 8] + count.to_bytes(4, "big") + file[at + 12 : checksum]
    return stated + bytes(2) + file[checksum + 2 :]
