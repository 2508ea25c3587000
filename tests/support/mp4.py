"""Bytes of MP4 files, as boxes."""

from __future__ import annotations

import struct


def box(name: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I", 8 + len(body)) + name + body


def full_box(name: bytes, body: bytes, version: int = 0) -> bytes:
    return box(name, bytes((version, 0, 0, 0)), body)


def times(name: bytes, rate: int, version: int = 0) -> bytes:
    """Return a header with a time scale."""
    if version:
        return full_box(name, struct.pack(">QQIQ", 0, 0, rate, 0), 1)
    return full_box(name, struct.pack(">IIII", 0, 0, rate, 0))


def edits(
    *entries: tuple[int, int], count: int | None = None, rate: int = 1 << 16, version: int = 0
) -> bytes:
    """Return an edit list of durations and starts."""
    form = ">QqI" if version else ">IiI"
    body = struct.pack(">I", len(entries) if count is None else count)
    body += b"".join(struct.pack(form, *entry, rate) for entry in entries)
    return box(b"edts", full_box(b"elst", body, version))


def track(
    *table: tuple[int, int],
    edits: bytes = b"",
    rate: int = 44100,
    handler: bytes = b"soun",
    version: int = 0,
    description: bytes = b"",
    more: bytes = b"",
) -> bytes:
    """Return a track with a time-to-sample table of counts and durations, and further tables."""
    entries = b"".join(struct.pack(">II", *entry) for entry in table)
    samples = full_box(b"stts", struct.pack(">I", len(table)) + entries)
    media = times(b"mdhd", rate, version) + full_box(b"hdlr", bytes(4) + handler + bytes(12))
    tables = box(b"stbl", description, samples, more)
    return box(b"trak", edits, box(b"mdia", media, box(b"minf", tables)))


def tables(
    sizes: int, *runs: tuple[int, int], offsets: tuple[int, ...] = (0, 40), long: bool = False
) -> bytes:
    """Return the tables of the sizes of packets and of chunks.

    :param runs: the number of a chunk, and of the packets of it and of those that follow it.
    """
    entries = b"".join(struct.pack(">III", *run, 1) for run in runs)
    name, form = (b"co64", "Q") if long else (b"stco", "I")
    chunks = struct.pack(f">I{len(offsets)}{form}", len(offsets), *offsets)
    return b"".join(
        (
            full_box(b"stsc", struct.pack(">I", len(runs)) + entries),
            full_box(b"stsz", struct.pack(">II", 7, sizes)),
            full_box(name, chunks),
        )
    )


def description(codec: bytes, configuration: bytes) -> bytes:
    """Return a description of the samples."""
    entry = box(codec, bytes(28), configuration)
    return full_box(b"stsd", struct.pack(">I", 1) + entry)


def configuration(kind: int, rate: int, flags: int = 0) -> bytes:
    """Return a box with an AudioSpecificConfig of a kind of AAC and the index of a rate."""
    specific = struct.pack(">H", kind << 11 | rate << 7 | flags)
    decoder = b"\x04\x80\x80\x80\x14\x40" + bytes(12) + b"\x05\x80\x80\x80\x02" + specific
    return full_box(b"esds", b"\x03\x80\x80\x80\x20\0\0\0" + decoder)


def mp4(*tracks: bytes, rate: int = 1000, version: int = 0) -> bytes:
    movie = box(b"moov", times(b"mvhd", rate, version), *tracks)
    large = struct.pack(">I4sQ", 1, b"free", 20) + bytes(4)
    return box(b"ftyp", b"M4A ") + large + movie + box(b"mdat", bytes(90))


def add_gapless_tag(source: bytes, text: str) -> bytes:
    """Return an m4a file with the tag ``iTunSMPB`` at its end."""
    data = box(b"data", struct.pack(">II", 1, 0), text.encode())
    mean = box(b"mean", bytes(4), b"com.apple.iTunes")
    item = box(b"----", mean, box(b"name", bytes(4), b"iTunSMPB"), data)
    handler = box(b"hdlr", bytes(8), b"mdirappl", bytes(9))
    tags = box(b"udta", box(b"meta", bytes(4), handler, box(b"ilst", item)))
    at = source.index(b"moov") - 4
    size = int.from_bytes(source[at : at + 4], "big")
    assert at + size == len(source), "the tag moves no audio"
    return source[:at] + struct.pack(">I", size + len(tags)) + source[at + 4 :] + tags
