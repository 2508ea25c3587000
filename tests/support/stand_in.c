/* A program that does what its first argument says: see stand_ins.py. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef ON_VERSION
#define ON_VERSION
#endif

#ifdef NEEDS_LIBRARY
extern int library;
#endif

#if defined(FAILS_TO_FORK) || defined(REPORTS_READS)
#include <dlfcn.h>
#include <stdint.h>
#include <sys/syscall.h>

/* Takes the place of the C library's function. */
long syscall(long number, ...) {
    va_list rest;
    long values[6];
#ifdef FAILS_TO_FORK
    static int forks;
    /* The third process cannot be forked. */
    if (number == SYS_clone && ++forks == 3) return errno = EAGAIN, -1;
#else
    /* Ahead of each read of its source, the program asks for a block that does not exist. */
    uint64_t question = UINT64_MAX;
    int answer;
    if (number == SYS_pread64 &&
        (write(4, &question, sizeof question) < 0 || read(4, &answer, sizeof answer) < 0))
        abort();
#endif
    va_start(rest, number);
    for (int i = 0; i < 6; i++) values[i] = va_arg(rest, long);
    va_end(rest);
    long (*real)(long, ...) = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    return real(number, values[0], values[1], values[2], values[3], values[4], values[5]);
}
#endif

static void *exit_in_thread(void *unused) {
    (void)unused;
    exit(0);
}

static void *print_late(void *unused) {
    usleep(1000);
    printf(" late");
    return unused;
}

static int end(const char *way) {
    pthread_t thread;
    printf("unflushed");
    if (!strcmp(way, "exit")) exit(3);
    if (!strcmp(way, "_exit")) _exit(4);
    if (!strcmp(way, "quick_exit")) quick_exit(5);
    if (!strcmp(way, "thread")) pthread_create(&thread, NULL, exit_in_thread, NULL), pause();
    if (!strcmp(way, "locked")) flockfile(stdout), pthread_create(&thread, NULL, exit_in_thread, NULL), pause();
    if (!strcmp(way, "pthread_exit")) pthread_create(&thread, NULL, print_late, NULL), pthread_exit(NULL);
    return 6;
}

/* What programs call that are compiled with _FORTIFY_SOURCE. */
ssize_t __read_chk(int, void *, size_t, size_t);
ssize_t __pread_chk(int, void *, size_t, off_t, size_t);
ssize_t __pread64_chk(int, void *, size_t, off64_t, size_t);

static char data[1 << 20];

/* A call of a function that reads. */
struct step {
    const char *way;
    int descriptor;
    size_t size;
    off_t offset;
};

static ssize_t call(const struct step *step, char *to) {
    int descriptor = step->descriptor;
    size_t size = step->size;
    const char *way = step->way;
    struct iovec pieces[] = {{to, 0}, {to, size}, {to + size, 1}};
    if (!strcmp(way, "read")) return read(descriptor, to, size);
    if (!strcmp(way, "read_chk")) return __read_chk(descriptor, to, size, size);
    if (!strcmp(way, "readv")) return readv(descriptor, pieces, 3);
    if (!strcmp(way, "pread")) return pread(descriptor, to, size, step->offset);
    if (!strcmp(way, "pread64")) return pread64(descriptor, to, size, step->offset);
    if (!strcmp(way, "pread_chk")) return __pread_chk(descriptor, to, size, step->offset, size);
    if (!strcmp(way, "pread64_chk")) return __pread64_chk(descriptor, to, size, step->offset, size);
    if (!strcmp(way, "preadv")) return preadv(descriptor, pieces, 3, step->offset);
    if (!strcmp(way, "preadv64")) return preadv64(descriptor, pieces, 3, step->offset);
    abort();
}

static void *read_backwards(void *unused) {
    for (off_t at = 330000; (at -= 10000) >= 0;)
        if (pread(3, data + at, 10000, at) != 10000) abort();
    return unused;
}

/* Follow steps; print the result of each, and what was read. */
static int follow(char **words) {
    for (; *words; words++) {
        char way[16];
        struct step step = {way, 0, 0, 0};
        sscanf(*words, "%15[^:]:%d:%zu:%ld", way, &step.descriptor, &step.size, &step.offset);
        long result;
        if (!strcmp(way, "open")) result = open("/dev/fd/3", O_RDONLY);
        else if (!strcmp(way, "openat")) result = openat(AT_FDCWD, "/proc/self/fd/3", O_RDONLY);
        else if (!strcmp(way, "dup")) result = dup(step.descriptor);
        else if (!strcmp(way, "close")) result = close(step.descriptor);
        else if (!strcmp(way, "seek")) result = lseek(step.descriptor, step.offset, SEEK_SET);
        else if (!strcmp(way, "mmap"))
            result = (long)mmap(NULL, 1, PROT_READ, MAP_PRIVATE, step.descriptor, 0);
        else if (!strcmp(way, "threads")) {
            pthread_t thread;
            static char other[sizeof data];
            pthread_create(&thread, NULL, read_backwards, NULL);
            result = pread(3, other, step.size, 0);
            pthread_join(thread, NULL);
            if (memcmp(data, other, step.size)) result = -1;
        } else result = call(&step, data);
        printf("%ld %d\n", result, result < 0 ? errno : 0);
        if (result > 0 && strstr(way, "read")) fwrite(data, 1, (size_t)result, stdout);
    }
    return 0;
}

int main(int count, char **words, char **variables) {
    const char *what = count > 1 ? words[1] : "";
#ifdef NEEDS_LIBRARY
    library++;
#endif
    if (!strcmp(what, "-version")) {
        ON_VERSION;
        puts("stand-in version 1");
    } else if (!strcmp(what, "-i")) {
        /* As ffmpeg opens a source. */
#ifdef USES_STREAMS
        getc(fopen("/dev/fd/3", "r"));
#else
        return read(open("/dev/fd/3", O_RDONLY), data, 1) < 0;
#endif
    } else if (!strcmp(what, "follow")) {
        return follow(words + 2);
    } else if (!strcmp(what, "end")) {
        return end(words[2]);
    } else if (!strcmp(what, "raise")) {
        raise(atoi(words[2]));
    } else if (!strcmp(what, "print")) {
        for (int i = 2; i < count; i++) fputs(words[i], stdout), putchar('\0');
        fputs("to stderr", stderr);
    } else if (!strcmp(what, "variables")) {
        for (; *variables; variables++) puts(*variables);
        puts(getenv("LD_PRELOAD") ? "preloaded" : "plain");
    } else if (!strcmp(what, "wait")) {
        puts("waiting");
        fflush(stdout);
        for (;;) pause();
    }
}
