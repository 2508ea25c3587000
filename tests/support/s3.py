"""What tests ask of an S3 server, and signed requests to one.

The signatures are those of the ``minio`` package: the service has its own from another one, and
the server has the last word on both.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from http.client import HTTPConnection
from typing import Any, Literal, Protocol
from urllib.parse import quote, unquote_to_bytes, urlsplit
from uuid import uuid4
from xml.etree import ElementTree

from minio.credentials import Credentials
from minio.signer import presign_v4, sign_v4_s3

#: Seconds after which a request has failed.
_PATIENCE = 20

#: What a user may do. Who may ``get`` but not list is refused what is not there, in place of
#: hearing so; who may ``write`` may also read, and who may ``keep`` may remove too.
Rights = Literal["get", "read", "write", "keep", "nothing"]

_LIST = ("s3:GetBucketLocation", "s3:ListBucket")
_WRITE = ("s3:PutObject", "s3:ListMultipartUploadParts", "s3:AbortMultipartUpload")

#: The rights in S3's own words.
_ACTIONS: Mapping[Rights, tuple[str, ...]] = {
    "get": ("s3:GetObject",),
    "read": ("s3:GetObject", *_LIST),
    "write": ("s3:GetObject", *_LIST, *_WRITE),
    "keep": ("s3:GetObject", *_LIST, *_WRITE, "s3:DeleteObject"),
    "nothing": (),
}

#: What a server may check beside the secret, the expiry and the digest of a body.
Check = Literal["region", "session token", "right to list"]


@dataclass(frozen=True, slots=True)
class Identity:
    """Who asks."""

    access_key: str
    secret_key: str
    session_token: str | None = None


def policy(rights: Rights, **statement: Any) -> dict[str, Any]:
    """Return a policy that gives such rights to all buckets, or to what it is told."""
    resources = {"Resource": ["arn:aws:s3:::*"]}
    allowed = {"Effect": "Allow", "Action": _ACTIONS[rights], **resources, **statement}
    return {"Version": "2012-10-17", "Statement": [allowed]}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said.

    :ivar headers: by their names in lower case.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """The error's code, where the body has one: not all of them are XML."""
        with suppress(ElementTree.ParseError):
            return "".join(self.texts("Code")[:1]) if self.status >= 400 else ""
        return ""

    def texts(self, tag: str) -> list[str]:
        """Return the text of each element of a name, whatever its namespace."""
        root = ElementTree.fromstring(self.body)
        return [node.text or "" for node in root.iter() if node.tag.rpartition("}")[2] == tag]

    def demand(self) -> Answer:
        """Return this very answer if it is a success.

        :raises AssertionError: if not.
        """
        assert self.status < 300, f"{self.status}: {self.body!r}"
        return self


class S3Server(Protocol):
    """A real S3 server that the suite started.

    Requests block: they last milliseconds, and the server is no part of this process.

    :ivar endpoint: its URL, without a slash at the end.
    :ivar owner: who may do everything.
    :ivar domain: requests to ``BUCKET.domain`` are for that bucket.
    :ivar ca_bundle: the file with the authority that vouches for it; None where it has no TLS.
    :ivar checks: what it checks of the things that not every server does.
    """

    checks: frozenset[Check]
    port: int
    domain: str
    region: str
    access_key: str
    secret_key: str
    ca_bundle: str | None

    @property
    def endpoint(self) -> str: ...

    @property
    def owner(self) -> Identity: ...

    async def start(self) -> None:
        """Start it, and wait until it answers; later starts have the same port and data."""

    async def stop(self) -> None:
        """End it at once; its data stays."""

    def add_user(self, rights: Rights) -> Identity:
        """Make a user with such rights to all buckets that there are."""

    def lend(self, user: Identity) -> Identity:
        """Return temporary credentials with the rights of a user."""

    def url(
        self, bucket: str = "", key: str | bytes = b"", query: str = "", virtual: bool = False
    ) -> str: ...

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
        region: str | None = None,
        digest: str | None = None,
        virtual: bool = False,
    ) -> Answer: ...

    def presign(
        self,
        bucket: str,
        key: str | bytes,
        method: str = "GET",
        *,
        seconds: int = 60,
        age: int = 0,
        identity: Identity | None = None,
        virtual: bool = False,
    ) -> str: ...

    def fetch(
        self, url: str, method: str = "GET", body: bytes = b"", headers: Mapping[str, str] = ...
    ) -> Answer: ...

    def make_bucket(self, name: str = "") -> str: ...

    def put(self, bucket: str, key: str | bytes, data: bytes, **headers: str) -> str: ...

    def get(self, bucket: str, key: str | bytes) -> Answer: ...

    def stat(self, bucket: str, key: str | bytes) -> Answer | None: ...

    def keys(self, bucket: str, prefix: str = "") -> list[bytes]: ...

    def remove(self, bucket: str, key: str | bytes) -> None: ...

    def uploads(self, bucket: str) -> list[tuple[bytes, str]]: ...


class Requests:
    """The part of an `S3Server` that every one has: requests, and what is made of them."""

    port: int
    domain = "s3.test"
    region = "us-east-1"
    access_key: str
    secret_key: str
    ca_bundle: str | None

    @property
    def endpoint(self) -> str:
        """The URL of the server."""
        return f"{'https' if self.ca_bundle else 'http'}://127.0.0.1:{self.port}"

    @property
    def names(self) -> tuple[str, ...]:
        """What its certificate is for."""
        return "127.0.0.1", "localhost", self.domain, f"*.{self.domain}"

    @property
    def owner(self) -> Identity:
        """Who may do everything."""
        return Identity(self.access_key, self.secret_key)

    def url(
        self, bucket: str = "", key: str | bytes = b"", query: str = "", virtual: bool = False
    ) -> str:
        """Return the URL of a bucket or an object, addressed in either style."""
        scheme = self.endpoint.partition(":")[0]
        base, path = self.endpoint, f"/{bucket}" if bucket else ""
        if virtual:
            base, path = f"{scheme}://{bucket}.{self.domain}:{self.port}", ""
        rest = quote(key, safe="/~")
        path = path if bucket and not virtual and not rest else f"{path}/{rest}"
        return base + path + (f"?{query}" if query else "")

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
        region: str | None = None,
        digest: str | None = None,
        virtual: bool = False,
    ) -> Answer:
        """Sign a request and send it; the query is as it goes over the wire.

        :param digest: the SHA-256 that the headers give for the body; by default the right one.
        """
        url = urlsplit(self.url(bucket, key, query, virtual))
        who, now = identity or self.owner, datetime.now(UTC)
        signed = {
            "Host": url.netloc,
            "x-amz-date": now.strftime("%Y%m%dT%H%M%SZ"),
            "x-amz-content-sha256": digest or sha256(body).hexdigest(),
            **(headers or {}),
        }
        if who.session_token:
            signed["x-amz-security-token"] = who.session_token
        sign_v4_s3(
            method=method,
            url=url,
            region=region or self.region,
            headers=signed,
            credentials=Credentials(who.access_key, who.secret_key),
            content_sha256=signed["x-amz-content-sha256"],
            date=now,
        )
        return self.fetch(url.geturl(), method, body, signed)

    def presign(
        self,
        bucket: str,
        key: str | bytes,
        method: str = "GET",
        *,
        seconds: int = 60,
        age: int = 0,
        identity: Identity | None = None,
        virtual: bool = False,
    ) -> str:
        """Return a URL that is good for some time, signed some seconds ago."""
        who = identity or self.owner
        token = quote(who.session_token or "", safe="")
        query = f"X-Amz-Security-Token={token}" if token else ""
        return presign_v4(
            method=method,
            url=urlsplit(self.url(bucket, key, query, virtual)),
            region=self.region,
            credentials=Credentials(who.access_key, who.secret_key),
            date=datetime.now(UTC) - timedelta(seconds=age),
            expires=seconds,
        ).geturl()

    def fetch(
        self,
        url: str,
        method: str = "GET",
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Ask this server, by whatever name, for a URL as it stands."""
        parts = urlsplit(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        with closing(self._connect(parts.hostname or "")) as connection:
            connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
            sent = {"Host": parts.netloc, **(headers or {})}
            if body or method in {"PUT", "POST"}:
                sent.setdefault("Content-Length", str(len(body)))
            for name, value in sent.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            response = connection.getresponse()
            received = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, received, response.read())

    def _connect(self, name: str) -> HTTPConnection:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE)
        connection.connect()
        if self.ca_bundle:
            context = ssl.create_default_context(cafile=self.ca_bundle)
            connection.sock = context.wrap_socket(connection.sock, server_hostname=name)
        return connection

    # What fails here is the fixture's own doing.

    def make_bucket(self, name: str = "") -> str:
        """Make a bucket, of a name that is new unless one is given."""
        name = name or f"test-{uuid4().hex}"
        self.request("PUT", name).demand()
        return name

    def put(self, bucket: str, key: str | bytes, data: bytes, **headers: str) -> str:
        """Write an object and return its ETag; underscores in names of headers are hyphens."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.request("PUT", bucket, key, body=data, headers=given).demand().headers["etag"]

    def get(self, bucket: str, key: str | bytes) -> Answer:
        """Read an object."""
        return self.request("GET", bucket, key).demand()

    def stat(self, bucket: str, key: str | bytes) -> Answer | None:
        """Return the headers of an object; None where there is none."""
        answer = self.request("HEAD", bucket, key)
        return None if answer.status == 404 else answer.demand()

    def keys(self, bucket: str, prefix: str = "") -> list[bytes]:
        """List a bucket of no more than a thousand objects."""
        query = f"encoding-type=url&list-type=2&prefix={quote(prefix, safe='')}"
        listing = self.request("GET", bucket, query=query).demand()
        return _listed_keys(listing)

    def remove(self, bucket: str, key: str | bytes) -> None:
        """Remove an object, if there is one."""
        self.request("DELETE", bucket, key).demand()

    def uploads(self, bucket: str) -> list[tuple[bytes, str]]:
        """List the uploads in parts that were neither completed nor aborted."""
        listing = self.request("GET", bucket, query="encoding-type=url&uploads=").demand()
        return list(zip(_listed_keys(listing), listing.texts("UploadId"), strict=True))


def _listed_keys(listing: Answer) -> list[bytes]:
    # They are asked for in URL encoding, since XML cannot express them all.
    return [unquote_to_bytes(key.replace("+", " ")) for key in listing.texts("Key")]
