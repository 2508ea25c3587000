"""NIST SPHERE, the container of corpora of speech: a header in words, and uncompressed samples.

The header has a line for each field: its name, its type, and its value. ``end_head`` ends it, and
spaces fill it up to its size.
"""

from __future__ import annotations

import re

from audioproxy.errors import UndecodableSource
from audioproxy.media.lengths.pcm import SampleForm, sample_bytes
from audioproxy.media.reading import Malformed, Reader, read_range

_START = re.compile(rb"NIST_1A\r?\n *(\d{1,5})\r?\n")
_FIELD = re.compile(rb"^(\w+) +-(?:i|r|s\d+) +(\S+)", re.MULTILINE)
# A number may have a fraction.
_NUMBER = re.compile(rb"(\d{1,12})(?:\.\d*)?")
_END = b"end_head"

_LAWS = {b"ulaw": "pcm_mulaw", b"mu-law": "pcm_mulaw", b"alaw": "pcm_alaw"}
_ORDERS = {b"01": "le", b"10": "be"}


def read_sphere(size: int) -> Reader[tuple[SampleForm, int, int]]:
    """Return the form of the samples, the offset of the first, and that after the last."""
    begin = _START.match((yield from read_range(0, min(size, 20))))
    if begin is None:
        raise Malformed
    start = int(begin[1])
    head, _, rest = (yield from read_range(0, start)).partition(_END)
    fields = dict(_FIELD.findall(head))
    channels, rate, stated = (
        _read_number(fields.get(name, b"1"))
        for name in (b"channel_count", b"sample_rate", b"sample_count")
    )
    codec = _codec(fields)
    if not (codec and rest and channels and rate > 1):
        raise UndecodableSource("The samples of the NIST SPHERE file are compressed or unknown.")
    width = sample_bytes(codec)
    end = size if b"sample_count" not in fields else start + stated * channels * width
    layout = {1: "mono", 2: "stereo"}.get(channels)
    return SampleForm(codec, rate, channels, 8 * width, layout), start, max(start, min(end, size))


def _codec(fields: dict[bytes, bytes]) -> str | None:
    coding = fields.get(b"sample_coding", b"pcm")
    width = _read_number(fields.get(b"sample_n_bytes", b"2"))
    if coding in _LAWS:
        return _LAWS[coding] if width in (1, 2) else None
    order = _ORDERS.get(fields.get(b"sample_byte_format", b""))
    if coding != b"pcm" or fields.get(b"channels_interleaved", b"TRUE") == b"FALSE":
        return None
    if width == 1:
        return "pcm_s8"
    return f"pcm_s{8 * width}{order}" if width in (2, 3, 4) and order else None


def _read_number(text: bytes) -> int:
    found = _NUMBER.fullmatch(text)
    return int(found[1]) if found else 0
