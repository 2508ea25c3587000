"""The error table: one class per row, its status, code and Cache-Control as class attributes.

Every refusal is raised as one of these and turned into HTTP in exactly one place
(`audioproxy.web.exchange`). No other module knows a status number of a refusal.
"""

from __future__ import annotations

from typing import ClassVar

_NO_STORE = "no-store"


class Refusal(Exception):
    """A request that gets an error document instead of what it asked for."""

    status: ClassVar[int]
    code: ClassVar[str]
    cache_control: ClassVar[str] = _NO_STORE
    default_message: ClassVar[str]

    def __init__(self, message: str | None = None) -> None:
        self.message = message or self.default_message
        super().__init__(self.message)


class BadRequest(Refusal):
    """What came is not HTTP, or more of it than a request may have.

    The contract has no row for it: it is refused before there is a request to judge.
    """

    status = 400
    code = "bad_request"
    default_message = (
        "This is not a request of HTTP/1.1, or it has more than 16 KiB or 500 lines of headers, or"
        " a body of more than 64 KiB."
    )


class InvalidSignature(Refusal):
    """The first path segment is not the signature of the rest.

    :ivar diagnosis: the mistake that the signature was made with, or None where none is known.
    """

    status = 401
    code = "invalid_signature"
    cache_control = "max-age=60"
    default_message = "The signature is missing or does not match the path."

    def __init__(self, message: str | None = None, diagnosis: str | None = None) -> None:
        super().__init__(message)
        self.diagnosis = diagnosis


class NotFound(Refusal):
    """Nothing here, or nothing that this client may know of.

    The document is the same for every cause: a client must not learn whether a source is
    missing, refused or outside the root. ``reason`` is for operators and tools only.
    """

    status = 404
    code = "not_found"
    cache_control = "max-age=10"
    default_message = "There is nothing at this address."

    def __init__(self, reason: str = "") -> None:
        super().__init__()
        self.reason = reason

    def __str__(self) -> str:
        return self.reason or self.message


class Expired(Refusal):
    """The URL's ``exp`` has passed. Permanent, because ``exp`` is signed."""

    status = 410
    code = "expired"
    cache_control = "public, max-age=31536000, immutable"
    default_message = "This URL has expired."


class SourceTooLarge(Refusal):
    """The source is larger than AP_MAX_SRC_BYTES."""

    status = 413
    code = "source_too_large"
    cache_control = "max-age=10"
    default_message = "The source is larger than this service accepts."

    @classmethod
    def check(cls, size: int | None, limit: int) -> None:
        """Refuse a source of ``size`` bytes where that is known and more than ``limit``."""
        if size is not None and size > limit:
            raise cls(f"The source has {size} bytes; this service accepts at most {limit}.")


class UndecodableSource(Refusal):
    """The source has no audio that can be decoded."""

    status = 415
    code = "undecodable_source"
    cache_control = "max-age=10"
    default_message = "The source holds no audio that can be decoded."


class NothingDecoded(UndecodableSource):
    """The source was read to its end and gave not one sample.

    ``diagnostic`` is what the encoder said, in brackets, for the log.
    """

    def __init__(self, diagnostic: str = "") -> None:
        super().__init__()
        self.diagnostic = diagnostic and f" ({diagnostic})"


class VideoSource(Refusal):
    """The source carries a genuine video stream."""

    status = 415
    code = "video_source"
    cache_control = "max-age=10"
    default_message = "The source carries video; only audio is served."


class RangeNotSatisfiable(Refusal):
    """A well-formed Range that no byte of the stored variant satisfies.

    ``size`` is the variant's length in bytes, for Content-Range.
    """

    status = 416
    code = "range_not_satisfiable"
    default_message = "The requested range lies outside the variant."

    def __init__(self, size: int) -> None:
        super().__init__(f"The requested range lies outside the variant's {size} bytes.")
        self.size = size


class InvalidOptions(Refusal):
    """An option segment that cannot be honoured. The message quotes it."""

    status = 422
    code = "invalid_options"
    cache_control = "max-age=60"
    default_message = "The options are not valid."


class QueueFull(Refusal):
    """No render slot or no probe slot. ``retry_after`` is in whole seconds."""

    status = 429
    code = "queue_full"
    default_message = "The service is busy; try again later."

    def __init__(self, retry_after: int) -> None:
        super().__init__()
        self.retry_after = retry_after


class RenderFailed(Refusal):
    """A render ended for a reason that is the service's, not the client's."""

    status = 500
    code = "render_failed"
    default_message = "The render failed."


class OutputTooLarge(RenderFailed):
    """A render had more output than AP_MAX_VARIANT_BYTES."""

    default_message = "The output is larger than AP_MAX_VARIANT_BYTES."


class NotConfigured(Refusal):
    """The storage that this request needs is not configured, or wrongly."""

    status = 500
    code = "not_configured"
    default_message = "The storage for this request is not configured."


class ProbeFailed(Refusal):
    """The probe failed for a reason that is the service's, not the source's."""

    status = 500
    code = "probe_failed"
    default_message = "The source could not be examined."


class UpstreamUnavailable(Refusal):
    """The storage cannot be reached, or answers that it is broken."""

    status = 502
    code = "upstream_unavailable"
    default_message = "The storage could not be reached."


class RenderTimeout(Refusal):
    """A render that had its slot ran past AP_RENDER_TIMEOUT."""

    status = 504
    code = "render_timeout"
    default_message = "The render took longer than AP_RENDER_TIMEOUT."


class ProbeTimeout(Refusal):
    """A probe ran past AP_PROBE_TIMEOUT."""

    status = 504
    code = "probe_timeout"
    default_message = "Examining the source took longer than AP_PROBE_TIMEOUT."
