"""FastAPI at http://127.0.0.1:8000/ and the resource on port 8080, in one process."""

import asyncio

from twisted.internet import asyncioreactor

asyncioreactor.install()  # before anything imports the reactor

import uvicorn
from fastapi import FastAPI
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.web.resource import Resource
from twisted.web.server import Site

from audioproxy.config import Config, FileStore
from audioproxy.service import make_resource
from audioproxy.urls import Signer, Variant, local

KEY, SALT = bytes(32), b"\x01"  # for tests only; use a secret key
STORE = FileStore("/tmp/variants")
CONFIG = Config(key=KEY, salt=SALT, local_root="/tmp/audio", variant_store=STORE)

proxy = make_resource(CONFIG, reactor)
root = Resource()
root.putChild(b"audio", proxy.resource)
ports = []

app = FastAPI()
signer = Signer(KEY, SALT, "http://127.0.0.1:8080/audio")


@app.get("/tracks/{name}")
async def track(name: str):
    return {"preview": signer.url(local(name), Variant(f="opus", t=(0, 30)))}


async def start():
    await proxy.startService()
    ports.append(reactor.listenTCP(8080, Site(root), interface="127.0.0.1"))
    print("http://127.0.0.1:8000/tracks/tone.flac", flush=True)
    server = uvicorn.Server(uvicorn.Config(app, port=8000))
    # uvicorn ends at Ctrl-C or SIGTERM, and repeats the signal, which then ends the reactor.
    await Deferred.fromFuture(asyncio.ensure_future(server.serve()))


async def stop():
    for port in ports:
        await port.stopListening()
    await proxy.stopService()


def give_up(failure):
    print(failure.getErrorMessage())
    reactor.stop()


reactor.addSystemEventTrigger("before", "shutdown", lambda: Deferred.fromCoroutine(stop()))
reactor.callWhenRunning(lambda: Deferred.fromCoroutine(start()).addErrback(give_up))
reactor.run()
