"""Output of ffprobe and ffmpeg, and errors of HTTP clients: any text is parsed or printed."""

from __future__ import annotations

import json
import string
from decimal import Decimal

from audioproxy.errors import InvalidOptions, Refusal, UndecodableSource, VideoSource
from audioproxy.grammar.options import VariantOptions
from audioproxy.http_client.errors import without_secrets
from audioproxy.media.command.needs import Needs
from audioproxy.media.command.trim import trim_range
from audioproxy.media.diagnostics import classify, one_line
from audioproxy.media.ffprobe import parse_probe
from tests.fuzz.outcomes import check_message, outcome

NOTICES = (b"", b"[mp3 @ 0x5] Estimating duration from bitrate, this may be inaccurate\n")
# Credentials that must not appear in the log.
PASSWORD, SIGNATURE = "pAsSwOrD", "sIgNaTuRe"
#: Characters that the host, the userinfo and the query of a URL may contain (RFC 3986, 3). ffmpeg
#: also accepts an @ in the userinfo.
HOST = string.ascii_letters + string.digits + "-._~%!$&'()*+,;="
USER = HOST + ":@"
QUERY = USER + "/?"


def check_probe(cut_off: bool, notice: bytes, output: bytes) -> None:
    """Assert that ffprobe output gives a valid probe result, a refusal or a ValueError.

    :param cut_off: whether the output was cut off.
    :param notice: the stderr.
    """
    found = outcome(
        lambda: parse_probe(output, notice, cut_off=cut_off),
        UndecodableSource,
        VideoSource,
        ValueError,
    )
    if isinstance(found, Refusal):
        check_message(found.message)
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


def check_diagnostic(data: bytes, user: str, host: str, query: str) -> None:
    """Assert that a diagnostic becomes one printable line, and that URLs lose their secrets.

    :param data: text before and after a URL; the others are parts of the URL.
    """
    url = f"https://{user}:{PASSWORD}@{host}/a?{query}&X={SIGNATURE}{query}"
    line = one_line(data)
    assert len(line.splitlines()) <= 1, line
    assert line.isprintable(), line
    assert len(line) <= 503
    assert classify(data) is None or issubclass(classify(data) or Exception, Refusal)
    text = data.decode("utf-8", "replace")
    kept = without_secrets(f"{text} {url}: refused\n{text}")
    assert PASSWORD not in kept or PASSWORD in text, kept
    assert SIGNATURE not in kept or SIGNATURE in text, kept
