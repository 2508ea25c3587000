"""The tests of `make test-more`, for trial, which looks for the function in a module."""

from unittest import TestSuite

from tests.support.whole_classes import more


def testSuite() -> TestSuite:
    """Return the classes of the list."""
    return more()
