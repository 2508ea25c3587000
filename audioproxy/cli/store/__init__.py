"""``audioproxy store``: list, remove and verify the variants in the store."""

from __future__ import annotations

DESCRIPTION = """\
List, remove and verify the variants in the store that AP_VARIANT_STORE names: a folder or a bucket.
The service may run meanwhile, on any number of nodes.

A command reads and removes nothing but variants: files and objects whose name is a cache key, in
the place of a cache key. Whatever else is beside them stays. In a bucket, the identity needs the
right ListBucket. If a bucket lists no variant, an object is written, listed and removed: a store
that does not list it would seem empty, so the command fails.

Each command shows its progress on a terminal. Ctrl-C ends it at any point, and it prints what it
has done. Nothing is half removed then.

examples:
  audioproxy store stat
  audioproxy store ls --prefix local://album/
  audioproxy store prune --max-bytes 500G --dry-run
  audioproxy store purge local://album/piece.wav
  audioproxy store verify --pace 20M

exit status:
  0    success
  1    something failed, or was found broken
  2    an invalid command line, or a missing setting
  130  stopped by Ctrl-C
"""

#: The commands, in the order of the help text. Each has a module of its name in this package.
COMMANDS = {
    "stat": "print the number and the bytes of variants, by format and by age",
    "ls": "list variants, with their options and sources",
    "prune": "remove the least recently used variants",
    "purge": "remove all variants of a source, or of sources that have changed",
    "verify": "compare the bytes of each variant with their digest",
}
