/* Runs a whole test program under every kernel of the machine, each in a process, because
 * a process chooses its kernel once. The hash of kernel_hash() must be the same under all
 * of them. */
#ifndef DW_TEST_EVERY_KERNEL_H
#define DW_TEST_EVERY_KERNEL_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <xxhash.h>

#include "kernel/kernel.h"

static uint64_t kernel_hash_value;

static inline void kernel_hash(const void *bytes, size_t n_bytes)
{
    kernel_hash_value = XXH64(bytes, n_bytes, kernel_hash_value);
}

/* The exit status of the program under KERNEL; its hash goes to *HASH. */
static inline int run_under(const char *kernel, char **argv, uint64_t *hash)
{
    int channel[2];
    if (pipe(channel) != 0)
        return 1;
    pid_t child = fork();
    if (child == 0) {
        char number[16];
        snprintf(number, sizeof number, "%d", channel[1]);
        setenv("DELTAWIRE_KERNEL", kernel, 1);
        setenv("DW_TEST_HASH_FD", number, 1);
        close(channel[0]);
        execv("/proc/self/exe", argv);
        _exit(127);
    }
    close(channel[1]);
    ssize_t n = read(channel[0], hash, sizeof *hash);
    close(channel[0]);
    int status = 1;
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 1;
    return WIFEXITED(status) && n == sizeof *hash ? WEXITSTATUS(status) : 1;
}

/* For main(): RUN is called in a process for each kernel. Threads are the same with all
 * of them, so with the thread sanitizer it is called once, with the kernel of this
 * machine. */
static inline int under_every_kernel(char **argv, int (*run)(void))
{
    static const char *const names[] = {"plain", "avx2", "avx512", "neon"};
    const char *channel = getenv("DW_TEST_HASH_FD");
    if (channel) {
        int failed = run();
        if (write(atoi(channel), &kernel_hash_value, sizeof kernel_hash_value) < 0)
            failed++;
        return failed != 0;
    }
    const char *sanitizer = getenv("DW_SANITIZE");
    if (sanitizer && strcmp(sanitizer, "thread") == 0)
        return run();
    uint64_t expected = 0;
    int failed = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (!dw_kernels_find(names[i])) {
            fprintf(stderr, "kernel %s: not on this machine\n", names[i]);
            continue;
        }
        fprintf(stderr, "kernel %s\n", names[i]);
        uint64_t hash = 0;
        failed += run_under(names[i], argv, &hash) != 0;
        if (i == 0)
            expected = hash;
        if (hash != expected) {
            fprintf(stderr, "kernel %s: other bytes than plain\n", names[i]);
            failed++;
        }
    }
    return failed != 0;
}

#endif
