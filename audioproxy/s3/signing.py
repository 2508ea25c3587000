"""Signature Version 4 of object store requests, by botocore: in headers, and in presigned URLs."""

from __future__ import annotations

from collections.abc import Mapping

from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

#: The longest that a presigned URL may live, in seconds.
LONGEST = 604_800

#: How a signature spells its moment, in UTC.
MOMENT = "%Y%m%dT%H%M%SZ"

#: The SHA-256 of no bytes.
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


class _Digested(S3SigV4Auth):  # type: ignore[misc]
    """Signs over a digest that is known; botocore's own reads and hashes the whole body."""

    def __init__(self, credentials: Credentials, region: str, digest: str) -> None:
        super().__init__(credentials, "s3", region)
        self._digest = digest

    def payload(self, request: AWSRequest) -> str:
        return self._digest


class Identity:
    """Who signs, and for which region."""

    def __init__(
        self, access_key_id: str, secret_access_key: str, session_token: str | None, region: str
    ) -> None:
        self._credentials = Credentials(access_key_id, secret_access_key, session_token)
        self._region = region

    def sign(
        self, method: str, url: str, headers: Mapping[str, str], digest: str = EMPTY
    ) -> dict[str, str]:
        """Return the headers of a request with those that sign it and all of them.

        :param digest: lower-case hex SHA-256 of the body.
        """
        request = AWSRequest(method, url, headers=dict(headers))
        _Digested(self._credentials, self._region, digest).add_auth(request)
        return dict(request.headers.items())

    def presign(self, method: str, url: str, seconds: int) -> str:
        """Return a URL that anyone may use for that method, from now on for so long."""
        request = AWSRequest(method, url)
        S3SigV4QueryAuth(self._credentials, "s3", self._region, seconds).add_auth(request)
        signed: str = request.url
        return signed
