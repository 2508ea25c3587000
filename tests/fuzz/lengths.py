"""Sources of any bytes in every container, whose length is searched."""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal

from audioproxy.errors import UndecodableSource
from audioproxy.media import probe as values
from audioproxy.media.lengths.containers import READERS, run_reader
from audioproxy.media.lengths.mp3 import read_duration
from audioproxy.media.samples import check_samples, probe_samples
from audioproxy.media.signatures import identify
from tests.support.audio import find_length_of, run_in_memory
from tests.support.probes import Probe, replace

# Codecs of containers whose reader takes all.
_CODECS = {"iff": "pcm_s8_planar", "dsf": "dsd_lsbf_planar"}
CONTAINERS = tuple(
    Probe(container, codec.replace("pcm", "pcm_s16le"), Decimal(9), True, sample_rate=rate)
    for container, codec in ((name, codec or _CODECS.get(name, "opus")) for name, codec in READERS)
    for rate in (44100, 48000)
)


def check_length(probe: values.Probe, data: bytes) -> None:
    """Assert that a search ends without an error, and finds a plausible length or none."""
    size = len(data)
    run_in_memory(lambda read: identify(read, size), data)
    with suppress(UndecodableSource):
        run_in_memory(lambda read: probe_samples(read, size), data)
    unchecked = replace(probe, unchecked=True, first_byte=1)

    async def decode(start: int) -> bytes:
        return data[start:]

    with suppress(UndecodableSource):
        run_in_memory(lambda read: check_samples(read, size, unchecked, decode), data)
    reading = read_duration(size, probe)
    run_in_memory(lambda read: run_reader(read, size, reading), data)
    length = None
    # Joined files are refused.
    with suppress(UndecodableSource):
        length = find_length_of(data, probe)
    if length is not None:
        assert length.samples > 0, length
        if probe.codec == "pcm_s16le":
            # A sample of two channels has two bytes or more.
            assert length.samples <= size // 2, length
