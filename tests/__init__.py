"""Tests, laid out as the package is; `support` holds the shared code."""

import os

if durations := os.environ.get("AUDIOPROXY_DURATIONS"):
    from tests.support.durations import record_durations

    record_durations(durations)
