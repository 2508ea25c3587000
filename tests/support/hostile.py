"""Attempts of code that has taken over a decoder to reach more than its source and its output.

This is one file of the standard library alone, because it runs as the source of a child: it may
open no other module. It runs as ``python3 -I -S``. Its arguments are its targets as JSON, and the
number of the attempt to begin with. It prints a line for each attempt: the name, a tab, and
``succeeded`` or why it failed. An attempt succeeds only where its effect is seen, or the kernel has
done what it asks for. Where the process can fork, each attempt has a process of its own. A line
without an outcome says that the attempt ended the process. `tests.process.test_cell_live` prepares
the targets, and compares the outcomes with those outside a cell.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import mmap
import os
import platform
import pty
import resource
import signal
import socket
import stat
import subprocess
import sys
import termios
import time
import tty
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long
LIBC.mmap.restype = ctypes.c_void_p
IS_X86 = platform.machine() == "x86_64"
#: Numbers of system calls: of x86-64 and of aarch64, or of both. -1 does not exist.
NUMBERS: dict[str, tuple[int, int] | int] = {
    "add_key": (248, 217), "arch_prctl": (158, -1), "bpf": (321, 280), "chroot": (161, 51),
    "clock_nanosleep": (230, 115), "clone": (56, 220), "clone3": 435, "close_range": 436,
    "execve": (59, 221), "execveat": (322, 281), "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263), "fsopen": 430, "getppid": (110, 173), "getsockopt": (55, 209),
    "inotify_add_watch": (254, 27), "inotify_init1": (294, 26), "io_uring_setup": 425,
    "ioctl": (16, 29), "iopl": (172, -1), "ioprio_set": (251, 30), "kcmp": (312, 272),
    "keyctl": (250, 219), "landlock_create_ruleset": 444, "madvise": (28, 233),
    "memfd_create": (319, 279), "memfd_secret": 447, "mlock": (149, 228), "modify_ldt": (154, -1),
    "mount": (165, 40), "mprotect": (10, 226), "mq_open": (240, 180), "mq_unlink": (241, 181),
    "mremap": (25, 216), "msgctl": (71, 187), "msgget": (68, 186), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "open_tree": 428, "openat2": 437,
    "perf_event_open": (298, 241), "personality": (135, 92), "pidfd_getfd": 438, "pidfd_open": 434,
    "pidfd_send_signal": 424, "pivot_root": (155, 41), "pkey_mprotect": (329, 288),
    "prctl": (157, 167), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "ptrace": (101, 117), "quotactl": (179, 60), "rt_sigqueueinfo": (129, 138),
    "seccomp": (317, 277), "semctl": (66, 191), "semget": (64, 190), "sethostname": (170, 161),
    "setns": (308, 268), "settimeofday": (164, 170), "shmctl": (31, 195), "shmget": (29, 194),
    "syslog": (103, 116), "tgkill": (234, 131), "tkill": (200, 130), "umount2": (166, 39),
    "unshare": (272, 97), "userfaultfd": (323, 282),
}  # fmt: skip

SUCCEEDED = "succeeded"
# A program that replaces this one prints the outcome in its place.
ECHO = "/bin/echo"
PRINTS = [ECHO, SUCCEEDED]
PYTHON = [sys.executable, "-I", "-S", "-c", f"print({SUCCEEDED!r})"]
LOADER = "/lib64/ld-linux-x86-64.so.2" if IS_X86 else "/lib/ld-linux-aarch64.so.1"
#: Ignored by every program that does not ask for it, so that no bystander ends.
SIGNAL = signal.SIGURG
NAMESPACES = {"user": 0x10000000, "mount": 0x20000, "pid": 0x20000000, "net": 0x40000000}
AT_FDCWD, AT_EMPTY_PATH, MSG_FASTOPEN = -100, 0x1000, 0x20000000
MAP_FIXED, MAP_GROWSDOWN, MREMAP_MAYMOVE, MREMAP_FIXED, MREMAP_DONTUNMAP = 16, 256, 1, 2, 4
MAP_FIXED_NOREPLACE = 0x100000
# The access mode that asks for no right.
O_NOTHING = os.O_WRONLY | os.O_RDWR
PAGE = mmap.PAGESIZE
#: Where audioproxy-cell puts the only path that can be executed: see cell.c.
PATH_ADDRESS = 0x10000
INET, INET6, UNIX, NETLINK = socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK
STREAM, DATAGRAM, RAW = socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW
HOST = "127.0.0.1"


def raise_last_error() -> None:
    number = ctypes.get_errno()
    raise OSError(number, os.strerror(number))


def number_of(name: str) -> int:
    """Return the number of a system call on this machine."""
    number = NUMBERS[name]
    return number[not IS_X86] if isinstance(number, tuple) else number


def call(name: str | int, *arguments: Any) -> int:
    """Make a system call, and return its result."""
    number = number_of(name) if isinstance(name, str) else name
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result = int(LIBC.syscall(ctypes.c_long(number), *words))
    if result == -1:
        raise_last_error()
    return result


def structure(*values: int) -> Any:
    """Return 64-bit numbers as the structure that a system call reads."""
    return (ctypes.c_uint64 * len(values))(*values)


def vector(content: bytes) -> tuple[Any, Any]:
    """Return a buffer and the iovec that describes it."""
    memory = ctypes.create_string_buffer(content, len(content))
    return memory, structure(ctypes.addressof(memory), len(content))


def file_handle(path: str) -> bytes:
    """Return the kernel's handle of a file, where its file system has handles."""
    handle = ctypes.create_string_buffer(b"\x80", 136)
    number = ctypes.byref(ctypes.c_int())
    call("name_to_handle_at", AT_FDCWD, path.encode(), handle, number, 0)
    return handle.raw


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


def exchanges(
    peer: socket.socket, address: Any = None, send: Callable[[socket.socket], object] | None = None
) -> bool:
    """Return whether the peer answers what is sent."""
    with peer:
        if address:
            peer.connect(address)
        (send or (lambda peer: peer.send(b"hello")))(peer)
        peer.settimeout(2)
        return b"hello" in peer.recv(4096)


def bound(peer: socket.socket, *address: Any) -> bool:
    with peer:
        peer.bind(address)
        return bool(peer.getsockname()[1])


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


def clone3(flags: int = 0) -> int:
    return call("clone3", structure(flags, 0, 0, 0, signal.SIGCHLD, 0, 0, 0), 64)


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


def perf_event(pid: int) -> bool:
    # A software clock, in 112 bytes, without the kernel and the hypervisor.
    clock = structure(1 | 112 << 32, 0, 0, 0, 0, 0x60, *[0] * 8)
    return call("perf_event_open", clock, pid, -1, -1, 0) > 0


def by_descriptor(pid: int) -> None:
    """Make the kernel send a signal when a pipe has data."""
    readable, writable = os.pipe()
    fcntl.fcntl(readable, fcntl.F_SETOWN, pid)
    fcntl.fcntl(readable, fcntl.F_SETSIG, SIGNAL)
    fcntl.fcntl(readable, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    os.write(writable, b"x")


def mount(folder: str) -> bool:
    before = os.stat(folder).st_dev
    call("mount", b"none", folder.encode(), b"tmpfs", 0, 0)
    return os.stat(folder).st_dev != before


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

    def transfers(self, name: str, local: bytes) -> bool:
        """Return whether local memory and the victim's become equal."""
        memory, vectors = vector(local)
        remote = structure(self.victim_address, len(local))
        call(name, self.victim, vectors, 1, remote, 1, 0)
        return bytes(memory) == self.secret

    def questions(self) -> socket.socket:
        """Return a socket of the kind at which a child asks for blocks of its source."""
        if self.far:
            return socket.socket(UNIX, socket.SOCK_SEQPACKET, 0, os.dup(4))
        ours, self._peer = socket.socketpair(UNIX, socket.SOCK_SEQPACKET)
        return ours

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

    def name_handle(self) -> bool:
        return file_handle(self.variant) != b""

    def read_handle(self) -> bool:
        handle = ctypes.create_string_buffer(bytes.fromhex(self.handle))
        return self.has_secret(call("open_by_handle_at", 3, handle, os.O_RDONLY))

    def flag_source(self) -> bool:
        # FS_IOC_GETFLAGS, and FS_IOC_SETFLAGS with FS_NODUMP_FL.
        flags = ctypes.c_long()
        call("ioctl", 3, 0x80086601, ctypes.byref(flags))
        flags.value ^= 0x40
        return call("ioctl", 3, 0x40086602, ctypes.byref(flags)) == 0

    def watch_inotify(self) -> bool:
        watch = call("inotify_init1", os.O_NONBLOCK)
        call("inotify_add_watch", watch, os.path.dirname(self.variant).encode(), 0x20)
        os.close(os.open(self.variant, os.O_RDONLY))
        return os.path.basename(self.variant).encode() in os.read(watch, 4096)

    def watch_fanotify(self) -> bool:
        watch = call("fanotify_init", 0x200, 0)
        return call("fanotify_mark", watch, 1, 0x20, AT_FDCWD, self.variant.encode()) == 0

    # Sockets

    def tcp_listen_without_bind(self) -> bool:
        with socket.socket() as server:
            server.listen()
            return bool(server.getsockname()[1])

    def unix_descriptor(self) -> bool:
        with socket.socket(UNIX) as peer:
            peer.connect(self.unix)
            peer.send(b"descriptor")
            return self.has_secret(socket.recv_fds(peer, 1, 1)[1][0])

    def firewall(self) -> bool:
        # IPT_SO_GET_INFO
        table, size = ctypes.create_string_buffer(b"filter", 84), ctypes.c_uint(84)
        with socket.socket(INET, DATAGRAM) as peer:
            return call("getsockopt", peer.fileno(), 0, 64, table, ctypes.byref(size)) == 0

    def socket_filter(self) -> bool:
        # SO_ATTACH_FILTER with a program that returns at once
        accepts = structure(0xFFFFFFFF_00000006)
        program = bytes(structure(1, ctypes.addressof(accepts)))
        with socket.socket(INET, DATAGRAM) as peer:
            return peer.setsockopt(socket.SOL_SOCKET, 26, program) is None

    def other_families(self) -> bool:
        found = []
        for family in set(range(1, 46)) - {INET, INET6}:
            for kind in (STREAM, DATAGRAM, RAW, socket.SOCK_SEQPACKET):
                with suppress(OSError), socket.socket(family, kind):
                    found.append((family, kind))
        return found != []

    # Other processes

    def ptrace_attach(self) -> bool:
        # PTRACE_ATTACH, __WALL of waitpid(2), PTRACE_PEEKDATA and PTRACE_DETACH
        word = ctypes.create_string_buffer(8)
        call("ptrace", 16, self.victim, 0, 0)
        os.waitpid(self.victim, 0x40000000)
        call("ptrace", 2, self.victim, self.victim_address, word)
        call("ptrace", 17, self.victim, 0, 0)
        return bytes(word) == self.secret[:8]

    def pidfd_getfd(self) -> bool:
        pidfd = call("pidfd_open", self.victim, 0)
        return self.has_secret(call("pidfd_getfd", pidfd, self.victim_fd, 0))

    def server_socket(self) -> bool:
        # Where a fork server receives its requests
        return call("pidfd_getfd", call("pidfd_open", self.server, 0), 3, 0) > 0

    def server_memory(self) -> bool:
        memory, vectors = vector(bytes(PAGE))
        remote = structure(self.server_header(), PAGE)
        call("process_vm_readv", self.server, vectors, 1, remote, 1, 0)
        return bytes(memory).startswith(b"\x7fELF")

    def server_memory_by_file(self) -> bool:
        # Not for reading too, which the filter refuses for every file
        file = os.open(f"/proc/{self.server}/mem", os.O_WRONLY)
        return os.pwrite(file, b"\x7fELF", self.server_header()) == 4

    def kill_own_group(self) -> bool:
        signal.signal(SIGNAL, signal.SIG_IGN)
        return self.is_signalled(os.kill, 0, SIGNAL)

    # Programs and processes

    def fork_bomb(self) -> bool:
        readable, writable = os.pipe()
        for _ in range(50):
            if os.fork() == 0:
                os.close(writable)
                os.read(readable, 1)
                os._exit(7)
        os.close(writable)
        return {os.wait()[1] for _ in range(50)} == {7 << 8}

    def overwrite_code_by_file(self) -> bool:
        # Not for reading too, which the filter refuses for every file
        file, address = os.open("/proc/self/mem", os.O_WRONLY), code_page()
        return os.pwrite(file, ctypes.string_at(address, 1), address) == 1

    def exec_memory_file(self) -> object:
        file = call("memfd_create", b"program", 0)
        os.write(file, content(self.program))
        return os.execve(file, PRINTS, {})

    def unmount(self) -> bool:
        with suppress(OSError):
            mount(self.folder)
        return call("umount2", self.folder.encode(), 2) == 0

    def pivot_root(self) -> bool:
        with suppress(OSError):
            call("unshare", NAMESPACES["mount"])
            mount(self.folder)
        os.chdir(self.folder)
        return call("pivot_root", b".", b".") == 0

    # The kernel's surface

    def seccomp_listener(self) -> bool:
        # PR_SET_NO_NEW_PRIVS, and SECCOMP_SET_MODE_FILTER with SECCOMP_FILTER_FLAG_NEW_LISTENER
        with suppress(OSError):
            call("prctl", 38, 1, 0, 0, 0)
        allows = structure(0x7FFF0000_00000006)
        return call("seccomp", 1, 8, structure(1, ctypes.addressof(allows))) > 0

    def terminal_input(self) -> bool:
        _, slave = pty.openpty()
        tty.setraw(slave)
        with suppress(OSError):
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        fcntl.ioctl(slave, termios.TIOCSTI, b"x")
        return os.read(slave, 1) == b"x"

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

    def pipes(self) -> bool:
        filled = 0
        while filled < self.memory // 2:
            _, writable = os.pipe()
            fcntl.fcntl(writable, fcntl.F_SETPIPE_SZ, 1 << 20)
            filled += os.write(writable, bytes(1 << 20))
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
    "openat2": lambda t: call("openat2", AT_FDCWD, t.variant.encode(), structure(0, 0, 0), 24),
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
    "chmod_source": lambda t: os.fchmod(3, 0o700) is None,
    "chown": lambda t: os.chown(t.file, os.getuid(), os.getgid()) is None,
    "chown_source": lambda t: os.fchown(3, os.getuid(), os.getgid()) is None,
    "utime": lambda t: os.utime(t.file) is None,
    "utime_source": lambda t: os.utime(3) is None,
    "setxattr": lambda t: os.setxattr(t.file, "user.x", b"1") is None,
    "setxattr_source": lambda t: os.setxattr(3, "user.x", b"1") is None,
    "lock_source": lambda t: fcntl.flock(3, fcntl.LOCK_EX | fcntl.LOCK_NB) is None,
    "lease_source": lambda t: fcntl.fcntl(3, fcntl.F_SETLEASE, fcntl.F_RDLCK) == 0,
    # Q_SYNC of all file systems
    "quota": lambda t: call("quotactl", 0x800001 << 8, 0, 0, 0) == 0,
}
# Sockets
ATTEMPTS |= {
    "tcp": lambda t: exchanges(socket.socket(INET), (HOST, t.port)),
    "tcp_ipv6": lambda t: exchanges(socket.socket(INET6), ("::1", t.port6)),
    "tcp_mapped": lambda t: exchanges(socket.socket(INET6), (f"::ffff:{HOST}", t.port)),
    "tcp_multipath": lambda t: exchanges(
        socket.socket(INET, STREAM, socket.IPPROTO_MPTCP), (HOST, t.port)
    ),
    "tcp_sendto": lambda t: exchanges(
        socket.socket(INET), send=lambda s: s.sendto(b"hello", MSG_FASTOPEN, (HOST, t.port))
    ),
    "tcp_sendmsg": lambda t: exchanges(
        socket.socket(INET),
        send=lambda s: s.sendmsg([b"hello"], [], MSG_FASTOPEN, (HOST, t.port)),
    ),
    "tcp_bind": lambda t: bound(socket.socket(INET), HOST, 0),
    "udp": lambda t: exchanges(socket.socket(INET, DATAGRAM), (HOST, t.udp_port)),
    "udp_sendto": lambda t: exchanges(
        socket.socket(INET, DATAGRAM), send=lambda s: s.sendto(b"hello", (HOST, t.udp_port))
    ),
    "udp_bind": lambda t: bound(socket.socket(INET, DATAGRAM), HOST, 0),
    "udp_bind_privileged": lambda t: bound(socket.socket(INET, DATAGRAM), HOST, 1),
    "udp_lite": lambda t: bound(socket.socket(INET, DATAGRAM, socket.IPPROTO_UDPLITE), HOST, 0),
    "sctp": lambda t: bound(socket.socket(INET, STREAM, socket.IPPROTO_SCTP), HOST, 0),
    "vsock": lambda t: bound(socket.socket(socket.AF_VSOCK, STREAM), 0xFFFFFFFF, 0xFFFFFFFF),
    "raw": lambda t: bound(socket.socket(INET, RAW, socket.IPPROTO_UDP), HOST, 0),
    # The events of network interfaces
    "netlink": lambda t: bound(socket.socket(NETLINK, RAW), 0, 1),
    "packet": lambda t: bound(socket.socket(socket.AF_PACKET, RAW), "lo", 3),
    "crypto": lambda t: bound(socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET), "hash", "md5"),
    "unix_pair": lambda t: socket.socketpair() != (),
    "unix_stream": lambda t: exchanges(socket.socket(UNIX), t.unix),
    "unix_abstract": lambda t: exchanges(socket.socket(UNIX), f"\0{t.unique}"),
    "questions_descriptor": lambda t: socket.send_fds(t.questions(), [b"x"], [1]) == 1,
    "questions_peer": lambda t: t.questions().getsockopt(socket.SOL_SOCKET, 17, 12) != b"",
    "questions_buffer": lambda t: (
        t.questions().setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20) is None
    ),
    "questions_shutdown": lambda t: t.questions().shutdown(socket.SHUT_RDWR) is None,
}
# The map of a source
ATTEMPTS |= {
    "read_map": lambda t: len(os.pread(t.map_descriptor(), 1, 0)) == 1,
    "write_map": lambda t: (
        os.pwrite(os.open(f"/dev/fd/{t.map_descriptor()}", os.O_WRONLY), b"x", 0) == 1
    ),
    "share_map": lambda t: mmap.mmap(t.map_descriptor(), 1).write(b"x") == 1,
}
#: What a process learns of another one, and of the file systems of the machine.
LEARN: dict[str, Callable[[Any], object]] = {
    "affinity": lambda t: os.sched_getaffinity(t.victim),
    "clock": lambda t: time.clock_gettime(cpu_clock(t.victim)),
    "clock_resolution": lambda t: time.clock_getres(cpu_clock(t.victim)),
    # TIMER_ABSTIME
    "clock_reached": lambda t: call("clock_nanosleep", cpu_clock(t.victim), 1, structure(0, 0), 0),
    "group": lambda t: os.getpgid(t.victim),
    "limit": lambda t: resource.prlimit(t.victim, resource.RLIMIT_NOFILE),
    "parent": lambda t: call("getppid"),
    "priority": lambda t: os.getpriority(os.PRIO_PROCESS, t.victim),
    "scheduler": lambda t: os.sched_getscheduler(t.victim),
    "session": lambda t: os.getsid(t.victim),
    "disk": lambda t: os.statvfs(t.variant),
    "disk_of_output": lambda t: os.fstatvfs(1),
}
ATTEMPTS |= {f"learn_{name}": lambda t, f=f: f(t) is not None for name, f in LEARN.items()}
# Other processes, and the process's own user, groups and limits
ATTEMPTS |= {
    "read_memory": lambda t: t.memory_of_victim("rb").read(len(t.secret)) == t.secret,
    "write_memory": lambda t: t.memory_of_victim("r+b").write(t.secret) == len(t.secret),
    "process_vm_readv": lambda t: t.transfers("process_vm_readv", bytes(len(t.secret))),
    "process_vm_writev": lambda t: t.transfers("process_vm_writev", t.secret),
    # PTRACE_SEIZE
    "ptrace_seize": lambda t: call("ptrace", 0x4206, t.victim, 0, 0) == 0,
    "pidfd_open": lambda t: call("pidfd_open", t.victim, 0) > 0,
    # KCMP_FILES
    "kcmp": lambda t: call("kcmp", t.victim, t.victim, 2, 0, 0) == 0,
    "perf_event_of_victim": lambda t: perf_event(t.victim),
    "kill": lambda t: t.is_signalled(os.kill, t.victim, SIGNAL),
    "kill_group": lambda t: t.is_signalled(os.killpg, t.victim, SIGNAL),
    "kill_all": lambda t: os.kill(-1, 0) is None,
    "kill_parent": lambda t: os.kill(t.parent, 0) is None,
    "kill_server": lambda t: os.kill(t.server, 0) is None,
    "kill_sibling": lambda t: os.kill(t.sibling, 0) is None,
    "ptrace_sibling": lambda t: call("ptrace", 0x4206, t.sibling, 0, 0) == 0,
    "tkill": lambda t: t.is_signalled(call, "tkill", t.victim, SIGNAL),
    "tgkill": lambda t: t.is_signalled(call, "tgkill", t.victim, t.victim, SIGNAL),
    "rt_sigqueueinfo": lambda t: t.is_signalled(
        call, "rt_sigqueueinfo", t.victim, SIGNAL, structure(SIGNAL, 0xFFFFFFFF, *[0] * 14)
    ),
    "pidfd_send_signal": lambda t: t.is_signalled(
        call, "pidfd_send_signal", os.open(t.proc(""), os.O_RDONLY), SIGNAL, 0, 0
    ),
    "signal_of_descriptor": lambda t: t.is_signalled(by_descriptor, t.victim),
    # PR_SET_PDEATHSIG
    "parent_death_signal": lambda t: call("prctl", 1, 0, 0, 0, 0) == 0,
    "leave_group": lambda t: os.setpgid(0, 0) is None,
    "leave_session": lambda t: os.setsid() is None,
    "renice": lambda t: os.setpriority(os.PRIO_PROCESS, t.victim, 15) is None,
    "raise_priority": lambda t: os.setpriority(os.PRIO_PROCESS, 0, -15) is None,
    "affinity": lambda t: os.sched_setaffinity(t.victim, os.sched_getaffinity(0)) is None,
    "scheduler": lambda t: (
        os.sched_setscheduler(t.victim, os.SCHED_BATCH, os.sched_param(0)) is None
    ),
    # The lowest priority of the best-effort class
    "io_priority": lambda t: call("ioprio_set", 1, t.victim, 2 << 13 | 7) == 0,
    "limit_victim": lambda t: resource.prlimit(t.victim, resource.RLIMIT_NOFILE, (9, 9)) != (9, 9),
    "raise_limit": lambda t: (
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (9, resource.getrlimit(resource.RLIMIT_NOFILE)[1] + 1)
        )
        is None
    ),
    "realtime": lambda t: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)) is None,
    "change_user": lambda t: os.setresuid(1, 1, 1) is None,
    "change_groups": lambda t: os.setgroups([1]) is None,
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
    "tagged_code": lambda t: call("pkey_mprotect", map_memory(0, PAGE), PAGE, RUNNABLE, -1) == 0,
    # READ_IMPLIES_EXEC
    "readable_is_runnable": lambda t: call("personality", 0x400000) >= 0,
    "fork": lambda t: exits(os.fork()),
    # vfork(), and in the new process exit_group(7)
    "vfork": lambda t: exits(run_code("b83a0000000f05 85c0 750c bf07000000 b8e7000000 0f05 c3")),
    "clone": lambda t: exits(clone()),
    # CLONE_VFORK, and CLONE_PARENT
    "clone_vfork": lambda t: exits(clone(0x4000)),
    "clone_sibling": lambda t: clone(0x8000) > 0 or os._exit(0),
    "clone_namespace": lambda t: exits(clone(NAMESPACES["user"])),
    "clone3": lambda t: exits(clone3()),
    "clone3_namespace": lambda t: exits(clone3(NAMESPACES["user"])),
    "posix_spawn": lambda t: os.waitpid(os.posix_spawn(ECHO, [ECHO, "-n"], {}), 0)[1] == 0,
    "subprocess": lambda t: subprocess.run([ECHO, "-n"]).returncode == 0,
    "shell": lambda t: os.system("sleep 0 & exit 7") >> 8 == 7,
    "exec": lambda t: os.execv(ECHO, PRINTS),
    "exec_itself": lambda t: os.execv(sys.executable, PYTHON),
    "exec_proc_exe": lambda t: os.execv("/proc/self/exe", PYTHON),
    "exec_loader": lambda t: os.execv(LOADER, [LOADER, *PRINTS]),
    "exec_script": lambda t: os.execv(t.file, [t.file]),
    "exec_source": lambda t: os.execv("/dev/fd/3", ["source"]),
    "exec_copy": lambda t: os.execv(t.program, PRINTS),
    "exec_descriptor": lambda t: os.execve(os.open(ECHO, os.O_PATH), PRINTS, {}),
    "execveat": lambda t: call(
        "execveat", os.open(ECHO, os.O_PATH), b"", arguments(PRINTS), 0, AT_EMPTY_PATH
    ),
    "exec_low_hint": lambda t: execute_at(map_memory(PATH_ADDRESS, PAGE)),
    "exec_low_moved": lambda t: execute_at(moved(MREMAP_MAYMOVE | MREMAP_FIXED)),
    # It takes the address as a hint.
    "exec_low_moved_hint": lambda t: execute_at(moved(MREMAP_MAYMOVE | MREMAP_DONTUNMAP)),
    "exec_low_from_zero_new": lambda t: execute_at(
        map_memory(0, PATH_ADDRESS + PAGE, MAP_FIXED_NOREPLACE)
    ),
    "exec_low_from_zero": lambda t: execute_at(map_memory(0, PATH_ADDRESS + PAGE, MAP_FIXED)),
}
# Namespaces, the machine, the kernel's surface, and exhaustion
ATTEMPTS |= {
    f"unshare_{name}": lambda t, flag=flag: call("unshare", NAMESPACES["user"] | flag) == 0
    for name, flag in NAMESPACES.items()
}
ATTEMPTS |= {
    "setns": lambda t: call("setns", os.open("/proc/self/ns/uts", os.O_RDONLY), 0) == 0,
    "chroot": lambda t: call("chroot", b"/") == 0,
    "mount": lambda t: mount(t.folder) and call("umount2", t.folder.encode(), 2) == 0,
    "mount_context": lambda t: call("fsopen", b"tmpfs", 0) > 0,
    "mount_clone": lambda t: call("open_tree", AT_FDCWD, b"/", 1) > 0,
    "host_name": lambda t: call("sethostname", t.host.encode(), len(t.host)) == 0,
    "clock": lambda t: call("settimeofday", 0, 0) == 0,
    # SYSLOG_ACTION_SIZE_BUFFER
    "kernel_log": lambda t: call("syslog", 10, 0, 0) > 0,
    "iopl": lambda t: call("iopl", 3) == 0,
    # socket(AF_UNIX, SOCK_STREAM, 0), by int 0x80
    "i386_abi": lambda t: run_code("53 b867010000 bb01000000 b901000000 31d2 cd80 5b c3") > 0,
    "x32_abi": lambda t: stat.S_ISSOCK(os.fstat(call(1 << 30 | 41, 1, 1, 0)).st_mode),
    "io_uring": lambda t: call("io_uring_setup", 4, structure(*[0] * 15)) > 0,
    "userfaultfd": lambda t: call("userfaultfd", 1) > 0,
    "perf_event": lambda t: perf_event(0),
    "bpf": lambda t: call("bpf", 0, structure(2 | 4 << 32, 4 | 1 << 32, *[0] * 14), 128) > 0,
    "add_key": lambda t: call("add_key", b"user", t.unique.encode(), b"x", 1, -2) > 0,
    # KEYCTL_GET_KEYRING_ID of the process
    "keyring": lambda t: call("keyctl", 0, -2, 1) > 0,
    "memfd": lambda t: call("memfd_create", b"x", 0) > 0,
    "memfd_secret": lambda t: call("memfd_secret", 0) > 0,
    # Other functions of the call map the vDSO at an address: ARCH_GET_FS
    "arch_prctl": lambda t: call("arch_prctl", 0x1003, structure(0)) == 0,
    "modify_ldt": lambda t: call("modify_ldt", 1, structure(0, 0x51_000FFFFF), 16) == 0,
    # ADDR_NO_RANDOMIZE
    "personality": lambda t: call("personality", 0x40000) >= 0,
    "shared_memory": lambda t: call("shmctl", call("shmget", 0, PAGE, 0o600), 0, 0) == 0,
    "message_queue": lambda t: call("msgctl", call("msgget", 0, 0o600), 0, 0) == 0,
    "semaphore": lambda t: call("semctl", call("semget", 0, 1, 0o600), 0, 0) == 0,
    "posix_queue": lambda t: (
        call("mq_open", t.unique.encode(), os.O_CREAT | os.O_RDWR, 0o600, 0) > 0
        and call("mq_unlink", t.unique.encode()) == 0
    ),
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
    # CLOSE_RANGE_UNSHARE
    "own_descriptors": lambda t: call("close_range", 1 << 20, 1 << 20, 2) == 0,
    "descriptors": lambda t: len([os.dup(3) for _ in range(300)]) == 300,
    "grow_output": lambda t: os.pwrite(1, b"x", t.output_limit) == 1,
    "truncate_output": lambda t: os.ftruncate(1, os.fstat(1).st_size) is None,
    "extend_output": lambda t: os.ftruncate(1, t.output_limit + 1) is None,
    "allocate_output": lambda t: os.posix_fallocate(1, 0, t.output_limit + 1) is None,
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
    for name in list(ATTEMPTS)[int(sys.argv[2]) :]:
        run(name, targets)
