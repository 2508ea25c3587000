"""The meter of `audioproxy.loudness`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from twisted.internet.defer import DeferredSemaphore

from audioproxy.config import Config
from audioproxy.media.loudness import Measurement
from audioproxy.service import make_resource
from audioproxy.urls import SourceLike, Variant, read_source


class LoudnessMeter:
    """Measures the loudness of sources and of their variants."""

    def __init__(self, config: Config, reactor: Any) -> None:
        """Create a meter that reads the sources of a configuration.

        :param config: its limits of renders apply. At most ``max_concurrency`` sources are measured
            at the same time; the others wait.
        :raises audioproxy.service.BootError: for a configuration that cannot be used.
        """
        self._proxy = make_resource(replace(config, variant_store=None), reactor)
        # The proxy itself would reject requests that find no free slot.
        self._slots = DeferredSemaphore(min(config.max_concurrency, config.max_probe_concurrency))

    async def measure(
        self,
        source: SourceLike,
        variant: Variant | None = None,
        on_progress: Callable[[float], object] = lambda seconds: None,
    ) -> Measurement:
        """Measure a variant of a source, before its encoder, or the source itself.

        :param variant: its options apply as in a render. None measures all channels of the source,
            as a broadcaster's meter does; a render has at most two.
        :param on_progress: called with the seconds of audio that were measured so far, in a thread.
        :raises Refusal: as a request for the variant would be refused.
        """
        options = None if variant is None else variant.options
        parsed = read_source(source)
        measure = self._proxy.measure_loudness
        return await self._slots.run(measure, parsed, options, on_progress)

    async def close(self) -> None:
        """Close all connections."""
        await self._proxy.stopService()
