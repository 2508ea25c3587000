"""The error table: one class for each row, with status, code and Cache-Control as class attributes.

Every refusal is raised as one of these classes. `audioproxy.web.response_plan.plan_refusal` alone
responds with one. No other module contains the status of a refusal::

    Refusal
    +-- BadRequest               400  not HTTP, or past the limits of a request
    +-- InvalidSignature         401
    +-- NotFound                 404  missing, refused by the allowlist, or outside the root
    |   +-- NoSuchSource              certainly missing
    +-- Expired                  410
    +-- SourceTooLarge           413
    +-- UndecodableSource        415
    |   +-- EncryptedSource
    |   +-- MemoryExceeded            ffmpeg needs more than AP_MAX_CHILD_MEMORY
    |   +-- NothingDecoded            decoded to its end, without a sample
    +-- VideoSource              415
    +-- RangeNotSatisfiable      416
    +-- InvalidOptions           422
    +-- QueueFull                429
    +-- Stopping                 499  never sent: the connection is closed
    +-- RenderFailed             500  by the service, not by the client
    |   +-- DiskFailed
    |   |   +-- DiskFull
    |   +-- IrregularSource           never sent: the render begins anew
    |   |   +-- WrongLength
    |   +-- OutputDiffers
    |   +-- OutputTooLarge
    +-- NotConfigured            500  storage without settings, or with wrong ones
    +-- ProbeFailed              500  by the service, not by the source
    +-- UpstreamUnavailable      502
    +-- RenderTimeout            504
    +-- ProbeTimeout             504

    Unusable                          a setting, or what it names
    +-- InvalidValue                  its text
"""

from __future__ import annotations

import errno
from typing import ClassVar


class Refusal(Exception):
    """A request that gets an error document instead of the requested content.

    :ivar log_code: the code in the access log, where a response that has begun is aborted; by
        default, that of the document.
    """

    status: ClassVar[int]
    code: ClassVar[str]
    log_code: ClassVar[str | None] = None
    cache_control: ClassVar[str] = "no-store"
    default_message: ClassVar[str]

    def __init_subclass__(cls, **row: object) -> None:
        for name, value in row.items():
            setattr(cls, name, value)

    def __init__(self, message: str | None = None) -> None:
        self.message = message or self.default_message
        super().__init__(self.message)
        self.extra_headers: dict[bytes, bytes] = {}

    def document(self) -> dict[str, str]:
        """Return the JSON error document."""
        return {"error": self.code, "message": self.message}

    def headers(self) -> dict[bytes, bytes]:
        """Return the headers of the response, besides those of its error document."""
        return {b"cache-control": self.cache_control.encode("ascii"), **self.extra_headers}


class BadRequest(Refusal, status=400, code="bad_request"):
    """The received bytes are not HTTP, or exceed the limits of a request.

    The contract in docs/rules.md has no row for this error: no complete request was received.
    """

    default_message = (
        "This is not an HTTP/1.1 request with one valid Host, or its headers exceed 16 KiB or 500"
        " lines, or its body exceeds 64 KiB."
    )


class InvalidSignature(Refusal, status=401, code="invalid_signature", cache_control="max-age=60"):
    """The first path segment is not the signature of the rest of the path.

    :ivar diagnosis: the signing mistake, or None if it is unknown.
    """

    default_message = "The signature is missing or does not match the path."

    def __init__(self, message: str | None = None, diagnosis: str | None = None) -> None:
        super().__init__(message)
        self.diagnosis = diagnosis


class NotFound(Refusal, status=404, code="not_found", cache_control="max-age=10"):
    """There is no such source or route, or the client must not learn that there is one.

    The document is the same for every cause: a client must not learn whether a source is missing,
    refused or outside the root. ``reason`` is for operators and tools only.
    """

    default_message = "There is nothing at this address."

    def __init__(self, reason: str = "") -> None:
        super().__init__()
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or self.message


class NoSuchSource(NotFound):
    """The storage of a source, which can be reached, states that there is no such source.

    Any other `NotFound` of a source may have another cause, such as a missing right.
    """


class Expired(
    Refusal, status=410, code="expired", cache_control="public, max-age=31536000, immutable"
):
    """The URL's ``exp`` has passed. The response is permanent, because ``exp`` is signed."""

    default_message = "This URL has expired."


class SourceTooLarge(Refusal, status=413, code="source_too_large", cache_control="max-age=10"):
    default_message = "The source is larger than this service accepts."

    @classmethod
    def check(cls, size: int | None, limit: int) -> None:
        """Raise an error if ``size`` is known and exceeds ``limit``, both in bytes."""
        if size is not None and size > limit:
            raise cls(f"The source has {size} bytes; this service accepts at most {limit}.")


class UndecodableSource(Refusal, status=415, code="undecodable_source", cache_control="max-age=10"):
    default_message = "The source has no audio that can be decoded."


class EncryptedSource(UndecodableSource):
    """The first audio stream of the source is encrypted (D64)."""

    default_message = "The source is encrypted."


class MemoryExceeded(UndecodableSource):
    default_message = "The source cannot be decoded with the memory that is allowed."


class NothingDecoded(UndecodableSource):
    """The source was decoded to its end and contains no sample.

    ``diagnostic`` is ffmpeg's message, in brackets, for the log.
    """

    def __init__(self, diagnostic: str = "") -> None:
        super().__init__()
        self.diagnostic = diagnostic and f" ({diagnostic})"


class VideoSource(Refusal, status=415, code="video_source", cache_control="max-age=10"):
    default_message = "The source contains video; only audio is supported."


class RangeNotSatisfiable(Refusal, status=416, code="range_not_satisfiable"):
    """A valid Range that includes no byte of the stored variant.

    ``size`` is the variant's length in bytes, for Content-Range.
    """

    default_message = "The requested range is outside the variant."

    def __init__(self, size: int) -> None:
        super().__init__(f"The requested range is outside the variant's {size} bytes.")
        self.size = size
        self.extra_headers[b"content-range"] = b"bytes */%d" % size


class InvalidOptions(Refusal, status=422, code="invalid_options", cache_control="max-age=60"):
    """An option segment that is not accepted. The message quotes it."""

    default_message = "The options are not valid."

    @classmethod
    def of(cls, segment: str, why: str) -> InvalidOptions:
        """Return the refusal of a segment; ``why`` says what would be accepted."""
        return cls(f'"{segment}" is not accepted: {why}.')


class QueueFull(Refusal, status=429, code="queue_full"):
    """No render slot or no probe slot is free. ``retry_after`` is in whole seconds."""

    default_message = "The service is busy; try again later."

    def __init__(self, retry_after: int) -> None:
        super().__init__()
        self.retry_after = retry_after
        self.extra_headers[b"retry-after"] = b"%d" % retry_after


class Stopping(Refusal, status=499, code="stopping"):
    """The service stops, so the connection is closed instead of a response (D39).

    A balancer repeats a request whose connection was closed before the first byte. The status is
    for the log and the metrics, and never sent.
    """

    default_message = "The service stops."


class RenderFailed(Refusal, status=500, code="render_failed"):
    default_message = "The render failed."


class DiskFailed(RenderFailed):
    """The disk of an output fails. Another one may not."""

    default_message = "The disk of the output failed."

    @staticmethod
    def of(error: OSError) -> DiskFailed:
        """Return the refusal for an error of the disk."""
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        return DiskFull() if is_full else DiskFailed()


class DiskFull(DiskFailed):
    default_message = "The disk is full."


class IrregularSource(RenderFailed):
    """A render in one process has found that its source needs two.

    `audioproxy.media.command.decoding` says why. No client gets this error: the render begins anew.
    """

    default_message = "The source changes its format inside, or has NaN, infinite or huge samples."


class WrongLength(IrregularSource):
    default_message = "The source has another length than its header states."


class OutputDiffers(RenderFailed):
    """A render that began anew gives other bytes than clients have got already.

    That is found after the start of their responses, which are aborted; the next request succeeds
    (D78).
    """

    log_code = "output_differs"
    default_message = (
        "The render began anew after the start of this response, and gave other bytes; request it"
        " again."
    )


class OutputTooLarge(RenderFailed):
    default_message = "The output is larger than AP_MAX_VARIANT_BYTES."


class NotConfigured(Refusal, status=500, code="not_configured"):
    default_message = "The storage for this request is not configured."


class ProbeFailed(Refusal, status=500, code="probe_failed"):
    default_message = "The source could not be examined."


class UpstreamUnavailable(Refusal, status=502, code="upstream_unavailable"):
    default_message = "The storage could not be reached."


class RenderTimeout(Refusal, status=504, code="render_timeout"):
    default_message = "The render took longer than AP_RENDER_TIMEOUT."


class ProbeTimeout(Refusal, status=504, code="probe_timeout"):
    default_message = "Examining the source took longer than AP_PROBE_TIMEOUT."


def reason_of(error: Exception) -> str:
    """Return the text of an error for people: of one of the system, its own words and the file.

    A client chooses the name of a file: other characters than printable ones are escaped.
    """
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    name = error.filename
    if isinstance(name, bytes):
        name = name.decode("utf-8", "surrogateescape")
    return f"{error.strerror}: {repr(name)[1:-1]}" if isinstance(name, str) else error.strerror


class Unusable(Exception):
    """A setting, or what it names, cannot be used; the text is not for clients.

    :ivar fault: what is wrong.
    :ivar wanted: what would be right.
    """

    def __init__(self, fault: str, wanted: str) -> None:
        super().__init__(f"{fault}; {wanted}")
        self.fault = fault
        self.wanted = wanted


class InvalidValue(Unusable, ValueError):
    """The text or the value of a setting that is not accepted."""
