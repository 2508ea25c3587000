"""The suite in units of whole classes, for `trial -j`, and its two lists.

`trial -j` gives each process one test at a time, so the tests of a class would run in several
processes, and each would make anew what the class shares: a server, renders, decoded audio. Name
`tests.core` or `tests.more` in place of `tests` to run each class in one process. Trial then names
the class of a failed test, and the traceback its method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any
from unittest import TestSuite

from twisted.trial.runner import TestLoader
from twisted.trial.unittest import SynchronousTestCase

_TESTS = Path(__file__).parents[1]

#: Folders and modules of `make test-more`, those that take longest first.
MORE = (
    # Browsers, load, the files of deploy/ and examples/, and what is beside the package.
    "tests.browser",
    "tests.bench",
    "tests.test_pages_live",
    "tests.soak",
    "tests.deploy",
    # A comparison with pyloudnorm, which brings SciPy.
    "tests.media.test_loudness_live",
    # Every answer of a server to every request.
    "tests.test_faults",
    "tests.test_upgrading_live",
    "tests.test_install_live",
    "tests.examples",
    "tests.handover",
    "tests.fuzz",
    # Programs that read audio files, and other languages.
    "tests.media.test_readers_live",
    "tests.urls.test_clients_live",
    "tests.urls.test_signing_examples_live",
    "tests.urls.test_signing_page_live",
    "tests.urls.test_urls_live",
    # These load every module.
    "tests.test_docs",
    "tests.test_suite",
)


class WholeClass:
    """All tests of a class, as one test that trial gives to a process by its name."""

    def __init__(self, name: str, cases: list[Any]) -> None:
        self._name = name
        self._suite = TestSuite(cases)

    def id(self) -> str:
        """Return the name of the class, by which the process loads it."""
        return self._name

    def countTestCases(self) -> int:
        """Return the number of tests."""
        return self._suite.countTestCases()

    def run(self, result: Any) -> Any:
        """Run the tests in this process, as trial without ``-j`` does."""
        return self._suite.run(result)

    __call__ = run


def test_cases(suite: Any) -> Iterator[Any]:
    """Yield the test cases in a suite."""
    for each in suite:
        if isinstance(each, Iterable):
            yield from test_cases(each)
        else:
            yield each


def class_of(case: Any) -> str:
    """Return the name of a test's class; for a module that cannot be loaded, the module's."""
    name = str(case.id())
    return name.rpartition(".")[0] if isinstance(case, SynchronousTestCase) else name


def place_in_more(name: str) -> int | None:
    """Return the place in MORE of a module, or of a class in it; None if it is not there."""
    dotted = f"{name}."
    return next((n for n, entry in enumerate(MORE) if dotted.startswith(f"{entry}.")), None)


def module_names() -> Iterator[str]:
    """Yield the name of each module with tests."""
    for path in sorted(_TESTS.rglob("test_*.py")):
        if "node_modules" not in path.parts:
            yield ".".join(("tests", *path.relative_to(_TESTS).with_suffix("").parts))


def classes(modules: Iterable[str]) -> list[WholeClass]:
    """Return the classes of modules."""
    cases = test_cases(TestLoader().loadByNames(list(modules)))
    return [WholeClass(name, list(found)) for name, found in groupby(cases, class_of)]


def _sorted(found: Iterable[WholeClass], key: Callable[[str], Any]) -> TestSuite:
    return TestSuite(sorted(found, key=lambda each: key(each.id())))


def core() -> TestSuite:
    """Return the classes of `make test`; modules of other tests are not imported.

    Those that run programs come first: short ones at the end keep every process busy.
    """
    found = classes(name for name in module_names() if place_in_more(name) is None)
    return _sorted(found, lambda name: "_live." not in name)


def more() -> TestSuite:
    """Return the classes of `make test-more`, in the order of MORE."""
    found = classes(name for name in module_names() if place_in_more(name) is not None)
    return _sorted(found, place_in_more)
