"""The number of clients under a limit of file descriptors."""

from __future__ import annotations

import resource

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.server.listener import max_clients


class MaxClientsTests(SynchronousTestCase):
    """Maximum number of clients, which leaves file descriptors for child processes."""

    def most(self, limit: int, children: int) -> int:
        """Return the maximum number of clients under a limit of file descriptors."""
        self.patch(resource, "getrlimit", lambda which: (limit, limit))
        return max_clients(children)

    def test_limits(self) -> None:
        """Each client may use two descriptors; 256, and 8 for each child process, stay free.

        Under a limit that is too low for the service itself, 16 clients are allowed.
        """
        for limit, children, most in (
            (1024, 8, 352),
            (4096, 20, 1840),
            (16_384, 4, 8048),
            (65_536, 100, 32_240),
            (501, 8, 90),
            (354, 8, 17),
            (352, 8, 16),
            *((0, 1, 16), (64, 1, 16), (256, 100, 16)),
        ):
            self.assertEqual(most, self.most(limit, children), (limit, children))

    def test_no_limit(self) -> None:
        """Without a limit of descriptors, thousands of clients are allowed."""
        self.assertGreater(self.most(resource.RLIM_INFINITY, 8), 4000)
