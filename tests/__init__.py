"""Tests of audioproxy."""

import os

if durations := os.environ.get("AUDIOPROXY_DURATIONS"):
    from tests.support.durations import record_durations

    record_durations(durations)
