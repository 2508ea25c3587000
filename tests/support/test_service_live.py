"""The waits of tests with a running service."""

from __future__ import annotations

import os
import signal

from twisted.trial.unittest import TestCase

from tests.support.service import (
    TEST_PATIENCE,
    ServiceCase,
    fetch,
    is_running,
    short_flac,
    signed,
    until,
)


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


class SharedProgramTests(ServiceCase):
    """ffmpeg and ffprobe of services in this process"""

    async def render(self) -> list[int | None]:
        """Render in a service; return the process IDs of what ran, as long as the service did."""
        service = self.start(variant_store=None)
        await service.engine.starter.settle()
        programs = service.engine.starter.programs.values()
        response = await fetch(service.port, signed("/f:wav/plain/local://a.flac"))
        self.assertEqual((200, True), (response.status, response.complete))
        servers = [program.server_pid for program in programs]
        await service.stopService()
        return servers

    async def test_linked_once(self) -> None:
        """Services use the same servers; one that has ended is replaced."""
        self.add("a.flac", short_flac())
        first = await self.render()
        self.assertEqual(first, await self.render())
        for pid in first:
            if pid is not None:
                self.assertTrue(is_running(pid))
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        await self.render()
        self.assertTrue(None in first or {*first, None}.isdisjoint(await self.render()))
