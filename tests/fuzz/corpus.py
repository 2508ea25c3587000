"""Seeds (valid and nearly valid inputs), the words that spoil them, and Hypothesis strategies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from typing import Any

from hypothesis import strategies as st

from tests.fuzz.fixture import DEFAULT, SETTINGS, Setup
from tests.fuzz.headers import DATE_WORD, SIZES, TAG_WORD
from tests.fuzz.lengths import CONTAINERS
from tests.fuzz.reports import HOST, NOTICES, QUERY, USER
from tests.fuzz.stored import BODY, RECORD, WHOLE, sealed
from tests.media.lengths.test_musepack import musepack
from tests.support import flac, lossless, mp4, mpeg, ogg, riff
from tests.support.strategies import encoded, escaped, junk, option_segments, sources
from tests.web.test_conditions import IGNORED, SATISFIABLE, SIZE, UNSATISFIABLE

_SPELLED = b"plain/https://EXAMPLE.com.:443/a%2520b?x=1%23f"
PATHS = (
    b"insecure/f:mp3/br:192/sr:44100/ch:2/plain/local://a.mp3",
    b"insecure/f:peaks/pts:100/pk_fmt:dat/pk_bits:8/plain/local://dir/b%20c%FF.wav",
    b"insecure/exp:1799999999/plain/s3://bucket/key%2Fk",
    b"insecure/br:96/br:128/" + _SPELLED,
    b"insecure/gain:-0/t:00:0.50/cb:%e9/dl:a%0d%0ab/" + _SPELLED,
    b"insecure/plain/https://[::ffff:1.2.3.4]:8443",
    b"insecure/enc/bG9jYWw6Ly9hLm1wMw==",
    b"insecure/enc/" + encoded(b"https://h?" + b"q" * 2038),
    b"insecure/info/plain/local://a.mp3",
    b"insecure/info/f:mp3/plain/local://a.mp3",
    *b"health ready metrics hls/insecure/f:mp3/plain/local://a.mp3/index.m3u8".split(),
)

# Path of a variant. In inputs, the word TAG stands for the ETag of this variant.
_TAGGED = b"insecure/plain/local://a.mp3"
_LINES = (
    b"Range: bytes=0-9",
    b"Range: bytes=-5\r\nIf-Range: TAG",
    b"Range: bytes=200-",
    b"Range: bytes=90-\r\nRange: bytes=1-2",
    b'If-None-Match: W/"a", "b", W/TAG',
    b"x-request-id: mine-1",
    b"x-request-id: a b",
    b"Access-Control-Request-Headers: range",
    b"Connection: close",
    b"Content-Length: 3\r\nExpect: 100-continue",
    b"Transfer-Encoding: chunked",
    b"Content-Length: " + b"9" * 5000,
)
_BODIES = (b"", b"abc", b"3\r\nabc\r\n0\r\n\r\n")


def request(method: bytes, path: bytes, line: bytes = b"", body: bytes = b"") -> bytes:
    """Return an HTTP/1.1 request."""
    lines = [method + b" /" + path + b" HTTP/1.1", b"Host: h", *filter(None, [line]), b"", b""]
    return b"\r\n".join(lines) + body


REQUESTS = (
    *(request(b"GET", path) for path in PATHS),
    *(request(b"HEAD", path) for path in PATHS[:3]),
    *(request(b"OPTIONS", PATHS[0], line) for line in _LINES[:8]),
    *(request(b"GET", _TAGGED, line) for line in _LINES),
    *(request(b"POST", PATHS[0], _LINES[9 + (i > 1)], body) for i, body in enumerate(_BODIES)),
    b"GET http://h/insecure/plain/local://a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /\r\n\r\n",
)


def _setup(name: str, value: object) -> Setup:
    return tuple({**dict(zip(SETTINGS, DEFAULT, strict=True)), name: value}.values())


_EACH = b"".join(
    request(method, path)
    for method in (b"HEAD", b"GET")
    for path in (PATHS[0], b"insecure/info/plain/local://a")
)
CONVERSATIONS = (
    *((DEFAULT, each) for each in REQUESTS),
    *((_setup(name, value), _EACH) for name, values in SETTINGS.items() for value in values[1:]),
    *((_setup("stored", "0123456789abcdef"), request(b"GET", _TAGGED, line)) for line in _LINES),
    # A malformed request once was pipelined behind a render, and got two responses.
    (DEFAULT, b"GT 3 HTTP/1.1\r\nt:\r\n\r\n" + request(b"GET", _TAGGED) + b"e\r\n"),
)

# What the unit tests of these headers have, too.
RANGES = tuple(product((0, SIZE), (*dict(SATISFIABLE), *UNSATISFIABLE, *IGNORED)))
CONDITIONS = tuple(
    (text,) for text in (*b'TAG DATE * TAG,, " "a"TAG"b"'.split(), b'W/TAG, "b"', b'"a" , TAG')
)

_STREAM = {
    "codec_type": "audio",
    "codec_name": "aac",
    "sample_rate": "44100",
    "channels": 2,
    "channel_layout": "stereo",
    "bits_per_sample": 0,
    "bits_per_raw_sample": "24",
    "duration": "1.500000",
    "bit_rate": "128000",
    "disposition": {"attached_pic": 0},
}
_FORMAT = {
    "format_name": "mov,mp4,m4a,3gp,3g2,mj2",
    "duration": "N/A",
    "size": "1000",
    "bit_rate": "64000",
    "tags": {"TITLE": "t", "title": "u"},
}
_ANSWER = {"streams": [{"codec_type": "video", "disposition": {"attached_pic": 1}}, _STREAM]}
PROBES = (
    (False, b"", json.dumps(_ANSWER | {"format": _FORMAT}, indent=4).encode()),
    (True, NOTICES[1], json.dumps(_ANSWER | {"format": _FORMAT}, indent=4).encode()),
    (False, b"", json.dumps(_ANSWER | {"format": {"size": "9" * 20}}).encode()),
    # Nesting that once was too deep for the parser.
    (False, b"", b"[" * 9999),
)

DIAGNOSTICS = (
    (b"[https @ 0x55]\nInvalid data found", "user", "host.example", "X-Amz-Date=1"),
    (b"file:/dev/fd/3: Invalid argument", "", "", ""),
    (b"https://a:b@c/d?e f\r\nNo space left on device", "", "", ""),
    # Once a quote ended the query of a URL, and the first @ ended its userinfo.
    (b"opening\nfailed", "user", "h", "'"),
    (b"opening\nfailed", "@", "h", "q"),
)

FILES = (
    (WHOLE, False),
    (WHOLE[:512] + WHOLE[513:], False),
    (WHOLE.replace(b"mpeg", b"xpeg"), False),
    (b"APVARNT1", False),
    *(
        (sealed(BODY, record), True)
        for record in (
            RECORD,
            b'{"size": 1e999}',
            b'{"size": %d, "content_type": 5, "cache_control": "\xc3\xa9"}' % len(BODY),
            b"[" * 3000,
        )
    ),
)

URL_WORDS = (
    *(f"{key}:".encode() for key in "f br q sr ch bd t fade gain norm enhance pts".split()),
    *(f"{key}:".encode() for key in "pk_fmt pk_bits dl cb exp".split()),
    *b"mp3 opus ogg aac m4a flac wav peaks json dat 32f voice ebu info plain enc".split(),
    *b"insecure/ health ready local:// s3:// https:// [::1] :443 @ / // : % %2F %00 + -".split(),
    *b"0 1 0.5 999999999 253402300799 = == . .. ? #".split(),
)
HTTP_WORDS = (
    *b"GET HEAD OPTIONS POST HTTP/1.1 HTTP/1.0 Range: If-Range: If-None-Match: bytes=".split(),
    *b"Content-Length: Transfer-Encoding: chunked Expect: 100-continue close keep-alive".split(),
    *(b"\r\n", b"\r\n\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b"0\r\n\r\n", b"x-request-id: "),
)
HEADER_WORDS = (TAG_WORD, DATE_WORD, b" ", b"9" * 25, *b'bytes= - , W/ " 0 1'.split())
_SOURCES = {
    "wav": riff.wav(riff.chunk(b"fmt ", riff.FORMAT), riff.chunk(b"data", bytes(8))),
    "w64": riff.w64((b"fmt ", riff.FORMAT), (b"data", bytes(8))),
    "aiff": b"FORM\0\0\0\0AIFF"
    + riff.chunk(b"COMM", b"\0\2\0\0\0\2\0\x10" + bytes(10), order=">I")
    + riff.chunk(b"SSND", bytes(16), order=">I"),
    "caf": b"caff\0\1\0\0desc\0\0\0\0\0\0\0\x20"
    + bytes(16)
    + b"\0\0\0\4"
    + bytes(12)
    # A data chunk of unknown size.
    + b"data"
    + b"\xff" * 8
    + bytes(12),
    "flac": flac.flac(flac.frame(b"\0"), flac.frame(b"\1", 6, b"\x63")),
    "mov": mp4.mp4(mp4.track((9, 1024), edits=mp4.edits((100, 1024)))),
    "ogg": ogg.opus(ogg.page(960, ogg.PACKET), ogg.page(9000, b"x", flags=4)),
    "mp3": mpeg.tagged(mpeg.MPEG_1, 9),
    "amr": b"#!AMR\n\x04" + bytes(12) + b"\x44" + bytes(5) + b"\x7c",
    "aac": b"\xff\xf1\x50\x80\x02\x1f\xfc" + bytes(9) + b"\xff\xf1\x50\x80\x02\x1f\xfc" + bytes(9),
    "iff": b"FORM\0\0\0\x008SVX" + riff.chunk(b"BODY", bytes(8), order=">I"),
    "dsf": riff.dsf(8, bytes(8192)),
    "wv": lossless.wavpack(3) + lossless.TAG,
    "tta": lossless.tta(),
    "ape": lossless.ape(),
    "tak": lossless.tak(),
    "mpc8": musepack(),
    "matroska": b"\x1a\x45\xdf\xa3\x81\0\x18\x53\x80\x67\x89" + bytes(9),
}
AUDIO_FILES = tuple((probe, _SOURCES[probe.container]) for probe in CONTAINERS)
CONTAINER_WORDS = (
    *(b"RIFF RF64 BW64 WAVE data ds64 fmt FORM AIFF COMM SSND caff desc fLaC OggS".split()),
    *(b"moov trak mdia hdlr soun edts elst stts moof Xing Info VBRI LAME TAG ID3".split()),
    *(b"OpusHead APETAGEX wvpk TTA1 tBaK MPCKSH BODY FRM8 #!AMR-WB stsd esds mp4a".split()),
    *(b"\xff\xfb\x90\x04", b"\xff\xf8", b"\0\0\0\1", b"\xff\xff\xff\xff", b"\1vorbis"),
)
JSON_WORDS = (
    *(f'"{name}"'.encode() for name in (*_STREAM, *_FORMAT, "format", "streams")),
    *b'null true 0 -1 1e999 NaN Infinity "N/A" "0" "video" "audio" "\\ud800" { } [ ] : ,'.split(),
    *(b"\n", b"9" * 20, b"[" * 2000),
)
TEXT_WORDS = (*b"? ' \" @ / :// \x1b \xc2\xa0 \xe2\x80\xa8 \n \r & =".split(b" "), b" ")


def spoiled(seeds: Sequence[bytes], words: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """Draw seeds in which words or random bytes replace a few short slices, and short bytes."""
    return _spoiled(st.sampled_from(seeds), words) | st.binary(max_size=60)


@st.composite
def _spoiled(draw: st.DrawFn, seeds: st.SearchStrategy[bytes], words: Sequence[bytes]) -> bytes:
    data = draw(seeds)
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, len(data)))
        until = at + draw(st.sampled_from((0, 0, 1, 2, 5, 40)))
        data = data[:at] + draw(st.sampled_from(words) | st.binary(max_size=4)) + data[until:]
    return data


@st.composite
def _paths(draw: st.DrawFn) -> bytes:
    spelled = draw(sources().flatmap(escaped).map(lambda raw: b"plain/" + raw))
    return b"/".join([b"insecure", *draw(option_segments()), spelled])


def paths() -> st.SearchStrategy[bytes]:
    """Draw paths without their leading slash."""
    spelled = st.sampled_from(PATHS) | _paths()
    return _spoiled(spelled, URL_WORDS) | junk().map(lambda text: b"insecure/" + text)


def conversations() -> st.SearchStrategy[tuple[Setup, bytes]]:
    """Draw the setup of a service and the bytes sent on a connection."""
    requests = spoiled(REQUESTS, (*HTTP_WORDS, *URL_WORDS)) | st.sampled_from(REQUESTS)
    built = st.builds(
        request,
        st.sampled_from((b"GET", b"HEAD", b"PUT")),
        st.just(_TAGGED) | paths(),
        st.sampled_from(_LINES),
    )
    sent = st.lists(requests | built, min_size=1, max_size=4).map(b"".join)
    setup = st.tuples(*map(st.sampled_from, SETTINGS.values()))
    return st.tuples(setup, sent)


def conditions() -> st.SearchStrategy[tuple[bytes]]:
    """Draw values of If-None-Match and If-Range."""
    return st.tuples(spoiled([text for (text,) in CONDITIONS], HEADER_WORDS))


def ranges() -> st.SearchStrategy[tuple[int, bytes]]:
    """Draw the size of a variant, and a Range header."""
    headers = spoiled([header for _, header in RANGES], HEADER_WORDS)
    return st.tuples(st.sampled_from(SIZES), headers)


def diagnostics() -> st.SearchStrategy[tuple[bytes, str, str, str]]:
    """Draw a diagnostic, and the userinfo, the host and the query of a URL."""
    text = spoiled([data for data, *_ in DIAGNOSTICS], TEXT_WORDS)
    parts = (st.text(allowed, max_size=9) for allowed in (USER, HOST, QUERY))
    return st.tuples(text, *parts)


def audio_files() -> st.SearchStrategy[tuple[Any, bytes]]:
    """Draw a probe result, and a source."""
    return st.sampled_from(AUDIO_FILES).flatmap(
        lambda pair: st.tuples(st.just(pair[0]), spoiled([pair[1]], CONTAINER_WORDS))
    )


def stored_files() -> st.SearchStrategy[tuple[bytes, bool]]:
    """Draw files of a store: any bytes, a spoiled one, or any record with its right checksum."""
    records = spoiled([RECORD], JSON_WORDS).map(lambda record: sealed(BODY, record))
    files = spoiled([WHOLE], JSON_WORDS)
    return st.tuples(files, st.just(False)) | st.tuples(records, st.just(True))


def probes() -> st.SearchStrategy[tuple[bool, bytes, bytes]]:
    """Draw whether output of ffprobe was cut off, its stderr, and JSON with values of any type."""
    numbers = st.integers() | st.floats() | st.integers(0, 10**20).map(str)
    values = st.recursive(
        st.none() | st.booleans() | numbers | st.text(max_size=9) | st.just("N/A"),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=5,
    )

    def broken(good: dict[str, object]) -> st.SearchStrategy[dict[str, object]]:
        names = st.sampled_from(sorted(good))
        return st.dictionaries(names, values, max_size=3).map(lambda bad: good | bad)

    streams = st.lists(broken(_STREAM), max_size=2) | values
    whole = st.builds(
        lambda container, streams: json.dumps({"format": container, "streams": streams}).encode(),
        broken(_FORMAT) | values,
        streams,
    )
    outputs = whole | spoiled([output for *_, output in PROBES], JSON_WORDS)
    return st.tuples(st.booleans(), st.sampled_from(NOTICES), outputs)
