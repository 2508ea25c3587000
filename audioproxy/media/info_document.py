"""The info document of a source, parsed from ffprobe's output (Info document)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from decimal import Decimal
from typing import Any

from audioproxy.grammar.formats import FORMATS
from audioproxy.media.tags import CARRIED_TAGS

# The most tags, and the most characters of a tag's key or value (D24).
_MOST_TAGS = 32
_LONGEST_TEXT = 512

# The order of tags: well-known ones come first, and those that describe MP4 itself come last.
_FIRST_TAGS = "title artist album album_artist track disc date genre composer comment".split()
_LAST_TAGS = ("major_brand", "minor_version", "compatible_brands")
_OTHER_TAGS = len(_FIRST_TAGS)
_RANKS = {key: rank for rank, key in enumerate(_FIRST_TAGS)}
_RANKS |= dict.fromkeys(_LAST_TAGS, _OTHER_TAGS + 1)

# Numbers as ffprobe prints them. Longer ones come from a broken header, and would not fit a number
# in JSON.
_SECONDS = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,9})?")
_COUNT = re.compile(r"[0-9]{1,18}")

_TOKENS = {row.token for row in FORMATS.values() if row.content_type}


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """The fields of the document; None where ffprobe does not report a field.

    :ivar format: a format token where the container has one, else ffprobe's first name for it.
    :ivar duration: seconds.
    :ivar sample_rate: Hz.
    :ivar bit_depth: bits of a sample as stored.
    :ivar bitrate: bits per second.
    :ivar size: bytes.
    :ivar tags: by lower-case key.
    """

    format: str | None = None
    duration: Decimal | None = None
    sample_rate: int | None = None
    channels: int | None = None
    bit_depth: int | None = None
    bitrate: int | None = None
    size: int | None = None
    tags: Mapping[str, str] = field(default_factory=dict, hash=False)

    def document(self, size: int | None) -> dict[str, object]:
        """Return the document without unknown fields; the storage may report the size in bytes."""
        fields: dict[str, object] = asdict(self) | {
            "duration": None if self.duration is None else float(self.duration),
            "size": size or self.size,
            "tags": dict(self.tags) or None,
        }
        return {name: value for name, value in fields.items() if value is not None}


def parse_source_info(container: Mapping[str, Any], audio: Mapping[str, Any]) -> SourceInfo:
    """Parse ffprobe's ``format`` object and the object of the first audio stream.

    The tags of Ogg are those of the stream. A second field is read where the first one has no
    usable value: ffprobe's ``N/A``, 0 and text that is not a number count as missing.
    """
    return SourceInfo(
        format=_format(container.get("format_name"), audio.get("codec_name")),
        duration=parse_seconds(container.get("duration")) or parse_seconds(audio.get("duration")),
        sample_rate=parse_count(audio.get("sample_rate")),
        channels=parse_count(audio.get("channels")),
        bit_depth=parse_count(audio.get("bits_per_raw_sample"))
        or parse_count(audio.get("bits_per_sample")),
        bitrate=parse_count(container.get("bit_rate")) or parse_count(audio.get("bit_rate")),
        size=parse_count(container.get("size")),
        tags=_tags(audio.get("tags") if container.get("format_name") == "ogg" else None)
        or _tags(container.get("tags")),
    )


def parse_seconds(text: object) -> Decimal | None:
    """Parse a positive number of seconds; return None for anything else."""
    spelled = str(text)
    return (Decimal(spelled) or None) if _SECONDS.fullmatch(spelled) else None


def parse_count(text: object) -> int | None:
    """Parse a positive whole number; return None for anything else."""
    spelled = str(text)
    return (int(spelled) or None) if _COUNT.fullmatch(spelled) else None


def _format(names: object, codec: object) -> str | None:
    if not isinstance(names, str):
        return None
    listed = [name for name in names.split(",") if name]
    name = next((name for name in listed if name in _TOKENS), listed[0] if listed else None)
    # ffprobe reports the container `ogg` for both Vorbis and Opus.
    return "opus" if (name, codec) == ("ogg", "opus") else name


def _tags(tags: object) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in tags.items() if isinstance(tags, dict) else ():
        if isinstance(value, str):
            # If keys differ only in case, the first one is kept.
            found.setdefault(key.lower()[:_LONGEST_TEXT], value[:_LONGEST_TEXT])
    ranked = sorted(found, key=lambda key: _RANKS.get(key, _OTHER_TAGS))
    # Those that variants carry are always among them (D61).
    kept = sorted(ranked, key=lambda key: key not in CARRIED_TAGS)[:_MOST_TAGS]
    return {key: found[key] for key in ranked if key in kept}
