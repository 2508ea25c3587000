"""`python -m bench.relay PORT TARGET MILLISECONDS`: a relay that delays, as a long way would.

It adds a round trip to the start of each connection, as TCP's handshake takes, and half a round
trip to the bytes of each direction. It forwards without limit of bandwidth.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable
from contextlib import suppress

_READ = 256 * 1024


async def _forward(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, earliest: float, delay: float
) -> None:
    """Copy bytes, each ``delay`` seconds after its arrival, but none before ``earliest``."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def read() -> None:
        data = b"-"
        while data:
            data = await reader.read(_READ)
            waiting.put_nowait((max(earliest, loop.time()) + delay, data))

    reading = asyncio.ensure_future(read())
    try:
        while True:
            due, data = await waiting.get()
            await asyncio.sleep(due - loop.time())
            if not data:
                break
            writer.write(data)
            await writer.drain()
    finally:
        reading.cancel()
        with suppress(OSError):
            writer.write_eof() if writer.can_write_eof() else writer.close()


def _relay(
    target: int, round_trip: float
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected = asyncio.get_running_loop().time() + round_trip
        other, onward = await asyncio.open_connection("127.0.0.1", target)
        for side in (writer, onward):
            side.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_forward(reader, onward, connected, round_trip / 2))
                group.create_task(_forward(other, writer, connected, round_trip / 2))
        except* OSError:
            # One of the ends closed the connection, which is the end of the other, too.
            pass
        finally:
            writer.close()
            onward.close()

    # asyncio itself does not keep a task that nobody refers to.
    tasks: set[asyncio.Task[None]] = set()

    def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(forward(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    return connect


async def _main(port: int, target: int, milliseconds: float) -> None:
    server = await asyncio.start_server(_relay(target, milliseconds / 1000), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
