"""The table of all checks of a bucket, and how they are run."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from twisted.internet.defer import CancelledError

from audioproxy.cli.checks.bucket.reading import READING, REDIRECTS, open_source
from audioproxy.cli.checks.bucket.trial import Check, Failed, Noted, Trial
from audioproxy.cli.checks.bucket.writing import REMOVAL, WRITING
from audioproxy.cli.checks.results import CheckResult, Verdict, bad, crashed, good, note
from audioproxy.cli.checks.settings import place_of_variants
from audioproxy.cli.checks.stores import bucket_owners, check_clock, check_way_to_store
from audioproxy.config import Config
from audioproxy.engine import Engine
from audioproxy.grammar.sources import S3Source
from audioproxy.s3.errors import StoreError, Unreachable, WrongEndpoint
from audioproxy.variants.proof import wanted_for

#: All checks, in the order in which they run.
CHECKS = (*WRITING, *READING, *REDIRECTS, *REMOVAL)


async def check_buckets(
    config: Config, engine: Engine, source: S3Source | None
) -> AsyncGenerator[CheckResult]:
    store, sources = bucket_owners(engine)
    _, bucket = place_of_variants(config)
    if store is not None and bucket is not None:
        objects, settings = store.object_store, config.variant_s3
        trial = Trial(objects, settings, bucket, config)
        async with aclosing(run_checks(trial, CHECKS)) as results:
            async for result in results:
                yield result
        how = f"{settings.addressing} addressing, region {settings.region}"
        yield good("store", f"{trial.server or 'a server without a name'}; {how}")
        yield check_way_to_store(config, objects, objects.last_dates is not None)
        if (ahead := objects.clock_ahead) is not None:
            yield check_clock(ahead)
    elif source is None:
        yield bad("bucket", "no bucket is named; set AP_VARIANT_STORE to s3://NAME")
    if source is None:
        return
    if sources is None:
        wanted = "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION"
        yield bad("source", f"there are no credentials for sources in buckets; set {wanted}")
        return
    if config.source_allowlist is not None and not source.is_allowed(config.source_allowlist):
        yield bad("source", "its bucket is refused; add it to AP_SOURCE_ALLOWLIST")
    trial = Trial(sources.object_store, config.source_s3, source.bucket, config)
    async with aclosing(run_checks(trial, source_checks(source.key))) as results:
        async for result in results:
            yield replace(result, check=f"source: {result.check}")


def source_checks(key: bytes) -> list[Check]:
    """Return the checks of reading a source, which write nothing."""
    opening = Check(
        "found",
        "the source is found and read",
        "it does not render",
        "name an object that exists, and credentials that may read it (GetObject)",
        partial(open_source, key=key),
    )
    return [opening, *READING]


async def run_checks(trial: Trial, checks: Iterable[Check]) -> AsyncGenerator[CheckResult]:
    """Run checks, and remove what they wrote, also if this generator is closed early."""
    try:
        for check in checks:
            yield await _run(check, trial)
            if trial.is_lost or trial.found is None:
                reason = "the store is unreachable" if trial.is_lost else "there is no object"
                yield note("other checks", f"not run, since {reason}")
                return
    finally:
        await trial.clean()


async def _run(check: Check, trial: Trial) -> CheckResult:
    remedy = check.remedy
    try:
        text = await trial.run_twice(lambda: check.run(trial))
        return good(check.name, text or check.checks)
    except Noted as noted:
        return note(check.name, str(noted))
    except Failed as error:
        failure = str(error)
    except StoreError as error:
        trial.is_lost = isinstance(error, Unreachable)
        if trial.is_lost or (trial.found is None and isinstance(error, WrongEndpoint)):
            remedy = wanted_for(error)
        failure, remedy = str(error), trial.objects.hint_for(error, remedy)
    except CancelledError:
        raise
    except Exception:
        return crashed(check.name)
    verdict = Verdict.BAD if check.is_needed(trial.config) else Verdict.NOTE
    text = f"{failure}; should be: {check.checks}. Otherwise, {check.breaks}; {remedy}"
    return CheckResult(verdict, check.name, text)
