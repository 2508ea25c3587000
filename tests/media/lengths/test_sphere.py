"""NIST SPHERE."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import UndecodableSource
from audioproxy.media.lengths.pcm import SampleForm
from audioproxy.media.lengths.sphere import read_sphere
from audioproxy.media.reading import Malformed
from tests.media.lengths.test_wav import run
from tests.support.riff import sphere


class SphereTests(SynchronousTestCase):
    """`read_sphere`"""

    def read(self, file: bytes) -> tuple[SampleForm, int, int]:
        """Read a file in memory."""
        return run(read_sphere(len(file)), file)

    def test_forms(self) -> None:
        """Integers of both byte orders, A-law and µ-law are read."""
        for fields, codec, width in (
            ({}, "pcm_s16le", 2),
            ({"sample_byte_format": "-s2 10"}, "pcm_s16be", 2),
            ({"sample_byte_format": "-s3 10", "sample_n_bytes": "-i 3"}, "pcm_s24be", 3),
            ({"sample_n_bytes": "-i 4", "sample_coding": "-s3 pcm"}, "pcm_s32le", 4),
            ({"sample_n_bytes": "-i 1", "sample_byte_format": "-s1 1"}, "pcm_s8", 1),
            ({"sample_coding": "-s4 ulaw", "sample_n_bytes": "-i 1"}, "pcm_mulaw", 1),
            ({"sample_coding": "-s6 mu-law", "sample_n_bytes": "-i 1"}, "pcm_mulaw", 1),
            ({"sample_coding": "-s4 alaw", "sample_n_bytes": "-i 1"}, "pcm_alaw", 1),
        ):
            form, start, end = self.read(sphere(**fields))
            self.assertEqual(form, SampleForm(codec, 16000, 1, 8 * width, "mono"))
            self.assertEqual((start, end), (1024, 1024 + min(200, 100 * width)), fields)

    def test_header(self) -> None:
        """Headers have any size, both kinds of line ends, and rates with a fraction."""
        fields = {"sample_rate": "-r 8000.000000", "channel_count": "-i 2"}
        form, start, end = self.read(sphere(size=2048, line="\r\n", **fields))
        self.assertEqual((form.sample_rate, form.channels), (8000, 2))
        self.assertEqual((start, end), (2048, 2248))

    def test_length(self) -> None:
        """The samples end where the header says, or with the file."""
        for count, data, end in ((40, 200, 80), (100, 60, 60), (None, 70, 70), (0, 70, 0)):
            stated = "" if count is None else f"-i {count}"
            self.assertEqual(self.read(sphere(bytes(data), sample_count=stated))[2], 1024 + end)

    def test_refused(self) -> None:
        """Compressed samples, and other forms, are a 415 that names the container."""
        for field, value in (
            *(("sample_coding", "-s30 pcm,embedded-shorten-v2.00"), ("sample_n_bytes", "-i 5")),
            *(("sample_byte_format", "-s4 1032"), ("sample_byte_format", "")),
            *(("channel_count", "-i 0"), ("sample_rate", ""), ("sample_rate", "-s1 x")),
            *(("channels_interleaved", "-s5 FALSE"), ("sample_n_bytes", "-r x")),
        ):
            error = self.assertRaises(UndecodableSource, self.read, sphere(**{field: value}))
            self.assertIn("NIST SPHERE", error.message)
        laws = sphere(sample_coding="-s4 ulaw", sample_n_bytes="-i 4")
        self.assertRaises(UndecodableSource, self.read, laws)
        endless = sphere().replace(b"end_head", b"        ")
        self.assertRaises(UndecodableSource, self.read, endless)

    def test_other_files(self) -> None:
        """Other files are none."""
        for file in (b"", b"NIST_1A\n", sphere().replace(b"NIST_1A", b"NIST_2A"), sphere()[:999]):
            self.assertRaises(Malformed, self.read, file)
