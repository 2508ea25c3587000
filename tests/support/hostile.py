"""Attempts of code that has taken over a decoder to reach more than its source and its output.

This is one file of the standard library alone, because it runs as the source of a child: it may
open no other module. It runs as ``python3 -I -S``. Its arguments are its targets as JSON, with the
numbers of system calls, and the number of the attempt to begin with. It prints a line for each
attempt: the name, a tab, and ``succeeded`` or why it failed. An attempt succeeds only where its
effect is seen, the kernel has done what it asks for, or the kernel knows a system call that no cell
has. Where the process can fork, each attempt has a process of its own. A line without an outcome
says that the attempt ended the process. `tests.process.test_cell_live` prepares the targets, and
compares the outcomes with those outside a cell.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import platform
import re
import resource
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
LIBC.mmap.restype = ctypes.c_void_p
IS_X86 = platform.machine() == "x86_64"
#: System calls that the filter of a cell does not know: each fails as in a kernel without it,
#: whatever its arguments are.
UNKNOWN = """
    acct add_key bind bpf capset chroot clock_settime clone3 close_range connect epoll_create1
    eventfd2 execveat fallocate fanotify_init fanotify_mark fchmod fchown finit_module flock
    fsetxattr fsopen fstatfs ftruncate getpgid getppid getpriority getsid getsockopt init_module
    inotify_add_watch inotify_init1 io_setup io_uring_setup iopl ioprio_set kcmp kexec_load
    keyctl landlock_create_ruleset listen memfd_create memfd_secret mlockall mount mq_open
    name_to_handle_at open_by_handle_at open_tree openat2 perf_event_open personality
    pidfd_getfd pidfd_open pidfd_send_signal pipe2 pivot_root pkey_mprotect process_madvise
    process_vm_readv process_vm_writev ptrace quotactl rt_sigqueueinfo rt_tgsigqueueinfo
    sched_getscheduler sched_setaffinity sched_setattr sched_setparam sched_setscheduler seccomp
    semctl semget sendfile sendmsg sendto setgroups sethostname setns setpgid setpriority
    setresuid setsid setsockopt settimeofday shmctl shmget shutdown socket socketpair splice
    statfs swapon syslog timer_create tkill umount2 unshare userfaultfd utimensat
""".split()
#: The other calls that attempts make by number.
OTHERS = """
    arch_prctl clock_nanosleep clone execve ioctl madvise mlock modify_ldt mprotect mremap msgctl
    msgget prctl tgkill
""".split()
#: The number of each of them, which the targets have; -1 where this machine has no such call.
NUMBERS = dict.fromkeys((*UNKNOWN, *OTHERS), -1)

SUCCEEDED = "succeeded"
# A program that replaces this one prints the outcome in its place.
ECHO = "/bin/echo"
PRINTS = [ECHO, SUCCEEDED]
PYTHON = [sys.executable, "-I", "-S", "-c", f"print({SUCCEEDED!r})"]
LOADER = "/lib64/ld-linux-x86-64.so.2" if IS_X86 else "/lib/ld-linux-aarch64.so.1"
#: Ignored by every program that does not ask for it, so that no bystander ends.
SIGNAL = signal.SIGURG
MAP_FIXED, MAP_GROWSDOWN, MREMAP_MAYMOVE, MREMAP_FIXED, MREMAP_DONTUNMAP = 16, 256, 1, 2, 4
MAP_FIXED_NOREPLACE = 0x100000
# The access mode that asks for no right.
O_NOTHING = os.O_WRONLY | os.O_RDWR
PAGE = mmap.PAGESIZE
#: Where audioproxy-cell puts the only path that can be executed: see cell.c.
PATH_ADDRESS = 0x10000


def raise_last_error() -> None:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))


@cache
def system_calls() -> dict[str, int]:
    """Return the numbers of the system calls that this machine has, of those above."""
    lines = ["#include <sys/syscall.h>", *(f"{name}= __NR_{name}" for name in NUMBERS)]
    command = ["cc", "-E", "-P", "-"]
    text = subprocess.check_output(command, input="\n".join(lines), text=True, timeout=60)
    return {name: int(number) for name, number in re.findall(r"(\w+)= (\d+)$", text, re.MULTILINE)}


def call(name: str | int, *arguments: Any) -> int:
    """Make a system call, and return its result."""
    number = NUMBERS[name] if isinstance(name, str) else name
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = int(LIBC.syscall(ctypes.c_long(number), *words))
    if result == -1:
        raise_last_error()
    return result


def is_known(name: str) -> bool:
    """Return whether the kernel knows a system call, with arguments that it refuses."""
    try:
        call(name, *[-1] * 6)
    except OSError as error:
        if error.errno == errno.ENOSYS:
            raise
    return True


def map_memory(address: int, length: int, flags: int = 0) -> int:
    """Map private memory, and return its address."""
    rights, flags = mmap.PROT_READ | mmap.PROT_WRITE, flags | mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    words = map(ctypes.c_long, (address, length, rights, flags, -1, 0))
    found = int(LIBC.mmap(*words) or 0)
    if found == 2**64 - 1:
        raise_last_error()
    return found


def fill(memory: mmap.mmap, length: int) -> bool:
    """Write to all of a mapping."""
    return sum(memory.write(b"x" * (1 << 20)) for _ in range(length >> 20)) == length


def run_code(code: str) -> int:
    """Run a function of machine code of x86-64, in hexadecimal digits."""
    if not IS_X86:
        raise OSError(errno.ENOSYS, "machine code of another processor")
    rights = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    memory = mmap.mmap(-1, PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, rights)
    memory.write(bytes.fromhex(code))
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    result = int(ctypes.CFUNCTYPE(ctypes.c_int)(address)())
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


def content(path: str | int) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read(1 << 20)


def write(path: str, text: bytes = b"x", flags: int = os.O_APPEND) -> bool:
    return os.write(os.open(path, os.O_WRONLY | flags, 0o600), text) == len(text)


def made(make: Callable[..., object], *arguments: Any) -> bool:
    """Return whether a function makes the file that its last argument names."""
    make(*arguments)
    return os.path.lexists(arguments[-1])


def exchanges(family: int, kind: int, address: Any) -> bool:
    """Return whether a server answers what is sent."""
    with socket.socket(family, kind) as peer:
        peer.connect(address)
        peer.send(b"hello")
        peer.settimeout(2)
        return peer.recv(4096) == b"hello"


def cpu_clock(pid: int) -> int:
    """Return the clock of a process's CPU time, as clock_getcpuclockid(3) does."""
    return ~pid << 3 | 2


def exits(pid: int) -> bool:
    """Return whether a function has made a process, which ends at once. Both of them return here.

    :param pid: 0 in the new process.
    """
    if pid == 0:
        os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def clone(flags: int = 0) -> int:
    return call("clone", flags | signal.SIGCHLD, 0, 0, 0, 0)


def arguments(command: list[str]) -> Any:
    return (ctypes.c_char_p * (len(command) + 1))(*(each.encode() for each in command))


def execute_at(address: int) -> object:
    """Execute this program by a path at an address, if it is the one of audioproxy-cell."""
    if address > PATH_ADDRESS:
        return False
    path = sys.executable.encode() + b"\0"
    ctypes.memmove(PATH_ADDRESS, path, len(path))
    return call("execve", PATH_ADDRESS, arguments(PYTHON), 0)


def moved(flags: int) -> int:
    return call("mremap", map_memory(0, PAGE), PAGE, PAGE, flags, PATH_ADDRESS)


def code_page() -> int:
    """Return the address of a page of code."""
    function = ctypes.cast(LIBC.getpid, ctypes.c_void_p).value
    assert function is not None
    return function & -PAGE


def by_descriptor(pid: int) -> None:
    """Make the kernel send a signal when a pipe has data."""
    readable, writable = os.pipe()
    fcntl.fcntl(readable, fcntl.F_SETOWN, pid)
    fcntl.fcntl(readable, fcntl.F_SETSIG, SIGNAL)
    fcntl.fcntl(readable, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    os.write(writable, b"x")


class Targets(SimpleNamespace):
    """What the attempts are about, and steps of several attempts.

    :ivar file: a file of the attempt's own, which holds the secret.
    :ivar new: a name for a new file.
    """

    def proc(self, name: str) -> str:
        return f"/proc/{self.victim}/{name}"

    def has_secret(self, path: str | int) -> bool:
        return self.secret in content(path)

    def is_signalled(self, send: Callable[..., object], *arguments: Any) -> bool:
        before, deadline = os.stat(self.signals).st_size, time.monotonic() + 2
        send(*arguments)
        while os.stat(self.signals).st_size == before and time.monotonic() < deadline:
            os.sched_yield()
        return os.stat(self.signals).st_size > before

    def memory_of_victim(self, mode: str) -> Any:
        file = open(self.proc("mem"), mode, buffering=0)  # noqa: SIM115
        file.seek(self.victim_address)
        return file

    def map_descriptor(self) -> int:
        """Return a descriptor of the kind that a child has of the map of its source."""
        if self.far:
            return 5
        file = call("memfd_create", b"map", 0)
        os.write(file, b"x")
        return file

    def server_header(self) -> int:
        # The first page has the header of the program.
        with open(f"/proc/{self.server}/maps") as file:
            return int(file.read().partition("-")[0], 16)


class Attempts(Targets):
    """The attempts that are more than an expression, each by its name."""

    def inherited_descriptors(self) -> bool:
        # The first attempt, as others open descriptors. The interpreter has files open.
        modes = []
        for descriptor in range(5 if self.far else 4, 1024):
            with suppress(OSError):
                modes.append(os.fstat(descriptor).st_mode)
        return not all(map(stat.S_ISREG, modes))

    # Files

    def flag_source(self) -> bool:
        # FS_IOC_GETFLAGS, and FS_IOC_SETFLAGS with FS_NODUMP_FL.
        flags = ctypes.c_long()
        call("ioctl", 3, 0x80086601, ctypes.byref(flags))
        flags.value ^= 0x40
        return call("ioctl", 3, 0x40086602, ctypes.byref(flags)) == 0

    # Other processes

    def server_memory_by_file(self) -> bool:
        # Not for reading too, which the filter refuses for every file
        file = os.open(f"/proc/{self.server}/mem", os.O_WRONLY)
        return os.pwrite(file, b"\x7fELF", self.server_header()) == 4

    def kill_own_group(self) -> bool:
        signal.signal(SIGNAL, signal.SIG_IGN)
        return self.is_signalled(os.kill, 0, SIGNAL)

    # Programs and processes

    def overwrite_code_by_file(self) -> bool:
        # Not for reading too, which the filter refuses for every file
        file, address = os.open("/proc/self/mem", os.O_WRONLY), code_page()
        return os.pwrite(file, ctypes.string_at(address, 1), address) == 1

    # The kernel's surface

    def poison_memory(self) -> bool:
        # MADV_HWPOISON without memory: the error says whether the caller may.
        memory = map_memory(0, PAGE)
        call("mprotect", memory, PAGE, 0)
        try:
            return call("madvise", memory, PAGE, 100) == 0
        except OSError as error:
            if error.errno not in (errno.EFAULT, errno.ENOMEM):
                raise
            return True

    # Exhaustion

    def growing_stack(self) -> bool:
        memory = map_memory(0, 2 * self.memory, MAP_GROWSDOWN)
        return bool(ctypes.memset(memory, 1, 2 * self.memory))

    def read_only_memory(self) -> bool:
        # Written memory that is made read-only does not count as data: the address space ends it.
        for _ in range(0, self.address_space, step := 8 << 20):
            memory = map_memory(0, step)
            ctypes.memset(memory, 1, step)
            call("mprotect", memory, step, mmap.PROT_READ)
        return True


# Each attempt by its name: a function of the targets, which raises or returns False where it fails.
ATTEMPTS: dict[str, Callable[[Any], object]] = {
    name: method for name, method in vars(Attempts).items() if not name.startswith("_")
}

# Files
#: Paths and descriptors of what holds the secret.
READ_SECRET: dict[str, Callable[[Any], str | int]] = {
    "variant": lambda t: t.variant,
    "other_source": lambda t: t.other,
    "settings": lambda t: t.settings,
    "home": lambda t: t.home,
    "relative": lambda t: os.path.relpath(t.variant),
    "through_libraries": lambda t: "/usr/lib/../.." + t.variant,
    "symlink": lambda t: t.link,
    "self_root": lambda t: "/proc/self/root" + t.variant,
    "self_cwd": lambda t: "/proc/self/cwd/" + os.path.relpath(t.variant),
    "victim_root": lambda t: t.proc("root") + t.variant,
    "victim_cwd": lambda t: t.proc("cwd/") + os.path.basename(t.other),
    "victim_fd": lambda t: t.proc(f"fd/{t.victim_fd}"),
    "victim_environ": lambda t: t.proc("environ"),
    "victim_cmdline": lambda t: t.proc("cmdline"),
    "opened_path": lambda t: f"/proc/self/fd/{os.open(t.variant, os.O_PATH)}",
}
#: Paths of what tells something of others.
READ: dict[str, Callable[[Any], str]] = {
    "victim_maps": lambda t: t.proc("maps"),
    "victim_status": lambda t: t.proc("status"),
    "parent_environ": lambda t: f"/proc/{t.parent}/environ",
    "connections": lambda t: "/proc/net/tcp",
    "symbols": lambda t: "/proc/kallsyms",
    "accounts": lambda t: "/etc/passwd",
    "passwords": lambda t: "/etc/shadow",
}
ATTEMPTS |= {f"read_{name}": lambda t, p=p: t.has_secret(p(t)) for name, p in READ_SECRET.items()}
ATTEMPTS |= {f"read_{name}": lambda t, p=p: content(p(t)) != b"" for name, p in READ.items()}
ATTEMPTS |= {
    "list_store": lambda t: os.path.basename(t.variant) in os.listdir(os.path.dirname(t.variant)),
    "list_root": lambda t: "usr" in os.listdir("/"),
    "list_processes": lambda t: str(t.victim) in os.listdir("/proc"),
    "name_victims_file": lambda t: os.readlink(t.proc(f"fd/{t.victim_fd}")) == t.other,
    "write_variant": lambda t: write(t.replaced),
    "write_source": lambda t: write(t.source),
    "write_source_reopened": lambda t: write("/dev/fd/3"),
    "write_oom_score": lambda t: write(t.proc("oom_score_adj"), b"500"),
    "create": lambda t: write(t.new, flags=os.O_CREAT),
    "create_nameless": lambda t: write(os.path.dirname(t.file), flags=os.O_TMPFILE),
    "create_nameless_for_nothing": lambda t: os.open(t.files, os.O_TMPFILE | O_NOTHING) > 0,
    "create_in_tmp": lambda t: write(f"/tmp/{t.unique}", flags=os.O_CREAT),
    "create_in_shm": lambda t: write(f"/dev/shm/{t.unique}", flags=os.O_CREAT),
    "remove": lambda t: os.unlink(t.file) is None,
    "rename": lambda t: made(os.rename, t.file, t.new),
    "replace": lambda t: made(os.rename, t.file, t.replaced),
    "link": lambda t: made(os.link, t.file, t.new),
    # With a descriptor of a folder, the link is followed.
    "link_source": lambda t: made(partial(os.link, src_dir_fd=0), "/proc/self/fd/3", t.new),
    "link_output": lambda t: made(partial(os.link, src_dir_fd=0), "/proc/self/fd/1", t.new),
    "symlink": lambda t: made(os.symlink, t.variant, t.new),
    "make_folder": lambda t: made(os.mkdir, t.new),
    "make_fifo": lambda t: made(os.mkfifo, t.new),
    "open_for_nothing": lambda t: os.open(t.variant, O_NOTHING) > 0,
    "open_terminal": lambda t: os.open("/dev/ptmx", O_NOTHING) > 0,
    "truncate_unwritten": lambda t: os.open(t.file, os.O_RDONLY | os.O_TRUNC) > 0,
    "truncate": lambda t: os.truncate(t.file, 0) is None,
    "chmod": lambda t: os.chmod(t.file, 0o700) is None,
    "chown": lambda t: os.chown(t.file, os.getuid(), os.getgid()) is None,
    "utime": lambda t: os.utime(t.file) is None,
    "setxattr": lambda t: os.setxattr(t.file, "user.x", b"1") is None,
    "lease_source": lambda t: fcntl.fcntl(3, fcntl.F_SETLEASE, fcntl.F_RDLCK) == 0,
}
# Sockets
ATTEMPTS |= {
    "tcp": lambda t: exchanges(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", t.port)),
    "udp": lambda t: exchanges(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", t.udp_port)),
    "unix": lambda t: exchanges(socket.AF_UNIX, socket.SOCK_STREAM, t.unix),
}
# The map of a source
ATTEMPTS |= {
    "read_map": lambda t: len(os.pread(t.map_descriptor(), 1, 0)) == 1,
    "write_map": lambda t: (
        os.pwrite(os.open(f"/dev/fd/{t.map_descriptor()}", os.O_WRONLY), b"x", 0) == 1
    ),
    "share_map": lambda t: mmap.mmap(t.map_descriptor(), 1).write(b"x") == 1,
}
#: What a process learns of another one.
LEARN: dict[str, Callable[[Any], object]] = {
    "affinity": lambda t: os.sched_getaffinity(t.victim),
    "clock": lambda t: time.clock_gettime(cpu_clock(t.victim)),
    "clock_resolution": lambda t: time.clock_getres(cpu_clock(t.victim)),
    # TIMER_ABSTIME
    "clock_reached": lambda t: call(
        "clock_nanosleep", cpu_clock(t.victim), 1, (ctypes.c_long * 2)(), 0
    ),
    "limit": lambda t: resource.prlimit(t.victim, resource.RLIMIT_NOFILE),
}
ATTEMPTS |= {f"learn_{name}": lambda t, f=f: f(t) is not None for name, f in LEARN.items()}
# Other processes, and the process's own limits
ATTEMPTS |= {
    "read_memory": lambda t: t.memory_of_victim("rb").read(len(t.secret)) == t.secret,
    "write_memory": lambda t: t.memory_of_victim("r+b").write(t.secret) == len(t.secret),
    "kill": lambda t: t.is_signalled(os.kill, t.victim, SIGNAL),
    "kill_group": lambda t: t.is_signalled(os.killpg, t.victim, SIGNAL),
    "kill_all": lambda t: os.kill(-1, 0) is None,
    "kill_parent": lambda t: os.kill(t.parent, 0) is None,
    "kill_server": lambda t: os.kill(t.server, 0) is None,
    "kill_sibling": lambda t: os.kill(t.sibling, 0) is None,
    "tgkill": lambda t: t.is_signalled(call, "tgkill", t.victim, t.victim, SIGNAL),
    "signal_of_descriptor": lambda t: t.is_signalled(by_descriptor, t.victim),
    # PR_SET_PDEATHSIG
    "parent_death_signal": lambda t: call("prctl", 1, 0, 0, 0, 0) == 0,
    "limit_victim": lambda t: resource.prlimit(t.victim, resource.RLIMIT_NOFILE, (9, 9)) != (9, 9),
    "raise_limit": lambda t: (
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (9, resource.getrlimit(resource.RLIMIT_NOFILE)[1] + 1)
        )
        is None
    ),
}
# Programs and processes
RUNNABLE = mmap.PROT_READ | mmap.PROT_EXEC
#: What a program can do that is not linked ahead: load code, and read libraries.
LOADING: dict[str, Callable[[Any], object]] = {
    "map_code": lambda t: mmap.mmap(-1, PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, RUNNABLE),
    "map_source_as_code": lambda t: mmap.mmap(3, PAGE, mmap.MAP_PRIVATE, RUNNABLE),
    "turn_memory_into_code": lambda t: call("mprotect", map_memory(0, PAGE), PAGE, RUNNABLE) == 0,
    "overwrite_code": lambda t: (
        call("mprotect", code_page(), PAGE, RUNNABLE | mmap.PROT_WRITE) == 0
    ),
    # Other attempts may have used up the memory.
    "read_library": lambda t: os.read(os.open(LOADER, os.O_RDONLY), 1) != b"",
}
ATTEMPTS |= LOADING
ATTEMPTS |= {
    "fork": lambda t: exits(os.fork()),
    # vfork(), and in the new process exit_group(7)
    "vfork": lambda t: exits(run_code("b83a0000000f05 85c0 750c bf07000000 b8e7000000 0f05 c3")),
    "clone": lambda t: exits(clone()),
    # CLONE_VFORK, CLONE_PARENT, and CLONE_NEWUSER
    "clone_vfork": lambda t: exits(clone(0x4000)),
    "clone_sibling": lambda t: clone(0x8000) > 0 or os._exit(0),
    "clone_namespace": lambda t: exits(clone(0x10000000)),
    "subprocess": lambda t: subprocess.run([ECHO, "-n"]).returncode == 0,
    "exec": lambda t: os.execv(ECHO, PRINTS),
    "exec_itself": lambda t: os.execv(sys.executable, PYTHON),
    "exec_loader": lambda t: os.execv(LOADER, [LOADER, *PRINTS]),
    "exec_descriptor": lambda t: os.execve(os.open(ECHO, os.O_PATH), PRINTS, {}),
    "exec_low_hint": lambda t: execute_at(map_memory(PATH_ADDRESS, PAGE)),
    "exec_low_moved": lambda t: execute_at(moved(MREMAP_MAYMOVE | MREMAP_FIXED)),
    # It takes the address as a hint.
    "exec_low_moved_hint": lambda t: execute_at(moved(MREMAP_MAYMOVE | MREMAP_DONTUNMAP)),
    "exec_low_from_zero_new": lambda t: execute_at(
        map_memory(0, PATH_ADDRESS + PAGE, MAP_FIXED_NOREPLACE)
    ),
    "exec_low_from_zero": lambda t: execute_at(map_memory(0, PATH_ADDRESS + PAGE, MAP_FIXED)),
}
# The kernel's surface, and exhaustion
ATTEMPTS |= {f"call_{name}": lambda t, name=name: is_known(name) for name in UNKNOWN}
ATTEMPTS |= {
    # socket(AF_UNIX, SOCK_STREAM, 0), by int 0x80
    "i386_abi": lambda t: run_code("53 b867010000 bb01000000 b901000000 31d2 cd80 5b c3") > 0,
    "x32_abi": lambda t: stat.S_ISSOCK(os.fstat(call(1 << 30 | 41, 1, 1, 0)).st_mode),
    # Other functions of the call map the vDSO at an address: ARCH_GET_FS
    "arch_prctl": lambda t: call("arch_prctl", 0x1003, (ctypes.c_long * 1)()) == 0,
    "modify_ldt": lambda t: call("modify_ldt", 1, (ctypes.c_long * 2)(0, 0x51_000FFFFF), 16) == 0,
    "message_queue": lambda t: call("msgctl", call("msgget", 0, 0o600), 0, 0) == 0,
    "heap": lambda t: len(bytearray(2 * t.memory)) > t.memory,
    "shared_anonymous": lambda t: fill(mmap.mmap(-1, 2 * t.memory), 2 * t.memory),
    "shared_zero": lambda t: fill(
        mmap.mmap(os.open("/dev/zero", os.O_RDWR), 2 * t.memory), 2 * t.memory
    ),
    "append_output": lambda t: (
        fcntl.fcntl(1, fcntl.F_SETFL, os.O_APPEND) == fcntl.fcntl(1, fcntl.F_SETFL, 0)
    ),
    "shared_source": lambda t: len(mmap.mmap(3, PAGE, prot=mmap.PROT_READ)) == PAGE,
    "locked": lambda t: call("mlock", map_memory(0, t.memory // 2), t.memory // 2) == 0,
    "descriptors": lambda t: len([os.dup(3) for _ in range(300)]) == 300,
    "grow_output": lambda t: os.pwrite(1, b"x", t.output_limit) == 1,
}


def outcome(name: str, targets: dict[str, Any]) -> str:
    """Return ``succeeded``, or why an attempt failed."""
    file = f"{targets['files']}/{name}"
    try:
        has_effect = ATTEMPTS[name](Attempts(**targets, file=file, new=f"{file}.new"))
        return SUCCEEDED if has_effect else "no effect"
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, repr(error))
    except Exception as error:
        return repr(error)


def run(name: str, targets: dict[str, Any]) -> None:
    """Print the name of an attempt, run it, and print the outcome."""
    os.write(1, f"{name}\t".encode())
    try:
        pid = os.fork()
    except OSError:
        os.write(1, f"{outcome(name, targets)}\n".encode())
        return
    if pid == 0:
        os.write(1, f"{outcome(name, targets)}\n".encode())
        os._exit(0)
    if status := os.waitpid(pid, 0)[1]:
        os.write(1, f"ended with {status}\n".encode())


if __name__ == "__main__":
    targets = json.loads(sys.argv[1])
    targets["secret"] = targets["secret"].encode()
    NUMBERS |= targets.pop("numbers")
    for name in list(ATTEMPTS)[int(sys.argv[2]) :]:
        run(name, targets)
