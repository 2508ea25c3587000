"""Multipart upload, for an object that is too large for one request. The write is atomic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote
from xml.etree.ElementTree import Element, SubElement, tostring

from audioproxy.observe.log_context import Logger
from audioproxy.s3.errors import StoreError, Unavailable, element_texts, read_document
from audioproxy.s3.objects import StoreObject, UploadRange

_log = Logger()


async def put_multipart(
    target: StoreObject, headers: Mapping[str, str], ranges: Sequence[UploadRange]
) -> None:
    """Write an object from several byte ranges, and abort the upload after a failure."""
    upload = await create_upload(target, headers)
    completion = Element("CompleteMultipartUpload")
    try:
        for number, part in enumerate(ranges, 1):
            element = SubElement(completion, "Part")
            SubElement(element, "PartNumber").text = str(number)
            SubElement(element, "ETag").text = await put_part(target, upload, number, part)
        document = UploadRange.of(tostring(completion))
        await read_document(await target.send("POST", upload, body=document))
    except BaseException:
        # Stores charge for the parts of an upload until it is completed or aborted.
        await _abort(target, upload)
        raise


async def create_upload(target: StoreObject, headers: Mapping[str, str]) -> str:
    """Start a multipart upload, and return the query of its requests."""
    created = await read_document(await target.send("POST", "uploads=", headers))
    upload_id = element_texts(created).get("UploadId")
    if not upload_id:
        raise Unavailable("the store gave a multipart upload no id")
    return f"uploadId={quote(upload_id, safe='')}"


async def put_part(target: StoreObject, upload: str, number: int, part: UploadRange) -> str:
    """Upload a part, and return its entity tag."""
    response = await target.send("PUT", f"partNumber={number}&{upload}", body=part)
    etag = response.header("etag")
    await read_document(response)
    if etag is None:
        raise Unavailable("the store gave a part no entity tag")
    return etag


async def _abort(target: StoreObject, upload: str) -> None:
    try:
        await read_document(await target.send("DELETE", upload))
    except StoreError as error:
        _log.warn(
            "a multipart upload was not aborted, so its parts remain in the store: {error}",
            error=error,
        )
