"""Signature Version 4 of S3 requests, by botocore: in headers and in presigned URLs."""

from __future__ import annotations

from collections.abc import Mapping

from botocore import auth
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from cachetools import LRUCache

#: The longest lifetime of a presigned URL, in seconds.
MAX_PRESIGN_SECONDS = 604_800

#: The format of ``X-Amz-Date``, in UTC.
TIMESTAMP_FORMAT = "%Y%m%dT%H%M%SZ"

#: The SHA-256 of an empty body.
EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

# The most signatures of each kind that are remembered within a second, each of some hundred bytes.
_MAX_REMEMBERED = 1024


class _PrecomputedHashAuth(S3SigV4Auth):  # type: ignore[misc]
    """Signs with a precomputed hash of the body; botocore would read and hash the body."""

    def __init__(self, credentials: Credentials, region: str, body_sha256: str) -> None:
        super().__init__(credentials, "s3", region)
        self._body_sha256 = body_sha256

    def payload(self, request: AWSRequest) -> str:
        return self._body_sha256


class RequestSigner:
    """Signs requests with the credentials of one user, for one region.

    A signature depends on the time in whole seconds. So within one second, the same arguments give
    the same signature, which is made once.
    """

    def __init__(
        self, access_key_id: str, secret_access_key: str, session_token: str | None, region: str
    ) -> None:
        self._credentials = Credentials(access_key_id, secret_access_key, session_token)
        self._region = region
        self._presigned = LRUCache[tuple[str, str, int], str](_MAX_REMEMBERED)
        self._signed = LRUCache[tuple[object, ...], Mapping[str, str]](_MAX_REMEMBERED)
        self._timestamp = ""

    def sign(
        self, method: str, url: str, headers: Mapping[str, str], body_sha256: str = EMPTY_SHA256
    ) -> Mapping[str, str]:
        """Return the headers of a request, with the signature added."""
        self._forget_last_second()
        key = method, url, *headers.items(), body_sha256
        if key not in self._signed:
            request = AWSRequest(method, url, headers=dict(headers))
            _PrecomputedHashAuth(self._credentials, self._region, body_sha256).add_auth(request)
            self._signed[key] = dict(request.headers.items())
        return self._signed[key]

    def presign(self, method: str, url: str, seconds: int) -> str:
        """Return a URL that anyone can use with that method for a number of seconds from now."""
        self._forget_last_second()
        key = method, url, seconds
        if key not in self._presigned:
            request = AWSRequest(method, url)
            S3SigV4QueryAuth(self._credentials, "s3", self._region, seconds).add_auth(request)
            self._presigned[key] = request.url
        return self._presigned[key]

    def _forget_last_second(self) -> None:
        timestamp = auth.get_current_datetime().strftime(TIMESTAMP_FORMAT)
        if timestamp != self._timestamp:
            self._timestamp = timestamp
            self._presigned.clear()
            self._signed.clear()
