"""Which sources may have gaps in their time stamps, and what ffmpeg is told about them."""

from __future__ import annotations

from decimal import Decimal

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.command.gaps import jump_arguments, keep_time, may_have_gaps
from audioproxy.media.reading import SourceLength
from audioproxy.media.seek_point import SeekPoint
from tests.support.probes import Probe, replace


def probe(container: str, codec: str = "aac", *, has_gaps: bool | None = None) -> Probe:
    return Probe(container, codec, None, exact=False, has_gaps=has_gaps)


class GapTests(SynchronousTestCase):
    """`may_have_gaps`, `jump_arguments` and `keep_time`"""

    def test_sources(self) -> None:
        """Only sources whose time stamps may have gaps pay for the filters (D70)."""
        for source, expected in (
            *((probe(container), False) for container in ("wav", "flac", "mp3", "aac", "avi")),
            *((probe(container), True) for container in ("amr", "matroska", "ogg", "mpegts")),
            # The tables of MP4 tell.
            *(
                (probe("mov", has_gaps=has_gaps), has_gaps is not False)
                for has_gaps in (True, None)
            ),
            (probe("mov", has_gaps=False), False),
            # So do the frames of Ogg FLAC, but for a file that was cut out of a longer stream.
            *((probe("ogg", "flac", has_gaps=given), bool(given)) for given in (True, False, None)),
        ):
            self.assertIs(may_have_gaps(source), expected, source)
            self.assertIs(bool(keep_time(source)), expected, source)
            self.assertIs(bool(jump_arguments(source)), expected, source)

    def test_jumps(self) -> None:
        """Jumps of more than ten seconds in MPEG-TS, and of ten minutes elsewhere, are no gaps."""
        for container, seconds in (("mpegts", "10"), ("mpeg", "600"), ("ogg", "600")):
            source = probe(container)
            self.assertEqual(jump_arguments(source), ["-dts_delta_threshold", seconds])
            self.assertIn(f"{seconds}*SR", keep_time(source)[0])

    def test_least_gaps(self) -> None:
        """A gap has half a frame, or nearly two where a single frame late is none.

        So it is in FLAC and Vorbis in Ogg, Windows Media and MPEG-PS.
        """
        for container, codec, frames in (
            ("matroska", "vorbis", 1.5),
            ("ogg", "opus", 1.5),
            ("ogg", "speex", 1.5),
            ("mpegts", "aac", 1.5),
            ("ogg", "vorbis", 2.5),
            ("ogg", "flac", 2.5),
            ("asf", "wmav2", 2.5),
            ("mpeg", "mp2", 2.5),
        ):
            expression, *_ = keep_time(probe(container, codec, has_gaps=True))
            self.assertIn(f"gte(ld(1)\\,max({frames}*ld(2)-", expression, (container, codec))

    def test_silent_end(self) -> None:
        """AMR ends where its container says, since decoders skip the silence at its end."""
        for codec, duration, exact, expected in (
            ("amr_nb", Decimal("9.6"), True, ["apad=whole_len=76800"]),
            ("amr_nb", Decimal("9.6"), False, []),
            ("amr_nb", None, False, []),
            ("aac", Decimal("9.6"), True, []),
        ):
            source = Probe("amr", codec, duration, exact, sample_rate=8000)
            self.assertEqual(keep_time(source)[2:], expected, (codec, duration, exact))

    def test_end_of_a_cut_file(self) -> None:
        """No silence takes the place of what a file that was cut off lacks."""
        for container in ("matroska", "mov"):
            source = Probe(container, "amr_nb", Decimal("9.6"), exact=True, sample_rate=8000)
            self.assertEqual(keep_time(source)[2:], [])
            whole = replace(source, length=SourceLength(68_800, exact=False))
            self.assertEqual(keep_time(whole)[2:], ["apad=whole_len=76800"])

    def test_start(self) -> None:
        """Where ffmpeg leaves a part of the encoder's delay, that is cut."""
        source = Probe("mov", "aac", None, exact=False, has_gaps=False, first_stamp=1312)
        self.assertEqual(keep_time(source), ["atrim=start_pts=1312"])

    def test_first_page(self) -> None:
        """The first page of an excerpt of Ogg gets the time stamps of its place."""
        point = SeekPoint(95_688, 5000, "ogg", b"head", first_stamp=96_000, unstamped=4800)
        source = replace(probe("ogg", "opus"), seek_point=point)
        stamped, *more = keep_time(source)
        self.assertEqual(stamped, "asetpts=if(lt(N\\,4800)\\,96000+N\\,PTS)")
        self.assertEqual(more, keep_time(probe("ogg", "opus")))
        whole = replace(source, seek_point=replace(point, unstamped=0))
        self.assertEqual(keep_time(whole), more)
        cut = replace(probe("ogg", "flac", has_gaps=False), seek_point=point)
        self.assertEqual(keep_time(cut), [])
