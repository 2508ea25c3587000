"""The presets of ``enhance``."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.media.command.presets import PRESETS

VOICE = (
    "{to_48000}aformat=sample_fmts=dblp:sample_rates=48000:channel_layouts=5.1,"
    "highpass=f=80:p=2:t=q:w=0.707:m=1:n=0:a=di:r=auto,"
    "apad=pad_len=1200,afftdn=nr=10:nf=-40:nt=w:rf=-38:tn=0:tr=0:om=o:ad=0.5:fo=1:nl=min,"
    "atrim=start_sample=1200,asetpts=PTS-STARTPTS,deesser=i=0.4:m=0.5:f=0.5:s=o,"
    "acompressor=level_in=1:mode=downward:threshold=0.125893:ratio=3:attack=10:release=120"
    ":makeup=1.412538:knee=2.828427:link=average:detection=rms:level_sc=1:mix=1,"
    "{back}aformat=sample_fmts=dblp:sample_rates={rate}:channel_layouts=5.1,"
    "alimiter=level_in=1:level_out=1:limit=0.891:attack=5:release=50:asc=0:asc_level=0.5"
    ":level=0:latency=1"
)


class PresetTests(SynchronousTestCase):
    """`PRESETS`"""

    def test_names(self) -> None:
        """The only preset is ``voice`` (Time-domain and preview options)."""
        self.assertEqual(list(PRESETS), ["voice"])

    def test_voice(self) -> None:
        """``enhance:voice`` is exactly this filter chain, in every version (Versioning, 4).

        High-pass, denoise, de-ess, compress, limit. All but the limiter run at 48 kHz, since their
        effect depends on the rate; the limiter runs at the rate of the source (D60). The chain
        compensates the denoiser's delay. No stage uses a default of ffmpeg for a parameter.
        """
        for rate in (1000, 44100, 48000, 192000):
            there, back = (f"aresample={hertz}:x=1," * (rate != 48000) for hertz in (48000, rate))
            expected = VOICE.format(to_48000=there, back=back, rate=rate)
            self.assertEqual(",".join(PRESETS["voice"](rate, "5.1", "x=1")), expected)
