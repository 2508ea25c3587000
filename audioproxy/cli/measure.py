"""``audioproxy measure``: print the loudness of sources, and the gain to a target."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred

from audioproxy.cli import reactor as cli_reactor
from audioproxy.cli.arguments import add_quiet
from audioproxy.cli.env_file import load_config, make_signer
from audioproxy.cli.exit_status import FAILURE, SUCCESS, UsageError
from audioproxy.cli.output import Form, Output, progress_bar
from audioproxy.cli.sign import add_options_option, add_url_options, expiry
from audioproxy.cli.url_input import read_lines
from audioproxy.errors import Refusal
from audioproxy.grammar.sources import FORMS
from audioproxy.loudness import Gain, Loudness, LoudnessMeter, Measurement, find_gain
from audioproxy.service import BootError
from audioproxy.urls import Variant

DESCRIPTION = """\
Print the integrated loudness (LUFS), the loudness range (LU) and the true peak (dBTP) of each
source, as EBU R 128 and ITU-R BS.1770-4 define them. Sources are read as the service reads them,
with the same settings.

Without options, all channels of the source are measured. With --options, --target or --sign, the
render of these options is measured, before its encoder: it has at most two channels.

examples:
  audioproxy measure local://masters/piece.wav
  audioproxy measure --options t:30:15/ch:1 local://piece.wav
  audioproxy measure --target -16 --ceiling -1 local://one.wav local://two.wav
  audioproxy measure --target -14 --album --json local://one.wav local://two.wav
  find . -name '*.wav' -printf 'local://%P\\n' |
      audioproxy measure --target -16 --sign --options f:opus --base https://audio.example -

exit status:
  0    all sources were measured
  1    at least one was not
  130  stopped by Ctrl-C
"""

# dBTP; the highest permitted level of EBU R 128.
_DEFAULT_CEILING = Decimal(-1)


def add_arguments(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help=f"{FORMS}; - reads sources from the standard input, one per line",
    )
    add_options_option(parser)
    # The bounds of both numbers are those of `norm` (D6).
    add(
        "--target",
        type=_number_between(-70, -5),
        metavar="LUFS",
        help="add the gain that brings each source to this integrated loudness",
    )
    add(
        "--ceiling",
        type=_number_between(-9, 0),
        metavar="DBTP",
        help=f"the true peak that no gain may exceed ({_DEFAULT_CEILING})",
    )
    add("--album", action="store_true", help="add a row for all sources, and use one gain for all")
    add("--sign", action="store_true", help="add the signed URL of each source, with its gain")
    add_url_options(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--format", choices=("table", "csv"), default="table", help="of the output (table)"
    )
    form.add_argument(
        "--json",
        action="store_true",
        help="print a JSON object for each source, on one line, with the columns of --format csv",
    )
    add_quiet(parser)


def _number_between(low: int, high: int) -> Callable[[str], Decimal]:
    def read(text: str) -> Decimal:
        try:
            value = Decimal(text)
        except InvalidOperation:
            value = Decimal("NaN")
        if not (value.is_finite() and low <= value <= high):
            raise ArgumentTypeError(f"{text!r}; a number from {low} to {high} is required")
        return value

    return read


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one source, or of an album; an error says why it has none, or no URL."""

    source: str
    loudness: Loudness | None = None
    gain: Gain | None = None
    url: str | None = None
    error: str | None = None


class Report:
    """Prints rows, and counts their failures. A table has no row for a source without a result."""

    def __init__(self, out: Output, with_gain: bool, with_url: bool) -> None:
        self.out = out
        self.failures = 0
        self._with_gain = with_gain
        self._with_url = with_url
        gain = f"{'gain':>9}" if with_gain else ""
        heading = f"{'LUFS':>7}{'LU':>7}{'dBTP':>7}{gain}  source"
        out.headings(self._values(Row("")), heading)

    def add(self, row: Row) -> None:
        if row.error is not None:
            self.failures += 1
            self.out.error(f"{row.source}: {row.error}")
        self.out.row(self._values(row), *self._lines(row))

    def _values(self, row: Row) -> dict[str, Any]:
        values: dict[str, Any] = {"source": row.source}
        for name in ("integrated", "range", "true_peak"):
            value = getattr(row.loudness, name, None)
            values[name] = None if value is None else round(Decimal(value), 2)
        if self._with_gain:
            values["gain"] = None if row.gain is None else row.gain.decibels
            values["shortfall"] = None if row.gain is None else row.gain.shortfall
        if self._with_url:
            values["url"] = row.url
        return values | {"error": row.error}

    def _lines(self, row: Row) -> Iterator[str]:
        if row.loudness is None:
            return
        values = (row.loudness.integrated, row.loudness.range, row.loudness.true_peak)
        line = "".join("{:>7}".format("-" if v is None else f"{v:.1f}") for v in values)
        if self._with_gain:
            line += "{:>9}".format("-" if row.gain is None else f"{row.gain.decibels:+.2f}")
        line += f"  {row.source}"
        if row.gain is not None and row.gain.shortfall:
            line += f"  (the ceiling keeps it {row.gain.shortfall:.1f} LU below the target)"
        yield line
        if row.url is not None:
            yield f"    {row.url}"


@dataclass(frozen=True, slots=True)
class MeasurePlan:
    """What to measure, and what to compute from it.

    :ivar variant: the render to measure; None for the source itself.
    :ivar target: LUFS.
    :ivar ceiling: dBTP.
    """

    variant: Variant | None
    target: Decimal | None
    ceiling: Decimal
    album: bool
    sign: Callable[[str, Variant], str] | None

    def gain(self, measured: Measurement) -> Gain | None:
        return None if self.target is None else find_gain(measured, self.target, self.ceiling)

    def signed(self, row: Row) -> Row:
        """Return the row with its URL, or with an error if no URL has its source and gain."""
        if (variant := self.variant) is None:
            return row
        try:
            if row.gain is not None:
                variant = replace(variant, gain=row.gain.decibels)
            return row if self.sign is None else replace(row, url=self.sign(row.source, variant))
        except Refusal as refusal:
            return replace(row, error=str(refusal))


def execute(arguments: Namespace, environment: Mapping[str, str]) -> int:
    plan = _read_plan(arguments, environment)
    config = load_config(environment)
    sources = list(read_lines(arguments.sources))
    bar = progress_bar("sources", arguments.quiet, len(sources))
    out = Output(Form.JSON if arguments.json else Form(arguments.format), bar)
    report = Report(out, plan.target is not None, plan.sign is not None)

    async def work(reactor: Any) -> None:
        try:
            meter = LoudnessMeter(config, reactor)
        except BootError as error:
            raise UsageError(str(error)) from None
        progress = MeasureProgress(bar, reactor.callFromThread)

        async def measure(source: str) -> Measurement | str:
            try:
                return await meter.measure(source, plan.variant, progress.track())
            except Refusal as refusal:
                return str(refusal)

        try:
            await write_report(plan, measure_all(sources, measure), report)
        finally:
            await meter.close()

    with bar:
        cli_reactor.run(work)
    return FAILURE if report.failures else SUCCESS


def _read_plan(arguments: Namespace, environment: Mapping[str, str]) -> MeasurePlan:
    variant = None
    if arguments.options or arguments.target is not None or arguments.sign:
        variant = Variant.read(arguments.options)
        if variant.f == "peaks":
            raise UsageError("--options: f:peaks is a waveform, which has no loudness")
    if arguments.target is None and arguments.ceiling is not None:
        raise UsageError("--ceiling goes with --target")
    if arguments.target is not None and variant is not None and variant.gain is not None:
        raise UsageError("--options: gain is what --target computes; omit one of them")
    sign: Callable[[str, Variant], str] | None = None
    if arguments.sign:
        signer = make_signer(environment, arguments.base, arguments.encoded)
        sign = partial(signer.url, **expiry(arguments))
    ceiling = _DEFAULT_CEILING if arguments.ceiling is None else arguments.ceiling
    return MeasurePlan(variant, arguments.target, ceiling, arguments.album, sign)


class MeasureProgress:
    """The seconds of audio that were measured so far, shown in a progress bar."""

    def __init__(self, bar: Any, call_from_thread: Callable[..., object]) -> None:
        self._bar = bar
        self._call_from_thread = call_from_thread
        self._seconds = 0.0

    def track(self) -> Callable[[float], object]:
        """Return a function that a thread calls with the seconds of one source so far."""
        before = 0.0

        def update(seconds: float) -> None:
            nonlocal before
            self._seconds += seconds - before
            before = seconds
            minutes, rest = divmod(int(self._seconds), 60)
            self._bar.set_postfix_str(f"{minutes}:{rest:02} of audio")

        return lambda seconds: self._call_from_thread(update, seconds)


async def measure_all(
    sources: Sequence[str], measure: Callable[[str], Coroutine[Any, Any, Measurement | str]]
) -> AsyncIterator[tuple[str, Measurement | str]]:
    running = [Deferred.fromCoroutine(measure(source)) for source in sources]
    try:
        for source, result in zip(sources, running, strict=True):
            yield source, await result
    finally:
        for result in running:
            # Nothing waits for these results any more.
            result.addErrback(lambda failure: None)
            result.cancel()


async def write_report(
    plan: MeasurePlan, results: AsyncIterator[tuple[str, Measurement | str]], report: Report
) -> None:
    measured: list[tuple[str, Measurement]] = []
    async for source, result in results:
        report.out.bar.update()
        if isinstance(result, str):
            report.add(plan.signed(Row(source, error=result)))
        elif plan.album:
            measured.append((source, result))
        else:
            report.add(plan.signed(Row(source, result.loudness, plan.gain(result))))
    if not plan.album:
        return
    complete = not report.failures
    if not complete:
        # The loudness of the others would be that of another album.
        plan = replace(plan, target=None, sign=None)
        report.out.error("the album has no loudness, since not all of its sources were measured")
    album = Measurement.combine(each for _, each in measured)
    gain = plan.gain(album)
    for source, each in measured:
        report.add(plan.signed(Row(source, each.loudness, gain)))
    if complete:
        report.add(Row("album", album.loudness, gain))
