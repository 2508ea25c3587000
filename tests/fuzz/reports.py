"""Output of ffprobe and ffmpeg, and errors of HTTP clients: any text is parsed or printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal

from audioproxy.errors import InvalidOptions, Refusal, UndecodableSource, VideoSource
from audioproxy.grammar.options import VariantOptions
from audioproxy.http_client.errors import without_secrets
from audioproxy.media.command.needs import Needs
from audioproxy.media.command.trim import trim_range
from audioproxy.media.diagnostics import classify, one_line
from audioproxy.media.ffprobe import parse_probe
from audioproxy.media.probe import Probe
from tests.fuzz.draws import Draws, check_refusal, outcome

NOTICES = (b"", b"[mp3 @ 0x5] Estimating duration from bitrate, this may be inaccurate\n")
# Credentials that must not appear in the log.
PASSWORD, SIGNATURE = "pAsSwOrD", "sIgNaTuRe"
# Characters that the host, the userinfo and the query of a URL may contain (RFC 3986, 3). ffmpeg
# also accepts an @ in the userinfo.
_UNRESERVED = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~%!$&'()*+,;=:"
_AUTHORITY = _UNRESERVED + b"@"
_QUERY = _AUTHORITY + b"/?"


def check_probe(data: bytes, read: Callable[..., Probe] = parse_probe) -> None:
    """Assert that ffprobe output gives a valid probe result, a refusal or a ValueError.

    :param data: a byte that chooses whether the output was cut off, a byte that chooses the stderr,
        then the output.
    """
    draws = Draws(data)
    cut_off, notice = draws.one_of((False, True)), draws.one_of(NOTICES)
    found = outcome(
        lambda: read(draws.rest, notice, cut_off=cut_off),
        UndecodableSource,
        VideoSource,
        ValueError,
    )
    if isinstance(found, Refusal):
        check_refusal(found)
    if isinstance(found, Exception):
        return
    assert isinstance(found.container, str)
    assert isinstance(found.codec, str)
    assert found.audio.layout is None or isinstance(found.audio.layout, str), found
    assert found.duration is None or 0 < found.duration < 10**15, found.duration
    assert not (found.exact and (found.duration is None or notice)), "an estimate is not exact"
    assert 0 < found.sample_rate <= 6_144_000, found.sample_rate
    assert 0 < found.channels <= 64, found.channels
    assert found.audio.bit_depth > 0
    check_document(found.description.document(None))
    # Call the functions that process every probe result next.
    options = VariantOptions()
    assert Needs.of(options, found).measure in (False, True)
    outcome(lambda: trim_range(options, found), InvalidOptions)


def check_document(document: dict[str, object]) -> None:
    """Assert that an info document is valid: no nulls, no zeros, tags within bounds (D24)."""
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    for name, value in document.items():
        if name == "format":
            assert isinstance(value, str)
        elif name == "tags":
            assert isinstance(value, dict)
            assert 1 <= len(value) <= 32
            assert all(isinstance(text, str) and len(text) <= 512 for text in value.values())
            assert all(len(key) <= 512 for key in value)
        else:
            assert isinstance(value, int | float), (name, value)
            assert 0 < Decimal(value) < 10**18, (name, value)


def check_diagnostic(
    data: bytes,
    one_line: Callable[[bytes], str] = one_line,
    without_secrets: Callable[[str], str] = without_secrets,
) -> None:
    """Assert that a diagnostic becomes one printable line, and that URLs lose their secrets.

    :param data: lines; the second to fourth are parts of a URL, which is inserted after the first.
    """
    before, user, host, query, *after = [*data.split(b"\n"), b"", b"", b""]
    url = b"https://%s:%s@%s/a?%s&X=%s%s" % (
        _only(user, _AUTHORITY),
        PASSWORD.encode(),
        _only(host, _UNRESERVED.replace(b":", b"")),
        _only(query, _QUERY),
        SIGNATURE.encode(),
        _only(query, _QUERY),
    )
    line = one_line(data)
    assert len(line.splitlines()) <= 1, line
    assert line.isprintable(), line
    assert len(line) <= 503
    assert classify(data) is None or issubclass(classify(data) or Exception, Refusal)
    text = b"\n".join([b"%s %s: refused" % (before, url), *after])
    kept = without_secrets(text.decode("utf-8", "replace"))
    assert PASSWORD not in kept or PASSWORD.encode() in data, kept
    assert SIGNATURE not in kept or SIGNATURE.encode() in data, kept


def _only(text: bytes, allowed: bytes) -> bytes:
    return bytes(c for c in text if c in allowed)
