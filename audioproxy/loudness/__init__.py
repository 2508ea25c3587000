"""Measures loudness: the library for Twisted programs.

It reads sources as the service does, with the same settings::

    from audioproxy.config import load
    from audioproxy.loudness import LoudnessMeter, find_gain
    from audioproxy.urls import Variant

    config, _ = load(os.environ)
    meter = LoudnessMeter(config, reactor)
    measurement = await meter.measure("s3://masters/piece.wav", Variant(f="flac", t=(30, 15)))
    print(measurement.loudness.integrated, "LUFS")
    gain = find_gain(measurement, target=-16, ceiling=-1)
    await meter.close()
"""

from audioproxy.loudness.meter import LoudnessMeter
from audioproxy.media.loudness import Gain, Loudness, Measurement, find_gain

__all__ = ["Gain", "Loudness", "LoudnessMeter", "Measurement", "find_gain"]
