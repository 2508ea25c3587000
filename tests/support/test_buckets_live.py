"""The tests' S3 servers refuse what S3 refuses."""

from __future__ import annotations

import ssl

from twisted.trial.unittest import SkipTest, TestCase

from tests.support.buckets import s3_server
from tests.support.s3 import Check, Identity, S3Response
from tests.support.service import TEST_PATIENCE, children

HEADERS = {
    "content-type": "audio/mpeg",
    "cache-control": "public, max-age=31536000, immutable",
    "content-disposition": "inline; filename=\"a b.mp3\"; filename*=UTF-8''%C3%A9.mp3",
}


class BucketCase(TestCase):
    """Base class of tests with a bucket that has an object."""

    timeout = TEST_PATIENCE
    tls = False

    async def setUp(self) -> None:
        self.server = await s3_server(self.tls)
        self.bucket = self.server.make_bucket()
        self.etag = self.server.put(self.bucket, "a", b"abc", **HEADERS)

    def require(self, check: Check) -> None:
        """Skip the test if this server does not perform ``check``."""
        if check not in self.server.checks:
            raise SkipTest(f"This S3 server does not check the {check}.")

    def assert_refused(self, response: S3Response, *codes: str) -> None:
        """Assert that a request was refused, with one of these codes if the response has any."""
        self.assertEqual(403, response.status)
        self.assertIn(response.code, ("AccessDenied", *codes))


class RoundTripTests(BucketCase):
    """Objects and uploads: writing, reading, listing and removal."""

    def test_headers(self) -> None:
        """GET and HEAD return an object with the headers that it was written with."""
        got, stat = self.server.get(self.bucket, "a"), self.server.stat(self.bucket, "a")
        self.assertEqual(b"abc", got.body)
        for response in (got, stat):
            self.assertEqual("3", response.headers["content-length"])
            self.assertEqual(self.etag, response.headers["etag"])
            self.assertEqual(HEADERS, {name: response.headers[name] for name in HEADERS})

    def test_keys(self) -> None:
        """Keys with special characters are listed as they were written, until they are removed."""
        keys = sorted([b"c/b c+d%20.mp3", "é/ü".encode(), b"x&y=z?#'\"<>;,~"])
        for key in keys:
            self.server.put(self.bucket, key, key)
        self.assertEqual([b"a", *keys], sorted(self.server.keys(self.bucket)))
        for key in keys:
            self.assertEqual(key, self.server.get(self.bucket, key).body)
            self.server.remove(self.bucket, key)
            self.assertIsNone(self.server.stat(self.bucket, key))
        self.assertEqual([b"a"], self.server.keys(self.bucket))

    def test_virtual_addressing(self) -> None:
        """A bucket is found by its host name, with signed headers and with a presigned URL."""
        url = self.server.presign(self.bucket, "a", virtual=True)
        self.assertIn(f"//{self.bucket}.{self.server.domain}:", url)
        self.assertEqual(b"abc", self.server.fetch(url).require_success().body)
        response = self.server.request("GET", self.bucket, "a", virtual=True)
        self.assertEqual(b"abc", response.require_success().body)

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

    def test_credentials(self) -> None:
        """Wrong secrets, unknown access keys and requests without a signature are refused."""
        guess, nobody = Identity(self.server.access_key, "x" * 40), Identity("x" * 20, "x" * 40)
        for method, identity, code in (
            ("GET", guess, "SignatureDoesNotMatch"),
            ("PUT", guess, "SignatureDoesNotMatch"),
            ("GET", nobody, "InvalidAccessKeyId"),
        ):
            response = self.server.request(method, self.bucket, "a", identity=identity)
            self.assert_refused(response, code)
        self.assert_refused(self.server.fetch(self.server.url(self.bucket, "a")))

    def test_url(self) -> None:
        """A presigned URL is valid only for its own object, method and lifetime."""
        self.server.put(self.bucket, "b", b"abc")
        url = self.server.presign(self.bucket, "a")
        self.assertEqual(b"abc", self.server.fetch(url).require_success().body)
        forged = url[:-1] + ("0" if url[-1] != "0" else "1")
        for other in (url.replace("/a?", "/b?"), url.replace("Expires=60", "Expires=61"), forged):
            self.assert_refused(self.server.fetch(other), "SignatureDoesNotMatch")
        for method in ("HEAD", "PUT", "DELETE"):
            self.assertEqual(403, self.server.fetch(url, method).status, method)
        old = self.server.presign(self.bucket, "a", seconds=20, age=11)
        self.server.fetch(old).require_success()
        self.assert_refused(
            self.server.fetch(self.server.presign(self.bucket, "a", seconds=10, age=11))
        )

    def test_wrong_digest(self) -> None:
        """A body that differs from the signed digest is not stored."""
        response = self.server.request("PUT", self.bucket, "c", body=b"abc", digest="0" * 64)
        self.assertEqual(400, response.status)
        self.assertIsNone(self.server.stat(self.bucket, "c"))

    def test_wrong_region(self) -> None:
        """A signature for another region is refused."""
        self.require("region")
        response = self.server.request("GET", self.bucket, "a", region="mars-north-1")
        self.assertIn(response.status, (400, 403))


class UserTests(BucketCase):
    """Users have exactly the rights that they were given."""

    def statuses(self, user: Identity) -> list[int]:
        """Return the statuses of reading, reading a missing object, writing and removing."""
        return [
            self.server.request(method, self.bucket, key, identity=user).status
            for method, key in (("GET", "a"), ("GET", "b"), ("PUT", "c"), ("DELETE", "a"))
        ]

    def test_permissions(self) -> None:
        """Each kind of rights permits exactly its own requests."""
        # Without the right to list, a user does not learn that an object is missing.
        missing = 403 if "right to list" in self.server.checks else 404
        for rights, expected in (
            ("get", [200, missing, 403, 403]),
            ("read", [200, 404, 403, 403]),
            ("write", [200, 404, 200, 403]),
            ("keep", [200, 404, 200, 204]),
            ("nothing", [403, 403, 403, 403]),
        ):
            user = self.server.add_user(rights)
            self.assertEqual(expected, self.statuses(user), rights)

    def test_temporary_credentials(self) -> None:
        """Temporary credentials have a user's rights, but only with their session token."""
        self.require("session token")
        lent = self.server.temporary_credentials(self.server.add_user("read"))
        self.assertEqual([200, 404, 403, 403], self.statuses(lent))
        url = self.server.presign(self.bucket, "a", identity=lent)
        self.assertEqual(b"abc", self.server.fetch(url).require_success().body)
        for token in (None, lent.session_token[:-9] + "x" * 9):
            forged = Identity(lent.access_key, lent.secret_key, token)
            self.assertEqual([403] * 4, self.statuses(forged))


class OutageTests(BucketCase):
    """Stop and restart of the server."""

    async def test_outage(self) -> None:
        """A stopped server frees its port; a restart keeps the port, the data and the users."""
        reader, port = self.server.add_user("read"), self.server.port
        started = self.server.request("POST", self.bucket, "b", "uploads=").require_success()
        await self.server.stop()
        self.assertRaises(ConnectionRefusedError, self.server.get, self.bucket, "a")
        await self.server.start()
        self.assertEqual(port, self.server.port)
        response = self.server.request("GET", self.bucket, "a", identity=reader).require_success()
        self.assertEqual((b"abc", "audio/mpeg"), (response.body, response.headers["content-type"]))
        self.assertEqual([(b"b", *started.texts("UploadId"))], self.server.uploads(self.bucket))

    async def test_one_for_all(self) -> None:
        """All tests of a process share one server, which is not counted as a leftover child."""
        self.assertIs(self.server, await s3_server())
        self.assertEqual([], children())


class TLSTests(BucketCase):
    """Server with TLS and a certificate of a private authority."""

    tls = True

    def test_trust(self) -> None:
        """Clients that trust the authority accept the address and buckets' host names alone."""
        for virtual in (False, True):
            url = self.server.presign(self.bucket, "a", virtual=virtual)
            self.assertTrue(url.startswith("https://"))
            self.assertEqual(b"abc", self.server.fetch(url).require_success().body)
        url = self.server.presign(self.bucket, "a")
        another = url.replace("127.0.0.1", "another.test")
        self.assertRaises(ssl.SSLCertVerificationError, self.server.fetch, another)
        self.patch(self.server, "ca_bundle", ssl.get_default_verify_paths().cafile)
        self.assertRaises(ssl.SSLCertVerificationError, self.server.fetch, url)
