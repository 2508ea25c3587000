"""The whole check, for minutes: ``make handover``."""

from __future__ import annotations

import functools
import os
import statistics

from tests.handover.case import NEW_KEY, NEW_SALT, ROTATION, SLOW_OPTION, HandoverCase
from tests.handover.load import Load
from tests.support.service import PROJECT, fetch, reactor, signed, until

#: Seconds of a slow render and of a slow download, which last longer than a replacement takes.
SECONDS = int(os.environ.get("SECONDS") or 60)
#: Seconds by which the 99th percentile of small hits may grow in the `WINDOW` of a replacement.
MARGIN = 0.05
#: The first seconds of a replacement, in which the new service starts and the old one is stopped.
WINDOW = 10


class HandoverTests(HandoverCase):
    """100 requests a second, while the service is replaced ten times."""

    timeout = 3600

    async def test_handover(self) -> None:
        """Clients see no failure in ten replacements, with changed keys, credentials and code.

        No body is aborted, no connection refused, and there is no 401 and no 5xx. A service that
        refuses its settings takes nothing down. In the median of the replacements, the 99th
        percentile of small hits is at most 50 ms above that of another service, which is not
        replaced and shares the machine.
        """
        self.add_sources(SECONDS)
        self.instance = await self.start()
        load, path = self.load, self.path
        stored, large = path("f:mp3/t:0:0.2"), path("f:wav/sr:192000/ch:2", "long.flac")
        await fetch(self.port, self.sign(stored))
        await fetch(self.port, self.sign(large))
        await until(lambda: self.store_count() == 2, "the variants to be stored")
        sockets = self.open(), self.open()
        await self.start_with_socket(*sockets, **self.variables).port()
        other_load = Load(sockets[0].getsockname()[1], signed)
        begins: list[float] = []

        async def replace(**variables: str) -> None:
            begins.append(reactor.seconds())
            await self.replace(**variables)

        def unique(options: str, source: str = "short.flac") -> str:
            return path(f"{options}/cb:{next(self.numbers)}", source)

        for each in (load, other_load):
            each.every(0.011, functools.partial(each.hit, stored))
        load.every(0.5, lambda: load.get(unique("f:flac"), renders=True))
        load.every(0.3, lambda: load.get(f"/info/plain/s3://{self.sources}/short.flac"))
        slow = f"f:mp3/{SLOW_OPTION}"
        # Some of each are under way at any time, and fewer than there are slots.
        load.every(SECONDS / 4, lambda: load.get(unique(slow, "long.flac"), renders=True))
        load.every(SECONDS / 3, lambda: load.download_slowly(large))

        await replace()
        await replace(**ROTATION["new is accepted"])
        self.signs_with = NEW_KEY, NEW_SALT
        await replace(**ROTATION["new is current"])
        await replace(**ROTATION["old is removed"])
        user = self.server.add_user("read")
        await replace(AWS_ACCESS_KEY_ID=user.access_key, AWS_SECRET_ACCESS_KEY=user.secret_key)
        await self.refuse(AP_SALT="not hexadecimal")
        await replace(PYTHONPATH=self.other_version("99"))
        self.assertTrue((await self.version()).startswith("99+"))
        await replace(PYTHONPATH=str(PROJECT))
        for _ in range(3):
            await replace()
        for each in (load, other_load):
            await each.stop()

        seen = load.seen
        pairs = [
            [it.seen.percentile(0.99, begin, begin + WINDOW) for it in (load, other_load)]
            for begin in begins
        ]
        replaced, other = map(statistics.median, zip(*pairs, strict=True))
        growth = statistics.median(mine - others for mine, others in pairs)
        rows = {
            "requests": sum(seen.statuses.values()),
            "of them, small hits": len(seen.hits),
            "statuses": ", ".join(map(str, sorted(seen.statuses))),
            "failures": len(seen.failures),
            "repeated, because the old process gave them no slot": seen.repeated,
            "repeated, because a persistent connection closed": seen.reconnected,
            f"slowest hit of 100 in {WINDOW} s of a replacement": f"{replaced * 1000:.0f} ms",
            "the same of a service that is not replaced": f"{other * 1000:.0f} ms",
            "difference of the two": f"{growth * 1000:.0f} ms",
        }
        print("\n\n| What clients saw | Figure |\n|---|---|")
        print("\n".join(f"| {name} | {value} |" for name, value in rows.items()), flush=True)
        self.assertEqual([], seen.failures + other_load.seen.failures)
        self.assertEqual({200}, seen.statuses.keys())
        self.assertLessEqual(growth, MARGIN)

    def store_count(self) -> int:
        """Return the number of stored variants."""
        return len(list(self.store.glob("??/*")))
