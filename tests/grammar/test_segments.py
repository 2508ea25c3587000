"""Splitting of a path into signature, options, form and source."""

from __future__ import annotations

from hypothesis import given
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.grammar.segments import Target, split_signature, split_target
from tests.support.strategies import DETERMINISTIC, junk


class SplitSignatureTests(SynchronousTestCase):
    """`split_signature`"""

    def test_single_segment(self) -> None:
        """A path with fewer than two segments, or no leading slash, has no signed part (D18)."""
        for path in (b"", b"/", b"/health", b"/x:y", b"*", b"no/slash", b"http://host/S/plain/x"):
            self.assertIsNone(split_signature(path), path)

    @DETERMINISTIC
    @given(path=junk())
    def test_any_bytes(self, path: bytes) -> None:
        """Any path is split without loss, or is not signed (Authentication, 1; D18)."""
        for each in (path, b"/" + path):
            parts = split_signature(each)
            if parts is None:
                self.assertFalse(each.startswith(b"/") and each.count(b"/") > 1)
            else:
                self.assertNotIn(b"/", parts.signature)
                self.assertEqual(b"/" + parts.signature + parts.signed, each)


class SplitTargetTests(SynchronousTestCase):
    """`split_target`"""

    def test_where_options_end(self) -> None:
        """Options end at ``plain`` or ``enc``, and ``info`` is first (Signed URL grammar; D1)."""
        for signed, *parts in (
            (b"/f:mp3/plain/local://a", False, (b"f:mp3",), b"plain", b"local://a"),
            (b"/f:mp3/br:96/enc/YQ", False, (b"f:mp3", b"br:96"), b"enc", b"YQ"),
            (b"/f:mp3/plain/plain/enc", False, (b"f:mp3",), b"plain", b"plain/enc"),
            (b"/f:mp3/enc/plain/x", False, (b"f:mp3",), b"enc", b"plain/x"),
            (b"/cb:plain/plain/x", False, (b"cb:plain",), b"plain", b"x"),
            (b"/Plain/plainly/%65nc/enc/x", False, (b"Plain", b"plainly", b"%65nc"), b"enc", b"x"),
            (b"/f:mp3/info/plain/x", False, (b"f:mp3", b"info"), b"plain", b"x"),
            (b"//f:mp3//plain/x", False, (b"", b"f:mp3", b""), b"plain", b"x"),
            (b"/Info/plain/x", False, (b"Info",), b"plain", b"x"),
            (b"/info:/plain/x", False, (b"info:",), b"plain", b"x"),
            (b"/inf%6F/plain/x", False, (b"inf%6F",), b"plain", b"x"),
            (b"/information/plain/x", False, (b"information",), b"plain", b"x"),
            (b"/plain/a//b/", False, (), b"plain", b"a//b/"),
            (b"/plain/", False, (), b"plain", b""),
            (b"/plain", False, (), b"plain", b""),
            (b"/info/plain/local://a", True, (), b"plain", b"local://a"),
            (b"/info/f:mp3/plain/local://a", True, (b"f:mp3",), b"plain", b"local://a"),
            (b"/info//plain/local://a", True, (b"",), b"plain", b"local://a"),
            (b"/info/info/plain/local://a", True, (b"info",), b"plain", b"local://a"),
            (b"/info/enc/YQ", True, (), b"enc", b"YQ"),
        ):
            self.assertEqual(split_target(signed), Target(*parts), signed)

    def test_no_source(self) -> None:
        """A path without a source has no target (D1)."""
        for signed in (b"", b"/", b"/info", b"/f:mp3", b"/f:mp3/", b"/PLAIN/x", b"/plain:x"):
            self.assertIsNone(split_target(signed), signed)

    @DETERMINISTIC
    @given(signed=junk())
    def test_any_bytes(self, signed: bytes) -> None:
        """Any signed path is split without loss, or has no source (D1)."""
        target = split_target(b"/" + signed)
        parts = signed.split(b"/")
        self.assertEqual(target is None, b"plain" not in parts and b"enc" not in parts)
        if target is not None:
            head = [b"info"] if target.info else []
            before = b"/".join([*head, *target.options, target.form])
            slash = b"/" if signed != before else b""
            self.assertEqual(before + slash + target.source, signed)
