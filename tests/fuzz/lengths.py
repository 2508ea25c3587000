"""Sources of any bytes in every container, whose length is searched."""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal

from audioproxy.errors import UndecodableSource
from audioproxy.media.lengths.containers import READERS, run_reader
from audioproxy.media.lengths.mp3 import read_duration
from audioproxy.media.samples import check_samples, probe_samples
from audioproxy.media.signatures import identify
from tests.fuzz.draws import Draws
from tests.support.audio import find_length_of, run_in_memory
from tests.support.probes import Probe, replace

# Codecs of containers whose reader takes all.
_CODECS = {"iff": "pcm_s8_planar", "dsf": "dsd_lsbf_planar"}
CONTAINERS = tuple(
    Probe(container, codec.replace("pcm", "pcm_s16le"), Decimal(9), True, sample_rate=rate)
    for container, codec in ((name, codec or _CODECS.get(name, "opus")) for name, codec in READERS)
    for rate in (44100, 48000)
)


def check_length(data: bytes) -> None:
    """Assert that a search ends without an error, and finds a plausible length or none.

    :param data: one byte that chooses the container, then the source.
    """
    draws = Draws(data)
    probe = draws.one_of(CONTAINERS)
    run_in_memory(lambda read: identify(read, len(draws.rest)), draws.rest)
    with suppress(UndecodableSource):
        run_in_memory(lambda read: probe_samples(read, len(draws.rest)), draws.rest)
    unchecked = replace(probe, unchecked=True, first_byte=1)

    async def decode(start: int) -> bytes:
        return draws.rest[start:]

    with suppress(UndecodableSource):
        run_in_memory(
            lambda read: check_samples(read, len(draws.rest), unchecked, decode), draws.rest
        )
    reading = read_duration(len(draws.rest), probe)
    run_in_memory(lambda read: run_reader(read, len(draws.rest), reading), draws.rest)
    length = None
    # Joined files are refused.
    with suppress(UndecodableSource):
        length = find_length_of(draws.rest, probe)
    if length is not None:
        assert length.samples > 0, length
        if probe.codec == "pcm_s16le":
            # A sample of two channels has two bytes or more.
            assert length.samples <= len(draws.rest) // 2, length
