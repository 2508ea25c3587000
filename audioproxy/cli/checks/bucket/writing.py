"""Checks of what is written: bytes, digests, uploads in parts, metadata, and its removal."""

from __future__ import annotations

import hashlib
import re
import time
from dataclasses import replace
from functools import partial
from os import urandom

from audioproxy.cli.checks.bucket.trial import (
    PREFIX,
    RANGE,
    REFUSALS,
    SAMPLE_SIZE,
    Checks,
    Failed,
    Noted,
    Sample,
    Trial,
    abort_upload,
    require,
    require_equal,
)
from audioproxy.cli.output import format_count
from audioproxy.s3.errors import Denied
from audioproxy.s3.listing import list_page, list_uploads
from audioproxy.s3.multipart_upload import create_upload, put_multipart
from audioproxy.s3.objects import UploadRange
from audioproxy.variants.proof import HEADERS, LARGE_RECORD, PROOF_PREFIX
from audioproxy.variants.record import METADATA_PREFIX

#: The end of a key with characters that URLs and signatures encode in several ways.
SPELLING = "spelling a b+c%20d~é&=;(1)'*,.flac"

# Bytes of the last part of an upload.
_LAST_PART = 1024

# A store may deny access to an object that is missing.
_MISSING = (403, 404)
_WRONG_DIGEST = replace(UploadRange.of(b"other bytes"), sha256=hashlib.sha256(b"bytes").hexdigest())

# Seconds after which an object of another run counts as left by a killed one.
_ABANDONED = 3600

# Names of objects of these checks, and of the check at boot.
_KEY = re.compile(
    rf"({re.escape(PREFIX)}[0-9a-f]{{32}}-)(.+)|{re.escape(PROOF_PREFIX)}[0-9a-f]{{32}}"
)

WRITING = Checks()
#: The last checks of a run.
REMOVAL = Checks()


@WRITING.add(
    "write",
    "an object is written",
    "no variant is stored, and every request renders",
    "name a bucket that exists, and credentials that may write there (PutObject)",
)
async def _write(trial: Trial) -> None:
    # No store can compress or know these bytes.
    content = urandom(SAMPLE_SIZE)
    target = await trial.write("sample", content, HEADERS.lines())
    trial.found = Sample(target, content, len(content), None)


@WRITING.add(
    "read back",
    "the object that was just written has its length and its bytes",
    "stored variants are not found, or are sent with other bytes",
    "give the credentials the right GetObject, and use a store that is consistent and stores"
    " bytes as they are",
)
async def _read_back(trial: Trial) -> None:
    sample = trial.sample
    response = await sample.target.send("GET")
    etag, trial.server = response.header("etag"), response.header("server")
    await require(response, 200, content=sample.content)
    trial.found = replace(sample, etag=etag)


@WRITING.add(
    "digest",
    "a body with a wrong x-amz-content-sha256 is refused",
    "a variant that is damaged on its way is stored and sent to everyone",
    "use a store that verifies digests",
)
async def _refuse_digest(trial: Trial) -> None:
    target = trial.object("digest")
    await require(await target.send("PUT", body=_WRONG_DIGEST), *REFUSALS)
    await require(await target.send("GET"), *_MISSING)


@WRITING.add(
    "digest of part",
    "a part of an upload with a wrong x-amz-content-sha256 is refused",
    "a variant over 4 GiB that is damaged on its way is stored",
    "use a store that verifies digests",
)
async def _refuse_digest_of_part(trial: Trial) -> None:
    target, removal = trial.upload("part")
    upload = await create_upload(target, {})
    # With the id, the right to list uploads is not needed.
    trial.removals[removal] = partial(abort_upload, target, upload)
    response = await target.send("PUT", f"partNumber=1&{upload}", body=_WRONG_DIGEST)
    await require(response, *REFUSALS)


@WRITING.add(
    "parts",
    "an object is uploaded in parts of equal sizes and a shorter last one",
    "variants over 4 GiB are not stored",
    "use a store with multipart uploads",
)
async def _upload_parts(trial: Trial) -> None:
    parts = [urandom(trial.part_size), urandom(_LAST_PART)]
    target, removal = trial.upload("parts")
    await put_multipart(target, HEADERS.lines(), [UploadRange.of(part) for part in parts])
    del trial.removals[removal]
    size, _ = await target.find()
    require_equal("the size", size, sum(map(len, parts)))
    start, stop = trial.part_size - _LAST_PART, trial.part_size + _LAST_PART
    await require(await target.get(start, stop, None), *RANGE, content=b"".join(parts)[start:stop])


@WRITING.add(
    "metadata",
    "metadata of all visible ASCII characters is kept byte for byte",
    "`audioproxy store` finds no variants of a source and verifies none",
    "use a store that keeps metadata as it is",
)
async def _keep_metadata(trial: Trial) -> None:
    # Values of the service's metadata consist of these.
    visible = bytes(range(0x21, 0x7F)).decode("ascii")
    await _require_metadata(trial, {METADATA_PREFIX + "options": visible})


@WRITING.add(
    "metadata size",
    "1.6 KB of metadata are kept, in values of up to 256 bytes",
    "the service does not start",
    "use a store that accepts as much metadata, such as S3",
)
async def _keep_large_metadata(trial: Trial) -> None:
    await _require_metadata(trial, LARGE_RECORD.metadata())


async def _require_metadata(trial: Trial, lines: dict[str, str]) -> None:
    target = await trial.write("metadata", b"1", lines)
    _, response = await target.find()
    for name, value in lines.items():
        require_equal(name, response.header(name), value)


@WRITING.add(
    "overwrite",
    "an object is overwritten, and the new bytes are read",
    "a variant that is stored again, or by two nodes, fails",
    "turn off object lock and retention in this bucket",
)
async def _overwrite(trial: Trial) -> None:
    await trial.write("overwrite", b"1" * 1024)
    target = await trial.write("overwrite", content := b"2" * 1024)
    await require(await target.send("GET"), 200, content=content)


@WRITING.add(
    "new ETag",
    "an object that is replaced gets another ETag",
    "a response could mix two versions of an object",
    "use a store whose ETags depend on the bytes",
)
async def _change_etag(trial: Trial) -> None:
    etags = []
    for content in (b"1" * 1024, b"2" * 1024):
        target = await trial.write("etag", content)
        _, response = await target.find()
        etags.append(response.header("etag"))
    if None in etags or etags[0] == etags[1]:
        raise Failed(f"{etags[0]} before and {etags[1]} after the replacement")


@WRITING.add(
    "key spelling",
    "a key with spaces, +, %, & and non-ASCII characters is written and read",
    "sources with such names are not found",
    "use a store that takes keys as they are, or rename such sources",
    is_needed=lambda config: config.source_s3.configured,
)
async def _spell_key(trial: Trial) -> None:
    target = await trial.write(SPELLING, content := urandom(1024))
    await require(await target.send("GET"), 200, content=content)
    await require(await trial.fetch(target.presign(300)), 200, content=content)


@WRITING.add(
    "deletion",
    "an object is removed, and is missing then",
    "`audioproxy store` removes nothing, and the service does not start",
    "give the credentials the right DeleteObject",
)
async def _delete(trial: Trial) -> None:
    target = await trial.write("deleted", b"1")
    await target.delete()
    await require(await target.send("GET"), *_MISSING)


@REMOVAL.add(
    "left-overs",
    "nothing is left of earlier runs that were killed",
    "objects of the checks remain",
    f"remove the objects whose names begin with {PREFIX}",
    is_needed=lambda config: False,
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


@REMOVAL.add(
    "clean-up",
    "everything that the checks wrote is removed",
    "objects of the checks remain",
    f"remove the objects whose names begin with {PREFIX}",
)
async def _clean(trial: Trial) -> str | None:
    await trial.clean()
    try:
        left, _ = await list_page(trial.objects, trial.bucket, trial.key(""), None)
    except Denied as error:
        if trial.removals:
            raise Failed("removals failed, and the listing is denied") from error
        return "everything that was written is removed (the listing is denied)"
    require_equal("the number of objects that remain", len(left), 0)
    if trial.removals:
        raise Noted(
            "an upload was not aborted: parts of failed uploads remain and cost money; give the"
            " credentials the right AbortMultipartUpload, and set a lifecycle rule"
        )
    return None
