"""The least that a Python program can answer, by aiohttp on uvloop: a 304."""

import sys

import uvloop
from aiohttp import web


async def answer(request: web.Request) -> web.Response:
    """Say that nothing has changed, with the headers that a browser looks at."""
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
