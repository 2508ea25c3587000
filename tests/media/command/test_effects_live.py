"""Every option of an output changes what ffmpeg does.

Names of options belong to one of many parts of ffmpeg. A new version may give a name to another
part, and take the option without an error and without an effect, as FFmpeg 8 does with
``-precision``.
"""

from __future__ import annotations

import re
import tempfile
from contextlib import ExitStack
from functools import cache

import numpy as np
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.formats import FORMATS
from audioproxy.media.command.decoding import decoder_arguments
from audioproxy.media.command.encoding import encoder_arguments
from audioproxy.media.conversion import SOXR, SWRESAMPLE
from tests.support.audio import (
    Sound,
    convert,
    find_probe,
    input_of,
    options_of,
    probe,
    run,
    write_wav,
)
from tests.support.probes import replace

RATE = 44100

#: For options of a URL: options of the output, their values, and other values.
CHANGES = {
    "f:mp3/br:64": """
        -b:a 64k 48k; -compression_level 3 9; -reservoir 1 0; -joint_stereo 1 0; -abr 0 1
        -sample_fmt fltp s16p; -id3v2_version 4 3; -metadata title=a title=b
        -map_metadata -1 0; -map_chapters -1 0""",
    "f:mp3/q:4": "-q:a 4 6; -compression_level 3 9",
    "f:opus/br:24": """
        -b:a 24k 32k; -application audio voip; -vbr on off; -frame_duration 20 40; -packet_loss 0 20
        -mapping_family -1 255; -apply_phase_inv 1 0; -compression_level 10 0
        -page_duration 500000 1000000; -fflags +bitexact -bitexact""",
    "f:ogg": "-iblock 0 -15; -global_quality:a 590 118; -page_duration 500000 1000000",
    "f:aac/br:48": """
        -aac_coder twoloop fast; -profile:a aac_low mpeg2_aac_low; -aac_ms auto 1; -aac_is 1 0
        -aac_pns 1 0; -aac_tns 1 0; -aac_pce 0 1; -flags:a +bitexact -bitexact; -ac 2 1
        -ar 44100 22050""",
    "f:m4a": """
        -movflags empty_moov+default_base_moof empty_moov; -frag_duration 1000000 500000""",
    "f:flac": """
        -frame_size 4608 1152; -lpc_coeff_precision 15 12; -ch_mode auto indep
        -exact_rice_parameters 0 1; -compression_level 5 0; -metadata_header_padding 0 100""",
    "f:wav/bd:24": "-c:a pcm_s24le pcm_s32le; -f wav w64",
}
#: The same for the settings of filters.
FILTERS = {
    ("f:wav/sr:32000/bd:32f", SOXR): "resampler=soxr resampler=swr; precision=28 precision=20",
    ("f:wav/sr:32000/bd:24", SWRESAMPLE): """
        filter_size=160 filter_size=32; phase_shift=10 phase_shift=5; kaiser_beta=12 kaiser_beta=9
        internal_sample_fmt=dblp internal_sample_fmt=s16p
        dither_method=triangular_hp dither_method=rectangular""",
}
# Each of these has tests of its own: the streams, the reports, and what an empty output does. The
# contract asks for -vn, -sn and -dn, which have no effect beside -map (Format and encoding options,
# 5).
OTHERS = {"-map", "-vn", "-sn", "-dn", "-af", "-abort_on"}


@cache
def source() -> bytes:
    """Return tones, clicks and noise with a chapter and tags, which show all effects."""
    time = np.arange(2 * RATE) / RATE
    noise = np.random.default_rng(1).uniform(-1, 1, (2, len(time)))
    clicks = np.where(np.arange(len(time)) % 4410, 0, 0.3)
    clicks = np.convolve(clicks, np.exp(-np.arange(400) / 40))[: len(time)] * noise[0]
    low = 0.2 * np.sin(2 * np.pi * (200 + 150 * time) * time)
    high = 0.15 * np.sin(2 * np.pi * (3000 + 400 * time) * time)
    swell = 0.5 + 0.5 * np.sin(2 * np.pi * 3 * time)
    # Opposite sides, so that codecs of stereo have to choose.
    sides = (low + clicks + high, 0.8 * low + clicks - high) + 0.035 * noise * [
        swell,
        np.ones_like(swell),
    ]
    sound = Sound(RATE, sides.astype(np.float32))
    chapter = ";FFMETADATA1\ntitle=a\ncomment=c\n[CHAPTER]\nTIMEBASE=1/1\nSTART=0\nEND=1\n"
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(chapter)
        file.flush()
        words = f"-f ffmetadata -i {file.name} -map_metadata 1 -map_chapters 1 -c:a pcm_s24le"
        return convert(write_wav(sound, "24"), *words.split(), "-f", "matroska")


def outcomes(source: bytes, opened: list[str], lines: list[list[str]]) -> list[bytes]:
    """Run ffmpeg with several outputs, and return the bytes of each."""
    with ExitStack() as stack:
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in lines]
        words = [
            w for f, line in zip(files, lines, strict=True) for w in (*line, f"pipe:{f.fileno()}")
        ]
        ended = run([*opened, *words], source, more=[file.fileno() for file in files])
        assert not ended.returncode, ended.stderr
        for file in files:
            file.seek(0)
        return [file.read() for file in files]


def pairs(text: str) -> list[tuple[str, str]]:
    """Return the old and the new words of each change."""
    rows = [row.split() for row in re.split("[;\n]", text) if row.strip()]
    return [(" ".join((*name, old)), " ".join((*name, new))) for *name, old, new in rows]


class EffectTests(SynchronousTestCase):
    """Options of outputs"""

    def assert_effect(self, text: str, table: str, resampler: str = SOXR) -> set[str]:
        """Require that each change changes the output; return the options of the command line."""
        options, made = options_of(text), source()
        found = find_probe(made, options)
        line = encoder_arguments("ffmpeg", input_of(found), options, found, resampler)
        behind = line.index("-i") + 2
        words, changes = " ".join(line[behind:-1]), pairs(table)
        for old, _ in changes:
            self.assertIn(old, words, text)
        lines = [words, *(words.replace(old, new) for old, new in changes)]
        unchanged, *changed = outcomes(made, line[:behind], [line.split() for line in lines])
        for (old, new), output in zip(changes, changed, strict=True):
            self.assertNotEqual(output, unchanged, (text, old, new))
        return {word for word in words.split() if word[0] == "-" and word[1].isalpha()}

    def test_outputs(self) -> None:
        """Each option of a command line has an effect in all versions of ffmpeg (D77)."""
        passed = set[str]().union(*(self.assert_effect(*row) for row in CHANGES.items()))
        tested = {old.split()[0] for table in CHANGES.values() for old, _ in pairs(table)}
        self.assertEqual(passed - OTHERS, tested)
        self.assertEqual({options_of(text).f for text in CHANGES}, set(FORMATS) - {"peaks"})

    def test_filters(self) -> None:
        """Each setting of a resampler has an effect in all versions of ffmpeg (D60)."""
        for (text, resampler), table in FILTERS.items():
            self.assert_effect(text, table, resampler)

    def test_decoder(self) -> None:
        """The decoder of an irregular source mixes floating-point samples below full scale."""
        loud = write_wav(Sound(RATE, np.full((6, 4410), 0.9, np.float32)), "32f", 0x3F)
        found = replace(probe(loud), channels=2, layout="stereo")
        line = decoder_arguments("ffmpeg", input_of(found), found)
        behind = line.index("-i") + 2
        words = line[behind:-1]
        louder = " ".join(words).replace(":rematrix_maxval=1", "").split()
        self.assertNotEqual(*outcomes(loud, line[:behind], [words, louder]))
