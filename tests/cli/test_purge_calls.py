"""The calls that remove tagged responses from caches in front."""

from __future__ import annotations

import json
import shlex

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.cli.purge_calls import CALLS, calls_for
from audioproxy.config.values import cache_tag_header

TAGS = [f"ap-{number:032x}" for number in range(250)]


class PurgeCallTests(SynchronousTestCase):
    """`audioproxy.cli.purge_calls`"""

    def test_commands(self) -> None:
        """Each command is one of a shell, with each tag once and bodies in JSON (D59)."""
        for call in CALLS:
            commands = [shlex.split(command) for command in call.commands(TAGS)]
            self.assertEqual(-(-250 // call.most), len(commands))
            found = []
            for words in commands:
                for word in words:
                    self.assertNotIn("TAGS", word)
                    if word.startswith("{"):
                        (value,) = json.loads(word).values()
                        found += [value] if isinstance(value, str) else value
                    elif "ap-" in word:
                        found += word.rpartition(": ")[2].lstrip("#").split()
            self.assertEqual(TAGS, found, call.cache)
            self.assertEqual([], call.commands([]))

    def test_of_header(self) -> None:
        """The header decides which caches read the tag; where none does, all calls are shown."""
        names = [call.cache for call in calls_for("cache-tag")]
        self.assertEqual(["Cloudflare", "Google Cloud CDN", "KeyCDN"], names)
        self.assertEqual(list(CALLS), calls_for("X-Other"))
        for call in CALLS:
            self.assertEqual(call.header.lower(), cache_tag_header(call.header))
