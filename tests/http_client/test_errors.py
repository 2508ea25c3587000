"""The translation of Twisted's client errors to those of `HttpClient`."""

from __future__ import annotations

import errno

from OpenSSL.SSL import Error as TlsError
from twisted.internet.defer import CancelledError
from twisted.internet.error import ConnectionDone, ConnectionLost, ConnectionRefusedError
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from twisted.web._newclient import ParseError, PotentialDataLoss
from twisted.web.client import ResponseFailed, ResponseNeverReceived

from audioproxy.http_client.errors import (
    NameMismatch,
    TransportError,
    UntrustedCertificate,
    translate_error,
    without_secrets,
)

UNTRUSTED = TlsError([("SSL routines", "", "certificate verify failed")])


def wrapped(*errors: BaseException) -> Exception:
    """Wrap errors as Twisted's client does, the first one in two layers."""
    first, *others = errors
    inner = ResponseNeverReceived([Failure(first)])
    return ResponseFailed([Failure(inner), *(Failure(error) for error in others)])


class TranslateErrorTests(SynchronousTestCase):
    """`translate_error`"""

    def test_errors(self) -> None:
        """Errors of Twisted's client become the client's own, with the reason as text.

        The text is that of the original error, not of the errors that wrap it. It has no class and
        no number of Python or of the system.
        A rejected certificate is an UntrustedCertificate; a request that the caller cancelled fails
        with CancelledError.
        """
        other_tls_error = TlsError([("SSL routines", "", "wrong version number")])
        another_name = (NameMismatch, "the certificate is for another name")
        untrusted = (UntrustedCertificate, "the certificate is not trusted")
        lost, name = ConnectionLost(), NameMismatch(another_name[1])
        refused = ConnectionRefusedError()
        for error, (kind, text) in (
            (CancelledError(), (CancelledError, "")),
            (wrapped(CancelledError(), ConnectionDone()), (CancelledError, "")),
            *((error, another_name) for error in (name, wrapped(name), wrapped(lost, name))),
            *((e, untrusted) for e in (UNTRUSTED, wrapped(UNTRUSTED), wrapped(lost, UNTRUSTED))),
            (wrapped(other_tls_error), (TransportError, "TLS: wrong version number")),
            (wrapped(refused), (TransportError, "Connection was refused by other side")),
            (
                wrapped(ConnectionRefusedError(errno.ECONNREFUSED, "text")),
                (TransportError, "Connection refused"),
            ),
            (wrapped(OSError(errno.ENETDOWN, "is down")), (TransportError, "is down")),
            (wrapped(PotentialDataLoss()), (TransportError, "the response is incomplete")),
        ):
            translated = translate_error(error)
            self.assertEqual((type(translated), str(translated)), (kind, text))

    def test_late(self) -> None:
        """With ``expired``, any error is translated to a TransportError: no response in time."""
        for error in (CancelledError(), wrapped(CancelledError()), ConnectionLost(), None):
            translated = translate_error(error, True)
            self.assertIs(type(translated), TransportError)
            self.assertEqual(str(translated), "no response in time")

    def test_query(self) -> None:
        """A translated error contains no URL query, since it may be logged (D47)."""
        quoted = b"GET https://a.test/b?hmac=s3cret is no answer"
        error = ResponseFailed([Failure(ParseError("wrong number of parts", quoted))])
        text = str(translate_error(error))
        self.assertTrue(text.startswith("the response is not HTTP (wrong number of parts: "), text)
        self.assertIn("a.test/b", text)
        self.assertNotIn("s3cret", text)


class SecretsTests(SynchronousTestCase):
    """`without_secrets`"""

    def test_urls(self) -> None:
        """No query string and no user information reaches a log line (D45)."""
        for text, kept in (
            ("https://b.test/k?X-Amz-Signature=abc&d=e: 403", "https://b.test/k 403"),
            ("opening 'https://b.test/k?secret' failed", "opening 'https://b.test/k' failed"),
            ("https://user:password@b.test/k failed", "https://b.test/k failed"),
            ("mail a@b.test", "mail a@b.test"),
        ):
            self.assertEqual(without_secrets(text), kept)
