"""Hypothesis strategies for the parts of a URL.

Every combination from `option_segments` is valid under the contract. Many are not in canonical
spelling.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from decimal import Decimal
from urllib.parse import quote

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from audioproxy.grammar.formats import FORMATS, LOSSY_RATE_CEILING
from audioproxy.grammar.sources import leaves_root

#: Makes results reproducible: no deadline, no random seed and no database of earlier runs.
DETERMINISTIC = settings(
    max_examples=75,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)

_LONGEST = 999_999_999
#: Values of ``dl``, decoded.
FILENAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs"), exclude_characters="/\\"),
    min_size=1,
    max_size=60,
).filter(lambda name: len(name.encode()) <= 255)


@st.composite
def integers(draw: st.DrawFn, low: int, high: int) -> str:
    """Draw an integer from ``low`` to ``high``, with or without leading zeros."""
    return str(draw(st.integers(low, high))).zfill(draw(st.sampled_from((0, 9))))


@st.composite
def decimals(
    draw: st.DrawFn, low: Decimal | int | str, high: Decimal | int | str, *, plus: bool = False
) -> str:
    """Draw a decimal number from ``low`` to ``high``, with or without redundant zeros."""
    thousandths = draw(st.integers(int(Decimal(low) * 1000), int(Decimal(high) * 1000)))
    return spell_thousandths(
        thousandths,
        fraction_digits=draw(st.integers(0, 3)),
        integer_digits=draw(st.sampled_from((0, 9))),
        plus=plus and draw(st.booleans()),
    )


def spell_thousandths(
    thousandths: int, *, fraction_digits: int, integer_digits: int, plus: bool
) -> str:
    """Spell a number with at least these numbers of fractional and integer digits."""
    seconds, rest = divmod(abs(thousandths), 1000)
    digits = f"{rest:03d}".rstrip("0").ljust(fraction_digits, "0")
    sign = "-" if thousandths < 0 else "+" if plus else ""
    return sign + str(seconds).zfill(integer_digits) + (f".{digits}" if digits else "")


@st.composite
def escaped(draw: st.DrawFn, value: bytes) -> bytes:
    """Draw a percent-encoded spelling of ``value``; each ``%`` in it is always encoded."""
    printable = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")
    spelled = quote(value, safe=draw(st.sampled_from(("", "/:", printable))))
    if draw(st.booleans()):
        spelled = re.sub("%..", lambda escape: escape[0].lower(), spelled)
    return spelled.encode("ascii")


@st.composite
def option_segments(draw: st.DrawFn) -> list[bytes]:
    """Draw option segments that are valid together, in any order."""
    form = FORMATS[draw(st.sampled_from(sorted(FORMATS)))]
    values: dict[str, str] = {}

    def maybe(key: str, value: Callable[[], st.SearchStrategy[str]]) -> None:
        if draw(st.booleans()):
            values[key] = draw(value())

    if form.token != "mp3" or draw(st.booleans()):
        values["f"] = form.token
    if form.br is not None and draw(st.booleans()):
        values["br"] = draw(integers(*form.br))
    elif form.q is not None:
        low, high = form.q
        whole = integers(int(Decimal(low)), int(Decimal(high)))
        maybe("q", lambda: whole if form.q_whole else decimals(low, high))
    if form.token == "peaks":
        maybe("pts", lambda: integers(1, 65536))
        maybe("pk_fmt", lambda: st.sampled_from(("json", "dat")))
        maybe("pk_bits", lambda: st.sampled_from(("8", "16")))
    else:
        ceiling = LOSSY_RATE_CEILING if form.lossy else 384000
        listed = [str(rate) for rate in form.rates.listed if rate <= ceiling]
        highest = min(ceiling, form.rates.step_10_above)
        maybe("sr", lambda: st.sampled_from(listed) if listed else integers(1000, highest))
    if form.depths:
        maybe("bd", lambda: st.sampled_from(form.depths))
    maybe("ch", lambda: st.sampled_from(("1", "2")))
    region: Decimal | int = _LONGEST
    if draw(st.booleans()):
        duration = draw(st.none() | decimals("0.001", _LONGEST))
        start = draw(decimals(0, _LONGEST))
        values["t"] = start if duration is None else f"{start}:{duration}"
        region = _LONGEST if duration is None else Decimal(duration)
    if draw(st.booleans()):
        lengths = draw(st.lists(decimals(0, region), min_size=1, max_size=2))
        values["fade"] = ":".join(lengths)
    maybe("gain", lambda: decimals(-60, 60, plus=True))
    if draw(st.booleans()):
        bounds = (("-70", "-5"), ("-9", "0"), ("1", "50"))[: draw(st.integers(0, 3))]
        values["norm"] = ":".join(["ebu", *(draw(decimals(low, high)) for low, high in bounds)])
    maybe("enhance", lambda: st.just("voice"))
    segments = [f"{key}:{value}".encode("ascii") for key, value in values.items()]
    if draw(st.booleans()):
        segments.append(b"dl:" + draw(escaped(draw(FILENAMES).encode())))
    if draw(st.booleans()):
        # A slash would end the segment.
        spelled = draw(escaped(draw(st.binary(min_size=1, max_size=60)))).replace(b"/", b"%2F")
        segments.append(b"cb:" + spelled)
    return draw(st.permutations(segments))


def expiries() -> st.SearchStrategy[int]:
    """Draw a value of ``exp`` from 1 to the last second of the year 9999."""
    return st.integers(1, 253_402_300_799)


_LABEL = st.from_regex(r"\A[A-Za-z0-9]([A-Za-z0-9-]{0,8}[A-Za-z0-9])?\Z")
_HOST = st.one_of(
    st.lists(_LABEL, min_size=1, max_size=4).map(".".join),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(lambda address: f"[{address.exploded.upper()}]"),
)
_URL_TEXT = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=40)


def _locals() -> st.SearchStrategy[bytes]:
    path = st.binary(min_size=1, max_size=80).filter(
        lambda path: not (path.startswith(b"/") or b"\0" in path or leaves_root(path))
    )
    return path.filter(lambda path: path.count(b"/") < 64).map(lambda path: b"local://" + path)


def _objects() -> st.SearchStrategy[bytes]:
    bucket = st.from_regex(rb"\A[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
    key = st.binary(min_size=1, max_size=80)
    return st.builds(lambda bucket, key: b"s3://" + bucket + b"/" + key, bucket, key)


@st.composite
def _urls(draw: st.DrawFn) -> bytes:
    scheme = draw(st.sampled_from(("https", "HTTPS", "hTTps")))
    root = draw(st.sampled_from(("", ".")))
    host = draw(_HOST)
    port = draw(st.just("") | st.just(":443") | st.integers(1, 65535).map(lambda n: f":{n}"))
    path = draw(st.just("") | _URL_TEXT.map(lambda text: "/" + re.sub("[?#]", "", text)))
    query = draw(st.just("") | _URL_TEXT.map(lambda text: "?" + text.replace("#", "")))
    fragment = draw(st.just("") | _URL_TEXT.map(lambda text: "#" + text))
    dotted = "" if host.startswith("[") else root
    return f"{scheme}://{host}{dotted}{port}{path}{query}{fragment}".encode("ascii")


def sources() -> st.SearchStrategy[bytes]:
    """Draw a decoded source string: ``local://``, ``s3://`` or ``https://``."""
    return _locals() | _objects() | _urls()


def encoded(source: bytes) -> bytes:
    """Encode a source for ``enc/``, without padding."""
    return base64.urlsafe_b64encode(source).rstrip(b"=")


def junk() -> st.SearchStrategy[bytes]:
    """Draw arbitrary bytes, many of which resemble parts of a URL."""
    words = (
        *(f"{key}:".encode() for key in "f br q sr ch bd t fade gain norm enhance".split()),
        *(f"{key}:".encode() for key in "pts pk_fmt pk_bits dl cb exp".split()),
        *(b"mp3", b"opus", b"flac", b"peaks", b"json", b"32f", b"voice", b"ebu", b"info"),
        *(b"plain", b"enc", b"local://", b"s3://", b"https://", b"http://", b"[::1]", b"@"),
        *(b"/", b":", b"%", b"%2", b"%00", b"%2f", b"=", b"-", b"+", b".", b"0", b"1", b"9" * 12),
    )
    part = st.sampled_from(words) | st.binary(max_size=4)
    return st.binary(max_size=60) | st.lists(part, max_size=10).map(b"".join)
