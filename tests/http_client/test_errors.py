"""The translation of Twisted's client errors to those of `HttpClient`."""

from __future__ import annotations

from OpenSSL.SSL import Error as TlsError
from service_identity import VerificationError
from twisted.internet.defer import CancelledError
from twisted.internet.error import (
    ConnectionDone,
    ConnectionLost,
    ConnectionRefusedError,
)
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from twisted.web._newclient import ParseError
from twisted.web.client import ResponseFailed, ResponseNeverReceived

from audioproxy.http_client.errors import TransportError, UntrustedCertificate, translate_error

UNTRUSTED = TlsError([("SSL routines", "", "certificate verify failed")])


def wrapped(*errors: BaseException) -> Exception:
    """Wrap errors as Twisted's client does, the first one in two layers."""
    first, *others = errors
    inner = ResponseNeverReceived([Failure(first)])
    return ResponseFailed([Failure(inner), *(Failure(error) for error in others)])


class QueryTests(SynchronousTestCase):
    """`translate_error`: errors that quote a request"""

    def test_query(self) -> None:
        """A translated error contains no URL query, since it may be logged (D47)."""
        quoted = b"GET https://a.test/b?hmac=s3cret is no answer"
        error = ResponseFailed([Failure(ParseError("wrong number of parts", quoted))])
        text = str(translate_error(error))
        self.assertIn("ParseError", text)
        self.assertIn("a.test/b", text)
        self.assertNotIn("s3cret", text)


class TranslateErrorTests(SynchronousTestCase):
    """`translate_error`"""

    def translated(self, error: BaseException | None, expired: bool = False) -> tuple[type, str]:
        """Return the class and the text of a translated error."""
        translation = translate_error(error, expired)
        return type(translation), str(translation)

    def test_late(self) -> None:
        """With ``expired``, any error is translated to a TransportError: no response in time."""
        for error in (CancelledError(), wrapped(CancelledError()), ConnectionLost(), None):
            self.assertEqual(self.translated(error, True), (TransportError, "no response in time"))

    def test_cancelled(self) -> None:
        """A request that the caller cancelled fails with CancelledError."""
        for error in (CancelledError(), wrapped(CancelledError(), ConnectionDone())):
            self.assertEqual(self.translated(error), (CancelledError, ""))

    def test_untrusted(self) -> None:
        """A rejected certificate is an UntrustedCertificate that says what is wrong."""
        for error, text in (
            (VerificationError([]), "the certificate is for another name"),
            (UNTRUSTED, "the certificate is not trusted"),
        ):
            for given in (error, wrapped(error), wrapped(ConnectionLost(), error)):
                self.assertEqual(self.translated(given), (UntrustedCertificate, text))

    def test_other_tls_errors(self) -> None:
        """A TLS error other than a rejected certificate is a TransportError with OpenSSL's text."""
        error = TlsError([("SSL routines", "", "wrong version number")])
        kind, text = self.translated(wrapped(error))
        self.assertIs(kind, TransportError)
        self.assertIn("wrong version number", text)

    def test_cause(self) -> None:
        """The text names the original error, not the errors that wrap it."""
        kind, text = self.translated(wrapped(ConnectionRefusedError()))
        self.assertIs(kind, TransportError)
        self.assertIn("Connection was refused by other side", text)
        self.assertIn("ConnectionRefusedError", text)

    def test_cause_without_text(self) -> None:
        """An original error without a text is named by its class."""
        self.assertEqual(self.translated(wrapped(KeyError())), (TransportError, "KeyError"))
