"""The tests' S3 servers refuse what S3 refuses."""

from __future__ import annotations

import ssl

from twisted.trial.unittest import TestCase
from urllib3.exceptions import SSLError

from tests.support.buckets import s3_server
from tests.support.s3 import Identity, S3Response
from tests.support.service import TEST_PATIENCE


class BucketCase(TestCase):
    """Base class of tests with a bucket that has an object."""

    timeout = TEST_PATIENCE
    tls = False

    async def setUp(self) -> None:
        self.server = await s3_server(self.tls)
        self.bucket = self.server.make_bucket()
        self.server.put(self.bucket, "a", b"abc")

    def assert_refused(self, response: S3Response, *codes: str) -> None:
        """Assert that a request was refused, with one of these codes if the response has any."""
        self.assertEqual(403, response.status)
        self.assertIn(response.code, ("AccessDenied", *codes))


class UploadTests(BucketCase):
    """Multipart uploads."""

    def test_uploads(self) -> None:
        """A multipart upload is listed until it is aborted."""
        key = "a/b c+d%20é"
        started = self.server.request("POST", self.bucket, key, "uploads=").require_success()
        (upload,) = started.texts("UploadId")
        self.assertEqual([(key.encode(), upload)], self.server.uploads(self.bucket))
        self.server.request("DELETE", self.bucket, key, f"uploadId={upload}").require_success()
        self.assertEqual([], self.server.uploads(self.bucket))


class SignatureTests(BucketCase):
    """Refusal of requests without a valid signature."""

    def test_requests(self) -> None:
        """Unsigned requests, wrong secrets, keys and regions are refused.

        A body that differs from the signed digest is not stored.
        """
        guess, nobody = Identity(self.server.access_key, "x" * 40), Identity("x" * 20, "x" * 40)
        for method, identity, code in (
            ("GET", guess, "SignatureDoesNotMatch"),
            ("PUT", guess, "SignatureDoesNotMatch"),
            ("GET", nobody, "InvalidAccessKeyId"),
        ):
            response = self.server.request(method, self.bucket, "a", identity=identity)
            self.assert_refused(response, code)
        self.assert_refused(self.server.fetch(self.server.url(self.bucket, "a")))
        wrong = {"x-amz-content-sha256": "0" * 64}
        response = self.server.request("PUT", self.bucket, "c", body=b"abc", headers=wrong)
        self.assertEqual((400, [b"a"]), (response.status, self.server.keys(self.bucket)))
        if "region" in self.server.checks:
            self.patch(self.server, "region", "mars-north-1")
            response = self.server.request("GET", self.bucket, "a")
            self.assertIn(response.status, (400, 403))


class TLSTests(BucketCase):
    """Server with TLS and a certificate of a private authority."""

    tls = True

    def test_trust(self) -> None:
        """Clients that trust the authority accept the address alone."""
        url = self.server.url(self.bucket, "a")
        self.assertTrue(url.startswith("https://"))
        self.assertEqual(b"abc", self.server.get(self.bucket, "a").body)
        another = url.replace("127.0.0.1", "another.test")
        self.assertRaises(SSLError, self.server.fetch, another)
        self.patch(self.server, "ca_bundle", ssl.get_default_verify_paths().cafile)
        self.assertRaises(SSLError, self.server.fetch, url)
