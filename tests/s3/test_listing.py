"""Listings of a bucket: pages, encodings, and responses that are no listing."""

from __future__ import annotations

from urllib.parse import parse_qs, urlsplit

from audioproxy.config import S3Config
from audioproxy.s3.errors import Denied, Unavailable
from audioproxy.s3.listing import ListedObject, ListedUpload, list_page, list_uploads
from audioproxy.s3.objects import ObjectStore
from tests.support.wire import RetryCase, error, is_signed, reply

SECRET = "a-secret"
SETTINGS = S3Config("http://s3.test", "path", None, "AKIA", SECRET, None, "us-east-1")

PAGE = """<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>bucket</Name>
<EncodingType>url</EncodingType><IsTruncated>true</IsTruncated><KeyCount>2</KeyCount>
<Contents><Key>a%2Bb%2561+</Key><LastModified>2026-11-21T12:00:00.500Z</LastModified>
<ETag>&quot;abc&quot;</ETag><Size>5</Size><Owner><ID>x</ID></Owner></Contents>
<CommonPrefixes><Prefix>ab/</Prefix></CommonPrefixes>
<NextContinuationToken>t+/=</NextContinuationToken></ListBucketResult>"""
LAST = "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"


class ListPageTests(RetryCase):
    """`list_page`"""

    def setUp(self) -> None:
        super().setUp()
        self.store = ObjectStore(SETTINGS, self.client)

    def page(
        self, *responses: bytes, token: str | None = None
    ) -> tuple[list[ListedObject], str | None]:
        """Return the page in a response."""
        self.network.scripts[:] = responses
        return self.result_of(list_page(self.store, "bucket", "a", token))

    def test_pages(self) -> None:
        """Keys are decoded where the store says so; each page leads to the next one.

        A store that is busy is asked once more. Folders are not listed.
        """
        found, token = self.page(reply(503), reply(200, PAGE.encode()))
        # The plus sign stands for itself in some stores, and for a space in others.
        self.assertEqual([ListedObject("a+b%61+", 5, 1_795_262_400.5)], found)
        plain = PAGE.replace("<EncodingType>url</EncodingType>", "")
        self.assertEqual("a%2Bb%2561+", self.page(reply(200, plain.encode()))[0][0].key)
        self.assertEqual(([], None), self.page(reply(200, LAST.encode()), token=token))
        request = self.network.requests[-1]
        self.assertTrue(is_signed(request, SECRET))
        url = urlsplit(request.target)
        self.assertEqual("/bucket/", url.path)
        expected = {"list-type": "2", "encoding-type": "url", "delimiter": "/", "prefix": "a"}
        expected |= {"continuation-token": "t+/=", "max-keys": "1000"}
        self.assertEqual({name: [text] for name, text in expected.items()}, parse_qs(url.query))

    def test_uploads(self) -> None:
        """Unfinished uploads are listed with their keys and queries."""
        row = "<Key>a%61</Key><UploadId>i/d</UploadId><Initiated>2026-11-21T12:00:00Z</Initiated>"
        head = "<EncodingType>url</EncodingType><IsTruncated>false</IsTruncated>"
        work = list_uploads(self.store, "bucket", "a b")
        root = "ListMultipartUploadsResult"
        document = f"<{root}>{head}<Upload>{row}</Upload></{root}>"
        self.network.scripts[:] = [reply(200, document.encode())]
        expected = ListedUpload("aa", "uploadId=i%2Fd", 1_795_262_400.0)
        self.assertEqual([expected], self.result_of(work))
        request = self.network.requests[-1]
        self.assertTrue(is_signed(request, SECRET))
        self.assertEqual("/bucket/?encoding-type=url&prefix=a%20b&uploads=", request.target)
        # The second is of a store that overlooks `uploads`.
        for response in (document.replace("UploadId", "Id"), LAST):
            self.network.scripts[:] = [reply(200, response.encode())]
            self.error_of(list_uploads(self.store, "bucket", ""), Unavailable)

    def test_refused(self) -> None:
        """An error, and anything that is no listing, ends the command: nothing is left out."""
        bomb = '<!DOCTYPE x [<!ENTITY a "aaaa">]>' + LAST.replace("false", "&a;")
        for document in (
            "",
            "<html>",
            LAST.replace("ListBucketResult", "html"),
            PAGE[:-9],
            bomb,
            LAST.replace("IsTruncated", "Truncated"),
            *(PAGE.replace(old, "") for old in ("<Size>5</Size>", "2026-11-21")),
        ):
            work = list_page(self.store, "bucket", "a", None)
            self.network.scripts[:] = [reply(200, document.encode())]
            raised = self.failureResultOf(self.begin(work)).value
            self.assertIsInstance(raised, Unavailable)
        # As ListObjects sends it, without a version.
        old = PAGE.replace("NextContinuationToken", "NextMarker")
        self.network.scripts[:] = [reply(200, old.encode())]
        found = self.error_of(list_page(self.store, "bucket", "a", None), Unavailable)
        self.assertIn("as ListObjectsV2 has", str(found))
        for response, kind in (
            (reply(403, error("AccessDenied")), Denied),
            (reply(200, error("InternalError")), Unavailable),
            (reply(200, PAGE.replace("t+/=", "same").encode()), Unavailable),
        ):
            self.network.scripts[:] = [response]
            self.error_of(list_page(self.store, "bucket", "a", "same"), kind)
