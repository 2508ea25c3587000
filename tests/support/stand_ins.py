"""Programs in C that stand for ffmpeg where a test has to know what a program does."""

from __future__ import annotations

import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("stand_in.c")

#: Source of a library whose constructor starts a thread, as that of OpenBLAS does.
THREADED = """
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int library;
static void *wait(void *unused) { pause(); return unused; }
__attribute__((constructor)) static void start(void) {
    const char *number = getenv("OPENBLAS_NUM_THREADS");
    pthread_t thread;
    if (ALWAYS || !number || strcmp(number, "1")) pthread_create(&thread, NULL, wait, NULL);
}
"""
#: Source of a library without effect.
HARMLESS = "int library;"


def compile_program(folder: Path, *options: str, library: str | None = None) -> Path:
    """Compile a stand-in in a folder of its own, and return its path.

    :param library: the source of a library that it is linked with, in the folder ``lib``.
    """
    program = folder / "bin/stand-in"
    program.parent.mkdir(parents=True, exist_ok=True)
    if library is not None:
        compile_library(folder, library, *options)
        options = (*options, "-DNEEDS_LIBRARY", f"-L{folder}/lib", "-lstand-in")
        options = (*options, f"-Wl,-rpath,{folder}/lib")
    subprocess.run(["cc", "-o", program, _SOURCE, *options], check=True)
    return program


def compile_library(folder: Path, source: str, *options: str) -> None:
    """Compile the library of a stand-in, and put it into the place of the former one."""
    path = folder / "lib/libstand-in.so"
    path.parent.mkdir(exist_ok=True)
    command = ["cc", "-x", "c", "-shared", "-fPIC", "-o", f"{path}.new", "-", *options]
    subprocess.run(command, check=True, input=source.encode())
    path.with_suffix(".so.new").rename(path)
