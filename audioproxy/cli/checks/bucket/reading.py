"""Checks of what is read, and by whom: ranges, presigned URLs, credentials, other origins."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from twisted.internet.task import deferLater

from audioproxy.cli.checks.bucket.trial import (
    RANGE,
    REFUSALS,
    SAMPLE_SIZE,
    Checks,
    Failed,
    Noted,
    Sample,
    Trial,
    in_redirect_mode,
    read,
    require,
    require_equal,
)
from audioproxy.s3.errors import Denied, Missing, StoreError, read_error
from audioproxy.s3.objects import ObjectStore, strong_etag
from audioproxy.variants.proof import HEADERS

# Seconds for which a presigned URL of a check is valid.
_LIFETIME = 300
# Seconds after which a URL that was valid for one second is expired, and the most that a check
# waits for a store whose clock is behind.
_EXPIRED, _MOST_WAIT = 3, 15

# Statuses of refusals: S3 sends 403, and others 401 or 400 too.
_UNAUTHORIZED = (400, 401, 403)

_SEEK = "players cannot seek in stored variants, and sources fail to render"
_USE_RANGES = "use a store that serves ranges (RFC 9110, 14)"

#: These apply to a source too.
READING = Checks()
REDIRECTS = Checks()


async def open_source(trial: Trial, key: bytes) -> None:
    """Open the source that the checks read, and read its first bytes."""
    target = trial.objects.object(trial.bucket, key)
    size, response = await target.find()
    if not size:
        raise Failed("the object is empty, or the store does not state its size")
    etag = response.header("etag")
    stop = min(size, SAMPLE_SIZE)
    trial.found = Sample(target, await read(await target.get(0, stop, etag), stop), size, etag)


@READING.add(
    "ETag",
    "an object has a strong ETag, and a range of it has the same",
    "a response could mix two versions of an object",
    "use a store with strong ETags",
)
async def _find_etag(trial: Trial) -> None:
    _, response = await trial.sample.target.find()
    etag = response.header("etag")
    if strong_etag(response) is None:
        raise Failed(f"the ETag is {etag}")
    require_equal("the ETag of a range", etag, trial.sample.etag)


@READING.add(
    "first byte",
    "the first byte is sent with its Content-Range and the object's size",
    "lookups do not know the size, so sources fail and stored variants are not found",
    _USE_RANGES,
)
async def _read_first_byte(trial: Trial) -> None:
    await _require_range(trial.sample, "0-0", 0, 1)


@READING.add(
    "range",
    "a range in the middle is sent with its Content-Range and its bytes",
    _SEEK,
    _USE_RANGES,
)
async def _read_range(trial: Trial) -> None:
    size = len(trial.sample.content)
    first, last = size // 3, size // 2
    await _require_range(trial.sample, f"{first}-{last}", first, last + 1)


@READING.add("open range", "a range without an end is sent up to the end", _SEEK, _USE_RANGES)
async def _read_open_range(trial: Trial) -> None:
    start = len(trial.sample.content) // 2
    await _require_range(trial.sample, f"{start}-", start, trial.sample.size)


async def _require_range(sample: Sample, asked: str, start: int, stop: int) -> None:
    response = await sample.target.send("GET", headers={"range": f"bytes={asked}"})
    if response.range is None:
        raise await read_error(response)
    found, expected = response.header("content-range"), f"bytes {start}-{stop - 1}/{sample.size}"
    if found != expected or stop > len(sample.content):
        # A source may be much larger than what is known of it.
        response.abort()
        require_equal("Content-Range", found, expected)
    else:
        await require(response, *RANGE, content=sample.content[start:stop])


@READING.add(
    "missing object",
    "a missing object has the status 404",
    "a request for a variant that is not stored fails and does not render",
    "use a store that reports missing objects",
)
async def _miss(trial: Trial) -> None:
    try:
        await trial.objects.object(trial.bucket, trial.key("missing").encode()).find()
    except Missing:
        return
    except Denied as error:
        raise Noted(
            f"a missing object is forbidden ({error}), so wrong rights look like a miss; give the"
            " credentials the right ListBucket"
        ) from error
    raise Failed("it was found")


@READING.add(
    "presigned URL",
    "a presigned URL returns a range of the object, without credentials",
    "clients of redirects get errors",
    "use a store and an AP_PRESIGN_TTL that allow presigned URLs",
    is_needed=in_redirect_mode,
)
async def _fetch_presigned(trial: Trial) -> None:
    content = trial.sample.content
    headers = {"range": f"bytes=0-{len(content) - 1}"}
    response = await trial.fetch(trial.sample.target.presign(_LIFETIME), headers=headers)
    await require(response, 206, content=content)


@READING.add(
    "altered URL",
    "a presigned URL with another signature is refused",
    "anyone can read the bucket",
    "use a store that verifies signatures, and make the bucket private",
)
async def _alter_url(trial: Trial) -> None:
    url = trial.sample.target.presign(_LIFETIME)
    altered = url[:-1] + ("0" if url[-1] != "0" else "1")
    await require(await trial.fetch(altered), *_UNAUTHORIZED)


@READING.add(
    "expired URL",
    "a presigned URL is refused when it has expired",
    "clients keep access for longer than AP_PRESIGN_TTL and exp allow",
    "use a store that verifies the expiry, or set AP_SERVE_MODE=proxy",
    is_needed=in_redirect_mode,
)
async def _expire(trial: Trial) -> None:
    url = trial.sample.target.presign(1)
    ahead = max(trial.objects.clock_ahead or 0, 0)
    if ahead > _MOST_WAIT:
        raise Noted("not checked, since the clocks differ")
    await deferLater(trial.objects.client.clock, _EXPIRED + ahead)
    await require(await trial.fetch(url), *_UNAUTHORIZED)


@READING.add(
    "wrong secret",
    "a request that is signed with another secret is refused",
    "anyone can read and write the bucket",
    "use a store that verifies signatures, and make the bucket private",
)
async def _refuse_secret(trial: Trial) -> None:
    other = replace(trial.settings, secret_access_key="0" * 40)
    store = ObjectStore(other, trial.objects.client)
    with suppress(Denied):
        await replace(trial.sample.target, store=store).find()
        raise Failed("the object was sent")


@READING.add(
    "private",
    "the object is not sent without a signature",
    "anyone who knows a key can read the object, also when its URL has expired",
    "make the bucket private",
    is_needed=lambda config: False,
)
async def _refuse_anonymous(trial: Trial) -> None:
    await require(await trial.fetch(trial.sample.target.url), *REFUSALS)


@REDIRECTS.add(
    "presigned types",
    "a presigned URL returns Content-Type, Cache-Control and Content-Disposition of a variant",
    "clients of redirects get other headers, so players or downloads fail",
    "use a store that keeps these headers, or set AP_SERVE_MODE=proxy",
    is_needed=in_redirect_mode,
)
async def _keep_headers(trial: Trial) -> None:
    # The service names the headers in the URL if the store obeys, and relies on those that it keeps
    # if not.
    with suppress(Failed, StoreError):
        await _require_headers(trial, HEADERS.response_parameters())
        return
    await _require_headers(trial, "")


async def _require_headers(trial: Trial, query: str) -> None:
    response = await trial.fetch(trial.sample.target.presign(_LIFETIME, query))
    found = {name: response.header(name) for name in HEADERS.lines()}
    await require(response, 200, content=trial.sample.content)
    for name, value in HEADERS.lines().items():
        require_equal(name, found[name], value)


@REDIRECTS.add(
    "presigned method",
    "a URL that is presigned for GET removes nothing",
    "a client of a redirect can remove variants",
    "use a store that verifies signatures, or set AP_SERVE_MODE=proxy",
    is_needed=in_redirect_mode,
)
async def _use_other_method(trial: Trial) -> None:
    target = await trial.write("method", b"1")
    await require(await trial.fetch(target.presign(_LIFETIME), "DELETE"), *REFUSALS)
    await target.find()


@REDIRECTS.add(
    "CORS",
    "pages of other origins may read the object after a redirect",
    "fetch and waveforms fail in browsers for stored variants",
    "set a CORS rule of the bucket with the origin * and the methods GET and HEAD",
)
async def _allow_origin(trial: Trial) -> None:
    if trial.config.allow_origin is None or not in_redirect_mode(trial.config):
        raise Noted("not checked, since AP_ALLOW_ORIGIN is not set, or nothing is redirected")
    # Browsers send this origin after a redirect from one foreign origin to another, as the Fetch
    # Standard requires.
    headers = {"origin": "null", "range": "bytes=0-0"}
    response = await trial.fetch(trial.sample.target.presign(_LIFETIME), headers=headers)
    allowed = response.header("access-control-allow-origin")
    await require(response, *RANGE)
    if allowed not in ("*", "null"):
        raise Failed(f"Access-Control-Allow-Origin is {allowed} for the origin null")
