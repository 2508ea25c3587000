"""The Compose file: valid, with parts that fit together."""

from __future__ import annotations

import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from compose_spec import PyCompose
from twisted.trial.unittest import SynchronousTestCase

import audioproxy
from audioproxy.config import VARIABLES, Config, load
from audioproxy.service import make_resource
from tests.deploy.balancer import installed, shipped
from tests.deploy.promql import run_promtool
from tests.deploy.test_container import environment as image_environment
from tests.support.runs import output_of, run_program
from tests.support.service import PROJECT, reactor

FOLDER = PROJECT / "deploy/compose"
TEXT = (FOLDER / "compose.yaml").read_text()

#: A variable of the environment: ${NAME:?message} must be set, ${NAME:-default} may be set.
INTERPOLATION = re.compile(r"\$\{(\w+):([?-])([^}]*)\}")

#: Values that an operator may fill in.
FILLED = {
    "AP_KEY": "0" * 64,
    "AP_SALT": "1" * 64,
    "AWS_ACCESS_KEY_ID": "audioproxy",
    "AWS_SECRET_ACCESS_KEY": "some-secret",
    "MINIO_ROOT_USER": "administrator",
    "MINIO_ROOT_PASSWORD": "another-secret",
}

_LINES = re.compile(r"(\w+)=(.*)")


def filled(value: Any) -> Any:
    """Return a part of the document with all variables filled in."""
    if isinstance(value, dict):
        return {name: filled(part) for name, part in value.items()}
    if isinstance(value, list):
        return [filled(part) for part in value]
    if isinstance(value, str):
        return INTERPOLATION.sub(
            lambda match: FILLED[match[1]] if match[2] == "?" else match[3], value
        )
    return value


@cache
def services() -> dict[str, dict[str, Any]]:
    """Return the services by their names."""
    found: dict[str, dict[str, Any]] = filled(yaml.safe_load(TEXT)["services"])
    return found


def nodes() -> dict[str, dict[str, Any]]:
    """Return the services that are nodes."""
    return {name: row for name, row in services().items() if name.startswith("node")}


def node() -> dict[str, Any]:
    """Return the settings that all nodes share."""
    first, *others = ({**row, "build": None} for row in nodes().values())
    assert all(other == first for other in others), "the nodes differ"
    return first


def configuration() -> Config:
    """Return the configuration that a node reads from its environment."""
    config, warnings = load(node()["environment"])
    assert not warnings, warnings
    return config


def mounts(service: str) -> dict[str, Path]:
    """Return the files and folders of the project that a service mounts, by their mount points.

    All of them exist, and are mounted read-only.
    """
    found = {}
    for volume in services()[service].get("volumes", ()):
        source, _, target = volume.partition(":")
        if source.startswith("."):
            target, _, mode = target.partition(":")
            assert mode == "ro", f"{service} may write to {source}"
            found[target] = (FOLDER / source).resolve(strict=True)
    return found


def example() -> dict[str, str]:
    """Return the variables in the example environment file."""
    lines = (FOLDER / "example.env").read_text().splitlines()
    return dict(match.groups() for line in lines if (match := _LINES.fullmatch(line)))


def section(path: str, title: str) -> list[str]:
    """Return the lines of a section of an HAProxy configuration, without comments."""
    lines = (PROJECT / "deploy" / path).read_text().splitlines()
    inside = lines[lines.index(title) + 1 :]
    found = []
    for line in inside:
        if line and not line.startswith((" ", "#")):
            break
        if line.strip() and not line.strip().startswith("#"):
            found.append(line.strip())
    return found


class FileTests(SynchronousTestCase):
    """The file itself."""

    def test_specification(self) -> None:
        """The file conforms to the Compose Specification, and has no unknown field."""
        found = PyCompose.from_yaml(yaml.safe_dump(filled(yaml.safe_load(TEXT))))
        found.validate()
        self.assertEqual(sorted(services()), sorted(found.service_names()))

    def test_images(self) -> None:
        """Every image has a version, and what is mounted into it exists.

        The nodes share one image, with the service's version. It is built once, and never pulled.
        """
        for name, service in services().items():
            mounts(name)
            self.assertRegex(service["image"], r":[\w.-]*\d[\w.-]*$", name)
        self.assertEqual(f"audioproxy:{audioproxy.__version__}", node()["image"])
        self.assertEqual("never", node()["pull_policy"])
        (build,) = [row["build"] for row in services().values() if "build" in row]
        self.assertEqual(PROJECT, (FOLDER / build["context"]).resolve())
        self.assertTrue((PROJECT / build["dockerfile"]).is_file())

    def test_secrets(self) -> None:
        """The Compose file has no secrets, and Git ignores `.env`, which has them."""
        required = {name for name, kind, _ in INTERPOLATION.findall(TEXT) if kind == "?"}
        self.assertEqual(FILLED.keys(), required)
        optional = {"AP_PREVIOUS_KEY", "AP_PREVIOUS_SALT", "GRAFANA_PASSWORD"}
        self.assertEqual(required | optional, example().keys())
        named = {"AWS_ACCESS_KEY_ID", "MINIO_ROOT_USER"}
        self.assertEqual(named, {name for name, value in example().items() if value})
        self.assertEqual(".env\n", (FOLDER / ".gitignore").read_text())


class NodeTests(SynchronousTestCase):
    """Three nodes with one store."""

    def test_settings(self) -> None:
        """Every setting is known to the service, and the settings have no conflict (D33)."""
        self.assertEqual(set(), node()["environment"].keys() - set(VARIABLES))
        config = configuration()
        self.assertTrue(config.variant_s3.configured)
        self.assertEqual(("proxy", 21_600), (config.serve_mode, config.presign_ttl))
        self.assertEqual(3, len(nodes()))

    def test_no_privileges(self) -> None:
        """Nodes have no privileges, and write only to the volume of temporary files (D46)."""
        self.assertTrue(node()["read_only"])
        self.assertEqual(["ALL"], node()["cap_drop"])
        self.assertEqual([image_environment()["TMPDIR"]], node()["volumes"])

    def test_grace_period(self) -> None:
        """A node that is stopped has time for its last renders (D39)."""
        grace = int(node()["stop_grace_period"].removesuffix("s"))
        self.assertGreater(grace, make_resource(configuration(), reactor).drain_timeout + 10)

    def test_store(self) -> None:
        """The script creates the nodes' buckets in their store.

        The script reads exactly the variables that its container has.
        """
        config = configuration()
        endpoint = urlsplit(config.variant_s3.endpoint or "")
        self.assertIn(endpoint.hostname, services())
        script = (FOLDER / "buckets.sh").read_text()
        used = {f"store/{name}" for name in (*(config.source_allowlist or ()), "variants")}
        self.assertEqual(used, set(re.findall(r"store/\w+", script)))
        self.assertIn(f"http://{endpoint.netloc} ", script)
        read = set(re.findall(r"\$(\w+)", script))
        self.assertEqual(services()["buckets"]["environment"].keys(), read)
        self.assertEqual(services()["s3"]["environment"].items() - FILLED.items(), set())

    def test_script(self) -> None:
        """The script that creates the buckets grants its policy once, even if it runs again."""
        folder = Path(self.mktemp()).resolve()
        folder.mkdir()
        log, state = folder / "log", folder / "state"
        stub = folder / "mc"
        stub.write_text(
            f'#!/bin/sh\necho "$*" >>{log}\n'
            f'case "$*" in *attach*) touch {state} ;;\n'
            f'*"user info"*) [ ! -e {state} ] || echo "Policy: audioproxy-node" ;; esac\n'
        )
        stub.chmod(0o755)
        environ = {"PATH": f"{folder}:/usr/bin:/bin", **FILLED}
        for _ in range(2):
            output_of("sh", "-eu", FOLDER / "buckets.sh", environment=environ)
        lines = log.read_text().splitlines()
        attached = [line for line in lines if "attach" in line]
        self.assertEqual(["admin policy attach store audioproxy-node --user audioproxy"], attached)
        self.assertEqual(2, lines.count("admin user add store audioproxy some-secret"))


class BalancerTests(SynchronousTestCase):
    """The load balancer in front of the nodes."""

    def test_configuration(self) -> None:
        """HAProxy accepts the configuration without a warning.

        The nodes' names cannot be resolved here, so the test turns resolution off.
        """
        names = "default-server resolvers engine init-addr"
        path = Path(self.mktemp())
        path.write_text(
            shipped("compose/haproxy.cfg", {f"{names} last,libc,none": f"{names} none"})
        )
        ended = run_program(installed("haproxy"), "-c", "-V", "-f", path)
        self.assertEqual("Configuration file is valid\n", ended.out + ended.err)

    def test_nodes(self) -> None:
        """Every node is behind the balancer, at the service's port."""
        for backend in ("backend nodes from to_nodes", "backend busy from to_nodes"):
            servers = [
                line.split()
                for line in section("compose/haproxy.cfg", backend)
                if line.startswith("server ")
            ]
            expected = {name: f"{name}:{configuration().port}" for name in nodes()}
            self.assertEqual(expected, {words[1]: words[2] for words in servers})
        (port,) = services()["balancer"]["ports"]
        inside = port.rpartition(":")[2]
        self.assertIn(
            f"bind :{inside},:::{inside} v6only",
            section("compose/haproxy.cfg", "frontend clients from base"),
        )


class MonitoringTests(SynchronousTestCase):
    """Prometheus and Grafana, which are optional."""

    def test_prometheus(self) -> None:
        """Prometheus finds its configuration, the rules and every node."""
        folder = Path(self.mktemp())
        for target, path in mounts("prometheus").items():
            copy = folder / target.lstrip("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
        status, output = run_promtool("check", "config", folder / "etc/prometheus/prometheus.yml")
        self.assertEqual(0, status, output)
        self.assertIn("rules found", output)
        (group,) = yaml.safe_load((folder / "etc/prometheus/targets.yml").read_text())
        port = configuration().metrics_port
        self.assertEqual([f"{name}:{port}" for name in nodes()], group["targets"])
        self.assertEqual("0.0.0.0", configuration().metrics_bind)
