"""Listings of a bucket by ListObjectsV2, one page at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote, unquote, urlencode
from xml.etree.ElementTree import Element

from defusedxml.ElementTree import fromstring

from audioproxy.s3.objects import ObjectStore, Unavailable, read_document

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


def _parse_page(document: bytes) -> tuple[list[ListedObject], str | None]:
    try:
        root = fromstring(document.strip())
        texts = _texts(root)
        is_encoded = texts.get("EncodingType") == "url"
        rows = [_texts(element) for element in root if _name(element) == "Contents"]
        found = [_parse_object(row, is_encoded) for row in rows]
        return found, texts["NextContinuationToken"] if texts["IsTruncated"] == "true" else None
    except (SyntaxError, ValueError, LookupError) as error:
        # As in `element_texts`, and for a value that is missing or malformed.
        raise Unavailable(f"the listing is malformed ({error!r})") from error


def _parse_object(row: Mapping[str, str], is_encoded: bool) -> ListedObject:
    key = unquote(row["Key"]) if is_encoded else row["Key"]
    return ListedObject(
        key, int(row["Size"]), datetime.fromisoformat(row["LastModified"]).timestamp()
    )


def _texts(parent: Element) -> dict[str, str]:
    return {_name(element): element.text or "" for element in parent}


def _name(element: Element) -> str:
    return element.tag.rpartition("}")[2]
