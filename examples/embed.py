"""The resource inside another Twisted site, below http://127.0.0.1:8080/audio/."""

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.web.resource import Resource
from twisted.web.server import Site

from audioproxy.config import Config, FileStore
from audioproxy.service import make_resource
from audioproxy.urls import Signer

KEY, SALT = bytes(32), b"\x01"  # for tests only; use a secret key
STORE = FileStore("/tmp/variants")
CONFIG = Config(key=KEY, salt=SALT, local_root="/tmp/audio", variant_store=STORE)

proxy = make_resource(CONFIG, reactor)
root = Resource()  # the application's own resources
root.putChild(b"audio", proxy.resource)  # /audio/{signature}/{options}/{source}
ports = []


async def start():
    await proxy.startService()
    ports.append(reactor.listenTCP(8080, Site(root), interface="127.0.0.1"))
    print(Signer(KEY, SALT, "http://127.0.0.1:8080/audio").url("local://tone.flac"), flush=True)


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
