"""Entries of AP_SOURCE_ALLOWLIST: each form, with sources that it allows and refuses."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.sources import HttpsSource, LocalSource, S3Source
from audioproxy.sources.allowlist import Allowlist


class AllowlistTests(SynchronousTestCase):
    """`Allowlist`"""

    def assert_buckets(self, entry: str, admitted: str, refused: str) -> None:
        """Assert which buckets an entry allows and refuses; names are separated by spaces."""
        for names, verdict in ((admitted, True), (refused, False)):
            for name in names.split():
                allows = Allowlist((entry,)).allows(S3Source(name, b"k"))
                self.assertIs(allows, verdict, (entry, name))

    def assert_hosts(self, entry: str, admitted: str, refused: str) -> None:
        """Assert which hosts an entry allows and refuses; names are separated by spaces."""
        for names, verdict in ((admitted, True), (refused, False)):
            for name in names.split():
                allows = Allowlist((entry,)).allows(HttpsSource(f"https://{name}/", name))
                self.assertIs(allows, verdict, (entry, name))

    def test_unset(self) -> None:
        """Without an allowlist, every bucket is admitted and every https host refused."""
        allowlist = Allowlist(None)
        self.assertTrue(allowlist.allows(S3Source("any", b"k")))
        self.assertFalse(allowlist.allows(HttpsSource("https://a.example/", "a.example")))

    def test_empty(self) -> None:
        """An empty allowlist refuses every bucket and every https host."""
        allowlist = Allowlist(())
        self.assertFalse(allowlist.allows(S3Source("any", b"k")))
        self.assertFalse(allowlist.allows(HttpsSource("https://a.example/", "a.example")))

    def test_local(self) -> None:
        """The allowlist does not restrict local sources."""
        for entries in (None, (), ("other",)):
            self.assertTrue(Allowlist(entries).allows(LocalSource(b"a.mp3")))

    def test_exact_name(self) -> None:
        """An exact name matches a bucket case-sensitively and a host case-insensitively."""
        self.assert_buckets("Music", "Music", "music MUSIC Music2 aMusic Musi")
        self.assert_hosts("CDN.example.com", "cdn.example.com", "a.cdn.example.com example.com")

    def test_prefix_of_a_bucket(self) -> None:
        """A trailing ``*`` matches any rest of a bucket's name, case-sensitively."""
        self.assert_buckets("media-*", "media-a media- media-x.y", "media xmedia-a Media-a")

    def test_prefix_of_a_host(self) -> None:
        """An entry with a trailing ``*`` matches no host."""
        self.assert_hosts("cdn*", "", "cdn cdn.example.com cdn1")
        self.assert_hosts("10.0.0.*", "", "10.0.0.1")

    def test_suffix_of_a_host(self) -> None:
        """A leading ``*.`` matches one or more labels of a host."""
        self.assert_hosts(
            "*.Example.com", "a.example.com b.a.example.com", "example.com xexample.com a.example"
        )

    def test_suffix_of_a_bucket(self) -> None:
        """An entry with a leading ``*.`` matches no bucket."""
        self.assert_buckets("*.example.com", "", "a.example.com example.com")

    def test_everything(self) -> None:
        """A bare ``*`` matches every bucket and every host."""
        self.assert_buckets("*", "a Media x.y", "")
        self.assert_hosts("*", "a.example ::1 10.0.0.1", "")

    def test_star_elsewhere(self) -> None:
        """An entry with ``*`` in another place matches nothing."""
        for entry in ("a*b", "*a", "**", "a**", "*a*", "*.*", "a.*.b", "*.a*"):
            self.assert_buckets(entry, "", "ab a aXb aa a.b.b x.a")
            self.assert_hosts(entry, "", "ab a axb aa a.b.b x.a x.ab")

    def test_address(self) -> None:
        """An IP literal without brackets matches exactly this address."""
        self.assert_hosts("::1", "::1", "::2")
        for entry in ("[::1]", "::*"):
            self.assert_hosts(entry, "", "::1 ::2")
        self.assert_hosts("192.0.2.1", "192.0.2.1", "192.0.2.10")

    def test_several(self) -> None:
        """A source is admitted if at least one entry matches."""
        allowlist = Allowlist(("a", "b*", "*.c"))
        for source, verdict in (
            (S3Source("a", b"k"), True),
            (S3Source("bb", b"k"), True),
            (S3Source("c", b"k"), False),
            (HttpsSource("https://x.c/", "x.c"), True),
            (HttpsSource("https://a/", "a"), True),
            (HttpsSource("https://bb/", "bb"), False),
        ):
            self.assertIs(allowlist.allows(source), verdict, source)
