"""Checks of listings and of the bucket's settings, the speed, and what earlier runs left."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Awaitable, Callable
from xml.etree.ElementTree import Element

from audioproxy.cli.checks.bucket.trial import (
    PREFIX,
    Check,
    Failed,
    Noted,
    Trial,
    never,
    random_bytes,
    read,
    require_equal,
)
from audioproxy.cli.checks.bucket.writing import SPELLING
from audioproxy.cli.formatting import format_bytes, format_count
from audioproxy.s3.errors import Denied, StoreError, read_document
from audioproxy.s3.listing import element_name, list_page, list_uploads, read_setting
from audioproxy.s3.objects import UploadRange
from audioproxy.variants.proof import PROOF_PREFIX

# Seconds after which an object of another run counts as left by a killed one.
_ABANDONED = 3600

# Names of objects of these checks, and of the check at boot.
_KEY = re.compile(
    rf"({re.escape(PREFIX)}[0-9a-f]{{32}}-)(.+)|{re.escape(PROOF_PREFIX)}[0-9a-f]{{32}}"
)

_MEASURED_SIZE = 1024 * 1024
_MEASURED_LOOKUPS = 5

_RIGHT = "give the credentials the right ListBucket"


async def _list(trial: Trial) -> str | None:
    await trial.write("listed_1", b"1")
    await trial.write("listed_2", b"22")
    await (await trial.write("listed_3", b"333")).delete()
    await _require_listing(trial, "listed_", {"listed_1": 1, "listed_2": 2})
    return None


async def _list_pages(trial: Trial) -> str | None:
    names = [f"page_{number}" for number in range(3)]
    for name in names:
        await trial.write(name, b"1")
    await _require_listing(trial, "page_", dict.fromkeys(names, 1), 1)
    return None


async def _list_prefix(trial: Trial) -> str | None:
    for name in ("in", "in_side", "out", "inner/below"):
        await trial.write(name, b"1")
    await _require_listing(trial, "in", {"in": 1, "in_side": 1})
    return None


async def _require_listing(
    trial: Trial, prefix: str, expected: dict[str, int], most: int | None = None
) -> None:
    """Require that a listing has some objects of this run, and no others.

    :param expected: their names and sizes.
    :param most: objects of one page.
    """
    found: list[tuple[str, int]] = []
    token = None
    # A store may ignore the size of a page, or send empty pages.
    for _ in range(2 + 2 * len(expected)):
        page, token = await list_page(trial.objects, trial.bucket, trial.key(prefix), token, most)
        found += [(each.key, each.size) for each in page]
        if token is None:
            break
    keys = [(trial.key(name), size) for name, size in sorted(expected.items())]
    if token is not None or found != keys:
        names = [key.removeprefix(trial.key("")) for key, _ in found]
        raise Failed(f"{names} of {sorted(expected)} were listed, or with other sizes")


async def _read_versioning(trial: Trial) -> str | None:
    document = await _read_setting(trial, "versioning", "VersioningConfiguration")
    if document is not None and _has(document, "Status", "Enabled"):
        raise Noted(
            "removed and replaced variants remain as hidden versions, and cost money; turn"
            " versioning off, or set a lifecycle rule for noncurrent versions"
        )
    return None


async def _read_lifecycle(trial: Trial) -> str | None:
    document = await _read_setting(trial, "lifecycle", "LifecycleConfiguration")
    if not any(
        _has(rule, "AbortIncompleteMultipartUpload") and not _has(rule, "Status", "Disabled")
        for rule in document or ()
    ):
        raise Noted(
            "no lifecycle rule removes the parts of unfinished uploads; set one as in"
            " docs/providers.md, unless the store removes them itself"
        )
    return None


async def _read_setting(trial: Trial, query: str, root: str) -> Element | None:
    """Return a setting of the bucket; None where the store says that it is not set."""
    try:
        return await read_setting(trial.objects, trial.bucket, query, root)
    except StoreError as error:
        if error.code == f"NoSuch{root}":
            return None
        raise Noted(f"not checked, since the store does not tell ({error})") from error


def _has(document: Element, name: str, text: str | None = None) -> bool:
    """Return whether an element with a name, and with a text, is anywhere in a document."""
    return any(
        element_name(each) == name and text in (None, (each.text or "").strip())
        for each in document.iter()
    )


async def _measure(trial: Trial) -> str | None:
    clock = trial.objects.client.clock
    target = trial.object("speed")

    async def seconds(work: Callable[[], Awaitable[object]]) -> float:
        start = clock.seconds()
        await work()
        return clock.seconds() - start

    async def download() -> None:
        await read(await target.send("GET"), _MEASURED_SIZE)

    body = UploadRange.of(random_bytes(_MEASURED_SIZE))
    up = await seconds(lambda: target.put({}, body))
    down = await seconds(download)
    lookup = statistics.median([await seconds(target.find) for _ in range(_MEASURED_LOOKUPS)])
    rates = [format_bytes(_MEASURED_SIZE / max(each, 1e-6)) for each in (up, down)]
    size = format_bytes(_MEASURED_SIZE)
    return (
        f"a lookup takes {lookup * 1000:.0f} ms; {size} are written at {rates[0]}/s and read at"
        f" {rates[1]}/s, by one request at a time"
    )


async def _remove_left(trial: Trial) -> str | None:
    store, bucket = trial.objects, trial.bucket
    now = time.time() - (store.clock_ahead or 0)
    removed = 0
    try:
        objects, _ = await list_page(store, bucket, PREFIX, None)
        proofs, _ = await list_page(store, bucket, PROOF_PREFIX, None)
        uploads = await list_uploads(store, bucket, PREFIX)
    except Denied as error:
        raise Noted(f"not checked, since listing is denied ({error})") from error
    for each in objects + proofs:
        match = _KEY.fullmatch(each.key)
        if match is None or now - each.modified < _ABANDONED:
            continue
        # Stores encode the characters of this key in listings in several ways.
        is_spelled = (match[2] or "").startswith(SPELLING.partition(" ")[0])
        key = match[1] + SPELLING if is_spelled else each.key
        await store.object(bucket, key.encode()).delete()
        removed += 1
    for upload in uploads:
        if _KEY.fullmatch(upload.key) and now - upload.started >= _ABANDONED:
            target = store.object(bucket, upload.key.encode())
            await read_document(await target.send("DELETE", upload.query))
            removed += 1
    return f"{format_count(removed, 'object')} of killed runs removed" if removed else None


async def _clean(trial: Trial) -> str | None:
    await trial.clean()
    try:
        left, _ = await list_page(trial.objects, trial.bucket, trial.key(""), None)
    except Denied as error:
        if not trial.is_clean:
            raise Failed("removals failed, and the listing is denied") from error
        return "everything that was written is removed (the listing is denied)"
    require_equal("the number of objects that remain", len(left), 0)
    return None


LISTING = (
    Check(
        "listing",
        "a listing has an object that was just written, and none that was just removed",
        "`audioproxy store` misses variants",
        f"{_RIGHT}, and use a store with consistent listings",
        _list,
        never,
    ),
    Check(
        "listing pages",
        "a listing continues after each of its pages",
        "`audioproxy store` misses variants in a bucket with more than 1000 objects",
        f"{_RIGHT}, and use a store with ListObjectsV2",
        _list_pages,
        never,
    ),
    Check(
        "listing prefix",
        "a listing has only the keys with its prefix, and no folders",
        "`audioproxy store` is slow, or counts variants twice",
        f"{_RIGHT}, and use a store with ListObjectsV2",
        _list_prefix,
        never,
    ),
    Check(
        "versioning",
        "the bucket keeps no old versions",
        "removed variants cost money",
        "turn versioning off",
        _read_versioning,
        never,
    ),
    Check(
        "lifecycle",
        "a lifecycle rule removes the parts of unfinished uploads",
        "parts of killed nodes remain and cost money",
        "set a lifecycle rule",
        _read_lifecycle,
        never,
    ),
    Check(
        "speed",
        "lookups, an upload and a download are measured",
        "responses wait for the store",
        "use a store that is near",
        _measure,
        never,
    ),
    Check(
        "left-overs",
        "nothing is left of earlier runs that were killed",
        "objects of the checks remain",
        f"remove the objects whose names begin with {PREFIX}",
        _remove_left,
        never,
    ),
    Check(
        "clean-up",
        "everything that the checks wrote is removed",
        "objects of the checks remain",
        f"remove the objects whose names begin with {PREFIX}",
        _clean,
    ),
)
