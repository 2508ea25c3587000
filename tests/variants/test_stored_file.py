"""The variants that are read on the reactor thread: those that were just read, and fast."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.variants.stored_file import WarmKeys


class WarmKeysTests(SynchronousTestCase):
    """`WarmKeys`"""

    def test_slow_on_the_reactor(self) -> None:
        """After a slow read on the reactor thread, a key is not warm; after a blocked one, none."""
        warm = WarmKeys()
        for seconds, others in ((0.03, True), (0.2, False)):
            for key in ("a", "b"):
                warm.add(key, 100, 100)
            warm.renew("a", 101, 101 + seconds)
            found = [warm.has(key, 102) for key in ("a", "b")]
            self.assertEqual([False, others], found)
            warm.add("a", 102, 102)
            self.assertTrue(warm.has("a", 103))

    def test_many(self) -> None:
        """The number of keys is limited; the oldest one is forgotten."""
        warm = WarmKeys(most=2)
        for key in ("a", "b", "c"):
            warm.add(key, 100, 100)
        found = [warm.has(key, 101) for key in ("a", "b", "c")]
        self.assertEqual([False, True, True], found)
