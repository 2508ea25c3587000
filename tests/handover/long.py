"""The whole check, for minutes: ``make handover``."""

from __future__ import annotations

import os

from twisted.internet.task import deferLater

from tests.handover.case import NEW_KEY, NEW_SALT, ROTATION, SLOW_OPTION, HandoverCase
from tests.handover.load import Seen
from tests.support.service import PROJECT, fetch, reactor, until

#: Seconds of a slow render and of a slow download, which last longer than a replacement takes.
SECONDS = int(os.environ.get("SECONDS") or 60)
#: Seconds by which the 99th percentile of small hits may grow, in each `WINDOW` of replacements.
MARGIN = 0.05
#: Seconds, for some hundred hits.
WINDOW = 5


class HandoverTests(HandoverCase):
    """100 requests a second, while the service is replaced ten times."""

    timeout = 3600

    async def test_handover(self) -> None:
        """Clients see no failure in ten replacements, with changed keys, credentials and code.

        No body is aborted, no connection refused, and there is no 401 and no 5xx. The 99th
        percentile of small hits is never more than 50 ms above that without replacements. A service
        that refuses its settings takes nothing down.
        """
        self.add_sources(SECONDS)
        self.instance = await self.start()
        load, path = self.load, self.path
        stored, large = path("f:mp3/t:0:0.2"), path("f:wav/sr:192000/ch:2", "long.flac")
        await fetch(self.port, self.sign(stored))
        await fetch(self.port, self.sign(large))
        await until(lambda: self.store_count() == 2, "the variants to be stored")

        def unique(options: str, source: str = "short.flac") -> str:
            return path(f"{options}/cb:{next(self.numbers)}", source)

        load.every(0.011, lambda: load.hit(stored))
        load.every(0.5, lambda: load.get(unique("f:flac"), renders=True))
        load.every(0.3, lambda: load.get(f"/info/plain/s3://{self.sources}/short.flac"))
        slow = f"f:mp3/{SLOW_OPTION}"
        # Some of each are under way at any time, and fewer than there are slots.
        load.every(SECONDS / 4, lambda: load.get(unique(slow, "long.flac"), renders=True))
        load.every(SECONDS / 3, lambda: load.download_slowly(large))
        await deferLater(reactor, SECONDS)
        usual, load.seen = load.seen, Seen()

        await self.replace()
        await self.replace(**ROTATION["new is accepted"])
        self.signs_with = NEW_KEY, NEW_SALT
        await self.replace(**ROTATION["new is current"])
        await self.replace(**ROTATION["old is removed"])
        other = self.server.add_user("read")
        await self.replace(
            AWS_ACCESS_KEY_ID=other.access_key, AWS_SECRET_ACCESS_KEY=other.secret_key
        )
        await self.refuse(AP_SALT="not hexadecimal")
        await self.replace(PYTHONPATH=self.other_version("99"))
        self.assertTrue((await self.version()).startswith("99+"))
        await self.replace(PYTHONPATH=str(PROJECT))
        for _ in range(3):
            await self.replace()
        await load.stop()

        seen = load.seen
        was, now = (max(each.percentiles(0.99, WINDOW)) for each in (usual, seen))
        rows = {
            "requests": sum(seen.statuses.values()),
            "of them, small hits": len(seen.hits),
            "statuses": ", ".join(map(str, sorted(seen.statuses))),
            "failures": len(seen.failures),
            "repeated, because the old process gave them no slot": seen.repeated,
            "repeated, because a persistent connection closed": seen.reconnected,
            f"slowest hit of 100 in the worst {WINDOW} s, before": f"{was * 1000:.0f} ms",
            "the same during the replacements": f"{now * 1000:.0f} ms",
        }
        print("\n\n| What clients saw | Figure |\n|---|---|")
        print("\n".join(f"| {name} | {value} |" for name, value in rows.items()), flush=True)
        self.assertEqual([], usual.failures)
        self.assertEqual([], seen.failures)
        self.assertEqual({200}, seen.statuses.keys())
        self.assertLessEqual(now, was + MARGIN)

    def store_count(self) -> int:
        """Return the number of stored variants."""
        return len(list(self.store.glob("??/*")))
