"""Checks of what is read: ranges, entity tags, missing objects."""

from __future__ import annotations

from audioproxy.cli.checks.bucket.trial import (
    SAMPLE_SIZE,
    Check,
    Failed,
    Noted,
    Sample,
    Trial,
    read,
    require_content,
    require_equal,
)
from audioproxy.s3.objects import Denied, Missing, read_error, strong_etag

_SEEK = "players cannot seek in stored variants, and sources fail to render"
_USE_RANGES = "use a store that serves ranges (RFC 9110, 14)"


async def open_source(trial: Trial, key: bytes) -> None:
    """Open the source that the checks read, and read its first bytes."""
    target = trial.objects.object(trial.bucket, key)
    size, response = await target.find()
    if not size:
        raise Failed("the object is empty, or the store does not state its size")
    etag = response.header("etag")
    stop = min(size, SAMPLE_SIZE)
    trial.found = Sample(target, await read(await target.get(0, stop, etag), stop), size, etag)


async def _find_etag(trial: Trial) -> None:
    sample = trial.sample
    _, response = await sample.target.find()
    if strong_etag(response) is None:
        raise Failed(f"the ETag is {response.header('etag')}")
    require_equal("the ETag of a range", response.header("etag"), sample.etag)


async def _read_first_byte(trial: Trial) -> None:
    await _require_range(trial.sample, "0-0", 0, 1)


async def _read_range(trial: Trial) -> None:
    size = len(trial.sample.content)
    first, last = size // 3, size // 2
    await _require_range(trial.sample, f"{first}-{last}", first, last + 1)


async def _read_open_range(trial: Trial) -> None:
    start = len(trial.sample.content) // 2
    await _require_range(trial.sample, f"{start}-", start, trial.sample.size)


async def _require_range(sample: Sample, asked: str, start: int, stop: int) -> None:
    response = await sample.target.send("GET", headers={"range": f"bytes={asked}"})
    # Its status may be 200 if its Content-Range is what was asked (D41).
    if response.range is None:
        raise await read_error(response)
    found, expected = response.header("content-range"), f"bytes {start}-{stop - 1}/{sample.size}"
    if found != expected or stop > len(sample.content):
        # A source may be much larger than what is known of it.
        response.abort()
        require_equal("Content-Range", found, expected)
    else:
        await require_content(response, sample.content[start:stop], response.status)


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
        _SEEK,
        _USE_RANGES,
        _read_range,
        reads_only=True,
    ),
    Check(
        "open range",
        "a range without an end is sent up to the end",
        _SEEK,
        _USE_RANGES,
        _read_open_range,
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
