"""The container file: contents of the image, its user, and pinned versions."""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import distribution
from io import BytesIO
from pathlib import Path

from dockerfile_parse import DockerfileParser
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from twisted.trial.unittest import SynchronousTestCase

from audioproxy.config import VARIABLES, Config
from audioproxy.process.find_starter import BINARY, SOURCE
from tests.support.service import (
    PROJECT,
    TWISTD,
    WITHOUT_FFMPEG_CHECK,
    ServiceCase,
    fetch,
    short_flac,
    signed,
)
from tests.test_install_live import requirements

FOLDER = PROJECT / "deploy/container"
CONSTRAINTS = (FOLDER / "constraints.txt").read_text()

_PARSER = DockerfileParser(fileobj=BytesIO((FOLDER / "Containerfile").read_bytes()))


def instructions() -> list[tuple[str, str]]:
    """Return all instructions with their arguments, with line breaks removed."""
    return [
        (row["instruction"], row["value"])
        for row in _PARSER.structure
        if row["instruction"] != "COMMENT"
    ]


def stages() -> list[list[tuple[str, str]]]:
    """Return the instructions of each stage, which begins with FROM."""
    found: list[list[tuple[str, str]]] = []
    for name, value in instructions():
        if name == "FROM":
            found.append([])
        if found:
            found[-1].append((name, value))
    return found


def stage(name: str) -> str:
    """Return the commands of a stage that has a name."""
    (found,) = (rows for rows in stages() if rows[0][1].endswith(f" AS {name}"))
    return " ".join(value for instruction, value in found if instruction == "RUN")


def final(name: str) -> list[str]:
    """Return the arguments of every occurrence of an instruction in the last stage."""
    return [value for instruction, value in stages()[-1] if instruction == name]


def environment() -> dict[str, str]:
    """Return the environment variables of the image."""
    return dict(re.findall(r"(\w+)=(\S+)", " ".join(final("ENV"))))


def defaults() -> dict[str, str]:
    """Return the build arguments with their defaults."""
    pairs = (value.partition("=") for name, value in instructions() if name == "ARG")
    return {name: default for name, equals, default in pairs if equals}


class ImageTests(SynchronousTestCase):
    """The contents of the image."""

    def test_what_is_copied(self) -> None:
        """Everything that is copied exists, and no other file of the project reaches the build."""
        lines = (PROJECT / ".dockerignore").read_text().splitlines()
        rules = [line for line in lines if line and not line.startswith("#")]
        self.assertEqual("*", rules[0])
        included = sorted(rule[1:] for rule in rules if rule.startswith("!"))
        copied = [value.split()[:-1] for name, value in instructions() if name == "COPY"]
        names = [name for row in copied if not row[0].startswith("--from") for name in row]
        self.assertEqual(included, sorted(names))
        for name in names:
            self.assertTrue((PROJECT / name).exists(), name)

    def test_cell(self) -> None:
        """The virtual environment has the program that confines ffmpeg, and its library."""
        program = f"/opt/audioproxy/{BINARY.relative_to(Path(sys.prefix).resolve())}"
        for output in (f"-static -o {program}", f"-shared -fPIC -o {program}.so"):
            command = f"cc -O2 {output} {SOURCE.relative_to(PROJECT)} "
            self.assertIn(command, stage("build"))

    def test_base(self) -> None:
        """The base image is the Debian that the README and `make ci-root` name first."""
        (base,) = re.findall(r"^debian:([a-z]+)-slim$", defaults()["BASE"])
        self.assertIn(f"\nSUITE ?= {base}\n", (PROJECT / "Makefile").read_text())
        first = re.search(r"Debian (\d+)", (PROJECT / "README.md").read_text())
        assert first is not None
        self.assertTrue(
            defaults()["FFMPEG_VERSION"].partition("+deb")[2].startswith(f"{first[1]}u")
        )

    def test_ffmpeg_is_pinned(self) -> None:
        """Images that are built at different times have the same version of ffmpeg (D44).

        That holds for both builds of ffmpeg.
        """
        self.assertRegex(defaults()["FFMPEG_VERSION"], r"^\d+:[\d.]+-\d[\w.+~]*$")
        self.assertIn('"ffmpeg=${FFMPEG_VERSION}"', " ".join(final("RUN")))
        self.assertIn('tools/ffmpeg/build /opt/ffmpeg "${FFMPEG_VERSION}"', stage("ffmpeg"))

    def test_dates(self) -> None:
        """Every image that is not built here, and ffmpeg, has its date beside its version."""
        compose = (PROJECT / "deploy/compose/compose.yaml").read_text()
        images = dict(re.findall(r"image: (\S+)(.*)", compose))
        foreign = [rest for name, rest in images.items() if not name.startswith("audioproxy:")]
        self.assertEqual(4, len(foreign))
        for rest in foreign:
            self.assertRegex(rest, r"^  # 20\d\d-\d\d-\d\d$")
        text = (FOLDER / "Containerfile").read_text()
        self.assertRegex(text, r"# 20\d\d-\d\d-\d\d\.\nARG FFMPEG_VERSION=")

    def test_our_own_ffmpeg(self) -> None:
        """The image has the project's own ffmpeg, and nothing of Debian's, unless it is asked for.

        It is in /usr/local/bin, which precedes /usr/bin in PATH.
        """
        self.assertEqual("own", defaults()["FFMPEG"])
        self.assertIn('[ "${FFMPEG}" != own ] || tools/ffmpeg/build ', stage("ffmpeg"))
        self.assertIn('[ "${FFMPEG}" = own ] || set -- "ffmpeg=', " ".join(final("RUN")))
        self.assertIn("--from=ffmpeg /opt/ffmpeg/bin /usr/local/bin", final("COPY"))
        folders = environment()["PATH"].split(":")
        self.assertLess(folders.index("/usr/local/bin"), folders.index("/usr/bin"))

    def test_packages_are_pinned(self) -> None:
        """Every required Python package has one pinned version, which satisfies the requirement."""
        pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", CONSTRAINTS, re.MULTILINE))
        lines = [line for line in CONSTRAINTS.splitlines() if not line.startswith("#")]
        self.assertEqual(len(pins), len(lines))
        pins = {canonicalize_name(name): version for name, version in pins.items()}
        package = distribution("audioproxy")
        needed = {canonicalize_name(name): one for (name, _), one in requirements(package).items()}
        self.assertEqual(pins.keys() - {"setuptools"}, needed.keys())
        for need in [
            Requirement(text) for one in (package, *needed.values()) for text in one.requires or ()
        ]:
            version = pins.get(canonicalize_name(need.name))
            if version is not None and (need.marker is None or need.marker.evaluate({"extra": ""})):
                self.assertTrue(need.specifier.contains(version), str(need))


class RunningTests(SynchronousTestCase):
    """How the image runs."""

    def test_interface(self) -> None:
        """The image has a user that is not root, a volume, the service's ports, and no setting.

        Temporary files are on the volume, so the rest can be read-only (D46). The ports are the
        default ones (D30), and the configuration is given at run time.
        """
        self.assertRegex(final("USER")[-1], r"^[1-9]\d{3,}:[1-9]\d{3,}$")
        (volumes,), (ports,) = final("VOLUME"), final("EXPOSE")
        self.assertEqual([environment()["TMPDIR"]], json.loads(volumes))
        usual = Config(allow_insecure=True)
        self.assertEqual(f"{usual.port} {usual.metrics_port}", ports)
        self.assertEqual(set(), (environment().keys() | defaults().keys()) & set(VARIABLES))

    def test_command(self) -> None:
        """The service runs under tini, so early and repeated signals reach it (D39)."""
        (command,), (first,) = final("CMD"), final("ENTRYPOINT")
        self.assertEqual(["twistd", "--nodaemon", "--pidfile=", "audioproxy"], json.loads(command))
        self.assertEqual(["tini", "--"], json.loads(first))
        self.assertIn(" tini ", " ".join(final("RUN")))
        self.assertEqual(["SIGTERM"], final("STOPSIGNAL"))


#: Makes the import of packages fail, and imports all modules of the service.
WITHOUT_PACKAGES = """
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys({removed}))
import audioproxy
for module in pkgutil.walk_packages(audioproxy.__path__, "audioproxy."):
    importlib.import_module(module.name)
"""


class RemovedTests(ServiceCase):
    """What is removed from the virtual environment."""

    async def test_unused(self) -> None:
        """The service and its commands import no package that the image lacks."""
        found = re.search(r" rm -r (.+?) &&", stage("build"))
        assert found is not None
        removed = [name.replace("/", ".") for name in found[1].split() if name != "botocore/data"]
        self.assertIn("numpy.random", removed)
        self.add("short.flac", short_flac())
        program = WITHOUT_PACKAGES.format(removed=removed) + WITHOUT_FFMPEG_CHECK + TWISTD
        words = ("-c", program, "--nodaemon", "--pidfile=", "audioproxy")
        port = await self.spawn(sys.executable, *words, **self.environment()).port()
        for options in ("f:mp3/norm:ebu", "f:peaks"):
            response = await fetch(port, signed(f"/{options}/plain/local://short.flac"))
            self.assertEqual(200, response.status, response.body)


class HealthCheckTests(ServiceCase):
    """The health check of the image, run as the container engine runs it."""

    async def check(self, port: int) -> int:
        """Return the exit status of the health check for a service on a port."""
        # The command runs without a shell.
        (text,) = final("HEALTHCHECK")
        words = json.loads(text.partition("CMD ")[2])
        return await self.spawn(sys.executable, *words[1:], AP_PORT=str(port)).end()

    async def test_alive(self) -> None:
        """A running service is healthy, and a stopped one is not."""
        service = self.start()
        self.assertEqual(0, await self.check(service.port))
        port = service.port
        await service.stopService()
        self.assertNotEqual(0, await self.check(port))
