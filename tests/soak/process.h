/* Shared by the drivers of the soak tests: role processes, a scratch directory, and
 * stores. A driver ends with soak_end, which leaves nothing behind except, after a
 * failure, the log. */
#ifndef DW_SOAK_PROCESS_H
#define DW_SOAK_PROCESS_H

#include <sys/types.h>

#include "deltawire/store.h"

#define SOAK_PATH 512

extern char soak_dir[64];

/* SOAK_DIR is made in SOAK_ROOT, TMPDIR or /tmp. */
void soak_begin(void);
int soak_end(bool good);

/* SOAK_DIR/NAME; it is made if it does not exist. */
void soak_subdir(char out[SOAK_PATH], const char *name);
void soak_remove_tree(const char *path);

/* A store that nobody else uses: below DW_TEST_STORE, or below SOAK_DIR. */
void soak_store_url(char out[SOAK_PATH], const char *name);
bool soak_store_empty(const char *url);

uint64_t soak_now_ms(void);
void soak_sleep_ms(uint64_t ms);
uint64_t soak_env(const char *name, uint64_t otherwise);

/* Starts PROGRAM with ARGV after its name. It ends with this process, and its output goes
 * to the log. */
pid_t soak_start_program(const char *program, const char *const argv[], size_t n);

/* The same for soak_role, whose first argument is the role. */
pid_t soak_start(const char *const argv[], size_t n);

/* Whether the child PID has ended. *GOOD is false if it did not end by SIGKILL, by
 * SIGTERM (it had just started) or with SOAK_FINE or SOAK_FENCED. */
bool soak_has_ended(pid_t pid, bool *good);

#endif
