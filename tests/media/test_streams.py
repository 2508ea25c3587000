"""The streams of a source: the one that is rendered, pictures, and parts of others."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.ffprobe import lacks_pictures, read_streams
from audioproxy.media.streams import (
    Section,
    audio_duration,
    has_uncounted_pictures,
    is_divided_iamf,
    is_film,
    marked_audio,
    parse_time_stamp,
)

STATED = {"nb_frames": "4", "duration": "20.000000"}


def encode(*streams: dict[str, Any]) -> bytes:
    """Return the output of ffprobe."""
    return json.dumps({"streams": streams}, indent=4).encode()


def streams_of(*streams: dict[str, Any]) -> list[dict[str, Any]]:
    """Return streams as they are read from ffprobe's output."""
    return read_streams({"streams": streams})


def pictures(codec: str = "mjpeg", *marks: str, **fields: Any) -> dict[str, Any]:
    """Return a stream of pictures."""
    disposition = dict.fromkeys(marks, 1)
    kind = {"codec_type": "video", "codec_name": codec, "index": 1}
    return streams_of({**kind, "disposition": disposition, **fields})[0]


def audio(*marks: str, **fields: Any) -> dict[str, Any]:
    """Return an audio stream with dispositions."""
    return {"codec_type": "audio", "disposition": dict.fromkeys(marks, 1), **fields}


def at(*seconds: object, index: int = 1) -> list[Section]:
    """Return packets of a stream at these times."""
    return [{"stream_index": index, "pts_time": str(second)} for second in seconds]


class PictureTests(SynchronousTestCase):
    """`is_film` and `has_uncounted_pictures`"""

    def test_kinds(self) -> None:
        """Attached pictures and timed thumbnails are no film, nor are slow images (D72)."""
        for stream, expected in (
            (audio() | {"codec_name": "mjpeg"}, False),
            (pictures("h264"), True),
            (pictures("h264", nb_frames="1", duration="1"), True),
            (pictures("h264", "attached_pic"), False),
            (pictures("h264", "timed_thumbnails"), False),
            (pictures("mjpeg", "attached_pic", nb_frames="500", duration="20"), False),
            *((pictures(codec, **STATED), False) for codec in ("mjpeg", "png", "gif", "bmp")),
            *((pictures(codec, **STATED), False) for codec in ("webp", "tiff")),
            (pictures("rawvideo", **STATED), True),
        ):
            self.assertIs(is_film(stream, []), expected, stream)

    def test_stated_number(self) -> None:
        """At most one picture a second is no film, and one picture alone never is (D72)."""
        for count, seconds, expected in (
            ("1", "0.040000", False),
            ("1", "20", False),
            ("20", "20", False),
            # The last picture may be short.
            ("3", "2.040000", False),
            ("2", "0.080000", True),
            ("40", "20", True),
            ("500", "20", True),
        ):
            stream = pictures(nb_frames=count, duration=seconds)
            self.assertIs(is_film(stream, []), expected, stream)
            self.assertFalse(has_uncounted_pictures([stream]))

    def test_packets(self) -> None:
        """Where the container states no number, the pictures at the start are counted."""
        for fields in ({}, {"nb_frames": "500"}, {"duration": "20"}, {"nb_frames": "N/A"}):
            stream = pictures("png", **fields)
            self.assertTrue(has_uncounted_pictures([audio(), stream]))
            for packets, expected in (
                ([], False),
                (at("0.000000"), False),
                (at("0.0", "5.0"), False),
                (at(*range(10)), False),
                (at(*range(5, 10)), False),
                (at("-1.000000", "0.000000"), False),
                (at("0.000", "0.040"), True),
                (at(*(n / 2 for n in range(20))), True),
                (at(*(n / 25 for n in range(250)), index=0), False),
                # Without time stamps, nothing shows that they are slow.
                ([{"stream_index": 1}] * 2, True),
            ):
                self.assertIs(is_film(stream, packets), expected, packets)
        for stream in (pictures("h264"), pictures("png", "attached_pic"), pictures(**STATED)):
            self.assertFalse(has_uncounted_pictures([stream]), stream)

    def test_output(self) -> None:
        """More packets are asked for only if they decide; broken output is no reason."""
        uncounted = encode(audio(), pictures())
        self.assertTrue(lacks_pictures(uncounted))
        for output in (
            encode(audio()),
            encode(pictures(**STATED)),
            encode(pictures() | {"disposition": None}),
            uncounted[:-9],
            b"",
        ):
            self.assertFalse(lacks_pictures(output), output)


class TrackTests(SynchronousTestCase):
    """Several audio streams"""

    def test_marked(self) -> None:
        """If another stream than the first one is marked as the default, it is named (D71)."""
        default = audio("default")
        for streams, expected in (
            ([audio()], None),
            ([audio(), audio()], None),
            ([default, audio()], None),
            ([default, default], None),
            ([audio(), default], 2),
            ([pictures("png", "default"), audio(), audio(), default, default], 3),
        ):
            self.assertEqual(marked_audio(streams_of(*streams)), expected, streams)

    def test_iamf(self) -> None:
        """Parts of IAMF are recognized, and IAMF that ffmpeg does not read (D71)."""
        dependent, unread = audio("dependent"), audio(codec_tag_string="iamf")
        for container, streams, expected in (
            ("mov", [audio()], False),
            ("mov", [audio(), audio()], False),
            ("mov", [audio(), dependent], True),
            ("mov", [audio(), pictures("mjpeg", "dependent")], False),
            # The IAMF is another track.
            ("mov", [audio(), audio(), dependent], False),
            ("mov", [dependent], False),
            ("mov", [audio(), unread], False),
            ("mov", [unread], True),
            # The description of pictures in MPEG-TS.
            ("mpegts", [audio(), dependent], False),
        ):
            self.assertIs(is_divided_iamf(container, streams_of(*streams)), expected, streams)


class DurationTests(SynchronousTestCase):
    """`audio_duration`"""

    def test_alone(self) -> None:
        """The duration of the container is that of its only stream, also with attachments."""
        font = {"codec_type": "attachment"}
        for others in ([], [pictures("png", "attached_pic")], [font]):
            streams = streams_of(audio(duration="4.2"), *others)
            for stated in (Decimal(20), None):
                self.assertEqual(audio_duration("mov", streams, {}, stated), stated)

    def test_others(self) -> None:
        """Beside other streams, the duration is that of the audio, if it is known (D71)."""
        for other in (audio(duration="20"), pictures(), {"codec_type": "subtitle"}):
            for duration, expected in (("4.2", "4.2"), ("N/A", "20"), (None, "20")):
                streams = streams_of(audio(duration=duration), other)
                found = audio_duration("mov", streams, {}, Decimal(20))
                self.assertEqual(found, Decimal(expected))

    def test_matroska(self) -> None:
        """The header of Matroska states an end, and only a tag states that of one stream."""
        for tag, start, others, expected in (
            (None, "0.000000", [], "20"),
            (None, "5.000000", [], "15"),
            (None, "-0.007000", [], "20"),
            (None, "20.000000", [], None),
            (None, "0.000000", [audio()], None),
            ("00:00:04.200000000", "0.000000", [audio()], "4.2"),
            ("00:00:04.200000000", "1.000000", [audio()], "3.2"),
            ("00:00:04.200000000", "4.200000", [audio()], None),
            ("01:02:03", "0.000000", [{"codec_type": "subtitle"}], "20"),
            *((text, "0.000000", [audio()], None) for text in ("4.2", "a:00:00", "", 4)),
        ):
            streams = streams_of(audio(start_time=start), *others)
            tags = {} if tag is None else {"DURATION": tag}
            found = audio_duration("matroska", streams, tags, Decimal(20))
            self.assertEqual(found, expected if expected is None else Decimal(expected), tag)
            self.assertIsNone(audio_duration("matroska", streams, tags, None))

    def test_time_stamps(self) -> None:
        """Time stamps may be negative; a missing one is 0."""
        for text, expected in (("-0.5", "-0.5"), ("1.5", "1.5"), ("N/A", "0"), (None, "0")):
            self.assertEqual(parse_time_stamp(text), Decimal(expected))
