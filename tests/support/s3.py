"""Base class of the tests' S3 servers, with signed requests to them.

The ``minio`` package signs these requests. The service uses the signatures of another package, and
the server verifies both.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal
from urllib.parse import quote, unquote_to_bytes, urlsplit, urlunsplit
from uuid import uuid4
from xml.etree import ElementTree

from minio.credentials import Credentials
from minio.signer import sign_v4_s3
from twisted.trial.unittest import SkipTest
from urllib3 import connection_from_url
from urllib3.exceptions import HTTPError

from tests.support.authority import Authority, Certificate
from tests.support.servers import Server, free_port
from tests.support.service import PATIENCE, until

#: How often to try a start: another process may take the port that was found to be free.
_TRIES = 5

#: What a user may do. Reading a missing object returns 403 instead of 404 with ``get``, which lacks
#: the right to list. ``write`` includes reading, and ``keep`` also includes removing.
Rights = Literal["get", "read", "write", "keep", "nothing"]

_LIST = ("s3:GetBucketLocation", "s3:ListBucket")
_WRITE = ("s3:PutObject", "s3:ListMultipartUploadParts", "s3:AbortMultipartUpload")

#: S3's actions for each of the rights.
_ACTIONS: Mapping[Rights, tuple[str, ...]] = {
    "get": ("s3:GetObject",),
    "read": ("s3:GetObject", *_LIST),
    "write": ("s3:GetObject", *_LIST, *_WRITE),
    "keep": ("s3:GetObject", *_LIST, *_WRITE, "s3:DeleteObject"),
    "nothing": (),
}

#: Checks that only some servers perform. All servers check the secret and the expiry, and all but
#: rclone the digest of a body.
Check = Literal["region", "session token"]


@dataclass(frozen=True, slots=True)
class Identity:
    """Credentials of a user."""

    access_key: str
    secret_key: str
    session_token: str | None = None

    @classmethod
    def new(cls, name: str) -> Identity:
        """Return new credentials, whose access key begins with a name."""
        return cls(f"{name}-{token_hex(4)}", token_hex(20))


def policy(rights: Rights, **statement: Any) -> dict[str, Any]:
    """Return a policy that grants rights to all buckets; ``statement`` overrides its fields."""
    resources = {"Resource": ["arn:aws:s3:::*"]}
    allowed = {"Effect": "Allow", "Action": _ACTIONS[rights], **resources, **statement}
    return {"Version": "2012-10-17", "Statement": [allowed]}


@dataclass(frozen=True, slots=True)
class S3Response:
    """Response of the server.

    :ivar headers: values by lower-case name.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    def texts(self, tag: str) -> list[str]:
        """Return the texts of all elements with this tag, in any namespace."""
        root = ElementTree.fromstring(self.body)
        return [node.text or "" for node in root.iter() if node.tag.rpartition("}")[2] == tag]

    def require_success(self) -> S3Response:
        """Return the response itself if it is a success.

        :raises AssertionError: if its status is 300 or higher.
        """
        assert self.status < 300, f"{self.status}: {self.body!r}"
        return self


class Gateway:
    """S3 server that runs as one program, whose data outlives the program, and requests to it.

    Requests block the reactor. They take milliseconds, and the server runs in another process.

    :ivar domain: a request to the host ``BUCKET.domain`` is for that bucket.
    :ivar owner: the user with all rights.
    :ivar ca_bundle: the file with the authority of its certificate; None if it has no TLS.
    :ivar checks: its checks beyond those that every server does.
    :ivar fails: the checks of ``doctor --bucket`` that it fails.
    """

    checks: frozenset[Check]
    fails: frozenset[str] = frozenset()
    port = 0
    domain = "s3.test"
    region = "us-east-1"
    owner: Identity
    ca_bundle: str | None = None
    _server: Server | None = None

    @property
    def endpoint(self) -> str:
        """The URL of the server."""
        return f"{'https' if self.ca_bundle else 'http'}://127.0.0.1:{self.port}"

    def certify(self, authority: Path, folder: Path | None = None) -> Certificate:
        """Return a new certificate of this server, from a new authority in a folder."""
        issuer = Authority(authority)
        self.ca_bundle = str(issuer.bundle)
        names = ("127.0.0.1", "localhost", self.domain, f"*.{self.domain}")
        return issuer.issue(*names, folder=folder)

    def url(self, bucket: str = "", key: str | bytes = b"", query: str = "") -> str:
        """Return the URL of a bucket or an object with path-style addressing."""
        path, rest = f"/{bucket}" if bucket else "", quote(key, safe="/~")
        path = path if bucket and not rest else f"{path}/{rest}"
        return self.endpoint + path + (f"?{query}" if query else "")

    def request(
        self,
        method: str,
        bucket: str = "",
        key: str | bytes = b"",
        query: str = "",
        body: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        identity: Identity | None = None,
    ) -> S3Response:
        """Sign a request and send it; the query must be encoded already."""
        url = urlsplit(self.url(bucket, key, query))
        who, now = identity or self.owner, datetime.now(UTC)
        signed = {
            "Host": url.netloc,
            "x-amz-date": now.strftime("%Y%m%dT%H%M%SZ"),
            "x-amz-content-sha256": sha256(body).hexdigest(),
            **(headers or {}),
        }
        if who.session_token:
            signed["x-amz-security-token"] = who.session_token
        sign_v4_s3(
            method=method,
            url=url,
            region=self.region,
            headers=signed,
            credentials=Credentials(who.access_key, who.secret_key),
            content_sha256=signed["x-amz-content-sha256"],
            date=now,
        )
        return self.fetch(url.geturl(), method, body, signed)

    def fetch(
        self,
        url: str,
        method: str = "GET",
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> S3Response:
        """Request a URL from this server without adding a signature; the URL may name any host."""
        parts = urlsplit(url)
        tls = {"ca_certs": self.ca_bundle, "server_hostname": parts.hostname}
        options: dict[str, Any] = tls if self.ca_bundle else {}
        with connection_from_url(self.endpoint, timeout=PATIENCE, **options) as pool:
            response = pool.urlopen(
                *(method, urlunsplit(("", "", parts.path or "/", parts.query, "")), body or None),
                headers={"Host": parts.netloc, **(headers or {})},
                retries=False,
                redirect=False,
            )
        received = {name.lower(): value for name, value in response.headers.items()}
        return S3Response(response.status, received, response.data)

    # Helpers for fixtures, which raise AssertionError if a request fails.

    def make_bucket(self) -> str:
        """Create a bucket with a new name, and return the name."""
        name = f"test-{uuid4().hex}"
        self.request("PUT", name).require_success()
        return name

    def put(self, bucket: str, key: str | bytes, data: bytes, **headers: str) -> str:
        """Write an object and return its ETag; underscores in header names become hyphens."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        response = self.request("PUT", bucket, key, body=data, headers=given)
        return response.require_success().headers["etag"]

    def get(self, bucket: str, key: str | bytes) -> S3Response:
        """Read an object."""
        return self.request("GET", bucket, key).require_success()

    def keys(self, bucket: str) -> list[bytes]:
        """Return the keys in a bucket of at most a thousand objects."""
        query = "encoding-type=url&list-type=2"
        return _listed_keys(self.request("GET", bucket, query=query).require_success())

    def remove(self, bucket: str, key: str | bytes) -> None:
        """Remove an object if it exists."""
        self.request("DELETE", bucket, key).require_success()

    def uploads(self, bucket: str) -> list[tuple[bytes, str]]:
        """Return the multipart uploads that were neither completed nor aborted."""
        listing = self.request("GET", bucket, query="encoding-type=url&uploads=").require_success()
        return list(zip(_listed_keys(listing), listing.texts("UploadId"), strict=True))

    # The program.

    def serve(self, port: int) -> Server:
        """Start the program."""
        raise NotImplementedError

    def ready(self) -> bool:
        """Return whether the server is ready for tests."""
        # Only this server accepts its secret; another program at the same port would refuse it.
        return self.request("GET").status == 200

    def add_user(self, rights: Rights) -> Identity:
        """Create a user with the given rights to all existing buckets."""
        raise SkipTest("This S3 server has no users with fewer rights.")

    def temporary_credentials(self, user: Identity) -> Identity:
        """Return temporary credentials with the rights of a user, who must not be the owner."""
        raise NotImplementedError

    async def start(self) -> None:
        """Start the server and wait until it responds; a restart keeps the port and the data."""
        if self._server is not None and self._server.running:
            return
        again = self.port
        for _ in range(_TRIES):
            self.port = again or free_port()
            self._server = server = self.serve(self.port)
            try:
                await until(self._responds_or_ended, "the S3 server to respond")
            except AssertionError:
                await self.stop()
            if server.running:
                return
        raise AssertionError(f"the S3 server did not start: {server.output_tail}")

    async def stop(self) -> None:
        """Stop the server at once; its data stays."""
        if self._server is not None:
            self._server.kill()

    def _responds_or_ended(self) -> bool:
        assert self._server is not None
        with suppress(HTTPError):
            return self.ready() or not self._server.running
        return not self._server.running


def _listed_keys(listing: S3Response) -> list[bytes]:
    # The requests ask for URL-encoded keys, because XML cannot express every key.
    return [unquote_to_bytes(key.replace("+", " ")) for key in listing.texts("Key")]
