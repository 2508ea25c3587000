"""The command line of ffprobe, and how its output is parsed."""

from __future__ import annotations

import itertools
import json
from decimal import Decimal
from typing import Any, ClassVar

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import EncryptedSource, NothingDecoded, UndecodableSource, VideoSource
from audioproxy.media.ffprobe import (
    CONTAINER_TAGS,
    NAMED_TAGS,
    NOTICES,
    has_container,
    parse_probe,
    probe_arguments,
)
from audioproxy.media.inputs import local_input
from audioproxy.media.probe import Check
from audioproxy.media.reading import SourceLength
from audioproxy.media.seek_point import SeekPoint
from audioproxy.media.tags import CARRIED_TAGS
from tests.support.probes import Probe, replace

AUDIO = {"codec_type": "audio", "codec_name": "flac", "sample_rate": "44100", "channels": 1}
VIDEO = {"codec_type": "video", "codec_name": "h264"}
PCM = {"codec_type": "audio", "codec_name": "pcm_s16le"}
COVER = {**VIDEO, "codec_name": "mjpeg", "disposition": {"attached_pic": 1}}
ESTIMATE = b"[mp3 @ 0x1] Estimating duration from bitrate, this may be inaccurate\n"


def parse_streams(*streams: dict[str, Any], stderr: bytes = b"", **container: Any) -> Probe:
    """Parse ffprobe output with these streams."""
    response = {"streams": list(streams), "format": container}
    return parse_probe(json.dumps(response).encode(), stderr)


def parse_audio(**fields: Any) -> Probe:
    """Parse ffprobe output with one audio stream of these fields."""
    return parse_streams({**AUDIO, **fields}, format_name="flac", duration="2.5")


class ProbeArgumentsTests(SynchronousTestCase):
    """`probe_arguments`"""

    def test_exact(self) -> None:
        """All streams are requested, with only the needed fields (Info document, 3)."""
        source = local_input()
        self.assertEqual(
            probe_arguments("/bin/ffprobe", source),
            [
                *("/bin/ffprobe", "-hide_banner", "-v", "warning", "-of", "json"),
                *("-read_intervals", "%+#8", "-show_entries"),
                "packet=codec_type,stream_index,pts,pts_time,pos"
                ":format=format_name,start_time,duration,bit_rate,size,probe_score"
                ":stream=index,codec_type,codec_name,codec_tag_string,sample_fmt,sample_rate,"
                "channels,channel_layout,bits_per_sample,bits_per_raw_sample,start_time,duration,"
                "bit_rate,nb_frames:stream_disposition=default,dependent,attached_pic,"
                "timed_thumbnails:format_tags:stream_tags",
                *source.probe_arguments(),
            ],
        )

    def test_fewer_tags(self) -> None:
        """If tags are too large, those of outputs are asked for by name (D24, D61)."""
        for tags in (NAMED_TAGS, CONTAINER_TAGS):
            fields = probe_arguments("ffprobe", local_input(), tags=tags)[-7]
            self.assertTrue(fields.endswith(f":{tags}"))
            for section in tags.split(":"):
                self.assertLess(set(CARRIED_TAGS), set(section.partition("=")[2].split(",")))


class CutOffTests(SynchronousTestCase):
    """`parse_probe` with incomplete output"""

    TAGS: ClassVar = {"one": "{", "two": "],", "three": 'a"\\', "four": "x" * 100}
    OUTPUT: ClassVar = {
        "programs": [],
        "streams": [{**AUDIO, "disposition": {"attached_pic": 0}}, COVER],
        "format": {"format_name": "flac", "duration": "2.5", "tags": TAGS},
    }

    def test_anywhere(self) -> None:
        """A cut in the tags of the output loses only tags; an earlier cut may lead to a refusal."""
        text = json.dumps(self.OUTPUT, indent=4).encode()
        whole = parse_probe(text, b"")
        first = text.index(b'"one"')
        found = []
        for at in range(len(text)):
            try:
                probe = parse_probe(text[:at], b"", cut_off=True)
            except (ValueError, UndecodableSource):
                self.assertLess(at, first)
                continue
            found.append(probe.description.tags)
            if at > first:
                self.assertEqual(replace(probe, description=whole.description), whole)
        known = list(self.TAGS.items())
        self.assertEqual(
            [dict(known[:count]) for count in range(5)],
            [tags for tags, _ in itertools.groupby(found)],
        )

    def test_streams(self) -> None:
        """If streams are missing from the output, the source is refused: one may be video."""
        text = json.dumps({"streams": [AUDIO] * 9}, indent=4).encode()
        for at in range(100, len(text)):
            self.assertRaises(UndecodableSource, parse_probe, text[:at], b"", cut_off=True)

    def test_tags_of_streams(self) -> None:
        """If the tags of streams are cut off, those before the cut are kept (D24)."""
        tags = {"TITLE": "a song", "lyrics": "la"}
        stream = {**AUDIO, "codec_name": "opus", "tags": tags}
        output = {"streams": [COVER, stream], "format": {"format_name": "ogg"}}
        tagged = json.dumps(output, indent=4).encode().partition(b'"la')[0]
        self.assertFalse(has_container(tagged))
        output["streams"] = [COVER, AUDIO]
        brief = json.dumps(output, indent=4).encode()
        self.assertTrue(has_container(brief))
        found = parse_probe(brief, b"", tagged=tagged)
        self.assertEqual(found.description.tags, {"title": "a song"})

    def test_tags_behind_the_cut(self) -> None:
        """Named tags of a second output are added to those before the cut (D61)."""
        for place in ("stream", "container"):
            outputs = []
            for tags in ({"ARTIST": "me", "own": "1", "c": "x"}, {"ARTIST": "me", "TITLE": "it"}):
                mine = {"tags": tags}
                streams = [AUDIO | mine if place == "stream" else AUDIO]
                container = {"format_name": "ogg"} | (mine if place == "container" else {})
                output = {"streams": streams, "format": container}
                outputs.append(json.dumps(output, indent=4).encode())
            cut, named = outputs
            found = parse_probe(named, b"", tagged=cut.partition(b'"c"')[0])
            expected = {"title": "it", "artist": "me", "own": "1"}
            self.assertEqual(expected, found.description.tags, place)


class EncryptionTests(SynchronousTestCase):
    """Encrypted sources (D64), and sources whose header promises audio that they do not have"""

    def test_refused(self) -> None:
        """Encrypted audio in Matroska and ASF is refused, and its diagnostic is kept."""
        notice = b"[asf @ 0x1] DRM protected stream detected, decoding will likely fail!\n"
        self.assertIsNotNone(NOTICES.search(notice))
        keyed = {**AUDIO, "tags": {"enc_key_id": "AAAA"}}
        for streams, stderr in (([AUDIO], notice), ([keyed], b""), ([COVER, keyed, AUDIO], b"")):
            error = self.assertRaises(
                EncryptedSource, parse_streams, *streams, stderr=stderr, format_name="asf"
            )
            self.assertEqual(error.message, "The source is encrypted.")
        self.assertRaises(VideoSource, parse_streams, keyed, VIDEO)

    def test_other_streams(self) -> None:
        """Only the first audio stream counts, and only MP4 needs another look."""
        keyed = {**AUDIO, "tags": {"enc_key_id": "AAAA"}}
        for name, expected in (("matroska,webm", False), ("mov,mp4,m4a,3gp,3g2,mj2", True)):
            found = parse_streams(AUDIO, keyed, format_name=name)
            self.assertEqual(Check.ENCRYPTION in found.pending, expected)

    def test_packets(self) -> None:
        """Without a packet of audio, the source is refused (Errors, 415).

        Pictures may precede it. If a wav file states no samples but has some, its stated length is
        ignored.
        """
        picture, sound = {"codec_type": "video"}, {"codec_type": "audio"}
        aiff, wav = {"format_name": "aiff", "duration": "1"}, {"format_name": "wav"}
        for packets, stream, container, seekable, expected in (
            *(([], PCM, container, True, NothingDecoded) for container in (aiff, wav)),
            ([picture], PCM, aiff, True, NothingDecoded),
            # The end of the source was not read.
            *((packets, PCM, aiff, False, False) for packets in ([], [picture])),
            # A first packet that is damaged may hide the others.
            *((packets, AUDIO, aiff, True, False) for packets in ([], [picture])),
            *(([*before, sound], PCM, wav, True, False) for before in ([], [picture])),
            ([picture] * 8, PCM, wav, True, False),
            ([], PCM, {**wav, "duration": "1"}, True, True),
        ):
            output = {"packets": packets, "streams": [stream], "format": container}
            text, found = json.dumps(output).encode(), None
            if expected is NothingDecoded:
                self.assertRaises(NothingDecoded, parse_probe, text, b"", seekable=seekable)
                continue
            found = parse_probe(text, b"", seekable=seekable)
            self.assertIs(found.file.ignore_length, expected, output)


class AcceptedSourcesTests(SynchronousTestCase):
    """The sources that `parse_probe` accepts, and what a full decode adds."""

    def test_video(self) -> None:
        """Video is refused at any position, cover art is not (Format and encoding options, 4)."""
        still = {**VIDEO, "disposition": {"attached_pic": 0}}
        for streams in ([VIDEO], [VIDEO, AUDIO], [AUDIO, still], [AUDIO, COVER, VIDEO]):
            self.assertRaises(VideoSource, parse_streams, *streams)
        for streams in ([AUDIO, COVER], [COVER, COVER, AUDIO]):
            self.assertEqual(parse_streams(*streams).codec, "flac")

    def test_undecodable(self) -> None:
        """No audio, an unknown codec, or too high numbers (D13) are refused (Errors, 415)."""
        unnamed = {name: value for name, value in AUDIO.items() if name != "codec_name"}
        for streams, message in (
            *(
                (streams, "has no audio stream.")
                for streams in ([], [COVER], [{"codec_type": "subtitle"}], [{}])
            ),
            *(([{**AUDIO, "codec_name": name}], "in a codec") for name in (None, "unknown")),
            ([unnamed], "in a codec"),
            ([{**AUDIO, "channels": 65}], "states 65 channels"),
            ([{**AUDIO, "sample_rate": "6144001"}], "at 6144001 Hz"),
        ):
            error = self.assertRaises(UndecodableSource, parse_streams, *streams)
            self.assertIn(message, error.message)
        # An IAMF file of which ffmpeg knows the sample entry alone (D71).
        iamf = {**unnamed, "codec_tag_string": "iamf"}
        error = self.assertRaises(UndecodableSource, parse_streams, iamf, format_name="mov,mp4")
        self.assertIn("IAMF", error.message)
        self.assertEqual(parse_audio(channels=64, sample_rate="6144000").channels, 64)
        self.assertRaises(UndecodableSource, parse_probe, b"{}", b"")

    def test_several(self) -> None:
        """Several audio streams are counted, and the duration is that of the first one (D71)."""
        marked = {**AUDIO, "disposition": {"default": 1}}
        first, tags = AUDIO | {"duration": "4.2"}, {"DURATION": "00:00:04.200000000"}
        for name, streams in (
            ("mov,mp4", [first, marked]),
            ("matroska,webm", [AUDIO | {"tags": tags}, marked]),
        ):
            found = parse_streams(*streams, format_name=name, duration="20.0")
            self.assertEqual(found.duration, Decimal("4.2"))
            self.assertEqual(found.description.duration, 20)
            self.assertEqual((found.audio.streams, found.audio.marked), (2, 2))
            expected = "the first of 2 audio streams; the source marks number 2 as the default"
            self.assertEqual(found.audio.choice, expected)
        plain = parse_streams(AUDIO, AUDIO, AUDIO)
        self.assertEqual(plain.audio.choice, "the first of 3 audio streams")
        self.assertIsNone(parse_streams(AUDIO, COVER).audio.choice)

    def test_may_be_undecodable(self) -> None:
        """A decoder that complains, a missing one, and missing packets raise a doubt."""
        stream = AUDIO | {"index": 1}
        unsupported = b"Unsupported codec with id 86107 for input stream %d\n"
        for codec, stderr, expected in (
            ("flac", b"", False),
            ("mp3", ESTIMATE, False),
            ("mp3", b"[mp3 @ 0x1] Could not find codec parameters for stream 0 (Video: x", False),
            ("mp3", b"[mp3 @ 0x1] Could not find codec parameters for stream 1 (Audio: x", True),
            ("mp3", ESTIMATE + b"[mp3float @ 0x1] Header missing\n", True),
            ("flac", b"[flac @ 0x1] decode_frame() failed\n", True),
            ("ac3", b"[ac3_fixed @ 0x1] frame sync error\n", True),
            ("speex", b"[libspeex @ 0x1] x\n", True),
            ("amr_nb", b"[amrnb @ 0x1] x\n", True),
            ("adpcm_g722", b"[g722 @ 0x1] x\n", True),
            ("flac", b"[mjpeg @ 0x1] unable to decode APP fields\n", False),
            ("flac", b"[matroska,webm @ 0x1] Unknown entry 0x1\n", False),
            ("mpegh_3d_audio", unsupported % 1, True),
            ("flac", unsupported % 0, False),
            ("flac", unsupported % 11, False),
        ):
            found = parse_streams(stream | {"codec_name": codec}, stderr=stderr)
            self.assertIs(Check.DECODER in found.pending, expected, stderr)
        for packets, expected in (([], True), ([{"codec_type": "audio"}], False)):
            output = json.dumps({"packets": packets, "streams": [stream]}).encode()
            self.assertIs(Check.DECODER in parse_probe(output, b"").pending, expected)

    def test_not_ffprobe_output(self) -> None:
        """Output that is not ffprobe's JSON is a failure of the probe, not of the source."""
        stream = b'{"streams": [{"codec_type": "audio", "codec_name": "x", "disposition": %b}]}'
        malformed = [stream % value for value in (b"null", b"[]", b"1")]
        malformed += [b"[]", b"null", b'{"streams": null}', b'{"streams": [1]}', b'{"format": 3}']
        for stdout in (b"", b"{", b"\xff", *malformed):
            self.assertRaises(ValueError, parse_probe, stdout, b"")

    def test_speex(self) -> None:
        """Speex of more than 8 kHz is decoded by libspeex: FFmpeg 7 doubles its samples."""
        for codec, rate, decoder in (
            ("speex", "8000", None),
            *(("speex", rate, "libspeex") for rate in ("16000", "32000")),
            ("opus", "48000", None),
        ):
            self.assertEqual(parse_audio(codec_name=codec, sample_rate=rate).audio.decoder, decoder)

    def test_length(self) -> None:
        """A certain length replaces the stated one (D12, D57); none is refused (Errors, 415)."""
        stated = Probe("mp3", "mp3", Decimal(9), exact=False, has_gaps=False)
        found = stated.with_decoded_samples(204000)
        counted = replace(stated, duration=Decimal("4.25"), exact=True, length=SourceLength(204000))
        self.assertEqual(replace(counted, measured=True), found)
        self.assertEqual(counted, stated.with_length(SourceLength(204000)))
        # A decoder may output the padding of the last packet, which is no part of the source.
        length = SourceLength(200_000, ends_in_padding=True, block=1024, seekable=True)
        padded = stated.with_length(length)
        for samples in (199_900, 200_000, 201_024):
            self.assertEqual(padded.with_decoded_samples(samples), replace(padded, measured=True))
        longer = padded.with_decoded_samples(201_025)
        self.assertEqual((longer.length, longer.stamps.seekable), (SourceLength(201_025), False))
        # A least length says nothing about the end.
        at_least = SourceLength(9, exact=False)
        self.assertEqual(replace(stated, length=at_least), stated.with_length(at_least))
        self.assertEqual(stated, stated.with_length(None))
        self.assertRaises(NothingDecoded, stated.with_decoded_samples, 0)


class FieldTests(SynchronousTestCase):
    """The values that `parse_probe` returns for an accepted source."""

    def test_container(self) -> None:
        """The container is ffprobe's first name for it."""
        for names, container in (("mov,mp4,m4a,3gp,3g2,mj2", "mov"), ("ogg", "ogg"), ("", "")):
            self.assertEqual(parse_streams(AUDIO, format_name=names).container, container)
        self.assertEqual(parse_streams(AUDIO).container, "")

    def test_fallbacks(self) -> None:
        """The defaults are 48000 Hz, 2 channels and 16 bits (Format and encoding options, 1)."""
        for missing in ("N/A", "0", 0, "", None, "-1", "44100.5"):
            fields = ("sample_rate", "channels", "bits_per_raw_sample", "bits_per_sample")
            found = parse_audio(**dict.fromkeys(fields, missing), channel_layout="")
            values = found.sample_rate, found.channels, found.audio.bit_depth, found.audio.layout
            self.assertEqual(values, (48000, 2, 16, None), missing)
        bare = parse_streams({"codec_type": "audio", "codec_name": "mp3"})
        self.assertEqual(bare, Probe("", "mp3", None, False, decoded_bits=64))

    def test_start(self) -> None:
        """A seek counts from the first sample of any stream, ``t`` from that of the audio."""
        for audio, container, offset in (
            ("0.700000", "0.000000", "0.7"),
            ("0.025057", "0.025057", "0"),
            ("-0.007000", "-0.007000", "0"),
            ("0.000000", "-0.500000", "0.5"),
            ("N/A", "N/A", "0"),
            (None, None, "0"),
        ):
            found = parse_streams({**AUDIO, "start_time": audio}, start_time=container)
            self.assertEqual(found.file.seek_offset, Decimal(offset), (audio, container))
        found = parse_audio(start_time="0.047891", bit_rate="705600")
        self.assertEqual((found.audio.start, found.audio.bitrate), (Decimal("0.047891"), 705600))

    def test_gapless(self) -> None:
        """The tag in which iTunes states the delay and the padding of AAC is kept as it is."""
        for tags, text in (({"iTunSMPB": " 0 840 64"}, " 0 840 64"), ({"a": "b"}, ""), ([], "")):
            self.assertEqual(parse_streams(AUDIO, tags=tags).file.gapless, text)

    def test_one_bit(self) -> None:
        """One-bit audio counts as 24 bits, and the info document states what ffprobe does (D69)."""
        for codec, decoded, stated, depth in (
            *(("dsd_lsbf_planar", "fltp", 8, 24), ("dsd_msbf", "flt", 8, 24)),
            *(("wavpack", "fltp", 8, 24), ("dst", "flt", "0", 24)),
            *(("wavpack", "u8p", 8, 8), ("pcm_s8", "u8", 8, 8), ("wavpack", "fltp", 32, 32)),
            ("mp3", "fltp", "0", 16),
        ):
            found = parse_audio(codec_name=codec, sample_fmt=decoded, bits_per_sample=stated)
            self.assertEqual(found.audio.bit_depth, depth, codec)
            self.assertEqual(found.description.bit_depth, int(stated) or None, codec)

    def test_may_be_padded(self) -> None:
        """Samples may be padded if the header states more bits a second than the codec has."""
        for codec, bits, bitrate, expected in (
            *(("pcm_s24le", 24, 2304000, False), ("pcm_s24le", 24, 3072000, True)),
            *(("pcm_s16le", 16, 1536000, False), ("pcm_s16le", 16, 2304000, True)),
            *(("pcm_f24le", 32, 3072000, True), ("pcm_f16le", 32, 3072000, False)),
            *(("pcm_s16le", 16, "N/A", False), ("adpcm_ms", 4, 3072000, False)),
        ):
            stream = {**AUDIO, "codec_name": codec, "sample_rate": "48000", "channels": 2}
            stream |= {"bits_per_sample": bits, "bit_rate": str(bitrate)}
            for container in ("wav", "w64", "caf"):
                found = parse_streams(stream, format_name=container)
                self.assertEqual(Check.PADDED_SAMPLES in found.pending, expected, (codec, bitrate))
            self.assertNotIn(Check.PADDED_SAMPLES, parse_streams(stream, format_name="mov").pending)

    def test_decoded_bits(self) -> None:
        """Decoded samples have the bits of their format; 32 may hold the 20 or 24 stated (D60)."""
        for name, stated, bits in (
            *(("u8", 8, 8), ("u8p", 0, 8), ("s16", 16, 16), ("s16p", "N/A", 16)),
            # The decoder's format counts, also where the source states more bits or fewer.
            *(("s16", 24, 16), ("s16", 8, 16), ("s32", 16, 32), ("s32", 20, 20), ("s32p", 24, 24)),
            *(("s32", None, 32), ("flt", 24, 64), ("dblp", 0, 64), ("N/A", 16, 64), (None, 24, 64)),
        ):
            found = parse_audio(sample_fmt=name, bits_per_raw_sample=stated)
            self.assertEqual(found.audio.decoded_bits, bits, (name, stated))
        # The stored bits are used if the raw bits are unknown.
        self.assertEqual(parse_audio(sample_fmt="s32", bits_per_sample=24).audio.decoded_bits, 24)
        self.assertEqual(parse_audio(bits_per_raw_sample=16).audio.decoded_bits, 64)

    def test_guesses(self) -> None:
        """The info document has no duration and no bit rate that ffprobe only guessed."""
        for container, codec, bit_rate, stated in (
            *(("wav", "pcm_s16le", "9", True), ("w64", "pcm_alaw", "9", True)),
            *(("ac3", "ac3", "9", True), ("dts", "dts", "9", True)),
            *(("mp3", "mp3", "128000", True), ("mp3", "mp3", "43210", False)),
            *(("mp3", "mp2", "192000", True), ("mp3", "mp3", "N/A", False)),
            *(("aac", "aac", "128000", False), ("amr", "amr_nb", "12400", False)),
            *(("asf", "wmav2", "128000", False), ("wav", "mp3", "128000", False)),
            *(("avi", "pcm_s16le", "9", False), ("wav", "adpcm_ms", "64000", False)),
        ):
            stream = {**AUDIO, "codec_name": codec, "bit_rate": bit_rate}
            found = parse_streams(stream, format_name=container, duration="9", stderr=ESTIMATE)
            document = found.description.document(None)
            self.assertEqual("duration" in document, stated, (container, codec))
            self.assertEqual("bitrate" in document, stated, (container, codec))
            self.assertEqual(found.duration, 9)
            certain = parse_streams(stream, format_name=container, duration="9")
            self.assertEqual(certain.description.duration, 9)

    def test_estimate(self) -> None:
        """A duration that ffprobe estimated from the file's size is not exact (D12).

        Without seeking, estimates of duration and bit rate are discarded (Info document, 2).
        """
        output = {"streams": [AUDIO], "format": {"duration": "2.5", "bit_rate": "70693"}}
        stdout = json.dumps(output).encode()
        for stderr, seekable, duration in (
            (b"other\n" + ESTIMATE, True, Decimal("2.5")),
            (b"other\n", True, Decimal("2.5")),
            (ESTIMATE, False, None),
            (b"other\n", False, Decimal("2.5")),
        ):
            found = parse_probe(stdout, stderr, seekable=seekable)
            self.assertEqual((found.duration, found.exact), (duration, ESTIMATE not in stderr))
            known = {"duration", "bitrate"} if ESTIMATE not in stderr else set()
            stated = {*found.description.document(None)} & {"duration", "bitrate"}
            self.assertEqual(stated, known)

    def test_impossible(self) -> None:
        """A duration for which the file is too small is none, nor is its bit rate (D71)."""
        pcm = {**PCM, "sample_rate": "48000", "channels": 2, "bits_per_sample": 16}
        for stream, container, duration, size, believed in (
            (pcm, "aiff", "7398.2", "3878488", False),
            (pcm, "aiff", "20.2", "3878488", True),
            (pcm, "aiff", "20.2", "3878400", True),
            (pcm, "wav", "20.2", "1938000", False),
            (pcm, "matroska", "20.2", "1938000", True),
            (AUDIO, "ogg", "562520.2", "1338456", False),
            (AUDIO, "ogg", "20.2", "1338456", True),
            (AUDIO, "flac", "9", "N/A", True),
        ):
            fields = {"format_name": container, "bit_rate": "1", "size": size}
            found = parse_streams(stream, duration=duration, **fields)
            expected = Decimal(duration) if believed else None
            self.assertEqual(found.duration, expected, (container, duration))
            self.assertEqual(found.description.duration, expected)
            self.assertEqual(found.description.bitrate, 1 if believed else None)
            self.assertIs(found.exact, believed)

    def test_may_be_joined(self) -> None:
        """Some containers have no mark at their end."""
        for container, expected in (("wv", True), ("tta", True), ("tak", True), ("flac", False)):
            self.assertIs(
                Check.JOINED_FILES in parse_streams(AUDIO, format_name=container).pending, expected
            )

    def test_description(self) -> None:
        """The first audio stream is described (Info document, 3), without default values."""
        second = {**AUDIO, "codec_name": "aac", "sample_rate": "8000", "channels": 2}
        container = {"format_name": "mov,mp4,m4a", "tags": {"TITLE": "x"}, "size": "9"}
        found = parse_streams(COVER, AUDIO, second, duration="2.5", **container)
        self.assertEqual(found.codec, "flac")
        expected = {"format": "m4a", "duration": 2.5, "sample_rate": 44100, "channels": 1}
        expected |= {"size": 9, "tags": {"title": "x"}}
        self.assertEqual(found.description.document(None), expected)
        self.assertEqual(found.audio.bit_depth, 16)
        bare = parse_streams({"codec_type": "audio", "codec_name": "mp3"})
        self.assertEqual((bare.sample_rate, bare.description.document(None)), (48000, {}))

    def test_odd_bytes(self) -> None:
        """Bytes that are not UTF-8 are accepted in names."""
        response = json.dumps({"streams": [AUDIO], "format": {"format_name": "x"}}).encode()
        found = parse_probe(response.replace(b'"x"', b'"\xff\xfe"'), b"\xff")
        self.assertEqual(found.codec, "flac")


class InputTests(SynchronousTestCase):
    """`Probe.open_with`"""

    def test_place(self) -> None:
        """What begins at a place is opened with its demuxer, a copy from its first byte on."""
        plain = Probe("mp3", "mp3", None, exact=False, skipped=100)
        self.assertEqual(plain.open_with(local_input()), replace(local_input(), skipped=100))
        for head, skipped in ((b"", 5100), (b"head", 0)):
            placed = replace(plain, seek_point=SeekPoint(88_200, 5000, "mp3", head))
            expected = replace(local_input(), demuxer="mp3", skipped=skipped, starts_at_place=True)
            self.assertEqual(placed.open_with(local_input()), expected)


class LengthTests(SynchronousTestCase):
    """The lengths that a source is found to have"""

    def test_least_length(self) -> None:
        """A source with more samples than it states has a later end; else the stated one stays."""
        for duration, expected in (("10", "20"), ("30", "30"), (None, None)):
            seconds, end = (
                None if text is None else Decimal(text) for text in (duration, expected)
            )
            probe = Probe("aac", "aac", seconds, exact=False, sample_rate=44100)
            found = probe.with_least_length(882_000)
            self.assertEqual(found.length, SourceLength(882_000, exact=False))
            self.assertEqual((found.duration, found.exact), (end, False))

    def test_no_length(self) -> None:
        """Nothing that a header has stated is left of a source that has another length."""
        length = SourceLength(441_000, is_stated_only=True, seekable=True)
        probe = Probe("aac", "aac", Decimal(10), exact=True, sample_rate=44100, stored=length)
        stated = probe.with_length(length).without_length()
        self.assertEqual(
            (stated.length, stated.stored, stated.stamps.seekable), (None, None, False)
        )
        self.assertFalse(probe.with_decoded_samples(441_000).without_length().measured)
