"""Entries of AP_SOURCE_ALLOWLIST: each form, with sources that it allows and refuses."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.sources import HttpsSource, LocalSource, S3Source


def bucket(name: str) -> S3Source:
    """Return a source in a bucket."""
    return S3Source(name, b"k")


def host(name: str) -> HttpsSource:
    """Return a source at a host."""
    return HttpsSource(f"https://{name}/", name)


class AllowlistTests(SynchronousTestCase):
    """`Source.is_allowed`"""

    def test_empty_or_other(self) -> None:
        """An empty allowlist refuses every bucket and every https host.

        Local sources are never restricted.
        """
        for allowlist in ((), ("other",)):
            self.assertFalse(bucket("any").is_allowed(allowlist), allowlist)
            self.assertFalse(host("a.example").is_allowed(allowlist), allowlist)
            self.assertTrue(LocalSource(b"a.mp3").is_allowed(allowlist), allowlist)

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
                    self.assertIs(bucket(name).is_allowed((entry,)), verdict, (entry, name))

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
                    self.assertIs(host(name).is_allowed((entry,)), verdict, (entry, name))

    def test_several(self) -> None:
        """A source is admitted if at least one entry matches."""
        allowlist = ("a", "b*", "*.c")
        for source in (bucket("a"), bucket("bb"), host("x.c"), host("a")):
            self.assertTrue(source.is_allowed(allowlist), source)
        for source in (bucket("c"), host("bb")):
            self.assertFalse(source.is_allowed(allowlist), source)
