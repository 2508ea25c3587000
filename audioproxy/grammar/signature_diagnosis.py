"""Diagnosis of wrong signatures: common mistakes of signers, and changes to a URL on its way.

Such a signature comes from a holder of the key, or is an altered copy of a correct one. So the
diagnosis reveals nothing new.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import permutations, zip_longest
from urllib.parse import quote, unquote_to_bytes

from audioproxy.grammar.segments import MEDIA
from audioproxy.grammar.signature import sign, verify
from audioproxy.grammar.values import other_forms, percent_decode

_HEXADECIMAL = re.compile(rb"[0-9A-Fa-f]{64}")
_ENCODED = re.compile(rb"[A-Za-z0-9+/_-]{43}=*")
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_ESCAPED_PADDING = re.compile(rb"(?:%3[Dd])+\Z")
# Parts of a path that caches, CDNs and their rewriting rules change.
_MERGED_SLASHES = re.compile(rb"/plain/(?:local|s3|https):/(?!/)", re.IGNORECASE)
_ESCAPE = re.compile(rb"%[0-9A-Fa-f]{2}")
_TOKEN = re.compile(rb"%[0-9A-Fa-f]{2}|.", re.DOTALL)
_SOURCE = re.compile(rb"(.*?/(?:plain|enc)/)(.*)", re.DOTALL)
# What respelling keeps of a source: nothing, its scheme, or its scheme and its bucket or host.
_KEPT_HEADS = (rb"", rb"\w+:", rb"\w+://", rb"\w+://[^/]*/")
# Slashes of a source of which one alone may have been escaped, counted from the end.
_MOST_SLASHES = 6
# Characters that a URL may have as they are, besides letters, digits and -._~.
_RESERVED = "/:!$&'()*+,;=@"
# Which of them encoders escape in a source: those of whole URLs none, those of paths and of values
# (such as encodeURIComponent) more.
_ESCAPED = ("", "!$&'()*+,;=@", ":$&+,;=@", ":!$&'()*+,;=@", "/:$&+,;=@", _RESERVED)
# Characters that a URL has as they are. A path with others is no URL, so nobody sends it.
_LEGAL = re.compile(rb"(?:[\w.~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*", re.ASCII)
_OUTSIDE_ASCII = re.compile(rb"(?:%[89A-Fa-f][0-9A-Fa-f])+")
_VISIBLE = bytes(range(0x21, 0x7F))
# What stands behind a URL in a text, and is copied with it.
_BEHIND = re.compile(rb"(?:%[0-9A-Fa-f]{2}|&\w+;|[!-,./:-@\[-^`{-~])\Z", re.ASCII)
_MOST_BEHIND, _LONGEST_BEHIND = 4, 10
# What programs that find URLs in a text leave out at the end of one.
_LEFT_OUT = (b"/", b")", b"'", b"!", b".", b"*", b"=")
_ON_THE_WAY = (
    "on the way to this service; let the client and the proxy send it unchanged, or sign with enc/"
)
_AS_SIGNED = "send the URL as it was signed"
# Segments that may precede a signature.
_MOST_BEFORE = 3
# Maximum bytes of a path that is diagnosed. Each mistake that is tried costs a digest of the whole
# path, and longer paths are unlikely while a signer is debugged.
_LONGEST = 1024


def diagnose_for_pairs(
    pairs: Sequence[tuple[bytes, bytes]], path: bytes, signature: bytes
) -> str | None:
    """Return the mistake that explains a wrong signature, or None if it is unknown."""
    for number, (key, salt) in enumerate(pairs):
        if why := diagnose_signature(key, salt, path, signature):
            return f"{why} (with pair {number} of AP_PREVIOUS_KEY)" if number else why
    for (key, _), (_, salt) in permutations(pairs, 2):
        if len(path) <= _LONGEST and verify(key, salt, path, signature):
            return "it was made with the key of one pair and the salt of another"
    return None


def diagnose_signature(key: bytes, salt: bytes, path: bytes, signature: bytes) -> str | None:
    """Return the mistake as the end of a sentence, with what would be right."""
    if len(path) > _LONGEST:
        return None
    if (before := _precedes(key, salt, path, signature)) is not None:
        return before
    digest, spelling = _normalize(signature)
    if digest is None:
        return None
    if verify(key, salt, path, digest):
        return spelling
    seen = {path}
    for original, change in _originals(path):
        if original not in seen and verify(key, salt, original, digest):
            return change or _describe(original, path)
        seen.add(original)
    for made, why in _mistaken_signatures(key, salt, path):
        if hmac.compare_digest(made, digest):
            return why
    return None


def _normalize(signature: bytes) -> tuple[bytes | None, str]:
    """Return a signature in the spelling of `sign`, and how the given spelling differs."""
    if _HEXADECIMAL.fullmatch(signature):
        raw = base64.urlsafe_b64encode(binascii.unhexlify(signature)).rstrip(b"=")
        how = "written in hexadecimal"
    elif (padding := _ESCAPED_PADDING.search(signature)) is not None:
        raw = signature[: padding.start()].translate(_URL_SAFE)
        how = "its padding is percent-encoded"
    elif _ENCODED.fullmatch(signature):
        unpadded = signature.rstrip(b"=")
        raw = unpadded.translate(_URL_SAFE)
        how = "has too much padding" if raw == unpadded else "in the alphabet with + and /"
    else:
        return None, ""
    return raw, f"its digest is right, and {how}; base64url without padding is expected"


def _precedes(key: bytes, salt: bytes, path: bytes, signature: bytes) -> str | None:
    """Return what to do about segments before the signature, or None if it is the first one."""
    segments = [signature, *path[1:].split(b"/")]
    for at, segment in enumerate(segments[1 : 1 + _MOST_BEFORE], 1):
        before = [each for each in segments[:at] if each]
        is_named = before[-1:] == [MEDIA]
        rest = segments[at + 1 : -1 if is_named else None]
        if _ENCODED.fullmatch(segment) and verify(key, salt, b"/" + b"/".join(rest), segment):
            if len(before) < at:
                return "two slashes precede the signature; the base of a URL ends without one"
            name = " and the name at the end" if is_named else ""
            mount = b"/".join(before).decode("latin-1")
            return f"the balancer in front has to remove /{mount}{name}"
    return None


def _originals(path: bytes) -> Iterator[tuple[bytes, str]]:
    """Yield paths that may have become this one, the change and its cure.

    The change is empty if the paths are spellings of the same bytes, and their difference tells.
    """
    merged, change = _MERGED_SLASHES.search(path), ""
    if merged is not None:
        path = path[: merged.end()] + b"/" + path[merged.end() :]
        change = f"two slashes of the path were merged {_ON_THE_WAY}"
        yield path, change
    for spelled in _respelled(path):
        yield spelled, change
    end = len(path)
    for _ in range(_MOST_BEHIND):
        if (behind := _BEHIND.search(path, max(0, end - _LONGEST_BEHIND), end)) is None:
            break
        end = behind.start()
        added = path[end:].decode("ascii")
        what = "a slash" if added == "/" else f"'{added}'"
        yield path[:end], f"{what} was added at the end of the path; {_AS_SIGNED}"
    for character in _LEFT_OUT:
        yield path + character, f"'{character.decode()}' is missing at its end; {_AS_SIGNED}"
    blanks = f"a blank and + were exchanged; write %20 and %2B, and {_AS_SIGNED}"
    yield path.replace(b"+", b"%20"), blanks
    yield path.replace(b"%20", b"+"), blanks
    yield path.replace(b"%20", b"%2B"), blanks
    escaped = f"it has &amp;, which only a page of HTML has in place of &; {_AS_SIGNED}"
    yield path.replace(b"&amp;", b"&"), escaped
    yield path.replace(b"&", b"&amp;"), "& was signed as &amp;; sign the path, and escape it then"
    yield path.replace(b"%", b"%25"), f"the path was decoded {_ON_THE_WAY}"
    raw = _OUTSIDE_ASCII.sub(lambda escapes: unquote_to_bytes(escapes[0]), path)
    for form, spelled in other_forms(raw).items():
        change = f"the name was signed in the Unicode form {form}, not in that of the path"
        yield quote(spelled, safe=_VISIBLE).encode("ascii"), f"{change}; {_AS_SIGNED}"
    decoded = unquote_to_bytes(path)
    if _LEGAL.fullmatch(decoded):
        yield decoded, f"the path was percent-encoded after it was signed; {_AS_SIGNED}"


def _respelled(path: bytes) -> Iterator[bytes]:
    """Yield the path in the spellings of common encoders, which decode to the same bytes."""
    yield _ESCAPE.sub(lambda escape: escape[0].upper(), path)
    yield _ESCAPE.sub(lambda escape: escape[0].lower(), path)
    # Older encoders escape it (RFC 1738).
    yield path.replace(b"~", b"%7E")
    match = _SOURCE.fullmatch(path)
    if match is None:
        return
    before = match[1]
    options, source = (
        quote(unquote_to_bytes(part), safe=_RESERVED).encode("ascii") for part in match.groups()
    )
    for kept in _KEPT_HEADS:
        if (head := re.match(kept, source)) is None:
            continue
        for escaped in _ESCAPED:
            spelled = head[0] + _escape(source[head.end() :], escaped)
            yield before + spelled
            # The names of downloads stand in the options.
            yield _escape(options, escaped.strip("/:")) + spelled
    slashes = [found.start() for found in re.finditer(b"/", match[2])]
    for at in slashes[-_MOST_SLASHES:]:
        yield before + match[2][:at] + b"%2F" + match[2][at + 1 :]


def _escape(text: bytes, characters: str) -> bytes:
    for character in characters.encode("ascii"):
        text = text.replace(b"%c" % character, b"%%%02X" % character)
    return text


def _describe(original: bytes, path: bytes) -> str:
    """Return the first change between two spellings of the same bytes, and its cure."""
    pairs = zip_longest(_TOKEN.findall(original), _TOKEN.findall(path), fillvalue=b"")
    old, new = next((each.decode("latin-1") for each in pair) for pair in pairs if len({*pair}) > 1)
    if len(old) == len(new):
        return f"the letters of %XX in the path were changed {_ON_THE_WAY}"
    if len(old) > len(new):
        return f"'{old}' was decoded to '{new}' {_ON_THE_WAY}"
    return f"'{old}' was encoded as '{new}' after the path was signed; {_AS_SIGNED}"


def _mistaken_signatures(key: bytes, salt: bytes, path: bytes) -> Iterator[tuple[bytes, str]]:
    bytes_wanted = "the bytes that the hexadecimal digits encode are expected"
    for to_hex in (bytes.hex, lambda raw: raw.hex().upper()):
        key_text, salt_text = to_hex(key).encode("ascii"), to_hex(salt).encode("ascii")
        for made, what in (
            (sign(key_text, salt_text, path), "the text of AP_KEY and AP_SALT"),
            (sign(key_text, salt, path), "the text of AP_KEY"),
            (sign(key, salt_text, path), "the text of AP_SALT"),
        ):
            yield made, f"it was made with {what}; {bytes_wanted}"
    yield sign(key, b"", path), "it was made without AP_SALT; the salt precedes the path"
    yield sign(salt, key, path), "AP_KEY and AP_SALT were swapped; the salt precedes the path"
    slash = "the path was signed without its leading slash, which is part of it"
    yield sign(key, salt, path[1:]), slash
    with suppress(ValueError):
        decoded = "the path was decoded before it was signed; sign it as it is sent"
        yield sign(key, salt, percent_decode(path)), decoded
