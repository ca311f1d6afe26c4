/* What the drivers of the soak tests share: role processes, a scratch directory, stores
 * of their own. A driver ends with soak_end, which leaves nothing behind but, where it
 * failed, the log. */
#ifndef DW_SOAK_PROCESS_H
#define DW_SOAK_PROCESS_H

#include <sys/types.h>

#include "deltawire/store.h"

#define SOAK_PATH 512

extern char soak_dir[64];

/* SOAK_DIR is made in SOAK_ROOT, TMPDIR or /tmp. */
void soak_begin(void);
int soak_end(bool good);

/* SOAK_DIR/NAME, which is made where it is not there. */
void soak_subdir(char out[SOAK_PATH], const char *name);
void soak_remove_tree(const char *path);

/* A store that nobody else uses: below DW_TEST_STORE, or below SOAK_DIR. */
void soak_store_url(char out[SOAK_PATH], const char *name);
bool soak_store_empty(const char *url);

uint64_t soak_now_ms(void);
void soak_sleep_ms(uint64_t ms);
uint64_t soak_env(const char *name, uint64_t otherwise);

/* Starts PROGRAM with ARGV behind its name; it ends with this process, and says what it
 * has to say to the log. */
pid_t soak_start_program(const char *program, const char *const argv[], size_t n);

/* The same for soak_role, whose first argument is the role. */
pid_t soak_start(const char *const argv[], size_t n);

/* Whether PID, a child, has ended. False in *GOOD where it did so in another way than by
 * SIGKILL, SIGTERM (it had hardly begun) or with SOAK_FINE or SOAK_FENCED. */
bool soak_has_ended(pid_t pid, bool *good);

#endif
