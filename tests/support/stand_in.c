/* A program that does what its first argument says: see stand_ins.py. */

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef ON_VERSION
#define ON_VERSION
#endif

#ifdef NEEDS_LIBRARY
extern int library;
#endif

#ifdef FAILS_TO_FORK
#include <dlfcn.h>
#include <sys/syscall.h>

/* Takes the place of the C library's function: the third process cannot be forked. */
long syscall(long number, ...) {
    static int forks;
    va_list rest;
    long values[6];
    if (number == SYS_clone && ++forks == 3) return errno = EAGAIN, -1;
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

int main(int count, char **words, char **variables) {
    const char *what = count > 1 ? words[1] : "";
#ifdef NEEDS_LIBRARY
    library++;
#endif
    if (!strcmp(what, "-version")) {
        ON_VERSION;
        puts("stand-in version 1");
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
    } else if (!strcmp(what, "names")) {
        printf("%s %s %s", words[0], program_invocation_name, program_invocation_short_name);
    } else if (!strcmp(what, "options")) {
        /* With the arguments in another order than the options. */
        for (int option; (option = getopt(count, words, "ab")) != -1;) putchar(option);
    } else if (!strcmp(what, "wait")) {
        puts("waiting");
        fflush(stdout);
        for (;;) pause();
    }
}
