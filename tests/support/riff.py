"""Bytes of containers of samples: RIFF, RIFX, Wave64, DSF, Core Audio and NIST SPHERE."""

from __future__ import annotations

import struct

from tests.support.audio import noise, write_wav

FORMAT = struct.pack("<HHIIHH", 1, 2, 44100, 176400, 4, 16)
W64_GUIDS = {
    b"riff": "726966662e91cf11a5d628db04c10000",
    b"wave": "77617665f3acd3118cd100c04f8edb8a",
    b"fmt ": "666d7420f3acd3118cd100c04f8edb8a",
    b"data": "64617461f3acd3118cd100c04f8edb8a",
}


def chunk(name: bytes, body: bytes, size: int | None = None, order: str = "<I") -> bytes:
    """Return a chunk of RIFF or IFF."""
    length = struct.pack(order, len(body) if size is None else size)
    return name + length + body + b"\0" * (len(body) % 2)


def wav(*chunks: bytes, name: bytes = b"RIFF") -> bytes:
    return name + b"\xff\xff\xff\xffWAVE" + b"".join(chunks)


def dsf(
    samples: int, data: bytes = bytes(2 * 8192), name: bytes = b"DSD ", channels: int = 2
) -> bytes:
    """Return a DSF file with a number of samples, and bytes of them."""
    form = struct.pack("<IIIIIIQII", 1, 0, channels, channels, 2822400, 1, samples, 4096, 0)
    head = name + struct.pack("<QQQ", 28, 92 + len(data), 0)
    head += b"fmt " + struct.pack("<Q", 52) + form
    return head + b"data" + struct.pack("<Q", 12 + len(data)) + data


def w64(*chunks: tuple[bytes, bytes]) -> bytes:
    def guid(name: bytes) -> bytes:
        return bytes.fromhex(W64_GUIDS[name])

    body = b"".join(
        guid(name) + struct.pack("<Q", 24 + len(data)) + data + b"\0" * (-len(data) % 8)
        for name, data in chunks
    )
    return guid(b"riff") + bytes(8) + guid(b"wave") + body


PCM = "0100000000001000800000aa00389b71"
FLOAT = "0300000000001000800000aa00389b71"


def extensible(
    container: int, valid: int, kind: str = PCM, frame: int | None = None, tag: int = 0xFFFE
) -> bytes:
    """Return a sample format of two channels at 1000 Hz."""
    frame = container // 4 if frame is None else frame
    start = struct.pack("<HHIIHH", tag, 2, 1000, 1000 * frame, frame, container)
    return start + struct.pack("<HHI", 22, valid, 3) + bytes.fromhex(kind)


def description(
    packet: int, bits: int, codec: bytes = b"lpcm", flags: int = 2, frames: int = 1, count: int = 2
) -> bytes:
    """Return the head of a Core Audio file at 1000 Hz."""
    fields = struct.pack(">d4sIIIII", 1000, codec, flags, packet, frames, count, bits)
    return b"caff\0\1\0\0" + b"desc" + struct.pack(">q", len(fields)) + fields


FIELDS = {
    "database_id": "-s5 TIMIT",
    "channel_count": "-i 1",
    "sample_count": "-i 100",
    "sample_rate": "-i 16000",
    "sample_n_bytes": "-i 2",
    "sample_byte_format": "-s2 01",
}


def sphere(data: bytes = bytes(200), size: int = 1024, line: str = "\n", **fields: str) -> bytes:
    """Return a file; a field with an empty value is left out."""
    rows = [f"{name} {value}" for name, value in (FIELDS | fields).items() if value]
    words = line.join(["NIST_1A", f"{size:7}", *rows, "end_head", ""])
    return words.encode().ljust(size) + data


FORM = chunk(b"fmt ", FORMAT)
# Noise that has no name of a chunk in it.
SOUND = write_wav(noise(8000, 1000))[44:]
INFO = chunk(b"LIST", b"INFO" + chunk(b"IART", b"abc"))
START = len(wav(FORM, chunk(b"data", b"")))


def stating(size: int, *chunks: bytes, name: bytes = b"RIFF") -> bytes:
    """Return a file of sound that states a number of bytes, with chunks and bytes behind it."""
    order = ">I" if name == b"RIFX" else "<I"
    form = chunk(b"fmt ", FORMAT, order=order)
    return wav(form, chunk(b"data", SOUND, size, order), *chunks, name=name)
