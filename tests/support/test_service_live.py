"""The waits of tests with a running service."""

from __future__ import annotations

from twisted.trial.unittest import TestCase

from tests.support.service import TEST_PATIENCE, until


class UntilTests(TestCase):
    """The helper `until`."""

    timeout = TEST_PATIENCE

    async def test_until(self) -> None:
        """`until` returns the first true value; at its deadline it names what it waited for.

        The condition may be a coroutine function.
        """
        values = [0, "", None, "value"] * 2

        async def find() -> object:
            return values.pop(0)

        for condition, left in ((lambda: values.pop(0), 4), (find, 0)):
            self.assertEqual("value", await until(condition))
            self.assertEqual(left, len(values))
        values += [0] * 1000
        for condition in (lambda: False, find):
            with self.assertRaisesRegex(AssertionError, "the end of time: (False|0)"):
                await until(condition, "the end of time", seconds=0.01)
