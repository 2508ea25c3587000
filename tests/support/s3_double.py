"""S3 store in memory, at the other end of a `tests.support.wire.Network`, with faults to inject.

It verifies signatures, digests, expiries and session tokens, as S3 does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from functools import cached_property
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from tests.support.wire import Network, Peer, Request, error, is_presigned, is_signed, reply

BUCKET = "bucket"
_KEPT = ("content-type", "cache-control", "content-disposition")
_DATE = "%Y%m%dT%H%M%SZ"


@dataclass(frozen=True)
class Reply:
    """A response of the store."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class StoredObject:
    """An object in the store."""

    body: bytes
    headers: Mapping[str, str]
    modified: datetime

    @cached_property
    def etag(self) -> str:
        """A tag that depends on the bytes."""
        return f'"{hashlib.md5(self.body).hexdigest()}"'


@dataclass
class Upload:
    """A multipart upload."""

    key: str
    headers: Mapping[str, str]
    started: datetime
    parts: dict[int, StoredObject] = field(default_factory=dict)


Before = Callable[["S3Double", Request], Request | Reply]
After = Callable[[Request, Reply], Reply | None]


class _Refused(Exception):
    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.reply = Reply(status, error(code))


def refusal(status: int, code: str) -> Reply:
    """Return the response of a store that refuses a request."""
    return _Refused(status, code).reply


class S3Double:
    """S3 store with one bucket, accessed with path addressing.

    :ivar objects: by key.
    :ivar uploads: by id.
    :ivar ignored: what it does not verify: ``signature``, ``digest``, ``expiry`` or ``token``.
    :ivar before: returns what the store does with a request that it has verified: another request,
        or a response.
    :ivar after: returns the response that the client receives; None to send none.
    """

    def __init__(self, network: Network, secret: str, token: str | None, now: datetime) -> None:
        self.objects: dict[str, StoredObject] = {}
        self.uploads: dict[str, Upload] = {}
        self.ignored: frozenset[str] = frozenset()
        self.before: Before = lambda store, request: request
        self.after: After = lambda request, sent: sent
        self._network, self._secret, self._token, self._start = network, secret, token, now
        network.scripts[:] = [self._serve]

    def now(self) -> datetime:
        """Return the time, which passes as the network's."""
        return self._start + timedelta(seconds=self._network.seconds())

    def respond(self, request: Request) -> Reply:
        """Return the response to a request, without `after`."""
        try:
            self._authorize(request, dict(parse_qsl(urlsplit(request.target).query)))
            if "digest" not in self.ignored and "authorization" in request.headers:
                digest = hashlib.sha256(request.body).hexdigest()
                if request.headers["x-amz-content-sha256"] != digest:
                    raise _Refused(400, "XAmzContentSHA256Mismatch")
            received = self.before(self, request)
            if isinstance(received, Reply):
                return received
            request, key = received, key_of(received)
            query = dict(parse_qsl(urlsplit(request.target).query, keep_blank_values=True))
            if not key:
                return self._describe_bucket(query)
            if request.method in ("PUT", "POST"):
                return self._write(request, key, query)
            if request.method == "DELETE":
                return self._delete(key, query)
            return self._read(request, key)
        except _Refused as refused:
            return refused.reply

    def _serve(self, peer: Peer, request: Request) -> None:
        self._network.scripts.append(self._serve)
        sent = self.after(request, self.respond(request))
        if sent is None:
            return
        date = format_datetime(self.now(), usegmt=True)
        length = int(sent.headers.get("Content-Length", len(sent.body)))
        lines = {name: text for name, text in sent.headers.items() if name != "Content-Length"}
        peer.send(reply(sent.status, sent.body, {"Date": date, **lines}, length))

    def _authorize(self, request: Request, query: Mapping[str, str]) -> None:
        if "signature" in self.ignored and "X-Amz-Signature" not in query:
            return
        if "X-Amz-Signature" in query:
            url = f"http://{request.headers['host']}{request.target}"
            token = query.get("X-Amz-Security-Token")
            is_right = is_presigned(request.method, url, self._secret)
            began = datetime.strptime(query["X-Amz-Date"], _DATE).replace(tzinfo=UTC)
            ends = began + timedelta(seconds=int(query["X-Amz-Expires"]))
            if ends < self.now() and "expiry" not in self.ignored:
                raise _Refused(403, "AccessDenied")
        elif "authorization" in request.headers:
            token = request.headers.get("x-amz-security-token")
            is_right = is_signed(request, self._secret)
        else:
            token, is_right = None, False
        if not is_right and "signature" not in self.ignored:
            raise _Refused(403, "SignatureDoesNotMatch")
        if token != self._token and not self.ignored & {"token", "signature"}:
            raise _Refused(400, "InvalidToken")

    def _describe_bucket(self, query: Mapping[str, str]) -> Reply:
        if "versioning" in query:
            return Reply(200, b"<VersioningConfiguration/>")
        if "lifecycle" in query:
            rule = "<Rule><AbortIncompleteMultipartUpload/></Rule>"
            return Reply(200, f"<LifecycleConfiguration>{rule}</LifecycleConfiguration>".encode())
        prefix = query["prefix"]
        if "uploads" in query:
            rows = [
                f"<Upload><Key>{quote(each.key)}</Key><UploadId>{upload}</UploadId>"
                f"<Initiated>{each.started.isoformat()}</Initiated></Upload>"
                for upload, each in self.uploads.items()
                if each.key.startswith(prefix)
            ]
            return self._listing("ListMultipartUploadsResult", rows, "")
        after, most = query.get("continuation-token", ""), int(query["max-keys"])
        keys = [key for key in sorted(self.objects) if key.startswith(prefix) and key > after]
        keys = [key for key in keys if "delimiter" not in query or "/" not in key]
        rows = [
            f"<Contents><Key>{quote(key)}</Key><Size>{len(self.objects[key].body)}</Size>"
            f"<LastModified>{self.objects[key].modified.isoformat()}</LastModified></Contents>"
            for key in keys[:most]
        ]
        return self._listing("ListBucketResult", rows, keys[most - 1] if len(keys) > most else "")

    def _listing(self, root: str, rows: list[str], token: str) -> Reply:
        following = f"<NextContinuationToken>{escape(token)}</NextContinuationToken>"
        head = f"<IsTruncated>{str(bool(token)).lower()}</IsTruncated>{following}"
        text = f"<EncodingType>url</EncodingType>{head}{''.join(rows)}"
        return Reply(200, f"<{root}>{text}</{root}>".encode())

    def _write(self, request: Request, key: str, query: Mapping[str, str]) -> Reply:
        headers = {
            name: text
            for name, text in request.headers.items()
            if name in _KEPT or name.startswith("x-amz-meta-")
        }
        if "uploads" in query:
            name = f"upload-{len(self.uploads)}"
            self.uploads[name] = Upload(key, headers, self.now())
            return Reply(200, f"<R><UploadId>{name}</UploadId></R>".encode())
        stored = StoredObject(request.body, headers, self.now())
        if "uploadId" in query:
            upload = self._upload(query)
            if "partNumber" in query:
                upload.parts[int(query["partNumber"])] = stored
                return Reply(200, headers={"ETag": stored.etag})
            document = ElementTree.fromstring(request.body)
            parts = [upload.parts.get(int(each.findtext("PartNumber", ""))) for each in document]
            tags = [each.findtext("ETag") for each in document]
            if tags != [part and part.etag for part in parts]:
                raise _Refused(400, "InvalidPart")
            body = b"".join(part.body for part in parts if part)
            stored = StoredObject(body, upload.headers, self.now())
            del self.uploads[query["uploadId"]]
        self.objects[key] = stored
        return Reply(200, headers={"ETag": stored.etag})

    def _upload(self, query: Mapping[str, str]) -> Upload:
        if query["uploadId"] not in self.uploads:
            raise _Refused(404, "NoSuchUpload")
        return self.uploads[query["uploadId"]]

    def _delete(self, key: str, query: Mapping[str, str]) -> Reply:
        if "uploadId" in query:
            self._upload(query)
            del self.uploads[query["uploadId"]]
        else:
            self.objects.pop(key, None)
        return Reply(204)

    def _read(self, request: Request, key: str) -> Reply:
        stored = self.objects.get(key)
        if stored is None:
            raise _Refused(404, "NoSuchKey")
        headers = {**stored.headers, "ETag": stored.etag}
        if request.headers.get("if-match", stored.etag) != stored.etag:
            raise _Refused(412, "PreconditionFailed")
        for name, value in parse_qsl(urlsplit(request.target).query):
            if name.startswith("response-"):
                headers[name.removeprefix("response-")] = value
        if "origin" in request.headers:
            headers["Access-Control-Allow-Origin"] = "*"
        size = len(stored.body)
        if request.method == "HEAD":
            return Reply(200, b"", {**headers, "Content-Length": str(size)})
        if "range" not in request.headers:
            return Reply(200, stored.body, headers)
        first, _, last = request.headers["range"].removeprefix("bytes=").partition("-")
        start = int(first) if first else max(0, size - int(last))
        stop = min(int(last) + 1, size) if first and last else size
        if start >= size:
            raise _Refused(416, "InvalidRange")
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        return Reply(206, stored.body[start:stop], headers)


def key_of(request: Request) -> str:
    """Return the key of the object that a request is for; empty for the bucket itself."""
    return unquote(urlsplit(request.target).path.removeprefix(f"/{BUCKET}/"))
