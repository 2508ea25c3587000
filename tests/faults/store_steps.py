"""A program that stores, replaces, prunes and purges variants, and waits after each step.

It prints what has ended, such as ``stored KEY``, and goes on after a line of its stdin.
"""

from __future__ import annotations

import os
import sys

from twisted.internet.task import Clock

from audioproxy.cli.main import main as run_command
from audioproxy.variants.files import FileVariantStore
from audioproxy.variants.prune import main as prune_child
from tests.faults.power import CALLS, result_of
from tests.support.variants import HEADERS, StoredVariant


def main(root: str) -> int:
    def open_store() -> FileVariantStore:
        store = FileVariantStore(root, CALLS, CALLS, Clock().seconds, 10**6)
        result_of(store.open())
        return store

    def commit(variant: StoredVariant) -> None:
        scratch = result_of(store.create())
        os.write(scratch.descriptor, variant.data)
        size = len(variant.data)
        result_of(store.commit(variant.key, scratch, size, HEADERS, variant.record))
        scratch.close()
        say(f"stored {variant.key}")

    store = open_store()
    for size in (10_000, 20_000):
        for each in range(3):
            commit(StoredVariant.of(f"local://{each}", data=os.urandom(size)))
        # A restart after a kill.
        store = open_store()
    assert prune_child(root, "50000") == 0
    say("removed")
    commit(StoredVariant.of("local://0", data=os.urandom(5000)))
    store.close_now()
    status = run_command(["store", "purge", "--prefix", "local://"])
    say("removed")
    return status


def say(text: str) -> None:
    print(text, flush=True)
    input()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
