"""Listings of a bucket by ListObjectsV2, one page at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote, unquote, urlencode
from xml.etree.ElementTree import Element

from defusedxml.ElementTree import fromstring

from audioproxy.s3.errors import Unavailable, read_document
from audioproxy.s3.objects import ObjectStore

# Keys of a page, the most that stores return, and its maximum bytes: each key has up to 1 KB, and
# may have three times as many bytes in its encoded form.
_PAGE_SIZE = 1000
_MAX_PAGE = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object as a listing describes it.

    :ivar size: bytes.
    :ivar modified: Unix seconds.
    """

    key: str
    size: int
    modified: float


@dataclass(frozen=True, slots=True)
class ListedUpload:
    """A multipart upload that was neither completed nor aborted.

    :ivar query: of its requests.
    :ivar started: Unix seconds.
    """

    key: str
    query: str
    started: float


async def list_page(
    store: ObjectStore, bucket: str, prefix: str, token: str | None
) -> tuple[list[ListedObject], str | None]:
    """Return some objects whose keys begin with a prefix and have no slash after it.

    :param token: of the page before; None for the first page.
    :returns: the objects, in the order of their keys, and the token of the next page, or None.
    :raises StoreError: where the store refuses, or returns something else than a listing.
    """
    root = store.object(bucket, b"")
    parameters = {
        "list-type": "2",
        "max-keys": str(_PAGE_SIZE),
        # XML cannot express all characters that a key may have.
        "encoding-type": "url",
        # Otherwise, the objects of a folder whose name begins with the prefix would be listed.
        "delimiter": "/",
        "prefix": prefix,
    }
    if token is not None:
        parameters["continuation-token"] = token
    query = urlencode(parameters, quote_via=quote)

    async def request() -> bytes:
        return await read_document(await root.send("GET", query), _MAX_PAGE)

    found, following = _parse_page(await root.retry_once(request))
    if following is not None and following == token:
        raise Unavailable("the listing does not advance")
    return found, following


async def list_uploads(store: ObjectStore, bucket: str, prefix: str) -> list[ListedUpload]:
    """Return multipart uploads whose keys begin with a prefix: those of one page.

    :raises StoreError: as `list_page` does.
    """
    query = urlencode({"encoding-type": "url", "prefix": prefix, "uploads": ""}, quote_via=quote)
    response = await store.object(bucket, b"").send("GET", query)
    document = await read_document(response, _MAX_PAGE)
    _, rows, is_encoded = _parse(document, "ListMultipartUploadsResult", "Upload")
    with _malformed():
        return [
            ListedUpload(
                _key(row, is_encoded),
                f"uploadId={quote(row['UploadId'], safe='')}",
                _seconds(row["Initiated"]),
            )
            for row in rows
        ]


def _name(element: Element) -> str:
    """Return the name of an element without its namespace."""
    return element.tag.rpartition("}")[2]


def _parse_page(document: bytes) -> tuple[list[ListedObject], str | None]:
    texts, rows, is_encoded = _parse(document, "ListBucketResult", "Contents")
    with _malformed():
        found = [
            ListedObject(_key(row, is_encoded), int(row["Size"]), _seconds(row["LastModified"]))
            for row in rows
        ]
        is_last = texts["IsTruncated"] != "true"
    following = None if is_last else texts.get("NextContinuationToken")
    if following is None and not is_last:
        raise Unavailable("it goes on without a NextContinuationToken, as ListObjectsV2 has")
    return found, following


def _parse(
    document: bytes, root: str, tag: str
) -> tuple[dict[str, str], list[dict[str, str]], bool]:
    """Return the texts of a listing, those of each of its rows, and whether keys are encoded."""
    listing = _root(document, root)
    texts = _texts(listing)
    rows = [_texts(element) for element in listing if _name(element) == tag]
    return texts, rows, texts.get("EncodingType") == "url"


def _root(document: bytes, name: str) -> Element:
    """Return the root element of a document; a store may overlook the query of its request."""
    with _malformed():
        root: Element = fromstring(document.strip())
    if _name(root) != name:
        raise Unavailable(f"the response is <{_name(root):.50}> in place of <{name}>")
    return root


@contextmanager
def _malformed() -> Iterator[None]:
    """Raise `Unavailable` for a document that is not well-formed, or lacks a value."""
    try:
        yield
    except (SyntaxError, ValueError, LookupError) as error:
        # As in `element_texts`, and for a value that is missing or malformed.
        raise Unavailable(f"the document is malformed ({error!r})") from error


def _key(row: Mapping[str, str], is_encoded: bool) -> str:
    return unquote(row["Key"]) if is_encoded else row["Key"]


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _texts(parent: Element) -> dict[str, str]:
    return {_name(element): element.text or "" for element in parent}
