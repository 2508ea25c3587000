"""What all renders share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IReactorTime

from audioproxy.process.slots import Slots
from audioproxy.render.output_encoder import OutputEncoder
from audioproxy.render.preparation import Preparer
from audioproxy.render.write_back import RenderStorage

if TYPE_CHECKING:
    from audioproxy.metrics import Metrics


@dataclass(frozen=True, slots=True)
class RenderLimits:
    """How long a render may take, and how much it may put out.

    :ivar timeout: seconds that a render may hold its slot.
    :ivar max_variant: bytes; a render that puts out more is stopped.
    """

    clock: IReactorTime
    timeout: float
    max_variant: int


@dataclass(frozen=True, slots=True)
class RenderContext:
    """The objects that every render works with, in the order in which it needs them."""

    preparer: Preparer
    slots: Slots
    limits: RenderLimits
    storage: RenderStorage
    encoder: OutputEncoder
    metrics: Metrics
