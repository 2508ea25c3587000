"""The container file: what goes into the image, as whom it runs, and what is pinned."""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import distribution
from io import BytesIO

from dockerfile_parse import DockerfileParser
from packaging.requirements import Requirement
from twisted.trial.unittest import SynchronousTestCase

import audioproxy
from audioproxy.config import VARIABLES, Config
from tests.support.service import PROJECT, Process, ServiceCase, reactor

FOLDER = PROJECT / "deploy/container"
CONSTRAINTS = (FOLDER / "constraints.txt").read_text()

_PARSER = DockerfileParser(fileobj=BytesIO((FOLDER / "Containerfile").read_bytes()))


def instructions() -> list[tuple[str, str]]:
    """Return all instructions with their arguments, line breaks taken out."""
    return [
        (row["instruction"], row["value"])
        for row in _PARSER.structure
        if row["instruction"] != "COMMENT"
    ]


def stages() -> list[list[tuple[str, str]]]:
    """Return the instructions of each stage, which begins with its FROM."""
    found: list[list[tuple[str, str]]] = []
    for name, value in instructions():
        if name == "FROM":
            found.append([])
        if found:
            found[-1].append((name, value))
    return found


def final(name: str) -> list[str]:
    """Return the arguments of an instruction, each time that it is in the last stage."""
    return [value for instruction, value in stages()[-1] if instruction == name]


def environment() -> dict[str, str]:
    """Return what the image sets."""
    return dict(re.findall(r"(\w+)=(\S+)", " ".join(final("ENV"))))


def defaults() -> dict[str, str]:
    """Return the arguments of a build with their defaults."""
    pairs = (value.partition("=") for name, value in instructions() if name == "ARG")
    return {name: default for name, equals, default in pairs if equals}


def copied() -> list[str]:
    """Return what is copied out of the project."""
    found = []
    for name, value in instructions():
        if name == "COPY" and not value.startswith("--from"):
            *sources, _ = value.split()
            found += sources
    return found


def health_check() -> list[str]:
    """Return the words of the health check's command, which no shell reads."""
    (text,) = final("HEALTHCHECK")
    words: list[str] = json.loads(text.partition("CMD ")[2])
    return words


class ImageTests(SynchronousTestCase):
    """What the image has, and has not."""

    def test_what_is_copied(self) -> None:
        """Everything that is copied exists, and of the project nothing else reaches the build."""
        lines = (PROJECT / ".dockerignore").read_text().splitlines()
        rules = [line for line in lines if line and not line.startswith("#")]
        self.assertEqual("*", rules[0])
        let_in = sorted(rule[1:] for rule in rules if rule.startswith("!"))
        self.assertEqual(let_in, sorted(copied()))
        for name in copied():
            self.assertTrue((PROJECT / name).exists(), name)

    def test_one_python(self) -> None:
        """The environment moves between stages of one base, to the path where it was made."""
        (built,), (ran,) = (
            [value for name, value in stage if name == "FROM"] for stage in stages()
        )
        self.assertEqual(built, f"{ran} AS build")
        made = re.findall(r"python3 -m venv (\S+)", " ".join(value for _, value in stages()[0]))
        self.assertIn(["--from=build", *made, *made], [copy.split() for copy in final("COPY")])
        self.assertTrue(environment()["PATH"].startswith(f"{made[0]}/bin:"))

    def test_build_tools_stay_behind(self) -> None:
        """The image has no pip, and nothing to make environments with."""
        installed = " ".join(final("RUN"))
        self.assertNotRegex(installed, r"\bpip\b|venv|\bgcc\b|-dev\b")
        self.assertRegex(stages()[0][-1][1], r"pip uninstall --yes --quiet setuptools pip$")

    def test_ffmpeg_is_pinned(self) -> None:
        """Nodes that were built at other times have one ffmpeg, to the last digit (D44)."""
        self.assertRegex(defaults()["FFMPEG"], r"^\d+:[\d.]+-\d[\w.+~]*$")
        self.assertIn('"ffmpeg=${FFMPEG}"', " ".join(final("RUN")))

    def test_our_own_ffmpeg(self) -> None:
        """In place of that one, the project's own may be built, to where it is found first."""
        (build,) = (value for name, value in stages()[0] if "tools/ffmpeg/build" in value)
        self.assertIn('[ "${FFMPEG}" != own ] || tools/ffmpeg/build /opt/ffmpeg', build)
        self.assertIn("--from=build /opt/ffmpeg/bin /usr/local/bin", final("COPY"))
        folders = environment()["PATH"].split(":")
        self.assertLess(folders.index("/usr/local/bin"), folders.index("/usr/bin"))

    def test_packages_are_pinned(self) -> None:
        """Every Python package that the service needs has one version, and one that will do."""
        pins = dict(re.findall(r"^([\w.-]+)==(\S+)$", CONSTRAINTS, re.MULTILINE))
        lines = [line for line in CONSTRAINTS.splitlines() if not line.startswith("#")]
        self.assertEqual(len(pins), len(lines))
        pins = {canonical(name): version for name, version in pins.items()}
        needed = requirements("audioproxy")
        self.assertEqual(pins.keys() - {"setuptools"}, {canonical(need.name) for need in needed})
        for need in needed:
            self.assertTrue(need.specifier.contains(pins[canonical(need.name)]), str(need))

    def test_nothing_secret(self) -> None:
        """No setting of the service is in the image: configuration comes when it runs."""
        self.assertEqual(set(), (environment().keys() | defaults().keys()) & set(VARIABLES))

    def test_version(self) -> None:
        """The label names the version that is in it, however the image is built."""
        self.assertEqual(audioproxy.__version__, defaults()["VERSION"])
        (labels,) = final("LABEL")
        self.assertIn('org.opencontainers.image.version="${VERSION}"', labels)


class RunningTests(SynchronousTestCase):
    """How the image runs."""

    def test_nobody_special(self) -> None:
        """It runs as a user without rights, by number, and that one is not in root's group."""
        self.assertRegex(final("USER")[-1], r"^[1-9]\d{3,}:[1-9]\d{3,}$")

    def test_one_place_to_write(self) -> None:
        """Its temporary files are on a volume, so that all the rest can be read-only (D46)."""
        (volumes,) = final("VOLUME")
        self.assertEqual([environment()["TMPDIR"]], json.loads(volumes))

    def test_command(self) -> None:
        """A signal reaches the service, the second one and an early one too (D39)."""
        (command,), (first,) = final("CMD"), final("ENTRYPOINT")
        self.assertEqual(["twistd", "--nodaemon", "--pidfile=", "audioproxy"], json.loads(command))
        self.assertEqual(["tini", "--"], json.loads(first))
        self.assertIn(" tini ", " ".join(final("RUN")))
        self.assertEqual(["SIGTERM"], final("STOPSIGNAL"))

    def test_ports(self) -> None:
        """It names the ports that the service listens on when it is not told otherwise (D30)."""
        (ports,) = final("EXPOSE")
        self.assertEqual(
            f"{Config(allow_insecure=True).port} {Config(allow_insecure=True).metrics_port}", ports
        )


class HealthCheckTests(ServiceCase):
    """The health check of the image, run as the engine would."""

    async def check(self, port: int) -> int:
        """Return the status of the health check for a service on some port."""
        process = Process()
        words = [sys.executable, *health_check()[1:]]
        reactor.spawnProcess(process, words[0], words, env={"AP_PORT": str(port)})
        return await process.end()

    async def test_alive(self) -> None:
        """A service that lives is healthy, and one that has gone is not."""
        service = self.start()
        self.assertEqual(0, await self.check(service.port))
        port = service.port
        await service.stopService()
        self.assertNotEqual(0, await self.check(port))


def canonical(name: str) -> str:
    """Return a package's name in the spelling in which two can be compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(package: str) -> list[Requirement]:
    """Return what a package needs, and what that needs, as it is installed here."""
    found: dict[str, Requirement] = {}
    waiting = [Requirement(package)]
    while waiting:
        wanted = waiting.pop()
        for text in distribution(wanted.name).requires or ():
            need = Requirement(text)
            extras = wanted.extras or {""}
            applies = need.marker is None or any(
                need.marker.evaluate({"extra": extra}) for extra in extras
            )
            if applies and str(need) not in found:
                found[str(need)] = need
                waiting.append(need)
    return list(found.values())
