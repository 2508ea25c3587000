"""Each form of an entry of AP_SOURCE_ALLOWLIST, for what it admits and what it does not."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.sources import HttpsSource, LocalSource, S3Source
from audioproxy.sources.allowlist import Allowlist


class AllowlistTests(SynchronousTestCase):
    """`Allowlist`"""

    def assert_buckets(self, entry: str, admitted: str, refused: str) -> None:
        """Require verdicts on buckets."""
        for names, verdict in ((admitted, True), (refused, False)):
            for name in names.split():
                admits = Allowlist((entry,)).admits(S3Source(name, b"k"))
                self.assertIs(admits, verdict, (entry, name))

    def assert_hosts(self, entry: str, admitted: str, refused: str) -> None:
        """Require verdicts on hosts."""
        for names, verdict in ((admitted, True), (refused, False)):
            for name in names.split():
                admits = Allowlist((entry,)).admits(HttpsSource(f"https://{name}/", name))
                self.assertIs(admits, verdict, (entry, name))

    def test_unset(self) -> None:
        """Unset, it admits every bucket and no https host."""
        allowlist = Allowlist(None)
        self.assertTrue(allowlist.admits(S3Source("any", b"k")))
        self.assertFalse(allowlist.admits(HttpsSource("https://a.example/", "a.example")))

    def test_empty(self) -> None:
        """Set to nothing, it admits nothing."""
        allowlist = Allowlist(())
        self.assertFalse(allowlist.admits(S3Source("any", b"k")))
        self.assertFalse(allowlist.admits(HttpsSource("https://a.example/", "a.example")))

    def test_local(self) -> None:
        """Local sources are confined by their root alone."""
        for entries in (None, (), ("other",)):
            self.assertTrue(Allowlist(entries).admits(LocalSource(b"a.mp3")))

    def test_exact_name(self) -> None:
        """An exact name is that bucket or host: buckets by case, hosts whatever the case."""
        self.assert_buckets("Music", "Music", "music MUSIC Music2 aMusic Musi")
        self.assert_hosts("CDN.example.com", "cdn.example.com", "a.cdn.example.com example.com")

    def test_prefix_of_a_bucket(self) -> None:
        """A trailing ``*`` stands for the rest of a bucket's name, by case."""
        self.assert_buckets("media-*", "media-a media- media-x.y", "media xmedia-a Media-a")

    def test_prefix_of_a_host(self) -> None:
        """A trailing ``*`` matches no host."""
        self.assert_hosts("cdn*", "", "cdn cdn.example.com cdn1")
        self.assert_hosts("10.0.0.*", "", "10.0.0.1")

    def test_suffix_of_a_host(self) -> None:
        """A leading ``*.`` stands for one label or more of a host."""
        self.assert_hosts(
            "*.Example.com", "a.example.com b.a.example.com", "example.com xexample.com a.example"
        )

    def test_suffix_of_a_bucket(self) -> None:
        """A leading ``*.`` matches no bucket."""
        self.assert_buckets("*.example.com", "", "a.example.com example.com")

    def test_everything(self) -> None:
        """A bare ``*`` is everything."""
        self.assert_buckets("*", "a Media x.y", "")
        self.assert_hosts("*", "a.example ::1 10.0.0.1", "")

    def test_star_elsewhere(self) -> None:
        """``*`` anywhere else matches nothing."""
        for entry in ("a*b", "*a", "**", "a**", "*a*", "*.*", "a.*.b", "*.a*"):
            self.assert_buckets(entry, "", "ab a aXb aa a.b.b x.a")
            self.assert_hosts(entry, "", "ab a axb aa a.b.b x.a x.ab")

    def test_address(self) -> None:
        """An IP literal is matched without brackets."""
        self.assert_hosts("::1", "::1", "::2")
        self.assert_hosts("192.0.2.1", "192.0.2.1", "192.0.2.10")

    def test_several(self) -> None:
        """One entry that matches is enough."""
        allowlist = Allowlist(("a", "b*", "*.c"))
        for source, verdict in (
            (S3Source("a", b"k"), True),
            (S3Source("bb", b"k"), True),
            (S3Source("c", b"k"), False),
            (HttpsSource("https://x.c/", "x.c"), True),
            (HttpsSource("https://a/", "a"), True),
            (HttpsSource("https://bb/", "bb"), False),
        ):
            self.assertIs(allowlist.admits(source), verdict, source)
