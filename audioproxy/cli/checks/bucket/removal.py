"""Checks that nothing is left in the bucket: not of this run, and not of earlier ones."""

from __future__ import annotations

import re
import time

from audioproxy.cli.checks.bucket.trial import (
    PREFIX,
    Check,
    Failed,
    Noted,
    Trial,
    abort_upload,
    never,
    require_equal,
)
from audioproxy.cli.checks.bucket.writing import SPELLING
from audioproxy.cli.formatting import format_count
from audioproxy.s3.listing import list_page, list_uploads
from audioproxy.s3.objects import Denied
from audioproxy.variants.proof import PROOF_PREFIX

# Seconds after which an object of another run counts as left by a killed one.
_ABANDONED = 3600

# Names of objects of these checks, and of the check at boot.
_KEY = re.compile(
    rf"({re.escape(PREFIX)}[0-9a-f]{{32}}-)(.+)|{re.escape(PROOF_PREFIX)}[0-9a-f]{{32}}"
)


async def _remove_left(trial: Trial) -> str | None:
    store, bucket = trial.objects, trial.bucket
    latest = time.time() - (store.clock_ahead or 0) - _ABANDONED
    removed = 0
    try:
        objects, _ = await list_page(store, bucket, PREFIX, None)
        proofs, _ = await list_page(store, bucket, PROOF_PREFIX, None)
        uploads = await list_uploads(store, bucket, PREFIX)
    except Denied as error:
        raise Noted(f"not checked, since listing is denied ({error})") from error
    for each in objects + proofs:
        match = _KEY.fullmatch(each.key)
        if match is None or each.modified > latest:
            continue
        # Stores encode the characters of this key in listings in several ways.
        is_spelled = (match[2] or "").startswith(SPELLING.partition(" ")[0])
        key = match[1] + SPELLING if is_spelled else each.key
        await store.object(bucket, key.encode()).delete()
        removed += 1
    for upload in uploads:
        if _KEY.fullmatch(upload.key) and upload.started <= latest:
            await abort_upload(store.object(bucket, upload.key.encode()), upload.query)
            removed += 1
    return f"{format_count(removed, 'object')} of killed runs removed" if removed else None


async def _clean(trial: Trial) -> str | None:
    await trial.clean()
    try:
        left, _ = await list_page(trial.objects, trial.bucket, trial.key(""), None)
    except Denied as error:
        if not trial.is_clean:
            raise Failed("removals failed, and the listing is denied") from error
        return "everything that was written is removed (the listing is denied)"
    require_equal("the number of objects that remain", len(left), 0)
    return None


REMOVAL = (
    Check(
        "left-overs",
        "nothing is left of earlier runs that were killed",
        "objects of the checks remain",
        f"remove the objects whose names begin with {PREFIX}",
        _remove_left,
        never,
    ),
    Check(
        "clean-up",
        "everything that the checks wrote is removed",
        "objects of the checks remain",
        f"remove the objects whose names begin with {PREFIX}",
        _clean,
    ),
)
