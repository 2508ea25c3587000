"""A full store: a separate node whose store is on a small tmpfs."""

from __future__ import annotations

import os
import subprocess

from tests.soak.checks import Check, check_store
from tests.soak.good_clients import gather
from tests.soak.lines import PATIENCE, wait_for
from tests.soak.nodes import Node
from tests.soak.rig import Rig, stored_path

_SIZE = 2 * 1024 * 1024


async def check_full_store(rig: Rig) -> Check:
    """Check that renders succeed while the store is full, and are stored again once it has room."""
    check = Check("full store")
    disk = rig.base / "disk"
    disk.mkdir()
    mounted = _call("mount", "-t", "tmpfs", "-o", f"size={_SIZE}", "none", str(disk))
    if mounted is not None:
        check.figures = f"skipped: no file system can be mounted here ({mounted})"
        return check
    variables = {
        "AP_LOCAL_ROOT": str(rig.sounds.root),
        "AP_VARIANT_STORE": f"file://{disk / 'store'}",
        "AP_MAX_CONCURRENCY": "2",
        "AP_RENDER_TIMEOUT": str(rig.parameters.timeout),
    }
    (disk / "store").mkdir()
    node = Node("d", rig.base, variables)
    try:
        await node.start()
        await _fill(rig, node, check)
        found = await check_store(rig.journal, disk / "store")
        check.problems += found.problems
        check.figures += f"; {found.figures}"
        code = await node.stop()
        if code != 0:
            check.problems.append(f"the node had the exit status {code}")
    finally:
        await node.kill()
        left = _call("umount", "--lazy", str(disk))
        if left is not None:
            check.problems.append(left)
    return check


async def _fill(rig: Rig, node: Node, check: Check) -> None:
    first = len(rig.journal.records)
    filler = disk_filler(rig)
    rig.journal.faults["store: full"] += 1
    for kind in rig.parameters.short:
        await gather(
            *(
                rig.request(node, rig.variant(*kind), "full store", causes={"store full"})
                for _ in "ab"
            )
        )
    full = rig.journal.records[first:]
    os.unlink(filler)
    request = rig.variant(*rig.parameters.short[0])
    before = await rig.request(node, request, "store with space again")
    # The variant is stored after the response has ended.
    await wait_for(lambda: stored_path(rig.base / "disk/store", request).exists(), PATIENCE)
    again = await rig.request(node, request, "store with space again")
    if again.state != "HIT" and not (before.limited or again.limited):
        check.problems.append("nothing was stored, although the store had room again")
    check.problems += [
        f"{what}: {record}" for record in rig.journal.records[first:] for what in record.problems
    ]
    statuses = [record.status for record in full if not record.limited]
    if wrong := set(statuses) - {200}:
        check.problems.append(f"statuses while the store was full: {wrong}")
    check.figures = f"{len(full)} requests, {statuses.count(200)} of them answered"


def disk_filler(rig: Rig) -> str:
    """Fill the disk with one file; return its path."""
    path = rig.base / "disk" / "filler"
    with open(path, "wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            pass
    return str(path)


def _call(*words: str) -> str | None:
    """Run a command; return its error message, or None on success."""
    try:
        subprocess.run(words, check=True, capture_output=True, timeout=PATIENCE)
    except subprocess.CalledProcessError as error:
        return error.stderr.decode(errors="replace").strip()
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return None
