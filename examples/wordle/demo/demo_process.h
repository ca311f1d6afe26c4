/* The processes of the demo. They always end with the demo. */
#ifndef WORDLE_DEMO_PROCESS_H
#define WORDLE_DEMO_PROCESS_H

#include <stdbool.h>
#include <sys/types.h>

#include <deltawire/deltawire.h>

enum { DEMO_PATH_BYTES = 1024, DEMO_MAX_ARGUMENTS = 96 };

typedef struct demo_process {
    char name[32];
    char log[DEMO_PATH_BYTES]; /* its standard output, and .err for the other */
    pid_t pid;                 /* 0: not running */
    int status;                /* of waitpid, once it has ended */
} demo_process;

/* Starts ARGV[0] with its output in DIR/NAME.log and DIR/NAME.err. It gets SIGKILL when
 * this process dies. It has its own group, so that Ctrl-C reaches only this process.
 * PREFIX, words separated by blanks, is put before the command; may be empty. */
dw_status demo_start(demo_process *p, const char *dir, const char *name,
                     const char *prefix, char *const argv[], dw_error *err);

/* Whether it runs; reaps it if not. */
bool demo_runs(demo_process *p);

/* SIGTERM to all at once, SIGKILL to those that are still there after GRACE_MS. */
void demo_end(demo_process *const *all, size_t n, unsigned grace_ms);

/* The last line of its standard error, for a message. */
void demo_last_words(const demo_process *p, char *out, size_t room);

/* Sends SIGKILL to it and its children. */
void demo_kill_now(demo_process *p);

/* Runs it to its end. DW_CONFLICT, with its last line, if the exit code is not 0.
 * DW_CANCELLED, here and below, if a signal asks this process to end. */
dw_status demo_run(const char *dir, const char *name, const char *prefix,
                   char *const argv[], dw_error *err);

/* Waits up to TIMEOUT_MS for a line "SAYS URL" in its log, as in "listening on URL". */
dw_status demo_address(demo_process *p, const char *says, char *url, size_t room,
                       unsigned timeout_ms, dw_error *err);

/* Starts a process that removes DIR once this one is gone. Close *FD at the end to remove
 * it at once. */
dw_status demo_janitor(const char *dir, int *fd, dw_error *err);

#endif
