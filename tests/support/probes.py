"""Probes for tests, whose parts are given by the names of their fields."""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from typing import Any

from audioproxy.media import probe as values
from audioproxy.media.probe import AudioStream, Check, Container

_FILE = {field.name for field in dataclasses.fields(Container)}
_AUDIO = {field.name for field in dataclasses.fields(AudioStream)}
_STAMPS = {field.name for field in dataclasses.fields(values.TimeStamps)}
_NAMES = {"container": "name", "stream_bitrate": "bitrate"}
_NAMES |= {"audio_streams": "streams", "marked_stream": "marked"}
_CHECKS = {
    "may_be_padded": Check.PADDED_SAMPLES,
    "may_be_encrypted": Check.ENCRYPTION,
    "may_be_undecodable": Check.DECODER,
    "may_be_joined": Check.JOINED_FILES,
    "unchecked": Check.SAMPLES,
    "may_count_padding": Check.DURATION,
}


def Probe(
    container: str, codec: str, duration: Decimal | None, exact: bool, *rate: int, **fields: Any
) -> values.Probe:
    """Return a probe result."""
    plain = values.Probe(
        Container(""),
        AudioStream("", *(rate or (48000,)), channels=2, bit_depth=16, decoded_bits=16),
        None,
        exact=False,
        pending=frozenset() if container == "mp3" else frozenset({Check.DURATION}),
    )
    fields |= {"container": container, "codec": codec, "duration": duration, "exact": exact}
    return replace(plain, **fields)


def replace(value: Any, **changes: Any) -> Any:
    """Return a copy of a value; the fields of a probe are those of its parts, too."""
    if not isinstance(value, values.Probe):
        return dataclasses.replace(value, **changes)
    pending = {_CHECKS[name]: changes.pop(name) for name in _CHECKS if name in changes}
    if "is_described" in changes:
        pending[Check.DURATION] = not changes.pop("is_described")
    due = {check for check, is_due in pending.items() if is_due}
    parts = {"file": {}, "audio": {}, "stamps": {}}
    for name in [*changes]:
        field = _NAMES.get(name, name)
        for part, names in (("file", _FILE), ("audio", _AUDIO), ("stamps", _STAMPS)):
            if field in names:
                parts[part][field] = changes.pop(name)
    for part, fields in parts.items():
        if fields:
            changes[part] = dataclasses.replace(getattr(value, part), **fields)
    changes.setdefault("pending", value.checked(*pending).pending | due)
    return dataclasses.replace(value, **changes)
