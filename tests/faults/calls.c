/* A preloaded library that counts, fails and records the system calls of a Python process: see calls.py.
 *
 *     cc -O2 -shared -fPIC -o calls.so calls.c
 *     LD_PRELOAD=calls.so FAULTS_PAGE=... FAULTS_ROOT=... FAULTS_RECORD=... python ...
 *
 * FAULTS_PAGE    a file of the size of `struct page`: the control page, which other processes may map
 * FAULTS_ROOT    record the changes of the files and folders below this folder,
 * FAULTS_RECORD  at the end of this file
 *
 * The library takes the place of the functions of libc that CPython calls. It counts those of a process
 * that has armed its page, by kind and by what they concern, and fails those that the page names. Files
 * of modules are not counted: when they are read is no business of a test.
 *
 * A process that is forked has no page, until it calls `faults_open`. Other programs do not get the
 * library, except for Python programs while changes are recorded.
 */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Kinds of calls, in the order of KINDS in calls.py. */
enum kind {
    OPEN, READ, PREAD, WRITE, PWRITE, SYNC, RENAME, LINK, UNLINK, MKDIR, RMDIR, TRUNCATE, STAT, STATFS, LOCK,
    LIST, MMAP, SOCKET, CONNECT, BIND, ACCEPT, SEND, RECEIVE, SENDFILE, DESCRIPTOR, SPAWN, CREATE, KIND_COUNT
};

/* What a call concerns, in the order of OBJECTS in calls.py. */
enum object { PATH, FILE_, FOLDER, SOCKET_, PIPE, OTHER, OBJECT_COUNT };

/* The faults that are no numbers of errors: half of the bytes, and one byte. */
enum { SHORT = -1, BYTE = -2 };

enum { ROWS = 8192, NAME = 104 };

struct row {
    uint8_t kind, object;
    uint16_t injected;
    int32_t error;
    int64_t result;
    uint32_t number; /* of the calls of this kind and object */
    uint32_t thread;
    char name[NAME];
};

struct page {
    _Atomic uint32_t armed;
    /* The calls to fail: from the first one of this kind and object, so many. */
    uint32_t kind, object, first, times;
    int32_t fault;
    _Atomic uint32_t injected;
    _Atomic uint32_t count;
    _Atomic uint32_t counts[KIND_COUNT][OBJECT_COUNT];
    struct row rows[ROWS];
};

static struct page *page;
static char preload[PATH_MAX + 16], root[PATH_MAX], record_path[PATH_MAX];
static size_t root_length;
static int record = -1;
static pthread_mutex_t recording = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name)                                                                                                     \
    static __typeof__(name) *real;                                                                                     \
    if (!real) real = (__typeof__(real))dlsym(RTLD_NEXT, #name)

/* Map another control page, or none; return whether it is mapped. */
int faults_open(const char *path) {
    page = NULL;
    if (!path) return 0;
    int descriptor = (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    if (descriptor < 0) return 0;
    void *mapped = (void *)syscall(
        SYS_mmap, NULL, sizeof(struct page), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, (off_t)0);
    syscall(SYS_close, descriptor);
    if (mapped == MAP_FAILED) return 0;
    page = mapped;
    return 1;
}

/* Begin to count. */
void faults_arm(void) {
    if (page) page->armed = 1;
}

static void in_child(void) {
    page = NULL;
    record = -1;
}

__attribute__((constructor)) static void begin_process(void) {
    const char *given = getenv("LD_PRELOAD"), *folder = getenv("FAULTS_ROOT"), *file = getenv("FAULTS_RECORD");
    /* Programs that execute another one hand the variables on. */
    if (strncmp(program_invocation_short_name, "python", 6)) return;
    if (given) snprintf(preload, sizeof preload, "LD_PRELOAD=%s", given);
    faults_open(getenv("FAULTS_PAGE"));
    if (folder && file && realpath(folder, root)) {
        root_length = strlen(root);
        snprintf(record_path, sizeof record_path, "%s", file);
        record = (int)syscall(
            SYS_openat, AT_FDCWD, file, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    }
    for (const char **name = (const char *[]){"LD_PRELOAD", "FAULTS_PAGE", "FAULTS_ROOT", "FAULTS_RECORD", NULL};
         *name; name++)
        unsetenv(*name);
    pthread_atfork(NULL, NULL, in_child);
}

/* Counting and failing. */

struct call {
    struct row *row;
    int fault;
};

static void name_descriptor(int descriptor, char *name, size_t size) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, name, size - 1);
    name[length < 0 ? 0 : length] = 0;
}

static enum object object_of(int descriptor) {
    struct stat status;
    if (syscall(SYS_fstat, descriptor, &status)) return OTHER;
    switch (status.st_mode & S_IFMT) {
    case S_IFREG: return FILE_;
    case S_IFDIR: return FOLDER;
    case S_IFSOCK: return SOCKET_;
    case S_IFIFO: return PIPE;
    default: return OTHER;
    }
}

static int ends_with(const char *text, const char *end) {
    size_t length = strlen(text), least = strlen(end);
    return length >= least && !strcmp(text + length - least, end);
}

static int is_module(const char *name) {
    return strstr(name, "/lib/python3") || strstr(name, "__pycache__") || ends_with(name, ".py") ||
           ends_with(name, ".pyc") || ends_with(name, ".so");
}

/* Count a call that concerns a path, or else a descriptor; return what has to become of it. */
static struct call begin(enum kind kind, const char *path, int descriptor, size_t length) {
    struct call call = {NULL, 0};
    struct page *used = page;
    if (!used || !used->armed) return call;
    int before = errno;
    char name[PATH_MAX];
    enum object object = PATH;
    if (path) snprintf(name, sizeof name, "%s", path);
    else if (descriptor < 0) name[0] = 0, object = OTHER;
    else name_descriptor(descriptor, name, sizeof name), object = object_of(descriptor);
    errno = before;
    if (is_module(name)) return call;
    uint32_t number = ++used->counts[kind][object];
    call.row = &used->rows[used->count++ % ROWS];
    memset(call.row, 0, sizeof *call.row);
    call.row->kind = (uint8_t)kind;
    call.row->object = (uint8_t)object;
    call.row->number = number;
    call.row->thread = (uint32_t)syscall(SYS_gettid);
    /* The end of a path says more than its start. */
    size_t size = strlen(name);
    strcpy(call.row->name, size < NAME ? name : name + size - NAME + 1);
    if (used->fault && kind == used->kind && object == used->object && number >= used->first &&
        number - used->first < used->times && (used->fault > 0 || length > 1)) {
        used->injected++;
        call.row->injected = 1;
        call.fault = used->fault;
    }
    return call;
}

static void end(struct call call, int64_t result, int error) {
    if (!call.row) return;
    call.row->result = result;
    call.row->error = result < 0 ? error : 0;
}

#define COUNTED(kind, path, descriptor, length, invalid, expression)                                                   \
    struct call call = begin(kind, path, descriptor, length);                                                          \
    __typeof__(expression) result;                                                                                     \
    if (call.fault > 0) errno = call.fault, result = (__typeof__(result))(invalid);                                    \
    else result = expression;                                                                                          \
    end(call, result == (__typeof__(result))(invalid) ? -1 : (int64_t)(intptr_t)result, errno)

/* So many bytes as a call may handle. */
#define SHARE(count) (call.fault == SHORT ? (count) / 2 : call.fault == BYTE ? 1 : (count))

/* Recording. */

/* Changes, in the order of `Change` in calls.py. */
enum change { CREATED, WRITTEN, TRUNCATED, SYNCED, RENAMED, LINKED, UNLINKED, MADE, REMOVED, CONTENT };

struct header {
    uint32_t size; /* of all that follows this number */
    uint16_t change, reserved;
    int32_t process;
    uint32_t first_length, second_length;
    uint64_t inode;
    int64_t offset;
} __attribute__((packed));

/* The path below the root, or NULL. */
static const char *below(const char *path) {
    if (!path || strncmp(path, root, root_length)) return NULL;
    if (!path[root_length]) return path + root_length;
    return path[root_length] == '/' ? path + root_length + 1 : NULL;
}

/* Put a path of a call into a buffer, absolute; return its part below the root, or NULL. */
static const char *locate(int folder, const char *path, char *buffer) {
    if (record < 0 || !path) return NULL;
    int before = errno;
    if (path[0] == '/') snprintf(buffer, PATH_MAX, "%s", path);
    else {
        char base[PATH_MAX] = "";
        if (folder == AT_FDCWD) syscall(SYS_getcwd, base, sizeof base);
        else name_descriptor(folder, base, sizeof base);
        if (snprintf(buffer, PATH_MAX, "%s/%s", base, path) >= PATH_MAX) buffer[0] = 0;
    }
    errno = before;
    return below(buffer);
}

static const char *locate_open(int descriptor, char *buffer) {
    if (record < 0) return NULL;
    int before = errno;
    name_descriptor(descriptor, buffer, PATH_MAX);
    errno = before;
    return below(buffer);
}

static int lock_record(const char *place) {
    if (!place) return 0;
    int before = errno;
    pthread_mutex_lock(&recording);
    syscall(SYS_flock, record, LOCK_EX);
    errno = before;
    return 1;
}

static void unlock_record(int locked) {
    if (!locked) return;
    int before = errno;
    syscall(SYS_flock, record, LOCK_UN);
    pthread_mutex_unlock(&recording);
    errno = before;
}

static uint64_t inode_at(const char *path) {
    struct stat status;
    return syscall(SYS_newfstatat, AT_FDCWD, path, &status, AT_SYMLINK_NOFOLLOW) ? 0 : status.st_ino;
}

static void add(enum change change, uint64_t inode, int64_t offset, const char *first, const char *second,
                const struct iovec *data, int parts, size_t length) {
    struct header header = {
        .change = (uint16_t)change,
        .process = (int32_t)syscall(SYS_getpid),
        .first_length = first ? (uint32_t)strlen(first) : 0,
        .second_length = second ? (uint32_t)strlen(second) : 0,
        .inode = inode,
        .offset = offset,
    };
    header.size = (uint32_t)(sizeof header - sizeof header.size + header.first_length + header.second_length + length);
    struct iovec all[3 + 64] = {
        {&header, sizeof header}, {(void *)first, header.first_length}, {(void *)second, header.second_length}};
    int count = 3;
    for (int index = 0; index < parts && length && count < 67; index++) {
        all[count] = data[index];
        if (all[count].iov_len > length) all[count].iov_len = length;
        length -= all[count++].iov_len;
    }
    int before = errno;
    if (syscall(SYS_writev, record, all, count) < 0) _exit(120);
    errno = before;
}

/* Record what a file has: a child may have written it. Only once for each state. */
static void add_content(int descriptor, const char *place) {
    static struct { uint64_t inode; int64_t size, seconds, nanoseconds; } last;
    struct stat status;
    int before = errno;
    if (!syscall(SYS_fstat, descriptor, &status) && S_ISREG(status.st_mode) &&
        !(last.inode == status.st_ino && last.size == status.st_size &&
          last.seconds == status.st_mtim.tv_sec && last.nanoseconds == status.st_mtim.tv_nsec)) {
        last.inode = status.st_ino, last.size = status.st_size;
        last.seconds = status.st_mtim.tv_sec, last.nanoseconds = status.st_mtim.tv_nsec;
        /* The descriptor may not be readable. */
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
        int reading = (int)syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC, 0);
        void *data = malloc((size_t)status.st_size + 1);
        ssize_t length = reading < 0 || !data ? -1 : syscall(SYS_pread64, reading, data, status.st_size, (off_t)0);
        if (length >= 0) {
            struct iovec part = {data, (size_t)length};
            add(CONTENT, status.st_ino, 0, place, NULL, &part, 1, (size_t)length);
        }
        free(data);
        if (reading >= 0) syscall(SYS_close, reading);
    }
    errno = before;
}

static uint64_t inode_of(int descriptor) {
    struct stat status;
    return syscall(SYS_fstat, descriptor, &status) ? 0 : status.st_ino;
}

/* Where a write of a descriptor begins. */
static int64_t place_of_write(int descriptor) {
    struct stat status;
    if (syscall(SYS_fcntl, descriptor, F_GETFL, 0) & O_APPEND && !syscall(SYS_fstat, descriptor, &status))
        return status.st_size;
    return syscall(SYS_lseek, descriptor, (off_t)0, SEEK_CUR);
}

/* Files. */

static int open_at(int (*real)(int, const char *, int, ...), int folder, const char *path, int flags, mode_t mode) {
    char buffer[PATH_MAX];
    int changes = flags & (O_CREAT | O_TRUNC) && (flags & O_TMPFILE) != O_TMPFILE;
    const char *place = changes ? locate(folder, path, buffer) : NULL;
    int locked = lock_record(place);
    uint64_t existing = locked ? inode_at(buffer) : 0;
    int creates = flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE;
    COUNTED(creates ? CREATE : OPEN, path, -1, 0, -1, real(folder, path, flags, mode));
    if (locked && result >= 0) {
        if (!existing) add(CREATED, inode_of(result), 0, place, NULL, NULL, 0, 0);
        else if (flags & O_TRUNC) add(TRUNCATED, existing, 0, place, NULL, NULL, 0, 0);
    }
    unlock_record(locked);
    return result;
}

#define MODE(flags)                                                                                                    \
    mode_t mode = 0;                                                                                                   \
    if ((flags) & (O_CREAT | O_TMPFILE)) {                                                                             \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode = va_arg(rest, mode_t);                                                                                   \
        va_end(rest);                                                                                                  \
    }

int openat(int folder, const char *path, int flags, ...) {
    MODE(flags)
    REAL(openat);
    return open_at(real, folder, path, flags, mode);
}

int openat64(int folder, const char *path, int flags, ...) {
    MODE(flags)
    REAL(openat64);
    return open_at(real, folder, path, flags, mode);
}

int open(const char *path, int flags, ...) {
    MODE(flags)
    REAL(openat);
    return open_at(real, AT_FDCWD, path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    MODE(flags)
    REAL(openat64);
    return open_at(real, AT_FDCWD, path, flags, mode);
}

ssize_t read(int descriptor, void *data, size_t count) {
    REAL(read);
    COUNTED(READ, NULL, descriptor, count, -1, real(descriptor, data, SHARE(count)));
    return result;
}

ssize_t readv(int descriptor, const struct iovec *parts, int count) {
    REAL(readv);
    struct iovec half = {parts->iov_base, parts->iov_len / 2};
    COUNTED(READ, NULL, descriptor, parts->iov_len, -1,
            call.fault < 0 ? real(descriptor, &half, 1) : real(descriptor, parts, count));
    return result;
}

#define PREADS(name, type)                                                                                             \
    ssize_t name(int descriptor, void *data, size_t count, type offset) {                                              \
        REAL(name);                                                                                                    \
        COUNTED(PREAD, NULL, descriptor, count, -1, real(descriptor, data, SHARE(count), offset));                     \
        return result;                                                                                                 \
    }
PREADS(pread, off_t)
PREADS(pread64, off64_t)

#define PREADVS(name, type)                                                                                            \
    ssize_t name(int descriptor, const struct iovec *parts, int count, type offset, int flags) {                       \
        REAL(name);                                                                                                    \
        struct iovec half = {parts->iov_base, parts->iov_len / 2};                                                     \
        COUNTED(PREAD, NULL, descriptor, parts->iov_len, -1,                                                           \
                call.fault < 0 ? real(descriptor, &half, 1, offset, flags)                                        \
                                    : real(descriptor, parts, count, offset, flags));                                  \
        return result;                                                                                                 \
    }
PREADVS(preadv2, off_t)
PREADVS(preadv64v2, off64_t)

ssize_t write(int descriptor, const void *data, size_t count) {
    REAL(write);
    char buffer[PATH_MAX];
    const char *place = locate_open(descriptor, buffer);
    int locked = lock_record(place);
    int64_t offset = locked ? place_of_write(descriptor) : 0;
    COUNTED(WRITE, NULL, descriptor, count, -1, real(descriptor, data, SHARE(count)));
    struct iovec part = {(void *)data, count};
    if (locked && result > 0) add(WRITTEN, inode_of(descriptor), offset, place, NULL, &part, 1, (size_t)result);
    unlock_record(locked);
    return result;
}

ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    REAL(writev);
    char buffer[PATH_MAX];
    const char *place = locate_open(descriptor, buffer);
    int locked = lock_record(place);
    int64_t offset = locked ? place_of_write(descriptor) : 0;
    struct iovec half = {parts->iov_base, parts->iov_len / 2};
    COUNTED(WRITE, NULL, descriptor, parts->iov_len, -1,
            call.fault < 0 ? real(descriptor, &half, 1) : real(descriptor, parts, count));
    if (locked && result > 0) add(WRITTEN, inode_of(descriptor), offset, place, NULL, parts, count, (size_t)result);
    unlock_record(locked);
    return result;
}

#define PWRITES(name, type)                                                                                            \
    ssize_t name(int descriptor, const void *data, size_t count, type offset) {                                        \
        REAL(name);                                                                                                    \
        char buffer[PATH_MAX];                                                                                         \
        const char *place = locate_open(descriptor, buffer);                                                           \
        int locked = lock_record(place);                                                                               \
        COUNTED(PWRITE, NULL, descriptor, count, -1, real(descriptor, data, SHARE(count), offset));                    \
        struct iovec part = {(void *)data, count};                                                                     \
        if (locked && result > 0)                                                                                      \
            add(WRITTEN, inode_of(descriptor), offset, place, NULL, &part, 1, (size_t)result);                         \
        unlock_record(locked);                                                                                         \
        return result;                                                                                                 \
    }
PWRITES(pwrite, off_t)
PWRITES(pwrite64, off64_t)

#define SYNCS(name)                                                                                                    \
    int name(int descriptor) {                                                                                         \
        REAL(name);                                                                                                    \
        char buffer[PATH_MAX];                                                                                         \
        const char *place = locate_open(descriptor, buffer);                                                           \
        int locked = lock_record(place);                                                                               \
        if (locked) add_content(descriptor, place);                                                                    \
        COUNTED(SYNC, NULL, descriptor, 0, -1, real(descriptor));                                                      \
        if (locked && !result) add(SYNCED, inode_of(descriptor), 0, place, NULL, NULL, 0, 0);                          \
        unlock_record(locked);                                                                                         \
        return result;                                                                                                 \
    }
SYNCS(fsync)
SYNCS(fdatasync)

#define FTRUNCATES(name, type)                                                                                         \
    int name(int descriptor, type size) {                                                                              \
        REAL(name);                                                                                                    \
        char buffer[PATH_MAX];                                                                                         \
        const char *place = locate_open(descriptor, buffer);                                                           \
        int locked = lock_record(place);                                                                               \
        COUNTED(TRUNCATE, NULL, descriptor, 0, -1, real(descriptor, size));                                            \
        if (locked && !result) add(TRUNCATED, inode_of(descriptor), size, place, NULL, NULL, 0, 0);                    \
        unlock_record(locked);                                                                                         \
        return result;                                                                                                 \
    }
FTRUNCATES(ftruncate, off_t)
FTRUNCATES(ftruncate64, off64_t)

#define TRUNCATES(name, type)                                                                                          \
    int name(const char *path, type size) {                                                                            \
        REAL(name);                                                                                                    \
        char buffer[PATH_MAX];                                                                                         \
        const char *place = locate(AT_FDCWD, path, buffer);                                                            \
        int locked = lock_record(place);                                                                               \
        COUNTED(TRUNCATE, path, -1, 0, -1, real(path, size));                                                          \
        if (locked && !result) add(TRUNCATED, inode_at(buffer), size, place, NULL, NULL, 0, 0);                        \
        unlock_record(locked);                                                                                         \
        return result;                                                                                                 \
    }
TRUNCATES(truncate, off_t)
TRUNCATES(truncate64, off64_t)

/* Names. `call_path` is what the log of calls shows. */

#define NAMES(kind, change, folder, path, call_expression)                                                             \
    char buffer[PATH_MAX];                                                                                             \
    const char *place = locate(folder, path, buffer);                                                                  \
    int locked = lock_record(place);                                                                                   \
    uint64_t inode = locked ? inode_at(buffer) : 0;                                                                    \
    COUNTED(kind, path, -1, 0, -1, call_expression);                                                                   \
    if (locked && !result) add(change, inode ? inode : inode_at(buffer), 0, place, NULL, NULL, 0, 0);                  \
    unlock_record(locked);                                                                                             \
    return result

int unlink(const char *path) {
    REAL(unlink);
    NAMES(UNLINK, UNLINKED, AT_FDCWD, path, real(path));
}

int unlinkat(int folder, const char *path, int flags) {
    REAL(unlinkat);
    if (flags & AT_REMOVEDIR) {
        NAMES(RMDIR, REMOVED, folder, path, real(folder, path, flags));
    }
    NAMES(UNLINK, UNLINKED, folder, path, real(folder, path, flags));
}

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    NAMES(MKDIR, MADE, AT_FDCWD, path, real(path, mode));
}

int mkdirat(int folder, const char *path, mode_t mode) {
    REAL(mkdirat);
    NAMES(MKDIR, MADE, folder, path, real(folder, path, mode));
}

int rmdir(const char *path) {
    REAL(rmdir);
    NAMES(RMDIR, REMOVED, AT_FDCWD, path, real(path));
}

/* A name outside the root is recorded as an empty one. */
#define TWO_NAMES(kind, change, from_folder, from, to_folder, to, call_expression)                                     \
    char old[PATH_MAX], new[PATH_MAX];                                                                                 \
    const char *old_place = locate(from_folder, from, old), *new_place = locate(to_folder, to, new);                   \
    int locked = lock_record(old_place ? old_place : new_place);                                                       \
    uint64_t inode = locked ? inode_at(old) : 0;                                                                       \
    COUNTED(kind, to, -1, 0, -1, call_expression);                                                                     \
    if (locked && !result) add(change, inode, 0, old_place, new_place, NULL, 0, 0);                                    \
    unlock_record(locked);                                                                                             \
    return result

int rename(const char *from, const char *to) {
    REAL(rename);
    TWO_NAMES(RENAME, RENAMED, AT_FDCWD, from, AT_FDCWD, to, real(from, to));
}

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    REAL(renameat);
    TWO_NAMES(RENAME, RENAMED, from_folder, from, to_folder, to, real(from_folder, from, to_folder, to));
}

int link(const char *from, const char *to) {
    REAL(link);
    TWO_NAMES(LINK, LINKED, AT_FDCWD, from, AT_FDCWD, to, real(from, to));
}

int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
    REAL(linkat);
    TWO_NAMES(LINK, LINKED, from_folder, from, to_folder, to, real(from_folder, from, to_folder, to, flags));
}

/* What changes nothing. */

#define STATS(name, type)                                                                                              \
    int name(const char *path, struct type *status) {                                                                  \
        REAL(name);                                                                                                    \
        COUNTED(STAT, path, -1, 0, -1, real(path, status));                                                            \
        return result;                                                                                                 \
    }
STATS(stat, stat)
STATS(stat64, stat64)
STATS(lstat, stat)
STATS(lstat64, stat64)

#define STATS_AT(name, type)                                                                                           \
    int name(int folder, const char *path, struct type *status, int flags) {                                           \
        REAL(name);                                                                                                    \
        COUNTED(STAT, path, -1, 0, -1, real(folder, path, status, flags));                                             \
        return result;                                                                                                 \
    }
STATS_AT(fstatat, stat)
STATS_AT(fstatat64, stat64)

#define FSTATS(name, type)                                                                                             \
    int name(int descriptor, struct type *status) {                                                                    \
        REAL(name);                                                                                                    \
        COUNTED(STAT, NULL, descriptor, 0, -1, real(descriptor, status));                                              \
        return result;                                                                                                 \
    }
FSTATS(fstat, stat)
FSTATS(fstat64, stat64)

#define STATVFS(name, type)                                                                                            \
    int name(const char *path, struct type *status) {                                                                  \
        REAL(name);                                                                                                    \
        COUNTED(STATFS, path, -1, 0, -1, real(path, status));                                                          \
        return result;                                                                                                 \
    }
STATVFS(statvfs, statvfs)
STATVFS(statvfs64, statvfs64)

#define FSTATVFS(name, type)                                                                                           \
    int name(int descriptor, struct type *status) {                                                                    \
        REAL(name);                                                                                                    \
        COUNTED(STATFS, NULL, descriptor, 0, -1, real(descriptor, status));                                            \
        return result;                                                                                                 \
    }
FSTATVFS(fstatvfs, statvfs)
FSTATVFS(fstatvfs64, statvfs64)

int flock(int descriptor, int operation) {
    REAL(flock);
    COUNTED(LOCK, NULL, descriptor, 0, -1, real(descriptor, operation));
    return result;
}

DIR *opendir(const char *path) {
    REAL(opendir);
    COUNTED(LIST, path, -1, 0, 0, real(path));
    return result;
}

DIR *fdopendir(int descriptor) {
    REAL(fdopendir);
    COUNTED(LIST, NULL, descriptor, 0, 0, real(descriptor));
    return result;
}

/* Private anonymous memory is the interpreter's own. */
#define MMAPS(name, type)                                                                                              \
    void *name(void *at, size_t length, int protection, int flags, int descriptor, type offset) {                      \
        REAL(name);                                                                                                    \
        if (!(flags & MAP_SHARED)) return real(at, length, protection, flags, descriptor, offset);                     \
        COUNTED(MMAP, NULL, descriptor, 0, MAP_FAILED, real(at, length, protection, flags, descriptor, offset));       \
        return result;                                                                                                 \
    }
MMAPS(mmap, off_t)
MMAPS(mmap64, off64_t)

/* Sockets. */

int socket(int family, int type, int protocol) {
    REAL(socket);
    COUNTED(SOCKET, NULL, -1, 0, -1, real(family, type, protocol));
    return result;
}

int socketpair(int family, int type, int protocol, int made[2]) {
    REAL(socketpair);
    COUNTED(SOCKET, NULL, -1, 0, -1, real(family, type, protocol, made));
    return result;
}

int connect(int descriptor, const struct sockaddr *address, socklen_t length) {
    REAL(connect);
    COUNTED(CONNECT, NULL, descriptor, 0, -1, real(descriptor, address, length));
    return result;
}

int bind(int descriptor, const struct sockaddr *address, socklen_t length) {
    REAL(bind);
    COUNTED(BIND, NULL, descriptor, 0, -1, real(descriptor, address, length));
    return result;
}

int listen(int descriptor, int backlog) {
    REAL(listen);
    COUNTED(BIND, NULL, descriptor, 0, -1, real(descriptor, backlog));
    return result;
}

int accept(int descriptor, struct sockaddr *address, socklen_t *length) {
    REAL(accept);
    COUNTED(ACCEPT, NULL, descriptor, 0, -1, real(descriptor, address, length));
    return result;
}

int accept4(int descriptor, struct sockaddr *address, socklen_t *length, int flags) {
    REAL(accept4);
    COUNTED(ACCEPT, NULL, descriptor, 0, -1, real(descriptor, address, length, flags));
    return result;
}

ssize_t send(int descriptor, const void *data, size_t count, int flags) {
    REAL(send);
    COUNTED(SEND, NULL, descriptor, count, -1, real(descriptor, data, SHARE(count), flags));
    return result;
}

ssize_t sendto(int descriptor, const void *data, size_t count, int flags, const struct sockaddr *to, socklen_t length) {
    REAL(sendto);
    COUNTED(SEND, NULL, descriptor, count, -1, real(descriptor, data, SHARE(count), flags, to, length));
    return result;
}

/* A message that carries descriptors is never sent in part. */
ssize_t sendmsg(int descriptor, const struct msghdr *message, int flags) {
    REAL(sendmsg);
    COUNTED(SEND, NULL, descriptor, 0, -1, real(descriptor, message, flags));
    return result;
}

ssize_t recv(int descriptor, void *data, size_t count, int flags) {
    REAL(recv);
    COUNTED(RECEIVE, NULL, descriptor, count, -1, real(descriptor, data, SHARE(count), flags));
    return result;
}

ssize_t recvfrom(int descriptor, void *data, size_t count, int flags, struct sockaddr *from, socklen_t *length) {
    REAL(recvfrom);
    COUNTED(RECEIVE, NULL, descriptor, count, -1, real(descriptor, data, SHARE(count), flags, from, length));
    return result;
}

ssize_t recvmsg(int descriptor, struct msghdr *message, int flags) {
    REAL(recvmsg);
    COUNTED(RECEIVE, NULL, descriptor, 0, -1, real(descriptor, message, flags));
    return result;
}

#define SENDFILES(name, type)                                                                                          \
    ssize_t name(int to, int from, type *offset, size_t count) {                                                       \
        REAL(name);                                                                                                    \
        COUNTED(SENDFILE, NULL, to, count, -1, real(to, from, offset, SHARE(count)));                                  \
        return result;                                                                                                 \
    }
SENDFILES(sendfile, off_t)
SENDFILES(sendfile64, off64_t)

/* Other new descriptors. */

int pipe2(int made[2], int flags) {
    REAL(pipe2);
    COUNTED(DESCRIPTOR, NULL, -1, 0, -1, real(made, flags));
    return result;
}

int pipe(int made[2]) {
    REAL(pipe);
    COUNTED(DESCRIPTOR, NULL, -1, 0, -1, real(made));
    return result;
}

int memfd_create(const char *name, unsigned flags) {
    REAL(memfd_create);
    COUNTED(DESCRIPTOR, NULL, -1, 0, -1, real(name, flags));
    return result;
}

int dup(int descriptor) {
    REAL(dup);
    COUNTED(DESCRIPTOR, NULL, descriptor, 0, -1, real(descriptor));
    return result;
}

/* Python's own way to duplicate a descriptor that children do not inherit. */
#define FCNTLS(name)                                                                                                   \
    int name(int descriptor, int command, ...) {                                                                       \
        REAL(name);                                                                                                    \
        va_list rest;                                                                                                  \
        va_start(rest, command);                                                                                       \
        void *argument = va_arg(rest, void *);                                                                         \
        va_end(rest);                                                                                                  \
        if (command != F_DUPFD_CLOEXEC) return real(descriptor, command, argument);                                    \
        COUNTED(DESCRIPTOR, NULL, descriptor, 0, -1, real(descriptor, command, argument));                             \
        return result;                                                                                                 \
    }
FCNTLS(fcntl)
FCNTLS(fcntl64)

/* Children. */

pid_t fork(void) {
    REAL(fork);
    COUNTED(SPAWN, NULL, -1, 0, -1, real());
    return result;
}

/* The real one would return twice into a function that has returned. */
pid_t vfork(void) { return fork(); }

/* A Python program that changes what is recorded gets the library. */
struct variables {
    char *list[256];
    char root[PATH_MAX + 16], record[PATH_MAX + 16];
};

static char *const *environment_of(char *const arguments[], char *const given[], struct variables *made) {
    int is_python = 0, count = 0;
    for (char *const *word = arguments; word && *word; word++) {
        const char *name = strrchr(*word, '/');
        is_python |= !strncmp(name ? name + 1 : *word, "python", 6);
    }
    if (!is_python || !root_length || !preload[0]) return given;
    for (char *const *variable = given; variable && *variable && count < 252; variable++)
        made->list[count++] = *variable;
    snprintf(made->root, sizeof made->root, "FAULTS_ROOT=%s", root);
    snprintf(made->record, sizeof made->record, "FAULTS_RECORD=%s", record_path);
    made->list[count++] = preload;
    made->list[count++] = made->root;
    made->list[count++] = made->record;
    made->list[count] = NULL;
    return made->list;
}

#define SPAWNS(name)                                                                                                   \
    int name(pid_t *made, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *how,   \
             char *const arguments[], char *const given[]) {                                                           \
        REAL(name);                                                                                                    \
        struct variables variables;                                                                                    \
        struct call call = begin(SPAWN, path, -1, 0);                                                                  \
        int error = call.fault > 0                                                                                     \
                        ? call.fault                                                                                   \
                        : real(made, path, actions, how, arguments, environment_of(arguments, given, &variables));     \
        end(call, error ? -1 : 0, error);                                                                              \
        return error;                                                                                                  \
    }
SPAWNS(posix_spawn)
SPAWNS(posix_spawnp)

int execve(const char *path, char *const arguments[], char *const given[]) {
    REAL(execve);
    struct variables variables;
    return real(path, arguments, environment_of(arguments, given, &variables));
}
