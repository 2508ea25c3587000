"""Checks of the variant store and of bucket sources, which send real requests."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from audioproxy.cli.checks.disk import check_free_space
from audioproxy.cli.checks.results import CheckResult, bad, good, note
from audioproxy.cli.checks.settings import UsableSettings, place_of_variants
from audioproxy.cli.output import format_bytes
from audioproxy.config import Config, S3Config
from audioproxy.engine import Engine
from audioproxy.files.disk_space import DiskSpace
from audioproxy.s3.errors import StoreError, Unreachable
from audioproxy.s3.objects import ObjectStore, describe_clock_offset
from audioproxy.sources.s3 import S3Sources
from audioproxy.variants.files import FileVariantStore
from audioproxy.variants.interfaces import Unwritable
from audioproxy.variants.s3 import S3VariantStore

# Error codes of stores that accept the credentials but refuse to list buckets.
_LISTING_REFUSED = ("AccessDenied", "MethodNotAllowed", "NotImplemented")

# Seconds of difference between two clocks: the thresholds for a note and for a bad result. With a
# large difference, presigned URLs expire before they are used. S3 refuses requests at 15 minutes.
_NOTE_OFFSET, _BAD_OFFSET = 5, 300

# Seconds for which the URL of a redirect should work: browsers and players keep it for all later
# ranges, also after a pause. The first is the threshold for a note, the second the advice.
_SHORT_LIFETIME, _GOOD_LIFETIME = 3600, 21_600


def bucket_owners(engine: Engine) -> tuple[S3VariantStore | None, S3Sources | None]:
    """Return the variant store, if it is in a bucket, and the sources in buckets."""
    return engine.capabilities.bucket, engine.bucket_sources


async def check_stores(settings: UsableSettings, engine: Engine) -> AsyncIterator[CheckResult]:
    config = settings.config
    store, sources = bucket_owners(engine)
    folder, _ = place_of_variants(config)
    if "AP_VARIANT_STORE" in settings.refused:
        yield note("variant store", "not checked, since AP_VARIANT_STORE is refused")
    elif engine.store is None:
        yield note(
            "variant store",
            "none, so every request renders; set AP_VARIANT_STORE to store variants",
        )
    elif store is not None:
        async for result in check_bucket(config, store):
            yield result
    elif folder is not None and engine.file_store is not None:
        yield await check_folder(config, folder, engine.file_store)
        if config.variant_store_max_bytes is not None:
            yield check_bound(folder, engine.file_store, config.variant_store_max_bytes)
    if sources is not None and (store is None or config.source_s3 != config.variant_s3):
        async for result in check_bucket_sources(config, sources):
            yield result
    for owner in (store, sources):
        if owner is not None and (ahead := owner.object_store.clock_ahead) is not None:
            yield check_clock(ahead)
            return


async def check_folder(config: Config, path: str, store: FileVariantStore) -> CheckResult:
    try:
        await store.check_writable()
    except Unwritable as error:
        return bad("variant store", f"AP_VARIANT_STORE: {error}")
    renders = config.max_concurrency
    return check_free_space(
        "variant store",
        path,
        renders * config.max_variant_bytes,
        f"{renders} renders at a time (AP_MAX_CONCURRENCY) of AP_MAX_VARIANT_BYTES",
        "free some space, or lower one of these settings",
    )


def check_bound(path: str, store: FileVariantStore, max_bytes: int) -> CheckResult:
    try:
        size = store.usage.read()
    except OSError:
        size = None
    found = "an unknown number of bytes" if size is None else format_bytes(size)
    text = f"{found} of at most {format_bytes(max_bytes)} (AP_VARIANT_STORE_MAX_BYTES)"
    total = DiskSpace.of(path).size
    if max_bytes <= total:
        return good("store size", text)
    return note("store size", f"{text}, but the disk has {format_bytes(total)}; lower the setting")


async def check_bucket(config: Config, store: S3VariantStore) -> AsyncIterator[CheckResult]:
    reached = True
    try:
        await store.open()
    except Unwritable as error:
        reached = not isinstance(error.__cause__, Unreachable)
        yield bad("variant store", f"AP_VARIANT_STORE: {error}")
    else:
        how = ", also by its presigned URL" if config.serve_mode == "redirect" else ""
        text = f"{store.place}: a test object was written, read in parts{how}, and removed"
        yield good("variant store", text)
    if config.serve_mode == "redirect":
        yield check_lifetime(config)
    yield check_way_to_store(config, store.object_store, reached)


def check_lifetime(config: Config) -> CheckResult:
    ttl = config.presign_ttl
    text = f"a presigned URL works for {ttl} s"
    if ttl < _SHORT_LIFETIME:
        return note(
            "playback",
            f"{text}, and browsers keep it: what plays or pauses for longer ends with an error;"
            f" set AP_PRESIGN_TTL={_GOOD_LIFETIME}, six hours",
        )
    if config.variant_s3.session_token is not None:
        text += ", or until the session of the temporary credentials ends, if that is sooner"
        return note("playback", f"{text}; AP_SERVE_MODE=proxy has no such end")
    return good("playback", text)


async def check_bucket_sources(config: Config, sources: S3Sources) -> AsyncIterator[CheckResult]:
    """List buckets. A store that denies only the listing has accepted the credentials."""
    objects = sources.object_store
    failure = None
    try:
        await sources.request_bucket_list()
    except StoreError as error:
        failure = error
    text = f"{objects.name}: listing buckets failed ({failure}); "
    if failure is not None and failure.may_reject_credentials:
        hint = "if sources fail, the right secret key and session token are required"
        yield note("bucket sources", text + hint)
    elif failure is None or failure.code in _LISTING_REFUSED:
        yield good("bucket sources", f"{objects.name} accepts the credentials")
    else:
        wanted = "a reachable endpoint, and credentials and a region that it accepts, are required"
        yield bad("bucket sources", text + objects.hint_for(failure, wanted))
    reached = not isinstance(failure, Unreachable)
    yield _check_encryption("way to sources", config.source_s3, objects, reached, "AP_S3")


def check_way_to_store(config: Config, objects: ObjectStore, reached: bool) -> CheckResult:
    own = config.variant_s3.endpoint != config.source_s3.endpoint
    prefix = "AP_VARIANT_S3" if own else "AP_S3"
    return _check_encryption("way to the store", config.variant_s3, objects, reached, prefix)


def _check_encryption(
    check: str, settings: S3Config, objects: ObjectStore, reached: bool, prefix: str
) -> CheckResult:
    """Check that requests to a store are encrypted, or do not leave this machine."""
    origin = urlsplit(objects.name)
    if origin.scheme == "https":
        if not reached:
            return note(check, "not checked, since the store cannot be used")
        authority = "the system's authorities"
        if settings.ca_bundle is not None:
            authority = f"the bundle {settings.ca_bundle}"
        elif file := os.environ.get("SSL_CERT_FILE"):
            authority = f"SSL_CERT_FILE, {file}"
        return good(check, f"encrypted; the certificate is verified by {authority}")
    if _is_loopback(origin.hostname or ""):
        return good(check, "not encrypted, and does not leave this machine")
    return note(
        check,
        f"not encrypted, so anyone on the network can read everything and use presigned URLs; set"
        f" {prefix}_ENDPOINT to an https:// origin where the network is not your own",
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def check_clock(ahead: int) -> CheckResult:
    """Check this machine's clock, which is ahead of a store's by some seconds."""
    if abs(ahead) <= _NOTE_OFFSET:
        return good("clock", "this machine and the store agree")
    text = f"{describe_clock_offset(ahead)}; set it by NTP"
    return bad("clock", text) if abs(ahead) > _BAD_OFFSET else note("clock", text)
