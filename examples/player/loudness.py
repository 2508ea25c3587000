"""Loudness of the source and of the result, measured once for all requests that wait for it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict
from typing import Any

from twisted.internet.defer import Deferred

from audioproxy.concurrency.shared_result import SharedResult
from audioproxy.grammar.sources import Source
from audioproxy.loudness import Measurement
from audioproxy.urls import InvalidOptions, Variant
from examples.player.signing import SHAPING, read_variant

#: Measures a source, or a variant of it before its encoder.
Measure = Callable[[Source, Variant | None], Coroutine[Any, Any, Measurement]]


class LoudnessDocuments:
    """Documents with the loudness of sources and variants."""

    def __init__(self, measure: Measure, find: Callable[[str], Source]) -> None:
        """Use a function that measures, such as `audioproxy.loudness.LoudnessMeter.measure`.

        :param find: returns a source, as `Sources.find` does.
        """
        self._measure = measure
        self._find = find
        self._running: dict[tuple[bytes, str], SharedResult[Measurement]] = {}

    async def describe(self, parameters: Mapping[str, str]) -> dict[str, object]:
        """Return the document with the integrated loudness, the range and the true peak.

        A measurement is cancelled when nobody waits for it any more.

        :param parameters: ``source``, and for a variant its format and the options that change the
            audio. Without a format, the source itself is measured.
        :raises Refusal: for a source or options that the service would refuse.
        """
        given = dict(parameters)
        source = self._find(given.pop("source", ""))
        for name in given.keys() - {"f", *SHAPING}:
            raise InvalidOptions(f'"{name}" is not accepted: it does not change the loudness.')
        measurement = await self._join(source, read_variant(**given) if "f" in given else None)
        return asdict(measurement.loudness)

    def _join(self, source: Source, variant: Variant | None) -> Deferred[Measurement]:
        key = source.canonical, variant.canonical if variant else ""
        shared = self._running.get(key) or self._start(key, self._measure(source, variant))
        return shared.wait()

    def _start(
        self, key: tuple[bytes, str], work: Coroutine[Any, Any, Measurement]
    ) -> SharedResult[Measurement]:
        def end(outcome: Any) -> None:
            # The next request may already have started another measurement.
            if self._running.get(key) is shared:
                del self._running[key]
            shared.fire(outcome)

        def abandon() -> None:
            del self._running[key]
            running.cancel()

        shared = self._running[key] = SharedResult[Measurement](abandon)
        running = Deferred.fromCoroutine(work)
        running.addBoth(end)
        return shared
