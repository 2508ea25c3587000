"""The tests' S3 servers refuse what the tests of the service rely on."""

from __future__ import annotations

from twisted.trial.unittest import SkipTest, TestCase

from tests.support.buckets import s3_server
from tests.support.service import TEST_PATIENCE


class BucketTests(TestCase):
    """Requests to a bucket."""

    timeout = TEST_PATIENCE

    async def setUp(self) -> None:
        self.server = await s3_server()
        if self.server.fails:
            raise SkipTest("This S3 server is known to be less strict.")
        self.bucket = self.server.make_bucket()

    def test_uploads(self) -> None:
        """A multipart upload is listed until it is aborted."""
        key = "a/b c+d%20é"
        started = self.server.request("POST", self.bucket, key, "uploads=").require_success()
        (upload,) = started.texts("UploadId")
        self.assertEqual([(key.encode(), upload)], self.server.uploads(self.bucket))
        self.server.request("DELETE", self.bucket, key, f"uploadId={upload}").require_success()
        self.assertEqual([], self.server.uploads(self.bucket))

    def test_refused(self) -> None:
        """Unsigned requests, and bodies that differ from the signed digest, are refused."""
        self.server.put(self.bucket, "a", b"abc")
        unsigned = self.server.fetch(self.server.url(self.bucket, "a"))
        wrong = {"x-amz-content-sha256": "0" * 64}
        other_body = self.server.request("PUT", self.bucket, "c", body=b"abc", headers=wrong)
        self.assertIn(unsigned.status, (400, 403))
        self.assertEqual(400, other_body.status)
        self.assertEqual([b"a"], self.server.keys(self.bucket))
