"""Minimal Python server for comparison: a 304 by aiohttp on uvloop."""

import sys

import uvloop
from aiohttp import web


async def answer(request: web.Request) -> web.Response:
    """Return a 304 with the headers that a browser evaluates."""
    return web.Response(
        status=304,
        headers={"ETag": request.headers["If-None-Match"], "Cache-Control": "max-age=31536000"},
    )


if __name__ == "__main__":
    uvloop.install()
    application = web.Application()
    application.router.add_get("/", answer)
    web.run_app(
        application, host="127.0.0.1", port=int(sys.argv[1]), access_log=None, print=lambda _: None
    )
