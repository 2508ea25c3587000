"""The objects that all renders share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from audioproxy.process.slots import Slots
from audioproxy.render.deadline import RenderLimits
from audioproxy.render.job import Preparer
from audioproxy.render.output_encoder import OutputEncoder
from audioproxy.render.write_back import RenderStorage

if TYPE_CHECKING:
    from audioproxy.observe.metrics import Metrics


@dataclass(frozen=True, slots=True)
class RenderContext:
    """The objects that every render works with, in the order in which it needs them."""

    preparer: Preparer
    slots: Slots
    limits: RenderLimits
    storage: RenderStorage
    encoder: OutputEncoder
    metrics: Metrics
