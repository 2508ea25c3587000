"""A service that is replaced while clients use it."""

from __future__ import annotations

import itertools
import shutil
import signal
from pathlib import Path
from typing import Any

from audioproxy.grammar.signature import sign
from tests.handover.load import Load
from tests.support.activation import ActivationCase
from tests.support.http import KEY, SALT
from tests.support.programs import FFMPEG
from tests.support.remote import RemoteCase
from tests.support.service import PROJECT, Process, fetch, generate_audio, until

#: Option that marks renders whose encoder reads its source at the pace of playback.
SLOW_OPTION = "br:77"
#: An ffmpeg for which this option has that meaning.
SLOW_FFMPEG = f"""\
#!/bin/sh
case " $* " in *" 77k "*) exec {FFMPEG} -re "$@" ;; esac
exec {FFMPEG} "$@"
"""
NEW_KEY, NEW_SALT = b"new key " * 4, b"new salt"

#: Settings of the steps of a rotation of the key; each replaces the settings before it.
ROTATION: dict[str, dict[str, str]] = {
    "old": {"AP_KEY": KEY.hex(), "AP_SALT": SALT.hex()},
    "new is accepted": {"AP_PREVIOUS_KEY": NEW_KEY.hex(), "AP_PREVIOUS_SALT": NEW_SALT.hex()},
    "new is current": {
        "AP_KEY": NEW_KEY.hex(),
        "AP_SALT": NEW_SALT.hex(),
        "AP_PREVIOUS_KEY": KEY.hex(),
        "AP_PREVIOUS_SALT": SALT.hex(),
    },
    "old is removed": {"AP_PREVIOUS_KEY": "", "AP_PREVIOUS_SALT": ""},
}


class HandoverCase(RemoteCase, ActivationCase):
    """Base class: sources in a bucket, variants in a folder, and one service on open sockets.

    :ivar instance: the service that accepts.
    """

    instance: Process

    async def setUp(self) -> None:
        """Open the sockets, and add the sources."""
        await super().setUp()
        self.sockets = self.open(), self.open()
        self.port, self.metrics_port = (each.getsockname()[1] for each in self.sockets)
        self.variables = {
            "AP_VARIANT_STORE": f"file://{self.store}",
            "AP_DRAIN_TIMEOUT": "300",
            "AP_MAX_CONCURRENCY": "8",
            "PATH": self.shadow_ffmpeg(SLOW_FFMPEG),
            **ROTATION["old"],
        }
        self.signs_with = KEY, SALT
        self.numbers = itertools.count()
        self.load = Load(self.port, self.sign)

    def add_sources(self, seconds: int) -> None:
        """Add a short source, and a long one of a number of seconds."""
        for name, length in (("short.flac", 0.5), ("long.flac", seconds)):
            sine = f"sine=frequency=440:sample_rate=16000:duration={length}"
            self.put(name, generate_audio(Path(name).absolute(), "-f", "lavfi", "-i", sine))

    def sign(self, path: str) -> bytes:
        """Return the signed path, as the signers sign it now."""
        raw = path.encode()
        return b"/" + sign(*self.signs_with, raw) + raw

    def path(self, options: str, source: str = "short.flac") -> str:
        """Return the unsigned path of a variant."""
        return f"/{options}/plain/s3://{self.sources}/{source}"

    async def start(self, **variables: str) -> Process:
        """Start an instance with these settings besides the current ones, and wait for it."""
        instance = self.start_with_socket(*self.sockets, **{**self.variables, **variables})
        await instance.port()
        return instance

    async def replace(self, **variables: str) -> None:
        """Change settings, and replace the instance, as ``audioproxy-replace`` does.

        The old instance has ended on return: with status 0, and without a traceback.
        """
        self.variables |= variables
        old, self.instance = self.instance, await self.start()
        old.signal(signal.SIGTERM)
        await until(lambda: old.code is not None, "the old instance to end", seconds=400)
        self.assertEqual((0, ""), (old.code, old.stderr))
        self.assertNotRegex(old.stdout, r"Traceback|\[error\]|render_failed")

    async def refuse(self, **variables: str) -> None:
        """Start an instance with wrong settings, which ends, while the other one runs on."""
        instance = self.start_with_socket(*self.sockets, **{**self.variables, **variables})
        self.assertEqual(78, await instance.end())
        self.assertIsNone(self.instance.code)

    def other_version(self, version: str) -> str:
        """Return the folder of a checkout with another version."""
        folder = Path(self.mktemp()).absolute()
        for name in ("audioproxy", "twisted", "tests"):
            ignored = shutil.ignore_patterns("__pycache__", "node_modules", "dropin.cache")
            shutil.copytree(PROJECT / name, folder / name, ignore=ignored)
        module = folder / "audioproxy/__init__.py"
        text = module.read_text()
        changed = text.replace('__version__ = "', f'__version__ = "{version}+', 1)
        self.assertNotEqual(text, changed)
        module.write_text(changed)
        return str(folder)

    async def version(self) -> Any:
        """Return the version that answers."""
        return (await fetch(self.port, b"/health")).document["version"]
