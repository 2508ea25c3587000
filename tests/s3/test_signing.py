"""Request signatures: AWS's own examples, and other requests with independent verification."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import botocore.auth
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.s3.signing import EMPTY_SHA256, MAX_PRESIGN_SECONDS, RequestSigner
from tests.support.strategies import DETERMINISTIC
from tests.support.wire import Request, is_presigned, is_signed

#: Credentials and time of the examples in AWS's "Signature Calculations for the Authorization
#: Header" and "Authenticating Requests: Using Query Parameters".
ACCESS_KEY, SECRET = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
ORIGIN = "https://examplebucket.s3.amazonaws.com"
EXAMPLE_TIME = datetime(2013, 5, 24)
SCOPE = "20130524/us-east-1/s3/aws4_request"


class SigningCase(SynchronousTestCase):
    """Identity and date of AWS's examples."""

    def setUp(self) -> None:
        self.now = EXAMPLE_TIME
        self.patch(botocore.auth, "get_current_datetime", lambda: self.now)
        self.signer = RequestSigner(ACCESS_KEY, SECRET, None, "us-east-1")

    def sign(self, method: str, url: str, *given: Any, **named: Any) -> dict[str, str]:
        """Return the signed headers by lower-case name."""
        signed = self.signer.sign(method, url, *given, **named)
        return {name.lower(): value for name, value in signed.items()}


class ExampleTests(SigningCase):
    """AWS's examples."""

    def test_get(self) -> None:
        """The signature of a GET with a Range equals AWS's example."""
        signed = self.sign("GET", f"{ORIGIN}/test.txt", {"Range": "bytes=0-9"})
        self.assertEqual(
            signed["authorization"],
            f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/{SCOPE}, "
            "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, "
            "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        )
        self.assertEqual(signed["x-amz-date"], "20130524T000000Z")
        self.assertEqual(signed["x-amz-content-sha256"], EMPTY_SHA256)

    def test_presigned(self) -> None:
        """A presigned URL equals AWS's example."""
        self.assertEqual(
            self.signer.presign("GET", f"{ORIGIN}/test.txt", 86_400),
            f"{ORIGIN}/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256"
            f"&X-Amz-Credential={ACCESS_KEY}%2F20130524%2Fus-east-1%2Fs3%2Faws4_request"
            "&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host"
            "&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404",
        )


class SignTests(SigningCase):
    """The method `RequestSigner.sign`."""

    @DETERMINISTIC
    @given(
        path=st.lists(st.sampled_from(["a", "%3B", "%25", "/", ".", "..", "~", "_", "%C3%A9"])),
        query=st.lists(st.sampled_from(["uploads=", "partNumber=1", "uploadId=a%2Fb", "x"])),
        origin=st.sampled_from(
            ["http://s3.test", "http://s3.test:9000", "https://[::1]:8443", "https://b-1.s3.test"]
        ),
        value=st.sampled_from(["a", 'inline; filename="a  b"', "public, max-age=1", "a=b;c"]),
    )
    def test_any_request(self, path: list[str], query: list[str], origin: str, value: str) -> None:
        """Any signed request passes an independent verification."""
        target = f"/{''.join(path)}{'?' if query else ''}{'&'.join(query)}"
        self.signer = RequestSigner(ACCESS_KEY, SECRET, "token", "us-east-1")
        headers = self.sign("PUT", origin + target, {"content-disposition": value})
        headers["host"] = urlsplit(origin).netloc
        self.assertTrue(is_signed(Request("PUT", target, (*headers.items(),)), SECRET))
        self.assertFalse(is_signed(Request("GET", target, (*headers.items(),)), SECRET))


class PresignTests(SigningCase):
    """The method `RequestSigner.presign`."""

    def test_query(self) -> None:
        """A presigned URL has its lifetime and the session token, and no header but Host.

        It is valid for a single method, and does not contain the secret.
        """
        self.assertEqual(MAX_PRESIGN_SECONDS, 7 * 24 * 3600)
        for token, seconds in ((None, 1), ("token/+=", 300), (None, MAX_PRESIGN_SECONDS)):
            url = RequestSigner(ACCESS_KEY, SECRET, token, "us-east-1").presign(
                "GET", f"{ORIGIN}/a", seconds
            )
            query = parse_qs(urlsplit(url).query)
            self.assertEqual(query["X-Amz-Expires"], [str(seconds)])
            self.assertEqual(query.get("X-Amz-Security-Token"), token and [token])
            self.assertEqual(query["X-Amz-SignedHeaders"], ["host"])
            self.assertNotIn(SECRET, url)
            self.assertTrue(is_presigned("GET", url, SECRET))
            self.assertFalse(is_presigned("PUT", url, SECRET))

    def test_same_second(self) -> None:
        """Within a second, the same arguments give the same URL, which is signed once.

        Another URL, lifetime, method or second gives another URL.
        """
        arguments = ("GET", f"{ORIGIN}/a", 300)
        url = self.signer.presign(*arguments)
        self.assertIs(self.signer.presign(*arguments), url)
        for others in (
            ("GET", f"{ORIGIN}/b", 300),
            ("GET", f"{ORIGIN}/a", 299),
            ("HEAD", f"{ORIGIN}/a", 300),
        ):
            self.assertNotEqual(self.signer.presign(*others), url)
        self.assertIs(self.signer.presign(*arguments), url)
        self.now += timedelta(seconds=1)
        query = parse_qs(urlsplit(self.signer.presign(*arguments)).query)
        self.assertEqual(query["X-Amz-Date"], ["20130524T000001Z"])
