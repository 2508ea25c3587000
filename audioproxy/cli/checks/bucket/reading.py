"""Checks of what is read: ranges, entity tags, conditions, missing objects."""

from __future__ import annotations

from audioproxy.cli.checks.bucket.trial import (
    Check,
    Failed,
    Noted,
    Sample,
    Trial,
    never,
    read,
    require_content,
    require_equal,
    require_status,
)
from audioproxy.http_client.client import Response
from audioproxy.s3.errors import Denied, Missing, read_error
from audioproxy.s3.objects import strong_etag

_RENDER = "sources fail to render"
_SEEK = "players cannot seek in stored variants"
_USE_RANGES = "use a store that serves ranges (RFC 9110, 14)"


async def _find_etag(trial: Trial) -> str | None:
    sample = trial.sample
    _, response = await sample.target.find()
    if strong_etag(response) is None:
        raise Failed(f"the ETag is {response.header('etag')}")
    require_equal("the ETag of a range", response.header("etag"), sample.etag)
    return None


async def _read_first_byte(trial: Trial) -> str | None:
    await _require_range(trial.sample, "bytes=0-0", 0, 1)
    return None


async def _read_range(trial: Trial) -> str | None:
    sample = trial.sample
    stop = len(sample.content)
    await _require_range(sample, f"bytes={stop // 3}-{stop // 2}", stop // 3, stop // 2 + 1)
    return None


async def _read_open_range(trial: Trial) -> str | None:
    sample = trial.sample
    # The object may be much larger than what is known of it.
    start = len(sample.content) // 2
    response = await sample.target.send("GET", headers={"range": f"bytes={start}-"})
    await _require_head(response, start, sample.size, sample.size)
    if sample.size == len(sample.content):
        require_equal("the range", await read(response, sample.size), sample.content[start:])
    else:
        response.abort()
    return None


async def _read_suffix(trial: Trial) -> str | None:
    sample = trial.sample
    start = sample.size - min(100, sample.size)
    response = await sample.target.send("GET", headers={"range": f"bytes=-{sample.size - start}"})
    await _require_head(response, start, sample.size, sample.size)
    expected = await read(await sample.target.get(start, sample.size, None), 100)
    if await read(response, 100) != expected:
        raise Failed("other bytes than those of the same range were sent")
    return None


async def _read_past_end(trial: Trial) -> str | None:
    sample = trial.sample
    headers = {"range": f"bytes={sample.size}-"}
    await require_status(await sample.target.send("GET", headers=headers), 416)
    return None


async def _match(trial: Trial) -> str | None:
    sample = trial.sample
    stop = min(100, len(sample.content))
    response = await sample.target.get(0, stop, sample.etag)
    await require_content(response, sample.content[:stop], response.status)
    headers = {"range": f"bytes=0-{stop - 1}", "if-match": '"another"'}
    await require_status(await sample.target.send("GET", headers=headers), 412)
    return None


async def _miss(trial: Trial) -> str | None:
    try:
        await trial.objects.object(trial.bucket, trial.key("missing").encode()).find()
    except Missing:
        return None
    except Denied as error:
        raise Noted(
            f"a missing object is forbidden ({error}), so wrong rights look like a miss; give the"
            " credentials the right ListBucket"
        ) from error
    raise Failed("it was found")


async def _require_range(sample: Sample, field: str, start: int, stop: int) -> None:
    response = await sample.target.send("GET", headers={"range": field})
    await _require_head(response, start, stop, sample.size)
    await require_content(response, sample.content[start:stop], response.status)


async def _require_head(response: Response, start: int, stop: int, size: int) -> None:
    """Require a range, whose status may be 200 if its Content-Range is what was asked (D41)."""
    if response.range is None:
        raise await read_error(response)
    found, expected = response.header("content-range"), f"bytes {start}-{stop - 1}/{size}"
    if found != expected:
        response.abort()
        require_equal("Content-Range", found, expected)


READING = (
    Check(
        "ETag",
        "an object has a strong ETag, and a range of it has the same",
        "a response could mix two versions of an object",
        "use a store with strong ETags",
        _find_etag,
        reads_only=True,
    ),
    Check(
        "first byte",
        "the first byte is sent with its Content-Range and the object's size",
        "lookups do not know the size, so sources fail and stored variants are not found",
        _USE_RANGES,
        _read_first_byte,
        reads_only=True,
    ),
    Check(
        "range",
        "a range in the middle is sent with its Content-Range and its bytes",
        f"{_SEEK}, and {_RENDER}",
        _USE_RANGES,
        _read_range,
        reads_only=True,
    ),
    Check(
        "open range",
        "a range without an end is sent up to the end",
        f"{_SEEK}, and {_RENDER}",
        _USE_RANGES,
        _read_open_range,
        reads_only=True,
    ),
    Check(
        "suffix range",
        "the last bytes are sent for a range such as bytes=-100",
        "clients of redirects that read the end first get other bytes",
        _USE_RANGES,
        _read_suffix,
        never,
        reads_only=True,
    ),
    Check(
        "past the end",
        "a range after the end is refused with status 416",
        "an empty source is a 502 in place of a 415",
        _USE_RANGES,
        _read_past_end,
        never,
        reads_only=True,
    ),
    Check(
        "If-Match",
        "a range is sent for the right ETag, and refused with status 412 for another",
        "an object that is replaced meanwhile is noticed by its ETag alone",
        "use a store with If-Match on GET",
        _match,
        never,
        reads_only=True,
    ),
    Check(
        "missing object",
        "a missing object has the status 404",
        "a request for a variant that is not stored fails and does not render",
        "use a store that reports missing objects",
        _miss,
        reads_only=True,
    ),
)
