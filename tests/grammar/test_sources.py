"""The source forms, the canonical string of each, and the refusals."""

from __future__ import annotations

import base64

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.errors import NotFound
from audioproxy.grammar.sources import (
    HttpsSource,
    LocalSource,
    S3Source,
    Source,
    leaves_root,
    log_name,
    parse_https,
    read_source,
)
from tests.support.strategies import DETERMINISTIC, encoded, escaped, junk, sources


def host_of(length: int) -> bytes:
    """Return a host name of ``length`` bytes, in labels of at most 63."""
    full, rest = divmod(length, 64)
    return b".".join([b"h" * 63] * full + ([b"h" * rest] if rest else []))


class SourceCase(SynchronousTestCase):
    """Test case that parses each source in both forms, plain and enc."""

    def read(self, source: bytes) -> Source:
        """Parse a source string in both forms, assert that the results agree, and return one."""
        plain = read_source(b"plain", source.replace(b"%", b"%25"))
        self.assertEqual(read_source(b"enc", encoded(source)), plain, source)
        return plain

    def assert_not_found(self, form: bytes, raw: bytes) -> NotFound:
        """Assert that a raw source is refused with the default message, and return the refusal."""
        error = self.assertRaises(NotFound, read_source, form, raw)
        self.assertEqual(error.message, NotFound.default_message, raw)
        self.assertTrue(error.reason, raw)
        return error

    def assert_refused(self, source: bytes, word: str) -> None:
        """Assert that a source string is refused in both forms, for the given reason."""
        for form, raw in (
            (b"plain", source.replace(b"%", b"%25")),
            (b"enc", encoded(source)),
        ):
            self.assertIn(word, self.assert_not_found(form, raw).reason, source)


class LocalTests(SourceCase):
    """``local://``"""

    def test_leaving_the_root(self) -> None:
        """A path that leaves its root at any point is refused (Local source confinement)."""
        for path in (b"..", b"a/../..", b"../a", b"./../a/..", b"a//../../b"):
            self.assertTrue(leaves_root(path), path)
            self.assert_refused(b"local://" + path, "leaves the root")
        for path in (b"a", b"a/..", b"a/../b", b"./a", b"a/b/../../c", b"...", b"..a"):
            self.assertFalse(leaves_root(path), path)

    def test_canonical(self) -> None:
        """A canonical local source is ``local://<path>`` (Canonical source string, 1).

        The path is relative to the root.
        """
        source = read_source(b"plain", b"local://albums/one/a.mp3")
        self.assertEqual(source, LocalSource(b"albums/one/a.mp3"))
        self.assertEqual(source.canonical, b"local://albums/one/a.mp3")

    def test_escaped(self) -> None:
        """The path is percent-decoded, and bytes that are not UTF-8 are kept (D15)."""
        for raw, path in (
            (b"local://a%20b.mp3", b"a b.mp3"),
            (b"local%3A%2F%2Fa%2Fb", b"a/b"),
            (b"local://%ff%FE", b"\xff\xfe"),
            (b"local://\xff\xfe", b"\xff\xfe"),
            (b"local://caf%C3%A9", b"caf\xc3\xa9"),
            (b"local://a%0Ab", b"a\nb"),
            (b"local://a%23b%3Fc", b"a#b?c"),
            (b"local://a+b", b"a+b"),
        ):
            source = read_source(b"plain", raw)
            self.assertEqual(source, LocalSource(path), raw)
            self.assertEqual(source.canonical, b"local://" + path, raw)

    def test_decoded_once(self) -> None:
        """An escape that is left after decoding is part of the name (D15)."""
        for raw, path in (
            (b"local://%252e%252e/a", b"%2e%2e/a"),
            (b"local://a%2500", b"a%00"),
            (b"local://%25252e", b"%252e"),
        ):
            self.assertEqual(read_source(b"plain", raw), LocalSource(path), raw)

    def test_not_normalized(self) -> None:
        """Dots, slashes and letter case are never rewritten (Local source confinement, 2)."""
        for path in (b"a/../b", b".", b"./a", b"a//b", b"a/", b"A.MP3"):
            source = self.read(b"local://" + path)
            self.assertEqual(source.canonical, b"local://" + path)

    def test_bounds(self) -> None:
        """A path has at most 64 components and 1024 bytes (Source bounds)."""
        for path in (
            b"a",
            b"a" * 1024,
            b"/".join([b"a"] * 64),
            b"/".join([b"a" * 15] * 63 + [b"a" * 16]),
            b"\xff" * 1024,
        ):
            self.assertEqual(self.read(b"local://" + path), LocalSource(path))
        for path in (b"a" * 1025, b"/".join([b"a"] * 65), b"a/" * 64, b"\xff" * 1025):
            self.assert_refused(b"local://" + path, "64 components and 1024 bytes")

    def test_bounds_of_decoded_path(self) -> None:
        """The bounds apply to the decoded path (Source bounds; D15)."""
        self.assertEqual(
            read_source(b"plain", b"local://" + b"%61" * 1024), LocalSource(b"a" * 1024)
        )
        self.assert_not_found(b"plain", b"local://a" + b"%2f" * 64)

    def test_refused(self) -> None:
        """An empty or absolute path, or a NUL, is refused (Local source confinement, 2; D16)."""
        for path in (b"", b"/", b"/etc/passwd", b"//a", b"a\0b", b"\0", b"a\0"):
            self.assert_refused(b"local://" + path, "relative, not empty")
        self.assert_not_found(b"plain", b"local://%2Fetc/passwd")
        self.assert_not_found(b"plain", b"local://a%00.mp3")


class S3Tests(SourceCase):
    """``s3://``"""

    def test_canonical(self) -> None:
        """An S3 source is a bucket and a percent-decoded, unnormalized key (Source forms)."""
        for raw, bucket, key in (
            (b"s3://bucket/a/b.mp3", "bucket", b"a/b.mp3"),
            (b"s3://bucket/a%20b", "bucket", b"a b"),
            (b"s3://bucket/%ff%00", "bucket", b"\xff\0"),
            (b"s3://bucket/%252e", "bucket", b"%2e"),
            (b"s3://bucket//a//b/", "bucket", b"/a//b/"),
            (b"s3://bucket/../a", "bucket", b"../a"),
            (b"s3://bucket/a?b#c", "bucket", b"a?b#c"),
            (b"s3%3a%2f%2fbucket%2fkey", "bucket", b"key"),
            (b"s3://my.Bucket_1-x/k", "my.Bucket_1-x", b"k"),
        ):
            source = read_source(b"plain", raw)
            self.assertEqual(source, S3Source(bucket, key), raw)
            self.assertEqual(source.canonical, b"s3://" + bucket.encode() + b"/" + key, raw)

    def test_case(self) -> None:
        """Buckets and keys are case-sensitive (Source allowlist)."""
        self.assertNotEqual(self.read(b"s3://Bucket/k"), self.read(b"s3://bucket/k"))
        self.assertNotEqual(self.read(b"s3://bucket/K"), self.read(b"s3://bucket/k"))

    def test_bounds(self) -> None:
        """A bucket has 1 to 63 bytes and a key 1 to 1024 (Source bounds)."""
        for bucket, key in ((b"b", b"k"), (b"b" * 63, b"k"), (b"b", b"\xff" * 1024)):
            source = self.read(b"s3://" + bucket + b"/" + key)
            self.assertEqual(source, S3Source(bucket.decode(), key))
        self.assert_refused(b"s3://" + b"b" * 64 + b"/k", "bucket")
        self.assert_refused(b"s3://b/" + b"k" * 1025, "1 to 1024 bytes")
        self.assertEqual(
            read_source(b"plain", b"s3://b/" + b"%6b" * 1024), S3Source("b", b"k" * 1024)
        )

    def test_both_required(self) -> None:
        """Bucket and key are both required (Source forms; D16)."""
        for source, word in (
            (b"s3://", "bucket"),
            (b"s3:///", "bucket"),
            (b"s3:///key", "bucket"),
            (b"s3://bucket", "key"),
            (b"s3://bucket/", "key"),
        ):
            self.assert_refused(source, word)

    def test_bucket_names(self) -> None:
        """Ports, credentials and invalid characters in a bucket are refused (D16)."""
        for bucket in (
            *(b"a:80", b"u:p@b", b"a b", b".b", b"-b", b"_b", b"b%41", b"b\n", b"b\0", b"b\\c"),
            *(b"b\xff", b"caf\xc3\xa9", b"b?", b"b*"),
        ):
            self.assert_refused(b"s3://" + bucket + b"/key", "bucket")


class HttpsTests(SourceCase):
    """``https://``"""

    def test_normalized(self) -> None:
        """Equivalent spellings of a URL give one source (Canonical source string, 2)."""
        for source, url in (
            # Letter case of scheme and host.
            (b"https://example.com/a", "https://example.com/a"),
            (b"HTTPS://EXAMPLE.COM/a", "https://example.com/a"),
            (b"hTTps://eXample.Com/a", "https://example.com/a"),
            # A trailing root dot.
            (b"https://example.com./a", "https://example.com/a"),
            (b"https://example.com.:443/a", "https://example.com/a"),
            (b"https://127.0.0.1./a", "https://127.0.0.1/a"),
            # The explicit default port.
            (b"https://example.com:443/a", "https://example.com/a"),
            (b"https://example.com:0443/a", "https://example.com/a"),
            (b"https://example.com:/a", "https://example.com/a"),
            (b"https://[::1]:443/a", "https://[::1]/a"),
            # An absent path.
            (b"https://example.com", "https://example.com/"),
            (b"https://example.com:443", "https://example.com/"),
            (b"https://example.com?q", "https://example.com/?q"),
            # An empty query, and any fragment.
            (b"https://example.com/a?", "https://example.com/a"),
            (b"https://example.com?", "https://example.com/"),
            (b"https://example.com/a#", "https://example.com/a"),
            (b"https://example.com/a#top", "https://example.com/a"),
            (b"https://example.com/a?#top", "https://example.com/a"),
            (b"https://example.com#a?b", "https://example.com/"),
            (b"https://example.com/a?q#b#c?d", "https://example.com/a?q"),
            # The spelling of an IP literal.
            (b"https://[0:0:0:0:0:0:0:1]/a", "https://[::1]/a"),
            (b"https://[0000:0000:0000:0000:0000:0000:0000:0001]/a", "https://[::1]/a"),
            (b"https://[2001:DB8::00ff]/a", "https://[2001:db8::ff]/a"),
            (b"https://[2001:db8:0:0:1:0:0:1]/a", "https://[2001:db8::1:0:0:1]/a"),
            (b"https://[::ffff:192.0.2.1]/a", "https://[::ffff:c000:201]/a"),
            (b"https://[::FFFF:C000:0201]/a", "https://[::ffff:c000:201]/a"),
            (b"https://[::ffff:0.0.0.0]/a", "https://[::ffff:0:0]/a"),
            (b"https://[64:ff9b::192.0.2.1]/a", "https://[64:ff9b::c000:201]/a"),
            (b"https://[::]/a", "https://[::]/a"),
            # All of the above at once.
            (b"HTTPS://Example.COM.:443?#x", "https://example.com/"),
        ):
            normalized = self.read(source)
            assert isinstance(normalized, HttpsSource)
            self.assertEqual(normalized.url, url, source)
            self.assertEqual(normalized.canonical, url.encode("ascii"), source)

    def test_not_normalized(self) -> None:
        """Parts that only the origin interprets are kept (Canonical source string, 2 and 3)."""
        for url in (
            # The URL's own percent-encoding.
            "https://example.com/%61",
            "https://example.com/a%2Fb",
            "https://example.com/a%2fb",
            "https://example.com/%2e%2e/a",
            "https://example.com/%252e",
            "https://example.com/%zz",
            "https://example.com/a?q=%41",
            # Dot segments and slashes.
            "https://example.com/a/../b",
            "https://example.com/./a",
            "https://example.com/..",
            "https://example.com//a",
            "https://example.com/a/",
            # Letter case after the host.
            "https://example.com/A?B=C",
            # Unusual queries.
            "https://example.com/?a=1&a=1",
            "https://example.com/?b&a",
            "https://example.com/a??",
            "https://example.com/a?/b",
            # Other ports.
            "https://example.com:444/a",
            "https://example.com:80/a",
            # IPv4 addresses in any spelling.
            "https://127.0.0.01/a",
            "https://010.0.0.1/a",
            "https://0x7f.0.0.1/a",
            "https://2130706433/a",
            "https://127.1/a",
            "https://127.0.0.1/a",
            # The www subdomain.
            "https://www.example.com/a",
        ):
            self.assertEqual(self.read(url.encode()).canonical, url.encode(), url)

    def test_leading_zeros_in_ipv4(self) -> None:
        """An IPv4 address with leading zeros is another host (Canonical source string, 2)."""
        self.assertNotEqual(self.read(b"https://127.0.0.01/"), self.read(b"https://127.0.0.1/"))

    def test_ports(self) -> None:
        """A port other than 443 is kept, in its shortest spelling (Canonical source string, 2).

        Ports outside 1 to 65535, malformed ports, and ports of more than 5 digits are refused.
        """
        for source, url in (
            (b"https://h:1/", "https://h:1/"),
            (b"https://h:65535/", "https://h:65535/"),
            (b"https://h:08443/", "https://h:8443/"),
            (b"https://[::1]:8443", "https://[::1]:8443/"),
        ):
            self.assertEqual(self.read(source).canonical, url.encode(), source)
        for port in (b"0", b"00000", b"65536", b"99999"):
            self.assert_refused(b"https://h:" + port + b"/", "port")
        for port in (b"000443", b"100000", b"-1", b"+1", b"x", b"4 4", b"443:443"):
            self.assert_refused(b"https://h:" + port + b"/", "")

    def test_host(self) -> None:
        """`host` has no brackets, port or root dot (Source allowlist)."""
        for source, host in (
            (b"https://Example.COM.:8443/a", "example.com"),
            (b"https://[0:0::1]:8443/a", "::1"),
            (b"https://127.0.0.1:8443/a", "127.0.0.1"),
            (b"https://my_host-1/a", "my_host-1"),
        ):
            normalized = self.read(source)
            assert isinstance(normalized, HttpsSource)
            self.assertEqual(normalized.host, host, source)

    def test_escaped_once(self) -> None:
        """A URL in the plain form is percent-decoded exactly once (Source forms; D15)."""
        for raw, url in (
            (b"https%3A%2F%2Fexample.com%2Fa%3Fq%3D1", b"https://example.com/a?q=1"),
            (b"https://example.com/%252e", b"https://example.com/%2e"),
            (b"https://example.com/a%2520b", b"https://example.com/a%20b"),
            (b"https://ex%61mple.com/%41", b"https://example.com/A"),
            (b"https://example.com/a%23b", b"https://example.com/a"),
        ):
            self.assertEqual(read_source(b"plain", raw).canonical, url, raw)

    def test_url_bound(self) -> None:
        """A whole URL has at most 2048 bytes, its fragment included (Source bounds)."""
        start = b"https://example.com/"
        for rest in (b"a" * 2028, b"?" + b"a" * 2027, b"#" + b"a" * 2027):
            self.assertEqual(len(start + rest), 2048)
            self.read(start + rest)
            self.assert_refused(start + rest + b"a", "2048 bytes")
        self.assertEqual(
            read_source(b"plain", start + b"%61" * 2028).canonical, start + b"a" * 2028
        )

    def test_host_bound(self) -> None:
        """A host has at most 253 bytes, in labels of 1 to 63 (Source bounds)."""
        longest = host_of(253)
        self.assertEqual(len(longest), 253)
        for host in (longest, longest + b".", b"h" * 63, b"h"):
            self.read(b"https://" + host + b"/")
        too_long = host_of(254)
        self.assertEqual(len(too_long), 254)
        for host in (too_long, too_long + b".", b"h" * 64, b"a." + b"h" * 64):
            self.assert_refused(b"https://" + host + b"/", "at most 253 bytes")

    def test_empty_labels(self) -> None:
        """An empty host and an empty label are refused (D16)."""
        for host in (b".", b"..", b"a..b", b".a", b"a.."):
            self.assert_refused(b"https://" + host + b"/", "labels of 1 to 63")
        for source in (b"https://", b"https:///a", b"https://?q", b"https://#f", b"https://:443/"):
            self.assert_refused(source, "plain host")

    def test_userinfo(self) -> None:
        """User information is a syntax error (Canonical source string, 4; D16)."""
        for authority in (
            *(b"user:pass@h", b"user@h", b"@h", b":@h", b"u:p@h:443", b"h@", b"a@b@h"),
            *(b"user%40h@h", b"u@[::1]", b"h:443@evil"),
        ):
            self.assert_refused(b"https://" + authority + b"/a", "user information")
        self.assert_not_found(b"plain", b"https://user%40h/a")
        self.assertEqual(self.read(b"https://h/u:p@x").canonical, b"https://h/u:p@x")
        self.assertEqual(self.read(b"https://h?u@x").canonical, b"https://h/?u@x")

    def test_invalid_hosts(self) -> None:
        """A host with an escape, backslash, zone or broken address is refused (D16)."""
        for host in (
            *(b"a%41", b"a\\b", b"h\\@evil", b"a,b", b"a;b", b"*", b"[", b"]", b"[]", b"a[::1]"),
            *(b"[::1", b"::1", b"[::1]x", b"[fe80::1%25eth0]", b"[fe80::1%eth0]", b"[v1.x]"),
            *(b"[::1]]", b"[[::1]]"),
        ):
            self.assert_refused(b"https://" + host + b"/", "plain host")
        for host in (
            *(b"[:]", b"[.]", b"[1.2.3.4]", b"[::1.2.3.04]", b"[::00001]", b"[1::2::3]", b"[:::]"),
            *(b"[1:2:3:4:5:6:7]", b"[1:2:3:4:5:6:7:8:9]", b"[::1.2.3.256]"),
        ):
            self.assert_refused(b"https://" + host + b"/", "")

    def test_printable(self) -> None:
        """A URL with characters other than printable ASCII is refused (D16)."""
        for byte in (0x00, 0x09, 0x0A, 0x0D, 0x1F, 0x20, 0x7F, 0x80, 0xC3, 0xFF):
            for source in (b"https://h/a%sb", b"https://h%s/", b"https://h/?%s", b"https://h/#%s"):
                self.assert_refused(source % bytes([byte]), "printable ASCII")
        self.assertEqual(self.read(b"https://h/!~").canonical, b"https://h/!~")

    def test_trailing_newline(self) -> None:
        """A line feed at the end of a URL is refused (D16)."""
        for source in (b"https://h\n", b"https://h:443\n", b"https://h/\n", b"https://h/?q\n"):
            self.assert_refused(source, "printable ASCII")


class RedirectTests(SynchronousTestCase):
    """`parse_https` for the targets of redirects"""

    def test_as_a_source(self) -> None:
        """The target of a redirect is normalized like the URL of a source."""
        self.assertEqual(
            parse_https(b"HTTPS://A.test.:443/x%2Fy%20z?q#f"),
            HttpsSource("https://a.test/x%2Fy%20z?q", "a.test"),
        )

    def test_other_schemes(self) -> None:
        """`parse_https` refuses other schemes and URLs without a scheme (Source allowlist)."""
        for url in (b"http://a.test/", b"file:///etc/passwd", b"ftp://a", b"//a.test/", b"/x", b""):
            self.assertRaises(ValueError, parse_https, url)

    def test_bounds(self) -> None:
        """User information, no host, port 0, bytes outside ASCII and excess length are refused."""
        for url in (b"https://u:p@a.test/", b"https:///x", b"https://a:0/", b"https://a/\xff"):
            self.assertRaises(ValueError, parse_https, url)
        self.assertRaises(ValueError, parse_https, b"https://a/" + b"x" * 8192)


class SchemeTests(SourceCase):
    """The schemes of sources"""

    def test_other_schemes(self) -> None:
        """Schemes other than local, s3 and https are refused (Canonical source string, 4)."""
        for source in (
            *(b"http://example.com/a", b"HTTP://example.com/a", b"ftp://h/a", b"file:///a"),
            *(b"concat://a", b"data://x", b"httpsx://h/", b"shttps://h/", b"s3a://b/k", b"x://"),
            *(b"gs://b/k", b"https+unix://h/"),
        ):
            self.assert_refused(source, "local://, s3:// or https://")

    def test_no_scheme(self) -> None:
        """A source that does not start with a scheme is refused (Source forms; D16)."""
        for source in (
            *(b"", b"a.mp3", b"/a.mp3", b"://a", b"local:a", b"local:/a", b"s3:/b/k", b"https:h"),
            *(b"https:/h/a", b" https://h/", b"\nlocal://a", b"local\n://a", b"1s3://b/k"),
            *(b"local:///a"[0:6], b"\xff://a"),
        ):
            self.assert_refused(source, "local://, s3:// or https://")

    def test_letter_case(self) -> None:
        """Only an https source has a case-insensitive scheme (Canonical source string, 2)."""
        for source in (b"LOCAL://a", b"Local://a", b"S3://b/k"):
            self.assert_refused(source, "local://, s3:// or https://")

    def test_same_path_other_scheme(self) -> None:
        """Sources of different schemes never share a canonical string (Design rules, 2)."""
        sources = (b"local://h/a", b"s3://h/a", b"https://h/a")
        self.assertEqual(len({self.read(source).canonical for source in sources}), 3)


class EncodedTests(SourceCase):
    """``enc/``"""

    def test_spellings(self) -> None:
        """base64url is accepted unpadded and correctly padded (D15)."""
        for source, unpadded, padding in (
            (b"local://a", b"bG9jYWw6Ly9h", b""),
            (b"local://ab", b"bG9jYWw6Ly9hYg", b"=="),
            (b"local://abc", b"bG9jYWw6Ly9hYmM", b"="),
        ):
            self.assertEqual(read_source(b"enc", unpadded).canonical, source)
            self.assertEqual(read_source(b"enc", unpadded + padding).canonical, source)

    def test_wrong_padding(self) -> None:
        """Too little and too much padding are refused (D15)."""
        for raw in (
            *(b"bG9jYWw6Ly9h=", b"bG9jYWw6Ly9h==", b"bG9jYWw6Ly9h===", b"bG9jYWw6Ly9h===="),
            *(b"bG9jYWw6Ly9hYg=", b"bG9jYWw6Ly9hYg===", b"bG9jYWw6Ly9hYmM=="),
            *(b"=bG9jYWw6Ly9h", b"bG9jYW==w6Ly9h", b"=", b"=="),
        ):
            self.assertIn("base64url", self.assert_not_found(b"enc", raw).reason, raw)

    def test_final_character(self) -> None:
        """Only the canonical last character is accepted, even if others decode alike (D15)."""
        for start, alike, accepted in (
            (b"bG9jYWw6Ly9hY", b"ghijklmnopqrstuv", b"g"),
            (b"bG9jYWw6Ly9hYm", b"MNOP", b"M"),
        ):
            for last in alike:
                raw = start + bytes([last])
                padded = raw + b"=" * (-len(raw) % 4)
                for each in (raw, padded):
                    if bytes([last]) == accepted:
                        self.assertEqual(read_source(b"enc", each), read_source(b"enc", raw))
                    else:
                        self.assertIn("canonical", self.assert_not_found(b"enc", each).reason, each)

    def test_alphabet(self) -> None:
        """The base64url alphabet is accepted, and the standard alphabet is not (D15)."""
        source = b"local://\xfb\xff\xfe~~?>>"
        raw = encoded(source)
        self.assertIn(b"-", raw)
        self.assertIn(b"_", raw)
        self.assertEqual(read_source(b"enc", raw).canonical, source)
        for other in (
            raw.replace(b"-", b"+"),
            raw.replace(b"_", b"/"),
            base64.b64encode(source),
        ):
            self.assertIn("base64url", self.assert_not_found(b"enc", other).reason, other)

    def test_not_base64url(self) -> None:
        """Bytes that are not base64url are refused (D15, D16)."""
        good = b"bG9jYWw6Ly9h"
        for raw in (
            *(good + b"\n", good + b" ", b" " + good, good[:6] + b"\n" + good[6:], good + b"A"),
            *(
                good + b"%3D",
                good + b"/",
                b"/" + good,
                good + b"/" + good,
                good + b"?",
                good + b".",
            ),
            *(b"local://a", b"bG9jYWw6Ly9hYg%3D%3D", b"\xff\xff\xff\xff", b"A", b"AAAAA"),
        ):
            self.assertIn("base64url", self.assert_not_found(b"enc", raw).reason, raw)

    def test_empty(self) -> None:
        """An empty source is refused in both forms (D16)."""
        self.assert_not_found(b"enc", b"")
        self.assert_not_found(b"plain", b"")

    def test_not_decoded_again(self) -> None:
        """The decoded base64url is not percent-decoded (D15)."""
        for source in (b"local://%2e%2e/a", b"local://a%20b", b"s3://b/%ff", b"https://h/%2e"):
            self.assertEqual(read_source(b"enc", encoded(source)).canonical, source)
        self.assertEqual(read_source(b"enc", encoded(b"local://100%")).canonical, b"local://100%")


class PlainTests(SourceCase):
    """``plain/``"""

    def test_broken_escape(self) -> None:
        """A percent sign without two hexadecimal digits is refused (D16)."""
        for raw in (b"local://100%", b"local://%", b"local://%2", b"local://%zz", b"s3://b/%k"):
            self.assertIn("hexadecimal", self.assert_not_found(b"plain", raw).reason, raw)

    def test_uniform_refusals(self) -> None:
        """All refusals are the same 404, which reveals nothing (D16; Errors, 7)."""
        for raw in (b"http://h/", b"https://u@h/", b"s3://b", b"local:///a", b"local://%", b"x"):
            error = self.assert_not_found(b"plain", raw)
            self.assertEqual(error.status, 404)
            self.assertEqual(error.code, "not_found")
            self.assertEqual(error.message, NotFound.default_message)


class SourceProperties(SourceCase):
    """Properties of every source"""

    @DETERMINISTIC
    @given(source=sources(), data=st.data())
    def test_one_canonical_string(self, source: bytes, data: st.DataObject) -> None:
        """The plain and enc forms of a source give the same source (Source forms; D15)."""
        spelled = encoded(source)
        padded = spelled + b"=" * (-len(spelled) % 4)
        first = read_source(b"plain", data.draw(escaped(source)))
        self.assertEqual(read_source(b"enc", spelled), first)
        self.assertEqual(read_source(b"enc", padded), first)
        self.assertEqual(read_source(b"enc", encoded(first.canonical)), first)

    @DETERMINISTIC
    @given(form=st.sampled_from((b"plain", b"enc")), raw=junk())
    def test_any_bytes(self, form: bytes, raw: bytes) -> None:
        """Any bytes are parsed as a source or refused with a 404 (D13, D16)."""
        for each in (raw, *(encoded(scheme + raw) for scheme in (b"", b"s3://b", b"https://"))):
            try:
                source = read_source(form, each)
            except NotFound:
                continue
            self.assertEqual(read_source(b"enc", encoded(source.canonical)), source)

    @DETERMINISTIC
    @given(
        rest=junk(), scheme=st.sampled_from((b"local://", b"s3://b/", b"https://h", b"https://"))
    )
    def test_any_bytes_behind_a_scheme(self, rest: bytes, scheme: bytes) -> None:
        """In both forms, any bytes after a scheme give the same source or 404 (D15, D16)."""
        source = scheme + rest
        outcomes = []
        for form, raw in (
            (b"plain", source.replace(b"%", b"%25")),
            (b"enc", encoded(source)),
        ):
            try:
                outcomes.append(read_source(form, raw).canonical)
            except NotFound as error:
                outcomes.append(error.reason.encode())
        self.assertEqual(outcomes[0], outcomes[1])


class LogNameTests(SynchronousTestCase):
    """`log_name`"""

    def test_https(self) -> None:
        """A digest replaces a query; the rest of the address is logged as it is (D47)."""
        # The digest is the start of the output of `printf 'a=b?c' | sha256sum`.
        for url, shown in (
            (b"https://h/a%20b", "https://h/a%20b"),
            (b"https://h/a?a=b?c", "https://h/a?d7905a7a"),
        ):
            self.assertEqual(log_name(read_source(b"enc", encoded(url)).canonical), shown)

    @DETERMINISTIC
    @given(source=sources(), other=sources())
    def test_distinct_names(self, source: bytes, other: bytes) -> None:
        """A log name is one word of visible ASCII, and is different for each source (D28)."""
        one, two = (read_source(b"enc", encoded(each)).canonical for each in (source, other))
        self.assertRegex(log_name(one), r"\A[!-~]+\Z")
        self.assertEqual(one == two, log_name(one) == log_name(two))
