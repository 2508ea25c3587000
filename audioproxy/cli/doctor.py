"""``audioproxy doctor``: run all checks, even after one has failed."""

from __future__ import annotations

import getpass
import os
import platform
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from twisted.internet.defer import CancelledError
from twisted.logger import LogLevel

from audioproxy import __version__
from audioproxy.cli import reactor as cli_reactor
from audioproxy.cli.checks import builds, disk, machine, ports, stores
from audioproxy.cli.checks.bucket.table import check_buckets
from audioproxy.cli.checks.results import CheckResult, Verdict, bad, crashed, good, note, summarize
from audioproxy.cli.checks.settings import UsableSettings, load_usable, place_of_variants
from audioproxy.cli.env_file import read_keys
from audioproxy.cli.exit_status import FAILURE, SUCCESS, UsageError
from audioproxy.cli.fetcher import redact_url
from audioproxy.cli.output import Output
from audioproxy.cli.url_input import read_lines
from audioproxy.cli.verify import verify_url
from audioproxy.config import Config
from audioproxy.engine import BootError, Engine, build
from audioproxy.errors import reason_of
from audioproxy.grammar.sources import S3Source, parse_source

Report = Callable[[CheckResult], None]

DESCRIPTION = """\
Check everything that the service needs, as the service would use it: the settings, ffmpeg with its
encoders and filters, the sources, the variant store, certificates, the clock, open files, room for
temporary files, and the ports. In the variant store, an object or a file is written, found, fetched
through a presigned URL and removed again, and a sample of the variants is asked for the build of
ffmpeg that made it. If a service holds the port, it is asked for a URL that has expired, signed
with the key: another service refuses its signature. Given URLs are verified with these settings.
Each check prints a line, with the problem and what would be right. No secret is printed, and
nothing is changed.

With --bucket, the bucket of the variants is checked instead, thoroughly: everything that the
service needs of a store, with what breaks otherwise. At most 10 MB are written, in objects whose
names begin with .audioproxy-doctor-, and removed again. The report can be posted: without --names,
it names neither buckets nor endpoints.

Run it as the user of the service, since file permissions and limits depend on the user. Root is
noted as a risk: ffmpeg reads untrusted files. With --env-file it is not, since often only root can
read the file; then it is noted if other users can read that file. PATH, SSL_CERT_FILE and TMPDIR
are those of the file, or else of this shell: what a unit itself sets is not known here.

examples:
  audioproxy doctor
  sudo audioproxy doctor --env-file /etc/audioproxy/audioproxy.env
  audioproxy doctor https://audio.example/Gx3k.../f:opus/plain/local://piece.wav
  audioproxy doctor --bucket --env-file /etc/audioproxy/audioproxy.env
  audioproxy doctor --json | jq '.checks[] | select(.verdict == "bad")'

marks and verdicts:
  ok  good
  --  needs attention, or was not checked ("note" with --json)
  !!  bad

exit status:
  0  no check is bad
  1  at least one check is bad
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--bucket",
        action="store_true",
        help="check the bucket of the variants instead, thoroughly: some twenty-five checks, each"
        " with what breaks in the service and what to do",
    )
    parser.add_argument(
        "--source",
        metavar=S3Source.form,
        help="with --bucket: check reading this source too; nothing is written to its bucket",
    )
    parser.add_argument(
        "--names",
        action="store_true",
        help="with --bucket: print the names of the bucket and of the endpoint",
    )
    parser.add_argument(
        "urls",
        nargs="*",
        metavar="URL",
        help="a URL that the service should accept; - reads one URL per line from stdin",
    )


def execute(arguments: Namespace, environment: Mapping[str, str]) -> int:
    output = Output.of(arguments)
    results: list[CheckResult] = []

    def report(result: CheckResult) -> None:
        results.append(result)
        mark, colour = result.verdict.value
        output.line(result.line.removeprefix(mark), mark, colour)

    if not arguments.bucket and (arguments.source or arguments.names):
        raise UsageError("--source and --names need --bucket")
    source = _parse_source(arguments.source)

    async def work(reactor: Any) -> None:
        if arguments.bucket:
            await check_bucket(reactor, environment, report, source, names=arguments.names)
        else:
            await check_all(reactor, environment, report, arguments.env_file)

    cli_reactor.run(work, LogLevel.error)
    if not arguments.bucket:
        report_access(arguments.env_file, os.geteuid(), report)
    for result in check_urls(read_lines(arguments.urls), environment):
        report(result)
    failed = any(result.verdict is Verdict.BAD for result in results)
    output.document({"ok": not failed, "checks": [result.values for result in results]})
    output.line("")
    output.line(summarize(results))
    return FAILURE if failed else SUCCESS


def report_access(env_file: str | None, uid: int, report: Report) -> None:
    """Report who can read the settings; without a file of them, report that the user is root."""
    if env_file is not None:
        report(machine.check_settings_file(env_file, os.stat(env_file), uid))
    elif uid == 0:
        report(note("user", "root: ffmpeg reads untrusted files; run the service as another user"))


def check_urls(urls: Iterable[str], environment: Mapping[str, str]) -> Iterator[CheckResult]:
    for url in urls:
        try:
            found = verify_url(read_keys(environment), url)
        except UsageError as error:
            yield bad("URL", str(error))
        else:
            text = f"{found.text}: {redact_url(url)}"
            yield bad("URL", text) if found.status else good("URL", text)


async def check_all(
    reactor: Any, environment: Mapping[str, str], report: Report, env_file: str | None = None
) -> None:
    """Run all checks, and report each result as soon as it is known.

    :param env_file: the settings of a unit, which may have another limit and folder than this
        process; results say so.
    """
    report(good("audioproxy", f"{_versions()}, as {_user()}"))
    settings, engine = _build(reactor, environment)
    config = settings.config
    for result in settings.results:
        report(result)
    try:
        for name, check in (
            # This check is first: with too few descriptors, the check of ffmpeg fails too.
            ("open files", machine.check_open_files(config, env_file)),
            ("ffmpeg", machine.check_programs(engine)),
            ("local sources", machine.check_local_sources(config)),
            ("variant store", stores.check_stores(settings, engine)),
            ("builds", builds.check_builds(reactor, config, engine)),
            ("certificates", machine.check_certificates(reactor, settings)),
            ("temporary files", disk.check_temporary_files(config, env_file)),
            ("ports", ports.check_ports(reactor, settings)),
        ):
            try:
                async for result in check:
                    report(result)
            except CancelledError:
                raise
            except OSError as error:
                report(bad(name, reason_of(error)))
            except Exception:
                report(crashed(name))
    finally:
        await engine.close()


async def check_bucket(
    reactor: Any,
    environment: Mapping[str, str],
    report: Report,
    source: S3Source | None,
    *,
    names: bool,
) -> None:
    """Run the checks of the operator's bucket, and of reading a source.

    :param names: whether results may have the names of buckets and endpoints.
    """
    report(good("audioproxy", _versions()))
    settings, engine = _build(reactor, environment)
    hidden: dict[str, str] = {}

    def report_without_names(result: CheckResult) -> None:
        text = result.text
        for name, substitute in hidden.items():
            text = text.replace(name, substitute)
        report(replace(result, text=text))

    try:
        if not names:
            hidden = _names_to_hide(settings.config, engine, source)
        for result in settings.results:
            report_without_names(result)
        async with aclosing(check_buckets(settings.config, engine, source)) as results:
            async for result in results:
                report_without_names(result)
    finally:
        await engine.close()


def _names_to_hide(config: Config, engine: Engine, source: S3Source | None) -> dict[str, str]:
    """Return what stands in a report for the names of buckets and endpoints."""
    names: dict[str, str] = {}
    for owner in stores.bucket_owners(engine):
        if owner is not None:
            origin = owner.object_store.name
            parts = urlsplit(origin)
            names |= dict.fromkeys((origin, parts.netloc, parts.hostname or origin), "ENDPOINT")
    buckets = list(filter(None, (source and source.bucket, place_of_variants(config)[1])))
    # A bucket alone may be a word of a text, and a host can begin with it.
    hosts = {f"{bucket}.{name}": "BUCKET.ENDPOINT" for bucket in buckets for name in names}
    return {**{f"s3://{bucket}": "s3://BUCKET" for bucket in buckets}, **hosts, **names}


def _parse_source(text: str | None) -> S3Source | None:
    if text is None:
        return None
    with suppress(ValueError):
        if isinstance(source := parse_source(os.fsencode(text)), S3Source):
            return source
    raise UsageError(f"--source {text}: not the address of an object; use {S3Source.form}")


def _build(reactor: Any, environment: Mapping[str, str]) -> tuple[UsableSettings, Engine]:
    """Check the settings, and construct the engine without the settings that it rejects."""
    settings = load_usable(environment)
    refused, results = settings.refused, settings.results
    while True:
        try:
            engine = Engine(build(settings.config, reactor))
            results += tuple(CheckResult.of_setting(Verdict.NOTE, each) for each in engine.warnings)
            return UsableSettings(settings.config, refused | settings.refused, results), engine
        except BootError as error:
            results += (CheckResult.of_setting(Verdict.BAD, error.problem),)
            variable = error.problem.variable
        # The service can always be constructed without any settings.
        environment = {} if variable in refused else {**environment, variable: ""}
        refused |= {variable}
        # The service reads SSL_CERT_FILE from the environment of the process.
        os.environ.pop(variable, None)
        settings = load_usable(environment)


def _versions() -> str:
    return f"{__version__}, Python {platform.python_version()}"


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # In a container, the user id may have no name.
        return f"user {os.getuid()}"
