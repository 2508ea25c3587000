"""Cache of the audio that outside programs make for tests, shared by all runs and processes.

Only sources of tests are kept: what a test feeds to audioproxy. What audioproxy itself renders is
under test and made anew in each run. `make test` removes what no run has read for a week, and `make
clean` the cache.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path

#: Folder of the cache, ignored by git.
FOLDER = Path(__file__).parents[2] / "build/sounds"

#: Bytes of a command's files that are kept. A few commands make more, mostly PCM, which is soon
#: made; they would be most of the cache.
LARGEST = 8_000_000


def keep(
    program: str,
    words: Iterable[str],
    make: Callable[[], Mapping[str, bytes]],
    source: bytes = b"",
    folder: Path = FOLDER,
) -> dict[str, bytes]:
    """Return the files that a command makes, by name, from the cache if it has them.

    :param program: path of the program; another version makes the files anew.
    :param words: the command; of the path of a file, the content counts.
    :param source: what the command reads besides.
    """
    stated = [_state_of(program), *map(_content_of, words), sha256(source).hexdigest()]
    path = folder / sha256(json.dumps(stated).encode()).hexdigest()
    files = _read(path)
    if files is None:
        files = dict(make())
        if sum(map(len, files.values())) > LARGEST:
            return files
        # Without space, or a folder that this user can write, each run makes its own.
        with suppress(OSError):
            _write(path, files)
    return files


@cache
def _state_of(program: str) -> str:
    path = os.path.realpath(program)
    stated = os.stat(path)
    return f"{path} {stated.st_size} {stated.st_mtime_ns}"


def _content_of(word: str) -> str:
    if os.path.isfile(word):
        return sha256(Path(word).read_bytes()).hexdigest()
    return word


def _read(path: Path) -> dict[str, bytes] | None:
    """Return the files of an entry; None without one, or if it is not what was written."""
    try:
        entry = path.read_bytes()
    except OSError:
        return None
    digest, body = entry[:32], entry[32:]
    if sha256(body).digest() != digest:
        return None
    head, _, content = body.partition(b"\n")
    files, start = {}, 0
    for name, size in json.loads(head):
        files[name] = content[start : start + size]
        start += size
    return files


def _write(path: Path, files: Mapping[str, bytes]) -> None:
    """Write an entry under another name first: other processes may read it at any time."""
    sizes = [(name, len(content)) for name, content in files.items()]
    body = b"".join([json.dumps(sizes).encode(), b"\n", *files.values()])
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, new = tempfile.mkstemp(dir=path.parent)
    with open(descriptor, "wb") as file:
        file.write(sha256(body).digest() + body)
    os.replace(new, path)
