"""An object that is too large for one request: written in parts, all or nothing."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from urllib.parse import quote

from audioproxy.log_context import Logger
from audioproxy.s3.objects import (
    Payload,
    StoreError,
    StoreObject,
    Unavailable,
    read_answer,
)
from audioproxy.streams import Readable

_UPLOAD_ID = re.compile(r"<UploadId>([^<>]+)</UploadId>")

_log = Logger()


async def put_parts(
    target: StoreObject, headers: Mapping[str, str], payloads: Sequence[Payload]
) -> None:
    """Write an object from several payloads; where one fails, nothing is left of it.

    :raises StoreError: where the store refuses.
    """
    begun = await read_answer(await target.send("POST", "uploads=", headers))
    match = _UPLOAD_ID.search(begun)
    if match is None:
        raise Unavailable("an upload in parts was given no name")
    upload = f"uploadId={quote(unescape(match[1]), safe='')}"
    done = False
    try:
        tags = [
            await _put_part(target, f"partNumber={number}&{upload}", payload)
            for number, payload in enumerate(payloads, 1)
        ]
        document = _listing(tags)
        await read_answer(await target.send("POST", upload, payload=document))
        done = True
    finally:
        # Parts that nobody puts together are paid for until somebody removes them.
        if not done:
            await _abort(target, upload)


async def _put_part(target: StoreObject, query: str, payload: Payload) -> str:
    answer = await target.send("PUT", query, payload=payload)
    tag = answer.header("etag")
    await read_answer(answer)
    if tag is None:
        raise Unavailable("a part was given no entity tag")
    return tag


async def _abort(target: StoreObject, upload: str) -> None:
    try:
        await read_answer(await target.send("DELETE", upload))
    except StoreError as error:
        _log.warn("the parts of an upload are left in the store: {error}", error=error)


def _listing(tags: Sequence[str]) -> Payload:
    parts = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>"
        for number, tag in enumerate(tags, 1)
    )
    text = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode("latin-1")
    return Payload(_Text(text), 0, len(text), hashlib.sha256(text).hexdigest())


@dataclass(frozen=True, slots=True)
class _Text(Readable):
    """A short text as bytes that can be read."""

    text: bytes

    def read(self, offset: int, limit: int) -> bytes:
        return self.text[offset : offset + limit]
