"""What a purge removes, as its command line says."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass

from audioproxy.cli.exit_status import UsageError
from audioproxy.cli.store.variant_rows import SourceFilter
from audioproxy.cli.url_input import parse_url, percent_encode_typed, read_lines
from audioproxy.grammar import sources as grammar_sources
from audioproxy.grammar.options import VariantOptions
from audioproxy.grammar.segments import split_target
from audioproxy.grammar.sources import Source
from audioproxy.urls import Variant, read_source


@dataclass(frozen=True, slots=True)
class PurgePlan:
    """What to remove.

    :ivar options: of the variants whose keys are computed; empty to list the store.
    :ivar waits: look again later.
    """

    wanted: SourceFilter
    options: tuple[VariantOptions, ...]
    is_stale: bool
    waits: bool
    dry_run: bool

    @classmethod
    def of(cls, arguments: Namespace) -> PurgePlan:
        """Return the plan of a command line.

        :raises UsageError: for arguments that select nothing, or that contradict each other.
        :raises Refusal: for a malformed source or option.
        """
        given = [*map(read_source, read_lines(arguments.sources)), *map(_source_of, arguments.url)]
        wanted = SourceFilter.of(given, arguments.prefix)
        if not (wanted.sources or wanted.prefixes or arguments.stale):
            raise UsageError("a SOURCE, --prefix, --url or --stale is required")
        if arguments.options and (wanted.prefixes or arguments.stale):
            raise UsageError("--options goes with SOURCE and --url only")
        if arguments.wait and (arguments.stale or arguments.dry_run):
            raise UsageError("--wait goes neither with --stale nor with --dry-run")
        options = tuple(Variant.read(each).options for each in arguments.options)
        return cls(wanted, options, arguments.stale, arguments.wait, arguments.dry_run)


def _source_of(url: str) -> Source:
    target = split_target(parse_url(percent_encode_typed(url)).signed)
    if target is None:
        raise UsageError(f"{url!r} has no source: plain/ or enc/ and a source are expected")
    return grammar_sources.read_source(target.form, target.source)
