"""Request and response bodies: exact transfers, backpressure, stalls and early ends."""

from __future__ import annotations

from itertools import product
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IPushProducer
from twisted.web.iweb import IBodyProducer
from zope.interface.verify import verifyObject

from audioproxy.files.streams import ConsumerGone
from audioproxy.http_client.bodies import BodyStream, BodyTooLarge, RequestBody
from audioproxy.http_client.client import Response
from audioproxy.http_client.errors import TooMuch, TransportError
from tests.support.consumers import FakeConsumer
from tests.support.http import Log
from tests.support.strategies import DETERMINISTIC
from tests.support.wire import PACKET, ClientCase, Peer, chunk, error, reply, reply_without_length

#: Start of a response whose body follows in chunks.
CHUNKS = reply_without_length(200, headers={"Transfer-Encoding": "chunked"})
#: Bodies that have not ended.
EARLY_ENDS = (
    (reply(200, length=6), b"hello"),
    (CHUNKS, chunk(b"hello")),
    (CHUNKS, b"6\r\nhello"),
    (reply_without_length(200), b"hello"),
)


class SmallBodyTests(ClientCase):
    """`BodyCollector`"""

    def test_limit(self) -> None:
        """A body of exactly the limit is read; one byte more raises BodyTooLarge."""
        for packets in (
            (reply(200, b"x" * 100),),
            (reply(200, length=100), b"x" * 60, b"x" * 40),
            (CHUNKS, chunk(b"x" * 100), chunk(b"")),
        ):
            self.assertEqual(self.result_of(self.answer(*packets).read(100)), b"x" * 100)
            self.error_of(self.answer(*packets).read(99), BodyTooLarge)

    def test_too_long(self) -> None:
        """Once a body exceeds the limit, the connection is aborted and the rest stays unread."""
        response = self.answer(reply_without_length(200))
        for _ in range(100):
            self.peer.send(b"x" * PACKET)
        self.error_of(response.read(PACKET), BodyTooLarge)
        self.assertTrue(self.peer.aborted)
        self.assertGreater(self.peer.unread, 90 * PACKET)


class BodyStreamCase(ClientCase):
    """Body that is streamed to a consumer."""

    def send_body(
        self, *packets: bytes, size: int | None = None, consumer: FakeConsumer | None = None
    ) -> Deferred[None]:
        """Start to stream a response body to a consumer."""
        self.consumer = FakeConsumer() if consumer is None else consumer
        sending = self.answer(*packets).stream(size).send(self.consumer)
        self.network.run()
        return sending

    def assert_sent(self, sending: Deferred[None], data: bytes) -> None:
        """Assert that all data was written and the producer is unregistered."""
        self.assertIsNone(self.successResultOf(sending))
        self.assertEqual(bytes(self.consumer.data), data)
        self.assertEqual(self.consumer.calls[-1], "unregistered")

    def assert_broken(
        self, sending: Deferred[None], kind: type[TransportError] = TransportError
    ) -> str:
        """Assert that the stream failed with an error, and return the error's text."""
        text = str(self.exactly(sending, kind))
        self.assertEqual(self.consumer.calls[-1], "unregistered")
        self.network.run()
        self.assertTrue(self.peer.closed)
        return text


class BodyStreamTests(BodyStreamCase):
    """`BodyStream`: the bytes that reach the consumer"""

    def test_order(self) -> None:
        """The producer is registered before the first byte, and unregistered before the end."""
        self.assertTrue(verifyObject(IPushProducer, BodyStream(self.network, Any, 0)))
        for packets in ((reply(200, b"abc"),), (reply(200, length=3), b"abc")):
            sending = self.send_body(*packets, size=3)
            sending.addCallback(lambda _, calls=self.consumer.calls: calls.append("ended"))
            calls = ["registered", "wrote", "unregistered", "ended"]
            self.assertEqual(self.consumer.calls, calls)

    @DETERMINISTIC
    @given(st.data())
    def test_any_packets(self, data: st.DataObject) -> None:
        """For any packets and any pauses, the consumer receives exactly the body.

        An empty body is streamed without a write.
        """
        body = data.draw(st.binary(max_size=300))
        cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=8)))
        pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
        consumer = FakeConsumer(capacity=data.draw(st.integers(0, 300)))
        if data.draw(st.booleans()):
            packets = [reply(200, length=len(body)), *pieces]
        else:
            whole = [chunk(piece) for piece in pieces if piece] + [chunk(b"")]
            packets = [CHUNKS, *whole]
        size = len(body) if data.draw(st.booleans()) else None
        sending = self.send_body(*packets, size=size, consumer=consumer)
        while not sending.called:
            consumer.drain()
            self.network.run()
        self.assert_sent(sending, body)
        self.assertEqual("wrote" in consumer.calls, bool(body))

    def test_close_delimited(self) -> None:
        """A close-delimited body is complete if it has the expected size.

        With an unknown size it fails: its end looks the same as a broken connection.
        """
        for end, size in ((Peer.close, 5), (Peer.reset, 5), (Peer.close, None)):
            sending = self.send_body(reply_without_length(200), b"hello", size=size)
            end(self.peer)
            self.network.run()
            if size is None:
                self.assert_broken(sending)
            else:
                self.assert_sent(sending, b"hello")

    def test_early_end(self) -> None:
        """A body that ends early or has malformed chunks fails, whatever its framing is."""
        for packets, end in product(EARLY_ENDS, (Peer.close, Peer.reset)):
            sending = self.send_body(*packets, size=6)
            end(self.peer)
            self.network.run()
            self.assert_broken(sending)
            self.assertEqual(bytes(self.consumer.data), b"hello")
        self.assert_broken(self.send_body(CHUNKS, chunk(b"hello"), b"zz\r\n", size=10))

    def test_another_size(self) -> None:
        """A complete body that is shorter than expected fails; the error states both sizes.

        A write that would exceed the expected size is dropped, and the connection is closed.
        """
        for packets in ((reply(200, b"hello"),), (CHUNKS, chunk(b"hello"), chunk(b""))):
            error = self.exactly(self.send_body(*packets, size=6), TransportError)
            self.assertEqual(str(error), "the body has 5 bytes instead of 6")
            self.assertEqual(self.consumer.calls[-1], "unregistered")
        for packets in (
            (reply(200, length=7), b"hello, "),
            (CHUNKS, chunk(b"hello, ")),
            (reply_without_length(200), b"hello, "),
        ):
            reason = self.assert_broken(self.send_body(*packets, size=6), TooMuch)
            self.assertEqual(reason, "the body is longer than its stated length")
            self.assertEqual(bytes(self.consumer.data), b"")


class PauseTests(BodyStreamCase):
    """`BodyStream`: backpressure"""

    def test_back_pressure(self) -> None:
        """While the consumer is paused, nothing is read from the server or buffered."""
        size = 100 * PACKET
        consumer = FakeConsumer(capacity=0)
        sending = self.send_body(reply(200, length=size), bytes(size), size=size, consumer=consumer)
        received = len(consumer.data)
        for _ in range(99):
            self.assertLessEqual(received, (len(consumer.writes)) * PACKET)
            self.assertEqual(self.peer.unread, size - received)
            self.network.advance(300)
            self.assertEqual(len(consumer.data), received)
            consumer.drain()
            self.network.run()
            received = len(consumer.data)
        self.assert_sent(sending, bytes(size))

    def test_paused_before_registering(self) -> None:
        """A stream may be paused before it has a consumer, and resumed before or after that."""
        for resumed_before in (False, True):
            stream = self.answer(reply(200, length=5), b"hello").stream(5)
            stream.pauseProducing()
            if resumed_before:
                stream.resumeProducing()
            self.assertEqual(self.peer.unread, 5)
            self.consumer = FakeConsumer()
            sending = stream.send(self.consumer)
            self.network.run()
            if not resumed_before:
                self.assertEqual(self.peer.unread, 5)
                stream.resumeProducing()
                self.network.run()
            self.assert_sent(sending, b"hello")

    def test_calls_while_writing(self) -> None:
        """A consumer may resume from inside a write, and a pause in the last write has no effect.

        The connection is reused.
        """
        for resumes, body in ((True, bytes(10 * PACKET)), (False, b"hello")):
            consumer = FakeConsumer(capacity=0)
            if resumes:
                consumer.on_write = consumer.drain
            sending = self.send_body(
                reply(200, length=len(body)), body, size=len(body), consumer=consumer
            )
            self.assert_sent(sending, body)
        self.answer(reply(200)).discard()
        self.assertEqual(len(self.network.peers), 1)

    def test_calls_after_the_end(self) -> None:
        """Producer calls after the end do not affect the next request on the connection."""
        stream = self.answer(reply(200, b"hello")).stream(5)
        self.consumer = FakeConsumer()
        sending = stream.send(self.consumer)
        self.network.run()
        fetching = self.fetch()
        stream.pauseProducing()
        stream.resumeProducing()
        stream.stopProducing()
        stream.pauseProducing()
        self.peer.send(reply(200))
        self.network.run()
        self.successResultOf(fetching).discard()
        self.assertEqual(len(self.network.peers), 1)
        self.assert_sent(sending, b"hello")


class StallTests(BodyStreamCase):
    """`BodyStream`: servers that stall"""

    def test_stall(self) -> None:
        """After 30 seconds without data the stream fails; earlier data reaches the consumer.

        A caller can set a longer timeout.
        """
        for data, own, seconds in ((b"hello", None, 30), (b"", None, 30), (b"hello", 600, 600)):
            stream = self.answer(reply(200, length=9), *filter(None, [data])).stream(9, own)
            self.consumer = FakeConsumer()
            sending = stream.send(self.consumer)
            self.network.run()
            self.network.advance(seconds - 0.1)
            self.assertNoResult(sending)
            self.network.advance(0.1)
            self.assertEqual(self.assert_broken(sending), f"the body stalled for {seconds} seconds")
            self.assertTrue(self.peer.aborted)
            self.assertEqual(bytes(self.consumer.data), data)

    def test_paused(self) -> None:
        """The time during which the consumer is paused does not count as a stall."""
        consumer = FakeConsumer(capacity=0)
        sending = self.send_body(reply(200, length=9), b"hello", size=9, consumer=consumer)
        self.network.advance(3600)
        self.assertNoResult(sending)
        consumer.drain()
        self.network.advance(29.9)
        self.assertNoResult(sending)
        self.network.advance(0.1)
        self.assert_broken(sending)


class ConsumerGoneTests(BodyStreamCase):
    """`BodyStream`: consumers that go away"""

    def assert_gone(self, sending: Deferred[None]) -> None:
        """Assert that the connection was aborted, and that the consumer gets no more calls."""
        self.network.run()
        self.exactly(sending, ConsumerGone)
        self.assertTrue(self.peer.aborted)
        self.assertNotIn("unregistered", self.consumer.calls)

    def test_gone(self) -> None:
        """If the consumer goes away or cancels, the connection is aborted, even while data arrives.

        Later data and errors of the server are ignored.
        """
        for capacity, cancels in product((None, 0), (False, True)):
            consumer = FakeConsumer(capacity)
            sending = self.send_body(reply(200, length=9), b"x", size=10**9, consumer=consumer)
            self.peer.send(bytes(PACKET))
            sending.cancel() if cancels else consumer.disconnect()
            self.peer.reset()
            self.network.advance(60)
            self.assert_gone(sending)
            self.assertEqual(bytes(consumer.data), b"x")

    def test_gone_while_writing(self) -> None:
        """The consumer may stop from inside a write or registerProducer, and gets no more data.

        If it stops in the last write, the next request still gets its response.
        """

        class Gone(FakeConsumer):
            def registerProducer(self, producer: Any, streaming: bool) -> None:
                producer.stopProducing()

        writing, last = FakeConsumer(), FakeConsumer()
        for consumer in (writing, last):
            consumer.on_write = consumer.disconnect
        for consumer, writes in ((writing, 1), (Gone(), 0)):
            packets = CHUNKS, chunk(b"x") + chunk(b"y")
            self.assert_gone(self.send_body(*packets, size=10**9, consumer=consumer))
            self.assertEqual(len(consumer.writes), writes)
        sending = self.send_body(reply(200, length=5), b"hello", size=5, consumer=last)
        self.network.run()
        self.exactly(sending, ConsumerGone)
        response = self.answer(reply(200, b"next"), method="POST")
        self.assertEqual(self.result_of(response.read(4)), b"next")


class FakeFile:
    """Byte source that can end early, or raise an error after its data."""

    def __init__(self, data: bytes, error: Exception | None = None) -> None:
        self.data = data
        self.error = error
        self.read_to = 0

    def read(self, offset: int, limit: int) -> bytes:
        """Return up to ``limit`` bytes from ``offset``."""
        data = self.data[offset : offset + limit]
        if self.error is not None and not data:
            raise self.error
        self.read_to = max(self.read_to, offset + len(data))
        return data


class RequestBodyCase(ClientCase):
    """Upload of a byte range of a file."""

    def put(
        self, source: FakeFile, start: int, stop: int, window: int | None = None
    ) -> Deferred[Response]:
        """Start to upload the range from ``start`` to ``stop``.

        :param window: number of bytes that the object store reads; None for no limit.
        """
        self.network.on_connect = lambda peer: peer.set_window(window)
        self.upload = RequestBody(source, start, stop)
        return self.begin(self.client.request("PUT", "http://s3.test/a", {}, self.upload))

    def end(self, putting: Deferred[Response]) -> None:
        """Assert that there is a response, and discard its body."""
        self.successResultOf(putting).discard()


class RequestBodyTests(RequestBodyCase):
    """`RequestBody`"""

    DATA = bytes(range(256)) * 4000

    def test_ranges(self) -> None:
        """Each range of a file arrives exactly, with its length as Content-Length."""
        self.assertTrue(verifyObject(IBodyProducer, RequestBody(FakeFile(b""), 0, 0)))
        size = len(self.DATA)
        for start, stop in ((0, size), (0, 1), (size - 1, size), (5, 5 + PACKET), (7, 7), (0, 0)):
            self.network.scripts.append(reply(200))
            self.end(self.put(FakeFile(self.DATA), start, stop))
            request = self.network.requests[-1]
            self.assertEqual(request.body, self.DATA[start:stop])
            self.assertEqual(request.headers["content-length"], str(stop - start))
        self.assertEqual(len(self.network.peers), 1)

    def test_back_pressure(self) -> None:
        """The file is read only as fast as the object store accepts the data."""
        source = FakeFile(self.DATA)
        putting = self.put_slowly(source)
        for taken in range(0, len(self.DATA), PACKET):
            self.assertLessEqual(source.read_to, taken + 4 * PACKET)
            self.peer.set_window(taken)
            self.network.run()
        self.end_slowly(putting)
        self.assertEqual(self.network.requests[-1].body, self.DATA)

    def put_slowly(self, source: FakeFile) -> Deferred[Response]:
        """Start to upload everything to an object store that accepts nothing yet."""
        return self.put(source, 0, len(source.data), window=0)

    def end_slowly(self, putting: Deferred[Response]) -> None:
        """Let the object store accept the rest and respond."""
        self.network.scripts.append(reply(200))
        self.peer.set_window(None)
        self.network.run()
        self.end(putting)

    def test_progress(self) -> None:
        """An upload may take any time, as long as the object store keeps accepting data."""
        putting = self.put_slowly(FakeFile(self.DATA))
        # The connection's own buffer must drain before more of the file is requested.
        for taken in range(2 * PACKET, len(self.DATA), 2 * PACKET):
            self.peer.set_window(taken + 1000)
            self.network.advance(29)
            self.assertNoResult(putting)
        self.end_slowly(putting)

    def test_stall(self) -> None:
        """An upload fails and its connection is aborted if no data is accepted for 30 seconds.

        After the last byte, the object store has 30 seconds to respond.
        """
        for put in (
            lambda: self.put_slowly(FakeFile(self.DATA)),
            lambda: self.put(FakeFile(b"hello"), 0, 5),
        ):
            putting = put()
            self.network.advance(29.9)
            self.assertNoResult(putting)
            self.network.advance(0.1)
            self.assertEqual(str(self.exactly(putting, TransportError)), "no response in time")
            self.network.run()
            self.assertTrue(self.peer.aborted)

    def test_calls_after_the_end(self) -> None:
        """Producer calls after the end of an upload have no effect."""
        self.network.scripts.append(reply(200))
        self.end(self.put(FakeFile(b"hello"), 0, 5))
        for _ in range(2):
            self.upload.pauseProducing()
            self.upload.resumeProducing()
            self.upload.stopProducing()
        self.assertEqual(self.network.requests[-1].body, b"hello")

    def test_broken_file(self) -> None:
        """A file that is too short or cannot be read fails the upload.

        No complete request is sent.
        """
        broken = OSError(5, "Input/output error")
        for size, failure, text in (
            (0, None, "the file was shortened"),
            (5, None, "the file was shortened"),
            (3 * PACKET, None, "the file was shortened"),
            (3 * PACKET, broken, "Input/output error"),
        ):
            putting = self.put(FakeFile(bytes(size), failure), 0, size + 1)
            self.assertIn(text, str(self.exactly(putting, TransportError)))
            self.network.run()
            self.assertTrue(self.peer.aborted)
            self.assertEqual(self.peer.requests, [])

    def test_given_up(self) -> None:
        """If the object store closes the connection or the caller cancels, no more is read.

        Cancelling while waiting for the response, too, aborts the connection.
        """
        for end in (Peer.close, Peer.reset, None):
            source = FakeFile(self.DATA)
            putting = self.put_slowly(source)
            read_to = source.read_to
            if end is None:
                putting.cancel()
            else:
                end(self.peer)
            self.network.run()
            self.exactly(putting, CancelledError if end is None else TransportError)
            self.assertEqual(self.peer.aborted, end is None)
            self.assertEqual(source.read_to, read_to)
        putting = self.put(FakeFile(b"hello"), 0, 5)
        putting.cancel()
        self.network.run()
        self.exactly(putting, CancelledError)
        self.assertTrue(self.peer.aborted)


class EarlyResponseTests(RequestBodyCase):
    """`RequestBody`: responses that arrive before the upload is complete"""

    DATA = RequestBodyTests.DATA
    DENIED = error("AccessDenied")

    def test_answer(self) -> None:
        """A response before the end of an upload is returned, and the connection is closed.

        The file is read no further, and may be closed without an error in the log.
        """
        log = Log(self)

        def respond_and_close(peer: Peer) -> None:
            peer.send(reply(403, self.DENIED, {"Connection": "close"}))
            peer.close()

        for respond in (lambda peer: peer.send(reply(403, self.DENIED)), respond_and_close):
            source = FakeFile(self.DATA)
            # The object store reads 1000 bytes, and then responds.
            putting = self.put(source, 0, len(source.data), window=1000)
            respond(self.peer)
            self.network.run()
            response = self.successResultOf(putting)
            read_to = source.read_to
            source.data, source.error = b"", ValueError("I/O operation on closed file")
            self.assertEqual(response.status, 403)
            self.assertEqual(self.result_of(response.read(1000)), self.DENIED)
            self.network.run()
            self.assertEqual(self.peer.requests, [])
            self.network.advance(60)
            self.assertTrue(self.peer.closed, "the connection is still open")
            self.peer.set_window(None)
            self.network.run()
            self.assertEqual(source.read_to, read_to, "the file was read further")
        self.flushLoggedErrors()
        self.assertEqual(log.errors, [])
