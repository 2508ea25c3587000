"""The source forms, the canonical string of each, and the refusals."""

from __future__ import annotations

import contextlib

from hypothesis import given, settings
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
    parse_source,
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

    def assert_raw_refused(self, form: bytes, word: str, *raw_sources: bytes) -> None:
        """Assert that raw sources are a 404 with the default message, for the given reason."""
        for raw in raw_sources:
            error = self.assertRaises(NotFound, read_source, form, raw)
            self.assertEqual((error.status, error.code), (404, "not_found"))
            self.assertEqual(error.message, NotFound.default_message, raw)
            self.assertTrue(error.reason, raw)
            self.assertIn(word, error.reason, raw)

    def assert_refused(self, word: str, *refused: bytes) -> None:
        """Assert that source strings are refused in both forms, for the given reason."""
        for source in refused:
            self.assert_raw_refused(b"plain", word, source.replace(b"%", b"%25"))
            self.assert_raw_refused(b"enc", word, encoded(source))


class LocalTests(SourceCase):
    """``local://``"""

    def test_leaving_the_root(self) -> None:
        """A path that leaves its root at any point is refused (Local source confinement)."""
        for path in b".. a/../.. ../a ./../a/.. a//../../b".split():
            self.assertTrue(leaves_root(path), path)
            self.assert_refused("leaves the root", b"local://" + path)
        for path in b"a a/.. a/../b ./a a/b/../../c ... ..a".split():
            self.assertFalse(leaves_root(path), path)

    def test_bounds(self) -> None:
        """A decoded path has at most 64 components and 1024 bytes (Source bounds; D15)."""
        for path in (
            *(b"a", b"a" * 1024, b"\xff" * 1024, b"/".join([b"a"] * 64)),
            b"/".join([b"a" * 15] * 63 + [b"a" * 16]),
        ):
            self.assertEqual(self.read(b"local://" + path), LocalSource(path))
        long = read_source(b"plain", b"local://" + b"%61" * 1024)
        self.assertEqual(long, LocalSource(b"a" * 1024))
        words = "64 components and 1024 bytes"
        for path in (b"a" * 1025, b"/".join([b"a"] * 65), b"a/" * 64, b"\xff" * 1025):
            self.assert_refused(words, b"local://" + path)
        self.assert_raw_refused(b"plain", words, b"local://a" + b"%2f" * 64)

    def test_refused(self) -> None:
        """An empty or absolute path, or a NUL, is refused (Local source confinement, 2; D16)."""
        for path in (b"", b"/", b"/etc/passwd", b"//a", b"a\0b", b"\0", b"a\0"):
            self.assert_refused("relative, not empty", b"local://" + path)
        raw_sources = (b"local://%2Fetc/passwd", b"local://a%00.mp3")
        self.assert_raw_refused(b"plain", "relative, not empty", *raw_sources)


class S3Tests(SourceCase):
    """``s3://``"""

    def test_bounds(self) -> None:
        """A bucket has 1 to 63 bytes and a key 1 to 1024; both are needed (Source bounds; D16)."""
        for bucket, key in ((b"b", b"k"), (b"b" * 63, b"k"), (b"b", b"\xff" * 1024)):
            source = self.read(b"s3://" + bucket + b"/" + key)
            self.assertEqual(source, S3Source(bucket.decode(), key))
        long = read_source(b"plain", b"s3://b/" + b"%6b" * 1024)
        self.assertEqual(long, S3Source("b", b"k" * 1024))
        self.assert_refused("bucket", b"s3://" + b"b" * 64 + b"/k", b"s3://", b"s3:///", b"s3:///k")
        self.assert_refused(
            "1 to 1024 bytes", b"s3://b/" + b"k" * 1025, b"s3://bucket", b"s3://bucket/"
        )

    def test_bucket_names(self) -> None:
        """Ports, credentials and invalid characters in a bucket are refused (D16)."""
        for bucket in (
            *(b"a:80", b"u:p@b", b"a b", b".b", b"-b", b"_b", b"b%41", b"b\n", b"b\0", b"b\\c"),
            *(b"b\xff", b"caf\xc3\xa9", b"b?", b"b*"),
        ):
            self.assert_refused("bucket", b"s3://" + bucket + b"/key")


class HttpsTests(SourceCase):
    """``https://``"""

    def test_normalized(self) -> None:
        """Equivalent spellings of a URL give one source (Canonical source string, 2)."""
        for start in b"hTTps://eXample.Com. https://example.com.:443 https://example.com:".split():
            for spelled, rest in ((b"?", b"/"), (b"#a?b", b"/"), (b"/a?q#b#c?d", b"/a?q")):
                found = self.read(start + spelled).canonical
                self.assertEqual(found, b"https://example.com" + rest, (start, spelled))
        # The spelling of an IP literal.
        for host, spellings in (
            (b"127.0.0.1", b"127.0.0.1."),
            (b"[::1]", b"[::1]:443 [0:0:0:0:0:0:0:1] [0000:0000:0000:0000:0000:0000:0000:0001]"),
            (b"[2001:db8::ff]", b"[2001:DB8::00ff]"),
            (b"[2001:db8::1:0:0:1]", b"[2001:db8:0:0:1:0:0:1]"),
            (b"[::ffff:c000:201]", b"[::ffff:192.0.2.1] [::FFFF:C000:0201]"),
            (b"[::ffff:0:0]", b"[::ffff:0.0.0.0]"),
            (b"[64:ff9b::c000:201]", b"[64:ff9b::192.0.2.1]"),
            (b"[::]", b"[0::0]"),
        ):
            for source in (host, *spellings.split()):
                found = self.read(b"https://" + source + b"/a").canonical
                self.assertEqual(found, b"https://" + host + b"/a", source)

    def test_not_normalized(self) -> None:
        """What only the origin interprets is kept (Canonical source string, 2 and 3)."""
        for rest in (
            b"%61 a%2Fb a%2fb %2e%2e/a %252e %zz a?q=%41 a/../b ./a .. /a a/ A?B=C"
            b" ?a=1&a=1 ?b&a a?? a?/b"
        ).split():
            url = b"https://example.com/" + rest
            self.assertEqual(self.read(url).canonical, url)
        # Ports, and IPv4 addresses, of which each spelling is another host.
        for host in b"h:444 h:80 127.0.0.01 010.0.0.1 0x7f.0.0.1 2130706433 127.1 www.h".split():
            url = b"https://" + host + b"/a"
            self.assertEqual(self.read(url).canonical, url)

    def test_ports(self) -> None:
        """A port is 1 to 65535, in its shortest spelling (Canonical source string, 2)."""
        for source, url in (
            (b"https://h:1/", b"https://h:1/"),
            (b"https://h:65535/", b"https://h:65535/"),
            (b"https://h:08443/", b"https://h:8443/"),
            (b"https://[::1]:8443", b"https://[::1]:8443/"),
        ):
            self.assertEqual(self.read(source).canonical, url, source)
        for port in (b"0", b"00000", b"65536", b"99999"):
            self.assert_refused("a port is 1 to 65535", b"https://h:" + port + b"/")
        for port in (b"000443", b"100000", b"-1", b"+1", b"x", b"4 4", b"443:443"):
            self.assert_refused("", b"https://h:" + port + b"/")

    def test_host(self) -> None:
        """`host` has no brackets, port or root dot (Source allowlist); `authority` has a port."""
        for source, host, authority in (
            (b"https://Example.COM.:8443/a", "example.com", "example.com:8443"),
            (b"https://[0:0::1]:443/a//b", "::1", "[::1]"),
            (b"https://my_host-1?a/b", "my_host-1", "my_host-1"),
        ):
            found = self.read(source)
            assert isinstance(found, HttpsSource)
            self.assertEqual((found.host, found.authority), (host, authority), source)

    def test_url_bound(self) -> None:
        """A whole URL has at most 2048 bytes, its fragment included (Source bounds)."""
        start = b"https://example.com/"
        for rest in (b"a" * 2028, b"?" + b"a" * 2027, b"#" + b"a" * 2027):
            self.assertEqual(len(start + rest), 2048)
            self.read(start + rest)
            self.assert_refused("2048 bytes", start + rest + b"a")
        long = read_source(b"plain", start + b"%61" * 2028)
        self.assertEqual(long.canonical, start + b"a" * 2028)

    def test_host_bound(self) -> None:
        """A host has at most 253 bytes, in labels of 1 to 63 (Source bounds; D16)."""
        longest, too_long = host_of(253), host_of(254)
        self.assertEqual((len(longest), len(too_long)), (253, 254))
        for host in (longest, longest + b".", b"h" * 63, b"h"):
            self.read(b"https://" + host + b"/")
        for host in (too_long, too_long + b".", b"h" * 64, b"a." + b"h" * 64):
            self.assert_refused("at most 253 bytes", b"https://" + host + b"/")
        for host in (b".", b"..", b"a..b", b".a", b"a.."):
            self.assert_refused("labels of 1 to 63", b"https://" + host + b"/")
        for rest in (b"", b"/a", b"?q", b"#f", b":443/"):
            self.assert_refused("plain host", b"https://" + rest)

    def test_userinfo(self) -> None:
        """User information is a syntax error (Canonical source string, 4; D16)."""
        for authority in (
            *(b"user:pass@h", b"user@h", b"@h", b":@h", b"u:p@h:443", b"h@", b"a@b@h"),
            *(b"user%40h@h", b"u@[::1]", b"h:443@evil"),
        ):
            self.assert_refused("user information", b"https://" + authority + b"/a")
        self.assert_raw_refused(b"plain", "user information", b"https://user%40h/a")
        self.assertEqual(self.read(b"https://h/u:p@x").canonical, b"https://h/u:p@x")
        self.assertEqual(self.read(b"https://h?u@x").canonical, b"https://h/?u@x")

    def test_invalid_hosts(self) -> None:
        """A host with an escape, backslash, zone or broken address is refused (D16)."""
        for host in (
            *(b"a%41", b"a\\b", b"h\\@evil", b"a,b", b"a;b", b"*", b"[", b"]", b"[]", b"a[::1]"),
            *(b"[::1", b"::1", b"[::1]x", b"[fe80::1%25eth0]", b"[fe80::1%eth0]", b"[v1.x]"),
            *(b"[::1]]", b"[[::1]]"),
        ):
            self.assert_refused("plain host", b"https://" + host + b"/")
        for host in (
            *(b"[:]", b"[.]", b"[1.2.3.4]", b"[::1.2.3.04]", b"[::00001]", b"[1::2::3]", b"[:::]"),
            *(b"[1:2:3:4:5:6:7]", b"[1:2:3:4:5:6:7:8:9]", b"[::1.2.3.256]"),
        ):
            self.assert_refused("", b"https://" + host + b"/")

    def test_printable(self) -> None:
        """A URL with characters other than printable ASCII is refused (D16)."""
        for byte in b"\x00\t\n\r\x1f \x7f\x80\xc3\xff":
            for source in (b"https://h/a%sb", b"https://h%s", b"https://h/?%s", b"https://h/#%s"):
                self.assert_refused("printable ASCII", source % bytes([byte]))
        self.assertEqual(self.read(b"https://h/!~").canonical, b"https://h/!~")


class RedirectTests(SynchronousTestCase):
    """`parse_https` for the targets of redirects"""

    def test_refused(self) -> None:
        """`parse_https` refuses other schemes and URLs without a scheme (Source allowlist)."""
        for url in (b"http://a.test/", b"file:///etc/passwd", b"ftp://a", b"//a.test/", b"/x", b""):
            self.assertRaises(ValueError, parse_https, url)


class SchemeTests(SourceCase):
    """The schemes of sources"""

    def test_other_schemes(self) -> None:
        """Three schemes are accepted (Canonical source string, 2 and 4; Source forms; D16)."""
        refused = (
            *(b"http://example.com/a", b"HTTP://example.com/a", b"ftp://h/a", b"file:///a"),
            *(b"concat://a", b"data://x", b"httpsx://h/", b"shttps://h/", b"s3a://b/k", b"x://"),
            *(b"gs://b/k", b"https+unix://h/", b"LOCAL://a", b"Local://a", b"S3://b/k"),
        )
        self.assert_refused("a source is local://, s3:// or https://", *refused)
        refused = (
            *(b"", b"a.mp3", b"/a.mp3", b"://a", b"local:a", b"local:/a", b"s3:/b/k", b"https:h"),
            *(b"https:/h/a", b" https://h/", b"\nlocal://a", b"local\n://a", b"1s3://b/k"),
            *(b"local:", b"\xff://a"),
        )
        self.assert_refused("a source starts with local://, s3:// or https://", *refused)


class EncodedTests(SourceCase):
    """``enc/``"""

    def test_final_character(self) -> None:
        """Only the canonical last character is accepted, even if others decode alike (D15)."""
        for start, others in ((b"bG9jYWw6Ly9hY", b"hijklmnopqrstuv"), (b"bG9jYWw6Ly9hYm", b"NOP")):
            for last in others:
                raw = start + bytes([last])
                padded = raw + b"=" * (-len(raw) % 4)
                self.assert_raw_refused(b"enc", "canonical", raw, padded)

    def test_not_base64url(self) -> None:
        """Too little and too much padding, and bytes outside base64url, are refused (D15, D16)."""
        good = b"bG9jYWw6Ly9h"
        refused = (
            *(good + b"=", good + b"==", good + b"===", good + b"====", b"=" + good, b"=", b"=="),
            *(good + b"Yg=", good + b"Yg===", good + b"YmM==", good[:6] + b"==" + good[6:]),
            *(good + b"\n", good + b" ", b" " + good, good[:6] + b"\n" + good[6:], good + b"A"),
            *(good + b"%3D", good + b"/", b"/" + good, good + b"/" + good, good + b"?"),
            *(good + b".", b"local://a", good + b"Yg%3D%3D", b"\xff" * 4, b"A", b"AAAAA"),
        )
        self.assert_raw_refused(b"enc", "base64url", *refused)


class HttpsPartsTests(SynchronousTestCase):
    """Parts of https sources"""

    def test_kinds(self) -> None:
        """Only a local source has a path below the root, and only a URL may be presigned."""
        local, bucket, https = map(
            parse_source, (b"local://a/b.wav", b"s3://b/k", b"https://h.example/a?sig=1")
        )
        for root in (b"/srv", b"/srv/"):
            self.assertEqual(b"/srv/a/b.wav", local.path_below(root))
        self.assertEqual((None, None), (bucket.path_below(b"/"), https.path_below(b"/")))
        presigned = [each.is_presigned for each in (local, bucket, https)]
        self.assertEqual([False, False, True], presigned)
        self.assertEqual([False, False, True], [each.is_url for each in (local, bucket, https)])

    def test_place(self) -> None:
        """A source names its place without its own name, which is bytes, unless it is local."""
        for source, place, name in (
            (b"local://a/b.wav", "the disk of AP_LOCAL_ROOT", b""),
            (b"s3://b/\xc3\xbc", "the bucket b", b"\xc3\xbc"),
            (
                b"https://a.example:1/%C3%BC?x",
                "the origin a.example",
                b"https://a.example:1/\xc3\xbc",
            ),
        ):
            found = parse_source(source)
            self.assertEqual((place, name), (found.place, found.remote_name))

    def test_presigned(self) -> None:
        """A query is presigned if it has the signature of a store or a CDN."""
        for names, is_presigned in (
            ("X-Amz-Signature X-Goog-Signature x-oss-signature q-signature Signature", True),
            ("sig Key-Pair-Id hdnea hdnts", True),
            ("v signed design sign signatures my-signature a?b", False),
        ):
            for name in names.split():
                for query in (f"?{name}=1", f"?v=1&{name}=1&w=2"):
                    source = parse_https(f"https://h/a{query}".encode())
                    self.assertIs(is_presigned, source.is_presigned, query)
        self.assertFalse(parse_https(b"https://h/sig=1").is_presigned)


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
    @given(rest=junk())
    def test_any_bytes(self, rest: bytes) -> None:
        """In both forms, any bytes give the same source or a 404 (D13, D15, D16)."""
        for scheme in (b"", b"local://", b"s3://b", b"s3://b/", b"https://h", b"https://"):
            text = scheme + rest
            outcomes: list[Source | str] = []
            for form, raw in ((b"plain", text.replace(b"%", b"%25")), (b"enc", encoded(text))):
                try:
                    outcomes.append(read_source(form, raw))
                except NotFound as error:
                    outcomes.append(error.reason)
            self.assertEqual(outcomes[0], outcomes[1])
            if not isinstance(outcomes[0], str):
                canonical = outcomes[0].canonical
                self.assertEqual(read_source(b"enc", encoded(canonical)), outcomes[0])
        for form in (b"plain", b"enc"):
            with contextlib.suppress(NotFound):
                read_source(form, rest)


class LogNameTests(SynchronousTestCase):
    """`log_name`"""

    def test_https(self) -> None:
        """A digest replaces a query; the rest of the address is logged as it is (D47)."""
        # The digest is the start of the output of `printf 'a=b?c' | sha256sum`.
        for url, shown in (
            (b"https://h/a%20b", "https://h/a%20b"),
            (b"https://h/a?a=b?c", "https://h/a?d7905a7a"),
            (b"https://h/s3://a?a=b?c", "https://h/s3://a?d7905a7a"),
        ):
            self.assertEqual(log_name(read_source(b"enc", encoded(url)).canonical), shown)

    def test_escapes(self) -> None:
        """Bytes that are no visible ASCII, and a percent sign, are percent-encoded (D28)."""
        self.assertEqual("local://a%20b%FF%25://c", log_name(b"local://a b\xff%://c"))
        self.assertEqual("%7F", log_name(b"\x7f"))

    def test_address(self) -> None:
        """The address of a source is its canonical string, of a URL without its query (D58)."""
        for source, address in (
            (b"https://h/a?a=b?c", b"https://h/a"),
            (b"https://h/a", b"https://h/a"),
            (b"s3://bucket/a?b", b"s3://bucket/a?b"),
        ):
            self.assertEqual(read_source(b"enc", encoded(source)).address, address)

    # Drawing two sources takes long.
    @settings(DETERMINISTIC, max_examples=40)
    @given(source=sources(), other=sources())
    def test_distinct_names(self, source: bytes, other: bytes) -> None:
        """A log name is one word of visible ASCII, and other sources have others (D28)."""
        one, two = (read_source(b"enc", encoded(each)).canonical for each in (source, other))
        self.assertRegex(log_name(one), r"\A[!-~]+\Z")
        self.assertEqual(one == two, log_name(one) == log_name(two))
