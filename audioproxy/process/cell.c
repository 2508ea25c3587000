/* Start a program that can do only what its options grant: see cell.py, and docs/security.md.
 *
 *     audioproxy-cell [-k] [-g] [-n NUMBER] [-l RESOURCE=SOFT:HARD]... [-c RIGHT... [-s]] PROGRAM [ARGUMENT]...
 *     audioproxy-cell -q
 *
 * -k  kill the program when the process that started it ends
 * -g  let it gain no privilege; -c does so, too
 * -n  raise its niceness by this number
 * -l  limit a resource, by its number in setrlimit(2)
 * -c  confine the program: it has only the rights that follow
 * -r  PATH: read this file, or the files in this folder
 * -w  PATH: read and write this file
 * -x  PATH: read and execute this file
 * -d  DESCRIPTOR: open this descriptor's file again, for reading
 * -m  blocks of the source arrive on demand: only for programs that are linked already
 * -s  the program is a script, so its interpreter has to start other programs with the right -x
 * -q  print the version of Landlock that works here, and whether seccomp filters do; 0 is none
 *
 * A path that does not exist grants nothing. Without -s, nothing can be executed any more. The status
 * is 125 for wrong options, 126 if the program cannot be confined or run, and 127 if it is not found.
 *
 * Landlock confines what can be opened. It does not confine permissions and times of files, watches of
 * folders, UDP and Unix sockets. So a seccomp filter allows only the system calls that decoders and
 * encoders need, and none that makes a socket.
 *
 * This file is also a library, which makes a fork server of a program: see warm.py. It is preloaded,
 * and takes the place of __libc_start_main. When the program is linked, before its main, it waits for
 * requests at descriptor 3, a socket that keeps the bounds of messages. A request has the same words
 * as above, and the descriptors of a child. Words end with a zero. The first one has the numbers that
 * the descriptors get in the child; ahead of them comes a socket, at which the child states its
 * process ID. When it has received a byte there, it applies its options, and calls main.
 *
 *     cc -O2 -static -o audioproxy-cell cell.c
 *     cc -O2 -shared -fPIC -o audioproxy-cell.so cell.c
 */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <iconv.h>
#include <link.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <asm/prctl.h>
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#else
#error "the list of system calls is for x86-64 and for aarch64"
#endif

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static _Noreturn void give_up(const char *what, const char *name) {
    int error = errno;
    dprintf(STDERR_FILENO, "audioproxy-cell: %s%s: %s\n", what, name, strerror(error));
    _exit(error == ENOENT ? 127 : 126);
}

/* The interface of landlock(7): the headers of Debian 12 lack what later kernels have. */

struct ruleset {
    uint64_t files, ports, scopes;
};
struct path_rule {
    uint64_t rights;
    int32_t descriptor;
} __attribute__((packed));

enum { PATH_RULE = 1, VERSION = 1 };
enum { EXECUTE = 1 << 0, WRITE = 1 << 1, READ = 1 << 2, LIST = 1 << 3, TRUNCATE = 1 << 14 };

/* All rights to files that a version knows, by version, and the first versions with the others. */
static const uint64_t all_rights[] = {0, 0x1fff, 0x3fff, 0x7fff, 0x7fff, 0xffff};
enum { WITH_PORTS = 4, WITH_SCOPES = 6 };

static int ruleset = -1;
static uint64_t handled_files;

static int landlock_version(void) {
    long version = syscall(__NR_landlock_create_ruleset, NULL, 0, VERSION);
    return version < 0 ? 0 : (int)version;
}

static void begin_rules(void) {
    int version = landlock_version();
    if (!version) return;
    handled_files = all_rights[version < (int)LENGTH(all_rights) ? version : (int)LENGTH(all_rights) - 1];
    struct ruleset handled = {
        .files = handled_files,
        .ports = version >= WITH_PORTS ? 3 : 0,
        .scopes = version >= WITH_SCOPES ? 3 : 0,
    };
    ruleset = (int)syscall(__NR_landlock_create_ruleset, &handled, sizeof handled, 0);
    if (ruleset < 0) give_up("landlock_create_ruleset", "");
}

static void grant_descriptor(int descriptor, uint64_t rights, const char *name) {
    struct stat status;
    if (ruleset < 0) return;
    if (fstat(descriptor, &status)) give_up("cannot grant ", name);
    if (S_ISDIR(status.st_mode)) rights &= READ | LIST;
    else rights &= ~(uint64_t)LIST;
    struct path_rule rule = {rights & handled_files, descriptor};
    /* Landlock does not confine pipes and sockets, and knows no rule for them. */
    if (syscall(__NR_landlock_add_rule, ruleset, PATH_RULE, &rule, 0) && errno != EBADFD)
        give_up("cannot grant ", name);
}

static void grant_path(const char *path, uint64_t rights) {
    int descriptor = open(path, O_PATH | O_CLOEXEC);
    if (descriptor < 0) return;
    grant_descriptor(descriptor, rights, path);
    close(descriptor);
}

/* System calls that are harmless with any arguments, under Landlock's rules. The qsort(3) of glibc 2.36
 * does not notice that sysinfo fails. Static programs with an older glibc do not start without uname. */
static const int harmless[] = {
#ifdef __NR_open /* The older calls of x86-64. */
    __NR_access, __NR_alarm, __NR_dup2, __NR_getdents, __NR_getpgrp, __NR_lstat, __NR_pause,
    __NR_poll, __NR_readlink, __NR_select, __NR_stat, __NR_time,
#endif
    __NR_brk, __NR_close, __NR_dup, __NR_dup3, __NR_exit, __NR_exit_group, __NR_faccessat,
    __NR_faccessat2, __NR_fadvise64, __NR_fstat, __NR_futex, __NR_getcpu, __NR_getcwd,
    __NR_getdents64, __NR_getegid, __NR_geteuid, __NR_getgid, __NR_getgroups, __NR_getitimer,
    __NR_getpid, __NR_getrandom, __NR_getresgid, __NR_getresuid, __NR_getrlimit, __NR_getrusage,
    __NR_gettid, __NR_gettimeofday, __NR_getuid, __NR_lseek, __NR_membarrier, __NR_mlock,
    __NR_munlock, __NR_munmap, __NR_nanosleep, __NR_newfstatat, __NR_ppoll,
    __NR_pread64, __NR_preadv, __NR_pselect6, __NR_pwrite64, __NR_pwritev, __NR_read,
    __NR_readlinkat, __NR_readv, __NR_restart_syscall, __NR_rseq, __NR_rt_sigaction,
    __NR_rt_sigpending, __NR_rt_sigprocmask, __NR_rt_sigreturn, __NR_rt_sigsuspend,
    __NR_rt_sigtimedwait, __NR_sched_get_priority_max, __NR_sched_get_priority_min,
    __NR_sched_yield, __NR_set_robust_list, __NR_set_tid_address, __NR_setitimer, __NR_sigaltstack,
    __NR_statx, __NR_sysinfo, __NR_times, __NR_umask, __NR_uname, __NR_wait4, __NR_waitid,
    __NR_write, __NR_writev,
};

/* A masked argument has to equal a value; with `differs`, it has to differ from it. Then the mask must
 * be in one half of the argument. */
struct condition {
    int argument;
    uint64_t mask, value;
    int differs;
};
/* A system call that is allowed if its conditions hold. */
struct row {
    int call;
    struct condition conditions[4];
};

#define WHOLE UINT64_MAX
/* The kernel ignores the upper half of an int. */
#define INT UINT32_MAX
#define ANY {0, 0, 0, 0}
#define IS(argument, value) {argument, INT, value, 0}
#define IS_NULL(argument) {argument, WHOLE, 0, 0}
#define HAS_NOT(argument, flags) {argument, flags, 0, 0}
/* Those of other processes and threads, by their ids, are negative. */
#define IS_COMMON_CLOCK HAS_NOT(0, INT ^ 15)

/* A thread with descriptors of its own would have a limit of its own. */
#define THREAD (CLONE_THREAD | CLONE_VM | CLONE_SIGHAND | CLONE_FILES)
#define OTHER_CLONES                                                                               \
    (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID |  \
     CLONE_NEWNET | CLONE_PTRACE)

/* execve is allowed for one address of its path, where the program can have no memory: the kernel
 * chooses high addresses, and the program may choose none in the lowest 4 GiB. */
#define PATH_ADDRESS 0x10000
#define IS_DATA(argument) HAS_NOT(argument, PROT_EXEC)
#define IS_HIGH {0, WHOLE ^ UINT32_MAX, 0, 1}
/* Other memory does not count as data. */
#define IS_PRIVATE {3, MAP_TYPE | MAP_GROWSDOWN, MAP_PRIVATE, 0}
#define IS_NOT_FIXED HAS_NOT(3, MAP_FIXED | MAP_FIXED_NOREPLACE)

/* An open with both flags of access is for neither, so Landlock allows that for every file. Before
 * its version 3, one for reading could truncate what may be read. */
#define READS(flags) {flags, O_WRONLY | O_RDWR | O_TRUNC, O_RDONLY, 0}
#define WRITES(flags) {flags, O_WRONLY | O_RDWR, O_WRONLY, 0}

static const struct row rows[] = {
#ifdef __NR_open
    {__NR_open, {READS(1), ANY, ANY}},
    {__NR_open, {WRITES(1), ANY, ANY}},
    /* Others map the kernel's library at an address. */
    {__NR_arch_prctl, {IS(0, ARCH_SET_FS), ANY, ANY}},
#endif
    {__NR_openat, {READS(2), ANY, ANY}},
    {__NR_openat, {WRITES(2), ANY, ANY}},
    {__NR_clock_getres, {IS_COMMON_CLOCK, ANY, ANY}},
    {__NR_clock_gettime, {IS_COMMON_CLOCK, ANY, ANY}},
    {__NR_clock_nanosleep, {IS_COMMON_CLOCK, ANY, ANY}},
    {__NR_clone, {{0, THREAD | OTHER_CLONES, THREAD, 0}, ANY, ANY}},
    {__NR_fcntl, {IS(1, F_DUPFD), ANY, ANY}},
    {__NR_fcntl, {IS(1, F_DUPFD_CLOEXEC), ANY, ANY}},
    {__NR_fcntl, {IS(1, F_GETFD), ANY, ANY}},
    {__NR_fcntl, {IS(1, F_SETFD), ANY, ANY}},
    {__NR_fcntl, {IS(1, F_GETFL), ANY, ANY}},
    /* The service writes by the same open file. */
    {__NR_fcntl, {IS(1, F_SETFL), HAS_NOT(2, O_ASYNC | O_DIRECT | O_APPEND), ANY}},
    {__NR_ioctl, {IS(1, FIOCLEX), ANY, ANY}},
    {__NR_ioctl, {IS(1, FIONBIO), ANY, ANY}},
    {__NR_ioctl, {IS(1, FIONREAD), ANY, ANY}},
    {__NR_ioctl, {IS(1, TCGETS), ANY, ANY}},
    {__NR_ioctl, {IS(1, TIOCGWINSZ), ANY, ANY}},
    /* Other flags take an address. */
    {__NR_mremap, {HAS_NOT(3, INT ^ MREMAP_MAYMOVE), ANY, ANY}},
    /* From 100 on, root can break the machine's memory. */
    {__NR_madvise, {HAS_NOT(2, INT ^ 31), ANY, ANY}},
    {__NR_prctl, {IS(0, PR_GET_NAME), ANY, ANY}},
    {__NR_prctl, {IS(0, PR_SET_NAME), ANY, ANY}},
    {__NR_prctl, {IS(0, PR_SET_NO_NEW_PRIVS), ANY, ANY}},
    {__NR_prctl, {IS(0, 0x53564d41 /* PR_SET_VMA */), ANY, ANY}},
    {__NR_prlimit64, {IS(0, 0), IS_NULL(2), ANY}},
};

/* Those of a program that starts, and then loads its libraries. */
static const struct row starting_rows[] = {
    {__NR_execve, {{0, WHOLE, PATH_ADDRESS, 0}, ANY, ANY}},
    {__NR_mmap, {IS_PRIVATE, IS_HIGH, ANY}},
    {__NR_mmap, {IS_PRIVATE, IS_NULL(0), IS_NOT_FIXED}},
    {__NR_mprotect, {ANY, ANY, ANY}},
};

/* Those of a program that is linked: it gets no more code. */
static const struct row linked_rows[] = {
    {__NR_mmap, {IS_PRIVATE, IS_HIGH, IS_DATA(2)}},
    {__NR_mmap, {IS_PRIVATE, IS_NULL(0), IS_NOT_FIXED, IS_DATA(2)}},
    {__NR_mprotect, {IS_DATA(2), ANY, ANY}},
};

static struct sock_filter filter[BPF_MAXINSNS];
static unsigned short length;

static void emit(unsigned short code, uint32_t operand, unsigned char yes, unsigned char no) {
    filter[length++] = (struct sock_filter){code, yes, no, operand};
}

static void load(size_t offset) { emit(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset, 0, 0); }

static void answer(uint32_t action) { emit(BPF_RET | BPF_K, action, 0, 0); }

/* Answer one system call, whose number is loaded. */
static void answer_call(int call, uint32_t action) {
    emit(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1);
    answer(action);
}

static void answer_calls(const int *calls, size_t count, uint32_t action) {
    for (size_t i = 0; i < count; i++) answer_call(calls[i], action);
}

/* Skip the rest of the row unless the loaded value equals another one, or differs from it. */
static void require(uint32_t value, int differs, unsigned short *skips, int *count) {
    emit(BPF_JMP | BPF_JEQ | BPF_K, value, !differs, !!differs);
    skips[(*count)++] = length;
    emit(BPF_JMP | BPF_JA, 0, 0, 0);
}

static void allow_row(const struct row *row) {
    unsigned short skips[1 + 2 * LENGTH(row->conditions)];
    int count = 0;
    load(offsetof(struct seccomp_data, nr));
    require((uint32_t)row->call, 0, skips, &count);
    for (size_t i = 0; i < LENGTH(row->conditions); i++) {
        const struct condition *wanted = &row->conditions[i];
        size_t offset = offsetof(struct seccomp_data, args) + 8 * (size_t)wanted->argument;
        /* Both processors are little-endian: the lower half comes first. */
        for (int half = 0; half < 2; half++) {
            uint32_t mask = (uint32_t)(wanted->mask >> 32 * half);
            if (!mask) continue;
            load(offset + 4 * (size_t)half);
            emit(BPF_ALU | BPF_AND | BPF_K, mask, 0, 0);
            require((uint32_t)(wanted->value >> 32 * half), wanted->differs, skips, &count);
        }
    }
    answer(SECCOMP_RET_ALLOW);
    while (count--) filter[skips[count]].k = length - skips[count] - 1u;
}

static void allow_rows(const struct row *first, size_t count) {
    for (const struct row *row = first; row < first + count; row++) allow_row(row);
    /* With other arguments, these calls are forbidden, and not unknown. */
    load(offsetof(struct seccomp_data, nr));
    for (const struct row *row = first; row < first + count; row++)
        answer_call(row->call, SECCOMP_RET_ERRNO | EPERM);
}

/* What the options say of a program. */
struct options {
    int is_confined, is_linked, is_script;
};

static int install_filter(const struct options *options) {
    const int execve_call = __NR_execve;
    pid_t self = getpid();
    const struct row own_rows[] = {
        {__NR_kill, {IS(0, (uint32_t)self), ANY, ANY}},
        {__NR_tgkill, {IS(0, (uint32_t)self), ANY, ANY}},
        {__NR_sched_getaffinity, {IS(0, 0), ANY, ANY}},
        {__NR_sched_getaffinity, {IS(0, (uint32_t)self), ANY, ANY}},
    };
    load(offsetof(struct seccomp_data, arch));
    emit(BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0);
    answer(SECCOMP_RET_KILL_PROCESS);
    load(offsetof(struct seccomp_data, nr));
    answer_calls(harmless, LENGTH(harmless), SECCOMP_RET_ALLOW);
    if (options->is_script) answer_calls(&execve_call, 1, SECCOMP_RET_ALLOW);
    allow_rows(own_rows, LENGTH(own_rows));
    if (options->is_linked) allow_rows(linked_rows, LENGTH(linked_rows));
    else allow_rows(starting_rows, LENGTH(starting_rows));
    allow_rows(rows, LENGTH(rows));
    /* A C library takes this for an old kernel, and uses an older system call if there is one. */
    answer(SECCOMP_RET_ERRNO | ENOSYS);
    struct sock_fprog program = {length, filter};
    /* Without the flag, kernels before 5.16 slow down the processor for a filtered process, as they
     * would for one that runs code of several owners. Kernels before 4.17 do not know the flag. */
    return syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, &program) &&
           syscall(__NR_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}

static int enforce_rules(void) { return (int)syscall(__NR_landlock_restrict_self, ruleset, 0); }

/* A container may forbid a part of what its kernel has. */
static int has_filters(void) {
    uint32_t action = SECCOMP_RET_ERRNO;
    return !syscall(__NR_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action);
}

/* Of its capabilities, the program keeps those that open files: a service may need them for its
 * sources, and Landlock confines them. Others would lift limits, such as those of locked memory, of a
 * disk's reserve and of ports below 1024. A container may forbid the calls. */
static void drop_capabilities(void) {
    const uint32_t kept = 1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH;
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3];
    if (syscall(__NR_capget, &header, sets)) return;
    sets[0].effective = sets[0].permitted &= kept;
    sets[0].inheritable &= kept;
    sets[1].effective = sets[1].permitted = sets[1].inheritable = 0;
    syscall(__NR_capset, &header, sets);
}

static void limit(const char *words) {
    unsigned resource;
    unsigned long soft, hard;
    if (sscanf(words, "%u=%lu:%lu", &resource, &soft, &hard) != 3) errno = EINVAL;
    else if (!setrlimit(resource, &(struct rlimit){soft, hard})) return;
    give_up("cannot limit ", words);
}

/* The source of a linked program whose blocks arrive on demand, a far source: descriptor 3 is a file
 * that may lack blocks, and the map has a byte for each block. It is 0 while the block is missing, and
 * otherwise the number of its generation, which changes whenever it was missing in between. */
static struct {
    int exists;
    dev_t device;
    ino_t inode;
    const uint8_t *map;
    uint64_t blocks;
} far;

enum { SOURCE = 3, QUESTIONS = 4, MAP = 5, BLOCK_SIZE = 1 << 16 };

/* The descriptor of the map is closed, as a program could open it again for writing: Landlock does not
 * confine files without a folder. That of an empty source is empty. */
static void map_far_source(void) {
    struct stat source, map;
    if (fstat(SOURCE, &source) || fstat(MAP, &map)) give_up("cannot map the source", "");
    far.map = mmap(NULL, (size_t)map.st_size + 1, PROT_READ, MAP_SHARED, MAP, 0);
    if (far.map == MAP_FAILED || close(MAP)) give_up("cannot map the source", "");
    signal(SIGPIPE, SIG_IGN); /* The service may close its end. */
    far.blocks = (uint64_t)map.st_size;
    far.device = source.st_dev;
    far.inode = source.st_ino;
    far.exists = 1;
}

/* Apply the options in front of a program, and return it with its arguments. */
static char **apply(int count, char **words, struct options *options) {
    int option;
    optind = 1;
    while ((option = getopt(count, words, "+kgn:l:cr:w:x:d:ms")) != -1) {
        switch (option) {
        case 'k':
            if (prctl(PR_SET_PDEATHSIG, SIGKILL)) give_up("cannot set the signal", "");
            break;
        case 'g':
            if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) give_up("cannot confine", "");
            break;
        case 'n':
            /* A container may forbid it. */
            (void)!nice(atoi(optarg));
            break;
        case 'l': limit(optarg); break;
        case 'c':
            options->is_confined = 1;
            begin_rules();
            break;
        case 'r': grant_path(optarg, READ | LIST); break;
        case 'w': grant_path(optarg, READ | WRITE | TRUNCATE); break;
        case 'x': grant_path(optarg, READ | EXECUTE); break;
        case 'd': grant_descriptor(atoi(optarg), READ, optarg); break;
        case 'm':
            if (!options->is_linked) _exit(125);
            map_far_source();
            break;
        case 's': options->is_script = 1; break;
        default: _exit(125);
        }
    }
    if (optind == count) {
        dprintf(STDERR_FILENO, "audioproxy-cell: a program is required\n");
        _exit(125);
    }
    return words + optind;
}

static void confine(const struct options *options, const char *program) {
    int is_filtered = has_filters();
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) give_up("cannot confine ", program);
    drop_capabilities();
    if (ruleset >= 0 && (enforce_rules() || close(ruleset))) give_up("cannot confine ", program);
    if (is_filtered && install_filter(options)) give_up("cannot confine ", program);
}

#if defined(__PIC__) && !defined(__PIE__) /* The library. */

typedef int program_main(int, char **, char **);
typedef int start_main(program_main *, int, char **, void (*)(void), void (*)(void), void (*)(void), void *);

enum { CONTROL = 3, MOST_DESCRIPTORS = 16 };

static program_main *linked_main;
static pid_t service;
/* The words of a request, which are the child's command line. */
static char request[1 << 18];
/* Where ps reads the command line: the words that the server was started with. */
static char *shown;
static size_t room;

/* Variables that concern the start of the server alone: see warm.py. */
static const char *const own_variables[] = {
    "LD_PRELOAD", "LD_BIND_NOW", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS",
};

/* Character sets that ffmpeg asks for when it reads MPEG-TS, beyond those without a module. Linked
 * programs cannot load modules. */
static const char *const charsets[] = {
    "ISO6937",     "ISO-8859-1",  "ISO-8859-2",  "ISO-8859-3", "ISO-8859-4",  "ISO-8859-5",
    "ISO-8859-6",  "ISO-8859-7",  "ISO-8859-8",  "ISO-8859-9", "ISO-8859-10", "ISO-8859-11",
    "ISO-8859-13", "ISO-8859-14", "ISO-8859-15", "GB2312",
};

static void load_charsets(void) {
    /* They stay open, as the C library would unload modules that are not in use. */
    for (size_t i = 0; i < LENGTH(charsets); i++) iconv_open("UTF-8", charsets[i]);
}

/* Let go of pages that a child reads from the file again anyway: they would count as idle memory. */
static int unmap_file_pages(struct dl_phdr_info *object, size_t size, void *unused) {
    (void)size, (void)unused;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        if (object->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
        const ElfW(Dyn) *entry = (const void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
        /* Code that was relocated is not as it is in the file. */
        for (; entry->d_tag != DT_NULL; entry++)
            if (entry->d_tag == DT_TEXTREL || (entry->d_tag == DT_FLAGS && entry->d_un.d_val & DF_TEXTREL)) return 0;
    }
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &object->dlpi_phdr[i];
        uintptr_t start = (object->dlpi_addr + segment->p_vaddr) & ~(uintptr_t)4095;
        uintptr_t end = object->dlpi_addr + segment->p_vaddr + segment->p_memsz;
        if (segment->p_type == PT_LOAD && !(segment->p_flags & PF_W)) madvise((void *)start, end - start, MADV_DONTNEED);
    }
    return 0;
}

static int count_threads(void) {
    DIR *folder = opendir("/proc/self/task");
    if (!folder) return 0;
    int count = -2; /* This folder, and the one above it. */
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

/* Fork a child of the process that has started this one. The C library cannot: its fork has no such
 * flag. So its handlers of forks are skipped, and what else it does is done here: it keeps the
 * thread's ID. */
static long fork_sibling(void *thread_id) {
    const unsigned long flags = CLONE_PARENT | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | SIGCHLD;
#ifdef __x86_64__
    return syscall(__NR_clone, flags, NULL, NULL, thread_id, 0);
#else
    return syscall(__NR_clone, flags, NULL, NULL, 0, thread_id);
#endif
}

static void show(char **words) {
    size_t used = 0;
    memset(shown, 0, room);
    for (; *words && used + 1 < room; words++) {
        size_t size = strlen(*words) + 1;
        if (size > room - 1 - used) size = room - 1 - used;
        memcpy(shown + used, *words, size);
        used += size;
    }
}

/* Give descriptors the numbers that a text states, and close all others. */
static void place(const char *numbers, int *descriptors, int count) {
    int wanted[MOST_DESCRIPTORS], next = 0;
    for (int i = 0; i < count; i++) {
        char *end;
        wanted[i] = (int)strtol(numbers, &end, 10);
        numbers = end;
        /* Their numbers are in ascending order, so the highest one follows all of them. */
        if (wanted[i] < next) errno = EINVAL, give_up("cannot place descriptors", "");
        next = wanted[i] + 1;
    }
    for (int i = 0; i < count; i++) {
        descriptors[i] = fcntl(descriptors[i], F_DUPFD, next);
        if (descriptors[i] < 0) give_up("cannot place descriptors", "");
    }
    next = 0;
    for (int i = 0; i < count; i++) {
        if (wanted[i] > next) syscall(__NR_close_range, next, wanted[i] - 1, 0);
        if (dup2(descriptors[i], wanted[i]) < 0) give_up("cannot place descriptors", "");
        next = wanted[i] + 1;
    }
    if (syscall(__NR_close_range, next, ~0u, 0)) give_up("cannot close descriptors", "");
}

/* Receive a request; return its size, or 0 when there are no more. */
static size_t receive(int *descriptors, int *count) {
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int) * MOST_DESCRIPTORS)];
    } control;
    struct iovec piece = {request, sizeof request};
    struct msghdr message = {
        .msg_iov = &piece, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t size;
    do size = recvmsg(CONTROL, &message, MSG_CMSG_CLOEXEC);
    while (size < 0 && errno == EINTR);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (size <= 0 || !header || header->cmsg_type != SCM_RIGHTS) return 0;
    *count = (int)((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    memcpy(descriptors, CMSG_DATA(header), (size_t)*count * sizeof(int));
    return (size_t)size;
}

static void answer_request(int channel, int value) {
    if (write(channel, &value, sizeof value) < 0) _exit(126);
}

/* Wait for a request in a child, and run main. */
static _Noreturn void run(int taken, char **environment) {
    int descriptors[MOST_DESCRIPTORS], count;
    /* Also without the option -k: a process that the service has forked may hold the other sockets. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != service) _exit(126);
    size_t size = receive(descriptors, &count);
    char byte = 0;
    if (!size || write(taken, &byte, 1) != 1) _exit(126);
    prctl(PR_SET_DUMPABLE, 1);
    answer_request(descriptors[0], getpid());
    if (read(descriptors[0], &byte, 1) != 1) _exit(126);
    int number = 0;
    for (size_t i = 0; i < size; i++) number += !request[i];
    char **words = calloc((size_t)number + 1, sizeof *words);
    if (!words) give_up("cannot start a program", "");
    char *word = request;
    for (int i = 0; i < number; i++, word += strlen(word) + 1) words[i] = word;
    place(words[0], descriptors + 1, count - 1);
    struct options options = {.is_linked = 1};
    char **arguments = apply(number, words, &options);
    optind = 0; /* The next getopt(3) starts anew. */
    show(arguments);
    if (options.is_confined) confine(&options, arguments[0]);
    exit(linked_main((int)(words + number - arguments), arguments, environment));
}

/* Refuse one request. */
static void refuse(int error) {
    int descriptors[MOST_DESCRIPTORS], count;
    if (!receive(descriptors, &count)) _exit(0);
    answer_request(descriptors[0], -error);
    for (int i = 0; i < count; i++) close(descriptors[i]);
    memset(request, 0, sizeof request); /* Later children do not find it. */
}

/* Fork children ahead of their requests: a fork takes longer than all else that is done here. */
static int serve(int count, char **words, char **environment) {
    void *thread_id;
    struct timespec used;
    service = getppid();
    setpgid(0, 0);
    for (size_t i = 0; i < LENGTH(own_variables); i++) unsetenv(own_variables[i]);
    shown = words[0];
    room = (size_t)(words[count - 1] + strlen(words[count - 1]) + 1 - shown);
    load_charsets();
    dlopen("libgcc_s.so.1", RTLD_NOW); /* The C library does this at the first pthread_exit(3). */
    dl_iterate_phdr(unmap_file_pages, NULL);
    if (prctl(PR_GET_TID_ADDRESS, &thread_id)) give_up("the kernel lacks PR_GET_TID_ADDRESS", "");
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    dprintf(STDOUT_FILENO, "%d %ld\n", count_threads(), used.tv_sec * 1000 + used.tv_nsec / 1000000);
    for (;;) {
        int taken[2];
        char byte;
        if (pipe2(taken, O_CLOEXEC)) give_up("cannot open a pipe", "");
        long child = fork_sibling(thread_id);
        int error = errno;
        if (!child) run(taken[1], environment);
        close(taken[1]);
        if (child < 0) refuse(error);
        /* Without a request, the child has ended: there are no more, or it was killed. */
        else if (read(taken[0], &byte, 1) != 1) _exit(0);
        close(taken[0]);
        /* The server has no cell: without Landlock, its children could write into its memory. The
         * service has read by now what it has linked. */
        prctl(PR_SET_DUMPABLE, 0);
    }
}

/* The destructors of two hundred libraries would take longer than a probe. Another thread may hold the
 * lock of stdout forever. */
void exit(int status) {
    if (!ftrylockfile(stdout)) fflush_unlocked(stdout);
    _exit(status);
}

/* Functions that read files. They take the place of those of the C library, for what is executed
 * after they are linked; the C library's own streams do not call them. Of a far source, they read what
 * is there, ask for what is missing, and wait for it. So they read as much as of a whole file.
 *
 * A descriptor is recognized by its file, whose size has to be looked at anyway: the service may learn
 * it later than others. So it does not matter how the program has opened the file. */

/* Ask the service for a block; return 0 when the map has to be looked at again. This may be the answer
 * to another thread. */
static int ask(uint64_t block) {
    int answer;
    ssize_t size;
    do size = syscall(__NR_write, QUESTIONS, &block, sizeof block);
    while (size < 0 && errno == EINTR);
    if (size == sizeof block) {
        do size = syscall(__NR_read, QUESTIONS, &answer, sizeof answer);
        while (size < 0 && errno == EINTR);
    }
    errno = size == sizeof answer ? answer : EIO;
    return errno ? -1 : 0;
}

static int look(int descriptor, struct stat *status) {
    return !fstat(descriptor, status) && status->st_ino == far.inode && status->st_dev == far.device;
}

static int is_far(int descriptor) {
    struct stat status;
    return far.exists && descriptor >= 0 && look(descriptor, &status);
}

/* Read at most one block. */
static ssize_t read_block(int descriptor, char *to, size_t length, off_t offset) {
    uint64_t block = (uint64_t)offset / BLOCK_SIZE;
    size_t rest = BLOCK_SIZE - (size_t)offset % BLOCK_SIZE;
    struct stat status;
    if (length > rest) length = rest;
    for (;;) {
        if (!look(descriptor, &status)) return errno = EBADF, -1;
        if (offset >= status.st_size) return 0;
        int is_in_map = block < far.blocks;
        uint8_t generation = is_in_map ? __atomic_load_n(&far.map[block], __ATOMIC_ACQUIRE) : 0;
        if (!generation) {
            /* The service has to know why the program gets an error. */
            if (ask(block)) return -1;
            if (!is_in_map) return errno = EIO, -1;
            continue;
        }
        ssize_t size = syscall(__NR_pread64, descriptor, to, length, offset);
        /* What was read is the block, unless it has been missing in the meantime. */
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (generation == __atomic_load_n(&far.map[block], __ATOMIC_RELAXED)) return size;
    }
}

static ssize_t read_far(int descriptor, const struct iovec *pieces, int count, off_t offset) {
    ssize_t done = 0;
    if (offset < 0) return errno = EINVAL, -1;
    for (const struct iovec *piece = pieces; piece < pieces + count; piece++) {
        for (size_t place = 0; place < piece->iov_len;) {
            char *to = (char *)piece->iov_base + place;
            ssize_t size = read_block(descriptor, to, piece->iov_len - place, offset + done);
            /* The next call meets the error again. */
            if (size <= 0) return done ? done : size;
            place += (size_t)size;
            done += size;
        }
    }
    return done;
}

static ssize_t read_on(int descriptor, const struct iovec *pieces, int count) {
    off_t offset = lseek(descriptor, 0, SEEK_CUR);
    if (offset < 0) return -1;
    ssize_t size = read_far(descriptor, pieces, count, offset);
    if (size > 0 && lseek(descriptor, offset + size, SEEK_SET) < 0) return -1;
    return size;
}

#define IN_PLACE_OF(name) __asm__(#name) __attribute__((visibility("default")))

/* gcc does not compare these with the declarations of the C library, some of which are macros. */
ssize_t far_read(int, void *, size_t) IN_PLACE_OF(read);
ssize_t far_read_chk(int, void *, size_t, size_t) IN_PLACE_OF(__read_chk);
ssize_t far_pread(int, void *, size_t, off_t) IN_PLACE_OF(pread);
ssize_t far_pread64(int, void *, size_t, off_t) IN_PLACE_OF(pread64);
ssize_t far_pread_chk(int, void *, size_t, off_t, size_t) IN_PLACE_OF(__pread_chk);
ssize_t far_pread64_chk(int, void *, size_t, off_t, size_t) IN_PLACE_OF(__pread64_chk);
ssize_t far_readv(int, const struct iovec *, int) IN_PLACE_OF(readv);
ssize_t far_preadv(int, const struct iovec *, int, off_t) IN_PLACE_OF(preadv);
ssize_t far_preadv64(int, const struct iovec *, int, off_t) IN_PLACE_OF(preadv64);
void *far_mmap(void *, size_t, int, int, int, off_t) IN_PLACE_OF(mmap);
void *far_mmap64(void *, size_t, int, int, int, off_t) IN_PLACE_OF(mmap64);

ssize_t far_read(int descriptor, void *to, size_t length) {
    if (is_far(descriptor)) return read_on(descriptor, &(struct iovec){to, length}, 1);
    return syscall(__NR_read, descriptor, to, length);
}

ssize_t far_pread(int descriptor, void *to, size_t length, off_t offset) {
    if (is_far(descriptor)) return read_far(descriptor, &(struct iovec){to, length}, 1, offset);
    return syscall(__NR_pread64, descriptor, to, length, offset);
}

ssize_t far_pread64(int descriptor, void *to, size_t length, off_t offset) {
    return far_pread(descriptor, to, length, offset);
}

/* What programs call that are compiled with _FORTIFY_SOURCE. */
ssize_t far_read_chk(int descriptor, void *to, size_t length, size_t room) {
    if (length > room) abort();
    return far_read(descriptor, to, length);
}

ssize_t far_pread_chk(int descriptor, void *to, size_t length, off_t offset, size_t room) {
    if (length > room) abort();
    return far_pread(descriptor, to, length, offset);
}

ssize_t far_pread64_chk(int descriptor, void *to, size_t length, off_t offset, size_t room) {
    return far_pread_chk(descriptor, to, length, offset, room);
}

ssize_t far_readv(int descriptor, const struct iovec *pieces, int count) {
    if (is_far(descriptor)) return read_on(descriptor, pieces, count);
    return syscall(__NR_readv, descriptor, pieces, count);
}

ssize_t far_preadv(int descriptor, const struct iovec *pieces, int count, off_t offset) {
    /* The kernel ignores the last argument where a word has 64 bits. */
    if (is_far(descriptor)) return read_far(descriptor, pieces, count, offset);
    return syscall(__NR_preadv, descriptor, pieces, count, offset, 0);
}

ssize_t far_preadv64(int descriptor, const struct iovec *pieces, int count, off_t offset) {
    return far_preadv(descriptor, pieces, count, offset);
}

void *far_mmap(void *address, size_t length, int rights, int flags, int descriptor, off_t offset) {
    if (is_far(descriptor)) return errno = ENODEV, MAP_FAILED;
    return (void *)syscall(__NR_mmap, address, length, rights, flags, descriptor, offset);
}

void *far_mmap64(void *address, size_t length, int rights, int flags, int descriptor, off_t offset) {
    return far_mmap(address, length, rights, flags, descriptor, offset);
}

/* The C library calls this at the start of each program, with its main. */
int __libc_start_main(program_main *main, int count, char **words, void (*init)(void), void (*fini)(void),
                      void (*end)(void), void *stack) {
    start_main *start = (start_main *)dlsym(RTLD_NEXT, "__libc_start_main");
    linked_main = main;
    return start(serve, count, words, init, fini, end, stack);
}

#else /* The program. */

static int report(void) {
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    begin_rules();
    int version = ruleset < 0 || enforce_rules() ? 0 : landlock_version();
    return printf("%d %d\n", version, !install_filter(&(struct options){0})) < 0;
}

static char *copy_path(const char *path) {
    size_t size = strlen(path) + 1;
    char *copy = mmap((void *)PATH_ADDRESS, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    if (copy != (char *)PATH_ADDRESS) give_up("cannot keep the path of ", path);
    return memcpy(copy, path, size);
}

int main(int count, char **words) {
    if (count == 2 && !strcmp(words[1], "-q")) return report();
    struct options options = {0};
    char **arguments = apply(count, words, &options);
    const char *path = arguments[0];
    if (!strchr(path, '/')) {
        /* The kernel would take it from the working directory. */
        errno = ENOENT;
        give_up("cannot run ", path);
    }
    if (options.is_confined) {
        if (has_filters()) path = copy_path(path);
        confine(&options, path);
    }
    extern char **environ;
    execve(path, arguments, environ);
    give_up("cannot run ", path);
}

#endif
