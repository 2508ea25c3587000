"""Checks of who can read what: presigned URLs, credentials, pages of other origins."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from twisted.internet.task import deferLater

from audioproxy.cli.checks.bucket.trial import (
    Check,
    Failed,
    Noted,
    Trial,
    never,
    require_content,
    require_equal,
    require_refusal,
    require_status,
)
from audioproxy.config import Config
from audioproxy.s3.errors import Denied, StoreError
from audioproxy.s3.objects import ObjectStore
from audioproxy.variants.proof import HEADERS

# Seconds for which a presigned URL of a check is valid.
_LIFETIME = 300
# Seconds after which a URL that was valid for one second is expired, and the most that a check
# waits for a store whose clock is behind.
_EXPIRED, _MOST_WAIT = 3, 15

# Statuses of refusals: S3 sends 403, and others 401 or 400 too.
_REFUSALS = (400, 401, 403)


def _is_redirecting(config: Config) -> bool:
    return config.serve_mode == "redirect"


async def _fetch_presigned(trial: Trial) -> str | None:
    sample = trial.sample
    stop = len(sample.content)
    headers = {"range": f"bytes=0-{stop - 1}"}
    response = await trial.fetch(sample.target.presign(_LIFETIME), headers=headers)
    await require_content(response, sample.content, 206)
    return None


async def _keep_headers(trial: Trial) -> str | None:
    # The service names the headers in the URL if the store obeys, and relies on those that it keeps
    # if not.
    with suppress(Failed, StoreError):
        await _require_headers(trial, HEADERS.response_parameters())
        return None
    await _require_headers(trial, "")
    return None


async def _require_headers(trial: Trial, query: str) -> None:
    response = await trial.fetch(trial.sample.target.presign(_LIFETIME, query))
    found = {name: response.header(name) for name in HEADERS.lines()}
    await require_content(response, trial.sample.content)
    for name, value in HEADERS.lines().items():
        require_equal(name, found[name], value)


async def _send_head(trial: Trial) -> str | None:
    response = await trial.fetch(trial.sample.target.presign(_LIFETIME), "HEAD")
    # A store may send a body after the response to HEAD.
    response.abort()
    if response.status == 200:
        return "HEAD of a URL that is presigned for GET is answered"
    if response.status in _REFUSALS:
        return f"HEAD of a URL that is presigned for GET is refused with status {response.status}"
    raise Failed(f"the response has status {response.status}")


async def _use_other_method(trial: Trial) -> str | None:
    target = await trial.write("method", b"1")
    await require_refusal(await trial.fetch(target.presign(_LIFETIME), "DELETE"))
    await target.find()
    return None


async def _alter_url(trial: Trial) -> str | None:
    url = trial.sample.target.presign(_LIFETIME)
    altered = url[:-1] + ("0" if url[-1] != "0" else "1")
    await require_status(await trial.fetch(altered), *_REFUSALS)
    return None


async def _expire(trial: Trial) -> str | None:
    url = trial.sample.target.presign(1)
    ahead = max(trial.objects.clock_ahead or 0, 0)
    if ahead > _MOST_WAIT:
        raise Noted("not checked, since the clocks differ")
    await deferLater(trial.objects.client.clock, _EXPIRED + ahead)
    await require_status(await trial.fetch(url), *_REFUSALS)
    return None


async def _allow_origin(trial: Trial) -> str | None:
    if trial.config.allow_origin is None or not _is_redirecting(trial.config):
        raise Noted("not checked, since AP_ALLOW_ORIGIN is not set, or nothing is redirected")
    # Browsers send this origin after a redirect from one foreign origin to another, as the Fetch
    # Standard requires.
    headers = {"origin": "null", "range": "bytes=0-0"}
    response = await trial.fetch(trial.sample.target.presign(_LIFETIME), headers=headers)
    allowed = response.header("access-control-allow-origin")
    await require_status(response, 200, 206)
    if allowed not in ("*", "null"):
        raise Failed(f"Access-Control-Allow-Origin is {allowed} for the origin null")
    return None


async def _refuse_secret(trial: Trial) -> str | None:
    await _require_denial(trial, trial.with_settings(secret_access_key="0" * 40))
    return None


async def _refuse_token(trial: Trial) -> str | None:
    if trial.settings.session_token is None:
        raise Noted("not checked, since the credentials have no session token")
    await _require_denial(trial, trial.with_settings(session_token="another"))
    return None


async def _refuse_anonymous(trial: Trial) -> str | None:
    await require_refusal(await trial.fetch(trial.sample.target.url))
    return None


async def _require_denial(trial: Trial, store: ObjectStore) -> None:
    """Require that the sample is denied to other credentials."""
    try:
        await replace(trial.sample.target, store=store).find()
    except Denied:
        return
    raise Failed("the object was sent")


ACCESS = (
    Check(
        "presigned URL",
        "a presigned URL returns a range of the object, without credentials",
        "clients of redirects get errors",
        "use a store and an AP_PRESIGN_TTL that allow presigned URLs",
        _fetch_presigned,
        _is_redirecting,
        reads_only=True,
    ),
    Check(
        "presigned types",
        "a presigned URL returns Content-Type, Cache-Control and Content-Disposition of a variant",
        "clients of redirects get other headers, so players or downloads fail",
        "use a store that keeps these headers, or set AP_SERVE_MODE=proxy",
        _keep_headers,
        _is_redirecting,
    ),
    Check(
        "presigned HEAD",
        "HEAD of a URL that is presigned for GET is answered or refused",
        "clients that follow a redirect with HEAD get an error of the store",
        "set AP_SERVE_MODE=proxy where clients send HEAD",
        _send_head,
        never,
        reads_only=True,
    ),
    Check(
        "presigned method",
        "a URL that is presigned for GET removes nothing",
        "a client of a redirect can remove variants",
        "use a store that verifies signatures, or set AP_SERVE_MODE=proxy",
        _use_other_method,
        _is_redirecting,
    ),
    Check(
        "altered URL",
        "a presigned URL with another signature is refused",
        "anyone can read the bucket",
        "use a store that verifies signatures, and make the bucket private",
        _alter_url,
        reads_only=True,
    ),
    Check(
        "expired URL",
        "a presigned URL is refused when it has expired",
        "clients keep access for longer than AP_PRESIGN_TTL and exp allow",
        "use a store that verifies the expiry, or set AP_SERVE_MODE=proxy",
        _expire,
        _is_redirecting,
        reads_only=True,
    ),
    Check(
        "CORS",
        "pages of other origins may read the object after a redirect",
        "fetch and waveforms fail in browsers for stored variants",
        "set a CORS rule of the bucket with the origin * and the methods GET and HEAD",
        _allow_origin,
    ),
    Check(
        "wrong secret",
        "a request that is signed with another secret is refused",
        "anyone can read and write the bucket",
        "use a store that verifies signatures, and make the bucket private",
        _refuse_secret,
        reads_only=True,
    ),
    Check(
        "session token",
        "a request with another session token is refused",
        "credentials may work for longer than they should",
        "rely on the expiry of the keys",
        _refuse_token,
        never,
        reads_only=True,
    ),
    Check(
        "private",
        "the object is not sent without a signature",
        "anyone who knows a key can read the object, also when its URL has expired",
        "make the bucket private",
        _refuse_anonymous,
        never,
        reads_only=True,
    ),
)
