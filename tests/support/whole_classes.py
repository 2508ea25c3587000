"""The suite in units of whole classes, for `trial -j`.

`trial -j` gives each process one test at a time, so the tests of a class would run in several
processes, and each would make anew what the class shares: a server, renders, decoded audio. Name
this module in place of `tests` to run each class in one process. Trial then names the class of a
failed test, and the traceback its method.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from itertools import groupby
from typing import Any
from unittest import TestSuite

from twisted.trial.runner import TestLoader
from twisted.trial.unittest import SynchronousTestCase

import tests

#: Folders of long tests, the longest first.
LONG = ("browser", "soak", "deploy", "fuzz", "examples")


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


@cache
def all_cases() -> list[Any]:
    """Return the test cases of the whole suite, in the order of its modules."""
    return list(test_cases(TestLoader().loadPackage(tests, recurse=True)))


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


def rank(name: str) -> int:
    """Return the place of a class: long tests come first, so that no process ends long after all.

    Those of some folders take longest, then those that run programs.
    """
    folder = name.split(".")[1]
    if folder in LONG:
        return LONG.index(folder)
    return len(LONG) + ("_live." not in name)


def testSuite() -> TestSuite:
    """Return the classes of the whole suite, in the order of `rank`.

    The name is the one that trial looks for in a module.
    """
    classes = [WholeClass(name, list(found)) for name, found in groupby(all_cases(), class_of)]
    return TestSuite(sorted(classes, key=lambda each: rank(each.id())))
