"""Https origins that demand credentials, and origins at private addresses (D59)."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass, replace
from pathlib import Path

from tests.sources.test_https_live import NO_RANGES, HttpsCase, authority, certificate, sound
from tests.support.attacks import Recorder
from tests.support.http import Response
from tests.support.origins import (
    STALL,
    Behavior,
    BehaviorSequence,
    File,
    PendingResponse,
    Raw,
    Redirect,
    open_origin,
)
from tests.support.service import all_children, children, encoders, fetch, send, signed, until
from tests.support.wire import Request

TOKEN, PASSWORD = "t0ken-s3cret", "user:p4ss-s3cret"
BEARER = f"Bearer {TOKEN}"
BASIC = f"Basic {base64.b64encode(PASSWORD.encode()).decode()}"
SECRETS = (TOKEN, PASSWORD, BASIC.split()[1])


@dataclass(frozen=True, slots=True)
class Demanding:
    """Source behind credentials; a refusal repeats those that came, as careless servers do."""

    credentials: str
    source: Behavior

    def respond(self, pending: PendingResponse) -> None:
        given = pending.request.headers.get("authorization", "")
        if given == self.credentials:
            self.source.respond(pending)
        else:
            pending.send_head(401, [f"X-Given: {given}", f"Content-Length: {len(given)}"])
            pending.write(given.encode())


def is_authorized(request: Request) -> bool:
    """Return whether a request has credentials."""
    return "authorization" in request.headers


def memory(pid: int) -> bytes:
    """Return all that a process can write in its memory."""
    found = []
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            place, rights, *_ = line.split()
            if rights.startswith("rw"):
                start, stop = (int(each, 16) for each in place.split("-"))
                file.seek(start)
                found.append(file.read(stop - start))
    return b"".join(found)


class CredentialsTests(HttpsCase):
    """Origins that demand credentials"""

    async def test_secrets(self) -> None:
        """Origins that demand Bearer and Basic are read; no other host and no child sees why.

        A redirect between two of them carries no credentials (D79). Neither the log, nor the
        processes, nor errors, metrics or stored variants have a secret.
        """
        basic, other = (open_origin(self, certificate("localhost")) for _ in range(2))
        public = other.put("/public.wav", sound("a.wav"))
        foreign = File(sound("a.wav", "20"))
        bearer: dict[str, Behavior] = {
            "ranged.wav": Demanding(BEARER, File(sound("a.wav", "20"))),
            "away.wav": Demanding(BEARER, Redirect(other.put("/foreign.wav", foreign))),
            "across.wav": Redirect(basic.put("/b.wav", Demanding(BASIC, File(sound("a.wav"))))),
            "wrong.wav": Demanding("Bearer other", File(b"")),
            "echo.wav": Raw(b"SSH-%b\r\n\r\n" % BEARER.encode()),
        }
        urls = {name: self.origin.put(f"/{name}", it) for name, it in bearer.items()}
        whole = File(sound("a.wav", "20"), **NO_RANGES)
        cut_once = Demanding(BASIC, BehaviorSequence(replace(whole, sent=300_000), whole))
        good = [urls["ranged.wav"], urls["away.wav"], basic.put("/a.wav", cut_once)]
        file = Path(self.mktemp()).resolve()
        file.touch(0o600)
        lines = ((self.origin, BEARER), (basic, BASIC))
        file.write_text(
            "\n".join(f"localhost:{each.port} Authorization: {value}" for each, value in lines)
        )
        recorder = Recorder(self.root.with_name("recorder"))
        node = self.twistd(
            SSL_CERT_FILE=str(authority().bundle),
            AP_SOURCE_ALLOWLIST="localhost",
            AP_SOURCE_HEADERS_FILE=str(file),
            AP_LOG_LEVEL="debug",
            PATH=recorder.path,
        )
        port = await node.port()
        self.add("a.wav", sound("a.wav", "20"))
        found: list[Response] = []
        for options in ("info", "f:wav/t:0:0.5", "f:peaks"):
            local = await fetch(port, signed(f"/{options}/plain/local://a.wav"))
            for url in good:
                found.append(await fetch(port, self.path(url, options)))
                self.assertEqual(200, found[-1].status, (url, options, found[-1].body))
                if url == good[0] and options != "info":
                    self.assertEqual(local.body, found[-1].body)
        remote = {run.after("-i")[0] for run in recorder.inputs()}
        self.assertEqual({"file:/dev/fd/3"}, remote)
        self.assertEqual(200, (await fetch(port, self.path(public))).status)
        for name, status in (("wrong.wav", 404), ("echo.wav", 502), ("across.wav", 404)):
            for options in ("info", "f:wav"):
                found.append(await fetch(port, self.path(urls[name], options)))
                self.assertEqual(status, found[-1].status)
        found.append(await fetch(await node.metrics_port(), b"/metrics"))
        self.assertEqual([], [each for each in basic.requests_for("/b.wav") if is_authorized(each)])
        self.assertTrue(other.requests)
        for request in other.requests:
            self.assertFalse(is_authorized(request))
        await until(lambda: not children(node.pid), "all children to end")
        texts = [
            node.stdout + node.stderr,
            *(Path(f"/proc/{node.pid}/{name}").read_text() for name in ("cmdline", "environ")),
            *("\n".join((*run.words, *run.environment.values())) for run in recorder.runs()),
            *(repr((each.headers, each.body)) for each in found),
            *(
                path.read_bytes().decode("latin-1")
                for path in self.store.rglob("*")
                if path.is_file()
            ),
        ]
        self.assertIn(
            "the origin localhost responds with 401: its headers in AP_SOURCE", node.stdout
        )
        self.assertIn("the origin localhost is unreachable: the response is not HTTP", node.stdout)
        for secret in SECRETS:
            self.assertEqual([], [text for text in texts if secret in text])


class ProcessTests(HttpsCase):
    """What is in the processes of ffmpeg and ffprobe while they read a remote source"""

    shares_programs = False

    async def test_encoder(self) -> None:
        """An encoder knows neither the URL of its source nor its credentials (D74).

        It has no socket but the one for its questions.
        """
        good = File(sound("a.wav", "20"))
        behavior = Demanding(BEARER, BehaviorSequence(good, good, STALL))
        url = self.origin.put("/pr1vate-name.wav", behavior)
        headers = {f"localhost:{self.origin.port}": {"Authorization": BEARER}}
        service = self.start(source_headers_file=headers)
        client = await send(service.port, self.path(url))
        await until(lambda: client.response and self.origin.held, "a request that stalls")
        (encoder,) = encoders()
        process = Path(f"/proc/{encoder}")
        self.assertIn(b"file:/dev/fd/3", (process / "cmdline").read_bytes())
        links = [os.readlink(each) for each in (process / "fd").iterdir()]
        self.assertEqual(1, len([each for each in links if each.startswith("socket:")]), links)
        for each in all_children():
            texts = [(Path(f"/proc/{each}") / name).read_bytes() for name in ("cmdline", "environ")]
            for text in (*texts, memory(each)):
                for secret in (b"pr1vate-name", TOKEN.encode(), b":%d/" % self.origin.port):
                    self.assertNotIn(secret, text)
        good.respond(self.origin.held.pop())
        response = await client.end()
        self.assertEqual((200, True), (response.status, response.complete))


class DenyPrivateTests(HttpsCase):
    """Origins at private addresses, with AP_SOURCE_DENY_PRIVATE"""

    async def test_refused(self) -> None:
        """A host at a private address is the 404 of a missing source, and gets no connection."""
        url = self.origin.put("/a.wav", sound("a.wav"))
        port = self.start(source_deny_private=True, source_allowlist=("*",)).port
        missing = await fetch(port, signed("/f:wav/plain/local://none"))
        numeric = [self.origin.url("/a.wav", host) for host in ("127.0.0.1", "2130706433", "[::1]")]
        for each in (url, *numeric, "https://[::ffff:127.0.0.1]/", "https://localhost:1/"):
            response = await fetch(port, self.path(each))
            self.assertEqual((404, missing.body), (response.status, response.body), each)
        self.assertEqual([], self.origin.connections)
