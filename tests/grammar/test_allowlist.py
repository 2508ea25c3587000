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


#: Entries with a ``*`` in a place without a meaning.
STARS = ("a*b", "*a", "**", "a**", "*a*", "*.*", "a.*.b", "*.a*")
#: Entries, each with the buckets that it allows, and buckets that it refuses.
BUCKETS = (
    ("Music", "Music", "music MUSIC Music2 aMusic Musi"),
    ("media-*", "media-a media- media-x.y", "media xmedia-a Media-a"),
    ("*.example.com", "", "a.example.com example.com"),
    ("*", "a Media x.y", ""),
    *((entry, "", "ab a aXb aa a.b.b x.a") for entry in STARS),
)
#: Entries, each with the hosts that it allows, and hosts that it refuses.
HOSTS = (
    ("CDN.example.com", "cdn.example.com", "a.cdn.example.com example.com"),
    ("*.Example.com", "a.example.com b.a.example.com", "example.com xexample.com a.example"),
    ("cdn*", "", "cdn cdn.example.com cdn1"),
    ("10.0.0.*", "", "10.0.0.1"),
    ("*", "a.example ::1 10.0.0.1", ""),
    ("::1", "::1", "::2"),
    ("[::1]", "", "::1"),
    ("::*", "", "::1"),
    ("192.0.2.1", "192.0.2.1", "192.0.2.10"),
    *((entry, "", "ab a axb aa a.b.b x.a x.ab") for entry in STARS),
)


class AllowlistTests(SynchronousTestCase):
    """`Source.is_allowed`"""

    def test_empty_or_other(self) -> None:
        """A list without a match refuses buckets and hosts; local sources are not restricted."""
        for allowlist in ((), ("other",)):
            self.assertFalse(bucket("any").is_allowed(allowlist), allowlist)
            self.assertFalse(host("a.example").is_allowed(allowlist), allowlist)
            self.assertTrue(LocalSource(b"a.mp3").is_allowed(allowlist), allowlist)

    def test_entries(self) -> None:
        """An entry matches a name, a prefix of buckets, or a suffix of hosts.

        A bucket is case-sensitive, and its prefix has a trailing ``*``. A host has any case, an
        address has no brackets, and a suffix of one or more labels has a leading ``*.``. A bare
        ``*`` matches everything. An entry with ``*`` in another place matches nothing.
        """
        for source, rows in ((bucket, BUCKETS), (host, HOSTS)):
            for entry, allowed, refused in rows:
                names = f"{allowed} {refused}".split()
                found = [name for name in names if source(name).is_allowed((entry,))]
                self.assertEqual(allowed.split(), found, (source, entry))

    def test_several(self) -> None:
        """A source is admitted if at least one entry matches."""
        allowlist = ("a", "b*", "*.c")
        sources = [bucket("a"), bucket("bb"), host("x.c"), host("a"), bucket("c"), host("bb")]
        self.assertEqual(sources[:4], [each for each in sources if each.is_allowed(allowlist)])
