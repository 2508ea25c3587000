"""Request paths: any path is refused, or its options and source have one canonical form."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Sequence

from audioproxy.errors import InvalidOptions, NotFound
from audioproxy.grammar.cache_key import cache_key, info_key
from audioproxy.grammar.option_parser import parse_expiry, parse_options, refuse_options
from audioproxy.grammar.options import VariantOptions
from audioproxy.grammar.segments import split_signature, split_target
from audioproxy.grammar.sources import HttpsSource, Source, read_source
from audioproxy.grammar.values import percent_encode
from tests.fuzz.draws import check_refusal, check_words, outcome

_LONGEST_URL = 2048
# A number with a redundant zero, sign or dot (D3). The values of cb and dl are free text, so both
# are excluded. All other values that are not numbers contain letters, and do not match.
_NOT_MINIMAL = re.compile(
    r"(?:^|/)(?!cb|dl)[a-z_]+:(?:[^/]*:)?(?:\+|-0(?:[:/]|$)|-?0\d|\d+\.(?:\d*0)?(?:[:/]|$))"
)

ReadOptions = Callable[[Sequence[bytes]], tuple[VariantOptions, int | None]]
ReadSource = Callable[[bytes, bytes], Source]


def check_path(
    data: bytes, options: ReadOptions = parse_options, source: ReadSource = read_source
) -> None:
    """Assert that the options and the source of a path are refused, or have one canonical form.

    :param data: the path without its leading slash.
    """
    path = split_signature(b"/" + data)
    target = None if path is None else split_target(path.signed)
    if target is None:
        return
    if target.info:
        refused = outcome(lambda: refuse_options(target.options), InvalidOptions)
        assert (refused is None) == (not target.options)
    variant = check_options(target.options, options)
    named = check_source(target.form, target.source, source)
    if variant is not None and named is not None:
        assert len(cache_key(variant, named)) == len(info_key(named, b"")) == 64


def check_options(segments: Sequence[bytes], read: ReadOptions) -> VariantOptions | None:
    """Assert that options are refused, or have one canonical form; return them, or None."""
    found = outcome(lambda: read(segments), InvalidOptions)
    expiry = parse_expiry(segments)
    forms = {_form(found)}
    for order in (segments[::-1], sorted(segments), [*segments[1:], *segments[:1]]):
        forms.add(_form(outcome(lambda order=order: read(order), InvalidOptions)))
    assert len(forms) == 1, f"the order of options matters: {forms}"
    if isinstance(found, Exception):
        check_refusal(found)
        return None
    options, exp = found
    assert expiry == exp, "parse_expiry and parse_options disagree on exp"
    canonical = options.canonical()
    check_words(canonical, longest=2000)
    assert " " not in canonical
    keys = [segment.partition(":")[0] for segment in canonical.split("/")]
    assert keys == sorted(set(keys)), canonical
    assert "exp" not in keys
    assert not _NOT_MINIMAL.search(canonical), canonical
    again, none = read(canonical.encode("ascii").split(b"/"))
    assert (again, none) == (options, None), canonical
    assert again.canonical() == canonical
    assert {segment.partition(b":")[0].decode() for segment in segments} - {"exp"} <= set(keys)
    check_words(options.content_type)
    return options


def check_source(form: bytes, raw: bytes, read: ReadSource) -> bytes | None:
    """Assert that a source is refused, or has one canonical form; return that form, or None."""
    found = outcome(lambda: read(form, raw), NotFound)
    if isinstance(found, Exception):
        check_refusal(found)
        return None
    canonical = found.canonical
    if isinstance(found, HttpsSource):
        check_words(found.url, longest=2100)
        assert " " not in found.url, found.url
        for spelling in _respelled(found):
            if len(spelling) <= _LONGEST_URL:
                again = outcome(lambda text=spelling: read(b"enc", _encoded(text)), NotFound)
                assert again == found, f"{spelling!r} is {again!r}, not {found!r}"
    if len(canonical) > _LONGEST_URL and isinstance(found, HttpsSource):
        # Normalization can lengthen a URL: it adds the root path, or writes an IP address in a
        # longer form. The canonical form of a URL near the length limit is then too long to be
        # parsed again.
        return canonical
    spellings = (
        (b"plain", percent_encode(canonical).encode("ascii")),
        (b"enc", _encoded(canonical)),
        (b"enc", _encoded(canonical).rstrip(b"=")),
    )
    for spelling in spellings:
        again = outcome(lambda spelling=spelling: read(*spelling), NotFound)
        assert again == found, f"{canonical!r} is not its own canonical form: {again!r}"
    return canonical


def _respelled(found: HttpsSource) -> Iterator[bytes]:
    """Yield other spellings of a URL that mean the same source (Canonical source string, 2)."""
    url = found.url
    _, _, authority, tail = url.split("/", 3)
    yield f"{url}#{authority}".encode("ascii")
    yield f"HTTPS://{authority.upper()}/{tail}".encode("ascii")
    if "?" not in url:
        yield f"{url}?".encode("ascii")
    if not tail:
        yield f"https://{authority}".encode("ascii")
    if ":" not in authority.rpartition("]")[2]:
        yield f"https://{authority}:443/{tail}".encode("ascii")
        yield f"https://{authority}:0443/{tail}".encode("ascii")
        if not authority.startswith("["):
            yield f"https://{authority}./{tail}".encode("ascii")


def _encoded(text: bytes) -> bytes:
    return base64.urlsafe_b64encode(text)


def _form(found: tuple[VariantOptions, int | None] | Exception) -> object:
    return type(found) if isinstance(found, Exception) else (found[0].canonical(), found[1])
