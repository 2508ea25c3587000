"""``t:a:d`` is that slice of the whole render, for any places, forms, rates and channels."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.matrix.places import seeks
from tests.matrix.regions import FORMS, SECONDS, WHOLE, Region, find_wrong, sources, wholes
from tests.media.seeking.test_ogg import damage
from tests.support.audio import read_wav, render
from tests.support.strategies import DETERMINISTIC

#: The last thousandths of a second have less than a sample in none of the sources.
_STARTS = st.integers(0, 1000 * SECONDS - 100)
_DURATIONS = st.one_of(st.integers(10, 3000), st.just(2000 * SECONDS), st.none())
_REGIONS = st.builds(Region, _STARTS, _DURATIONS)


class RegionTests(SynchronousTestCase):
    """Regions of real files"""

    def test_any_region(self) -> None:
        """Each region has exactly the samples that the whole render has there."""

        @settings(DETERMINISTIC, max_examples=4)
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
        tag = b"ID3\4\0\0\0\0\0\5hello"
        for name in ("vorbis.ogg", "a.opus", "variable.mp3", "adts.aac", "surround.wv"):
            source, region = tag + sources()[name], Region(9123, 456)
            self.assertIs(seeks(source), not name.endswith(("ogg", "opus")), name)
            heard = read_wav(render(source, region.text))
            self.assertEqual(heard, region.part(wholes()[name]), name)

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
            for region in regions:
                heard = read_wav(render(damaged, region.text))
                self.assertEqual(heard, region.part(whole), (name, region.text))
