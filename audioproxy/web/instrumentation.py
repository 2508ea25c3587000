"""The clock, metrics, log and CORS headers of every request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from audioproxy.observe.access_log import AccessLog, log_request
from audioproxy.web.cors import Cors

if TYPE_CHECKING:
    from audioproxy.observe.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Instrumentation:
    """The objects that measure, count and log requests, and the CORS headers of responses.

    :ivar seconds: a clock for durations.
    :ivar access_log: receives one entry for each request.
    """

    seconds: Callable[[], float]
    metrics: Metrics
    cors: Cors
    access_log: AccessLog = log_request
