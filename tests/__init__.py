"""Tests, laid out as the package is; `support` holds the shared code."""

import os
import signal

# A shell starts background jobs with SIGINT ignored. Programs that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

if durations := os.environ.get("AUDIOPROXY_DURATIONS"):
    from tests.support.durations import record_durations

    record_durations(durations)
