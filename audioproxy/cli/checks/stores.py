"""The variant store and the store of the sources: tried out, over the wire where they are far."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit

from audioproxy.cli.checks.disk_space import room
from audioproxy.cli.checks.results import Finding, bad, good, note
from audioproxy.cli.checks.settings import Settled
from audioproxy.config import BucketStore, Config, FileStore, S3Config
from audioproxy.s3.error_hints import compare
from audioproxy.service import AudioProxy
from audioproxy.variants.interfaces import Examination

# Seconds by which two clocks may differ: more is worth a look, and much more makes URLs end before
# they begin. S3 refuses a quarter of an hour.
_NOTICEABLE, _WRONG = 5, 300

_UNSEEN = "not looked at, since the store could not be used"


async def look_at_stores(proxy: AudioProxy, settled: Settled) -> AsyncIterator[Finding]:
    """Try both stores out."""
    config = settled.config
    seen = None
    if "AP_VARIANT_STORE" in settled.refused:
        yield note("variant store", "not looked at, since AP_VARIANT_STORE is refused")
    else:
        seen = await proxy.examine_store(config.presign_ttl)
        if seen is None:
            yield note(
                "variant store",
                "none, so every request renders; set AP_VARIANT_STORE to keep what is rendered",
            )
        elif isinstance(config.variant_store, FileStore):
            yield _folder(config, config.variant_store.path, seen)
        else:
            for finding in _bucket(config, seen):
                yield finding
    shared = isinstance(config.variant_store, BucketStore) and config.source_s3 == config.variant_s3
    if not shared:
        sources = await proxy.examine_sources()
        if sources is not None:
            for finding in _objects(config, sources):
                yield finding
            seen = seen if seen and seen.clock_ahead is not None else sources
    if seen is not None and seen.clock_ahead is not None:
        yield _clock(seen.clock_ahead)


def _folder(config: Config, path: str, seen: Examination) -> Finding:
    if seen.trouble is not None:
        return bad("variant store", f"AP_VARIANT_STORE: {seen.trouble}")
    renders = config.max_concurrency
    return room(
        "variant store",
        path,
        renders * config.max_variant_bytes,
        f"{renders} renders at a time (AP_MAX_CONCURRENCY) of AP_MAX_VARIANT_BYTES",
        "give it room, or lower one of them",
    )


def _bucket(config: Config, seen: Examination) -> Iterator[Finding]:
    if seen.trouble is not None:
        yield bad("variant store", f"AP_VARIANT_STORE: {seen.trouble}")
        yield note("presigned URLs", _UNSEEN)
    else:
        yield good("variant store", f"{seen.place}: something was written, found and removed")
        yield _presigned(config, seen.presigned or "")
    own = config.variant_s3.endpoint != config.source_s3.endpoint
    place = "AP_VARIANT_S3" if own else "AP_S3"
    yield _way("way to the store", config.variant_s3, seen, place)


def _presigned(config: Config, trouble: str) -> Finding:
    if not trouble:
        return good("presigned URLs", "one gave what was written, without credentials")
    text = f"one did not give what was written ({trouble})"
    if config.serve_mode == "proxy":
        return note("presigned URLs", f"{text}; they are not needed with AP_SERVE_MODE=proxy")
    return bad(
        "presigned URLs",
        f"{text}; a store and an AP_PRESIGN_TTL that let them are required, or AP_SERVE_MODE=proxy",
    )


def _objects(config: Config, seen: Examination) -> Iterator[Finding]:
    if seen.trouble is not None:
        yield bad("bucket sources", f"{seen.place}: {seen.trouble}")
    else:
        yield good("bucket sources", f"{seen.place} takes the credentials")
    yield _way("way to sources", config.source_s3, seen, "AP_S3")


def _way(what: str, settings: S3Config, seen: Examination, place: str) -> Finding:
    """Return who can read what goes over the wire."""
    origin = urlsplit(seen.place.rpartition(" ")[2])
    if origin.scheme == "https":
        if seen.trouble is not None and "unreachable" in seen.trouble:
            return note(what, _UNSEEN)
        file = os.environ.get("SSL_CERT_FILE")
        authority = "the system's authorities"
        if settings.ca_bundle is not None:
            authority = f"the bundle {settings.ca_bundle}"
        elif file:
            authority = f"SSL_CERT_FILE, {file}"
        return good(what, f"encrypted; the certificate is vouched for by {authority}")
    if _is_here(origin.hostname or ""):
        return good(what, "not encrypted, and does not leave this machine")
    return note(
        what,
        f"not encrypted, so who is on it can read everything and use presigned URLs; set"
        f" {place}_ENDPOINT to an https:// origin where the network is not your own",
    )


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _clock(ahead: int) -> Finding:
    if abs(ahead) <= _NOTICEABLE:
        return good("clock", "that of this machine goes with the store's")
    text = f"{compare(ahead)}; set it by NTP"
    return bad("clock", text) if abs(ahead) > _WRONG else note("clock", text)
