"""`python -m bench.relay PORT TARGET MILLISECONDS`: a relay that delays, as a long way would.

It adds a round trip to the start of each connection, as TCP's handshake takes, and half a round
trip to the bytes of each direction. It forwards without limit of bandwidth.
"""

from __future__ import annotations

import asyncio
import sys

_READ = 256 * 1024


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, earliest: float, delay: float
) -> None:
    """Copy bytes, each ``delay`` seconds after its arrival, but none before ``earliest``."""
    loop = asyncio.get_running_loop()
    due = earliest + delay
    data = b"-"
    while data:
        try:
            data = await reader.read(_READ)
        except OSError:
            data = b""
        # Times differ, since asyncio calls functions of one time in any order.
        due = max(due + 1e-6, loop.time() + delay)
        loop.call_at(due, *((writer.write, data) if data else (writer.close,)))


async def _main(port: int, target: int, milliseconds: float) -> None:
    round_trip = milliseconds / 1000

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected = asyncio.get_running_loop().time() + round_trip
        other, onward = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(
            _copy(reader, onward, connected, round_trip / 2),
            _copy(other, writer, connected, round_trip / 2),
        )

    server = await asyncio.start_server(forward, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
