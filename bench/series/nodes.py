"""An idle service, and several nodes behind nginx."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from bench.bare import whole
from bench.client import Crowd, metric
from bench.figures import Results
from bench.load import load
from bench.peers import nginx
from bench.programs import Program, Service, service
from bench.series.hits import CONNECTIONS, small_service, stocked
from bench.series.memory import RENDERS
from bench.series.renders import rooted
from bench.settings import Bench
from tests.deploy.balancer import shipped

_COLD = 8
_CLIENTS_OF_EACH = 4


def alone(bench: Bench) -> Results:
    """Measure an idle service."""
    results = Results()
    memory = results.figure("idle service", "resident memory", "MB", target=50)
    start = results.figure(
        "idle service",
        "start to listening",
        "s",
        target=0.4,
        remark="the time to listening begins with the process, so it includes the start of Python",
        reason="it depends on the machine: Python imports some hundred modules",
    )
    python = results.figure("idle service", "Python's own start, `python -c pass`", "s")
    for _ in range(bench.rounds + 1):
        with rooted(bench, "alone") as ours:
            # When the service responds, its work at boot is done.
            metric(ours.metrics_port, RENDERS)
            memory.add(ours.resident_bytes() / 1e6)
            start.add(ours.started)
        python.add(whole([sys.executable, "-c", "pass"])[0])
    for figure in (memory, start, python):
        del figure.ours[0]
    return results


def several(bench: Bench) -> Results:
    """Measure one to three nodes with one store, behind nginx with the shipped configuration."""
    results = Results()
    for count in (1, 2, 3):
        with ExitStack() as stack:
            _several(bench, results, count, stack)
    return results


def _several(bench: Bench, results: Results, count: int, stack: ExitStack) -> None:
    folder = bench.folder("nodes")
    settings = small_service(bench, folder) | {"AP_MAX_CONCURRENCY": "2"}
    nodes = []
    for number in range(count):
        (folder / f"node{number}").mkdir()
        nodes.append(stack.enter_context(service(folder / f"node{number}", settings)))
    balancer = stack.enter_context(_balancer(folder, nodes))
    work = f"{count} node{'s' if count > 1 else ''} behind nginx with path hashing"
    speed = results.figure(
        work,
        "requests/s",
        "requests/s",
        remark="nginx, the nodes and the load generator share the cores",
    )
    renders = results.figure(work, "renders for each cold URL", "", target=1, exact=True)
    paths = list(stocked(nodes[0], folder).paths)
    for number in range(bench.rounds):
        speed.add(
            load(
                balancer,
                paths,
                connections=CONNECTIONS,
                seconds=bench.seconds,
                core=None,
                folder=folder,
            ).requests
        )
        before = sum(metric(node.metrics_port, RENDERS) for node in nodes)
        cold = [
            nodes[0].path(f"f:wav/t:0:0.{50 + n}/gain:-{1 + number}", "short.wav")
            for n in range(_COLD)
        ]
        with ThreadPoolExecutor(_COLD) as pool:
            list(pool.map(lambda path: _ask(balancer, path), cold))
        time.sleep(0.1)
        after = sum(metric(node.metrics_port, RENDERS) for node in nodes)
        renders.add((after - before) / _COLD)


def _ask(balancer: Program, path: str) -> None:
    crowd = Crowd(balancer.port, path, _CLIENTS_OF_EACH)
    crowd.ask()
    crowd.read_headers()
    crowd.read_all()


def _balancer(folder: Path, nodes: list[Service]) -> AbstractContextManager[Program]:
    """Run nginx with the configuration in ``deploy/``, which has its own server block."""
    servers = [f"server 127.0.0.1:{node.port} max_fails=1 fail_timeout=2s;" for node in nodes]
    changes = {
        "listen [::]:80;": "",
        "access_log /var/log/nginx/audioproxy.log audioproxy;": (
            f"access_log {folder}/balancer.log audioproxy;"
        ),
        "error_log /var/log/nginx/audioproxy.error.log emerg;": "",
        "server 10.0.0.11:4000 max_fails=1 fail_timeout=2s;": "\n".join(servers),
        "server 10.0.0.12:4000 max_fails=1 fail_timeout=2s;": "",
        "server 10.0.0.13:4000 max_fails=1 fail_timeout=2s;": "",
    }
    text = shipped("nginx/audioproxy.conf", changes)
    head, _, body = text.partition("\nserver {\n")
    inner = body.replace("listen 80;", "", 1).rstrip().removesuffix("}")
    return nginx(folder, inner, more=head)
