"""Entries of AP_SOURCE_ALLOWLIST: each form, with sources that it allows and refuses."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.sources import HttpsSource, LocalSource, S3Source
from audioproxy.sources.allowlist import Allowlist


def bucket(name: str) -> S3Source:
    """Return a source in a bucket."""
    return S3Source(name, b"k")


def host(name: str) -> HttpsSource:
    """Return a source at a host."""
    return HttpsSource(f"https://{name}/", name)


class AllowlistTests(SynchronousTestCase):
    """`Allowlist`"""

    def test_unset_or_empty(self) -> None:
        """Without an allowlist, every bucket is admitted and every https host refused.

        An empty allowlist refuses every bucket and every https host. Local sources are never
        restricted.
        """
        for entries, admits_buckets in ((None, True), ((), False), (("other",), False)):
            allowlist = Allowlist(entries)
            self.assertIs(allowlist.allows(bucket("any")), admits_buckets, entries)
            self.assertFalse(allowlist.allows(host("a.example")), entries)
            self.assertTrue(allowlist.allows(LocalSource(b"a.mp3")), entries)

    def test_buckets(self) -> None:
        """An entry is an exact name, or a prefix with a trailing ``*``, both case-sensitive.

        A bare ``*`` matches every bucket. An entry with ``*`` in another place matches nothing.
        """
        for entry, admitted, refused in (
            ("Music", "Music", "music MUSIC Music2 aMusic Musi"),
            ("media-*", "media-a media- media-x.y", "media xmedia-a Media-a"),
            ("*.example.com", "", "a.example.com example.com"),
            ("*", "a Media x.y", ""),
            *((entry, "", "ab a aXb aa a.b.b x.a") for entry in self.STARS),
        ):
            for names, verdict in ((admitted, True), (refused, False)):
                for name in names.split():
                    self.assertIs(Allowlist((entry,)).allows(bucket(name)), verdict, (entry, name))

    STARS = ("a*b", "*a", "**", "a**", "*a*", "*.*", "a.*.b", "*.a*")

    def test_hosts(self) -> None:
        """An entry is a name in any case, an address without brackets, or ``*.`` with a suffix.

        The suffix matches one or more labels. A bare ``*`` matches every host. An entry with ``*``
        in another place, also at the end, matches nothing.
        """
        for entry, admitted, refused in (
            ("CDN.example.com", "cdn.example.com", "a.cdn.example.com example.com"),
            (
                "*.Example.com",
                "a.example.com b.a.example.com",
                "example.com xexample.com a.example",
            ),
            ("cdn*", "", "cdn cdn.example.com cdn1"),
            ("10.0.0.*", "", "10.0.0.1"),
            ("*", "a.example ::1 10.0.0.1", ""),
            ("::1", "::1", "::2"),
            ("[::1]", "", "::1"),
            ("::*", "", "::1"),
            ("192.0.2.1", "192.0.2.1", "192.0.2.10"),
            *((entry, "", "ab a axb aa a.b.b x.a x.ab") for entry in self.STARS),
        ):
            for names, verdict in ((admitted, True), (refused, False)):
                for name in names.split():
                    self.assertIs(Allowlist((entry,)).allows(host(name)), verdict, (entry, name))

    def test_several(self) -> None:
        """A source is admitted if at least one entry matches."""
        allowlist = Allowlist(("a", "b*", "*.c"))
        for source in (bucket("a"), bucket("bb"), host("x.c"), host("a")):
            self.assertTrue(allowlist.allows(source), source)
        for source in (bucket("c"), host("bb")):
            self.assertFalse(allowlist.allows(source), source)
