"""Bugs that the tests have to detect.

Each bug replaces a named function or setting of the service, which breaks a promise. Its docstring
says what is then wrong. `inject` puts it into this process.
"""

from __future__ import annotations

from twisted.python.monkey import MonkeyPatcher

from tests.soak import request_bugs, storage_bugs, system_bugs

BUGS = [*request_bugs.BUGS, *storage_bugs.BUGS, *system_bugs.BUGS]


def inject(name: str) -> None:
    """Put the bug with this name into this process."""
    (bug,) = (bug for bug in BUGS if bug.name == name)
    MonkeyPatcher(bug.patch).patch()
