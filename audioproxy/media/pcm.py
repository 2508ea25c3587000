"""Moved to `audioproxy.media.waveform_spec`."""

from audioproxy.media.waveform_spec import PcmSamples as PcmSamples
from audioproxy.media.waveform_spec import UnusualSamples as UnusualSamples
from audioproxy.media.waveform_spec import find_samples as find_samples
from audioproxy.media.waveform_spec import may_read_samples as may_read_samples
