"""Render requests, and the context that all renders share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IReactorTime

from audioproxy.grammar.options import VariantOptions
from audioproxy.grammar.sources import Source
from audioproxy.process.encoder import Encoder
from audioproxy.process.prober import Prober
from audioproxy.process.slots import Slots
from audioproxy.process.waveforms import Waveforms
from audioproxy.scratch import ScratchSpace
from audioproxy.sources.interfaces import SourceStore
from audioproxy.variants.interfaces import VariantHeaders, VariantStore

if TYPE_CHECKING:
    from audioproxy.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be rendered, and the headers that it is stored with."""

    key: str
    options: VariantOptions
    source: Source
    headers: VariantHeaders


@dataclass(frozen=True, slots=True)
class RenderContext:
    """What every render works with.

    :ivar store: None where nothing is stored.
    :ivar space: where output grows, when the store has no room for it or there is none.
    :ivar ffmpeg: path of the encoder.
    :ivar max_source: bytes; larger sources are refused.
    :ivar max_variant: bytes; a render that puts out more is stopped.
    :ivar timeout: seconds that a render may hold its slot.
    """

    clock: IReactorTime
    metrics: Metrics
    sources: SourceStore
    prober: Prober
    encoder: Encoder
    waveforms: Waveforms
    slots: Slots
    store: VariantStore | None
    space: ScratchSpace
    ffmpeg: str
    max_source: int
    max_variant: int
    timeout: float
