"""Request paths: any path is refused, or its options and source have one canonical form."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from audioproxy.errors import InvalidOptions, NotFound
from audioproxy.grammar.option_parser import parse_options
from audioproxy.grammar.segments import split_signature, split_target
from audioproxy.grammar.sources import HttpsSource, read_source
from audioproxy.grammar.values import percent_encode
from tests.fuzz.outcomes import check_refusal, check_words, outcome

_LONGEST_URL = 2048


def check_path(data: bytes) -> None:
    """Assert that the options and the source of a path are refused, or have one canonical form.

    :param data: the path without its leading slash.
    """
    path = split_signature(b"/" + data)
    target = None if path is None else split_target(path.signed)
    if target is not None:
        _check_options(target.options)
        _check_source(target.form, target.source)


def _check_options(segments: Sequence[bytes]) -> None:
    """Assert that options are refused, or have a canonical form that means the same."""
    found = outcome(lambda: parse_options(segments), InvalidOptions)
    if isinstance(found, Exception):
        check_refusal(found)
        return
    canonical = found[0].canonical()
    check_words(canonical, longest=2000)
    assert parse_options(canonical.encode("ascii").split(b"/")) == (found[0], None), canonical


def _check_source(form: bytes, raw: bytes) -> None:
    """Assert that a source is refused, or has a canonical form that means the same."""
    found = outcome(lambda: read_source(form, raw), NotFound)
    if isinstance(found, Exception):
        check_refusal(found)
        return
    canonical = found.canonical
    if len(canonical) > _LONGEST_URL and isinstance(found, HttpsSource):
        # Normalization can lengthen a URL: it adds the root path, or writes an IP address in a
        # longer form. The canonical form of a URL near the length limit is then too long to be
        # parsed again.
        return
    plain, enc = percent_encode(canonical).encode("ascii"), base64.urlsafe_b64encode(canonical)
    for spelling in ((b"plain", plain), (b"enc", enc), (b"enc", enc.rstrip(b"="))):
        again = outcome(lambda spelling=spelling: read_source(*spelling), NotFound)
        assert again == found, f"{canonical!r} is not its own canonical form: {again!r}"
