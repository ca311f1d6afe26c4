/* A progress bar on stderr, if that is a terminal. Signals cancel: the library is asked
 * to stop and cleans up. */
#ifndef CLI_PROGRESS_BAR_H
#define CLI_PROGRESS_BAR_H

#include <stdbool.h>
#include <sys/types.h>

#include <deltawire/delta.h>

#include "command_line.h"

/* From now on the first SIGINT, SIGTERM or SIGHUP asks to stop; a second one kills. */
void cli_catch_signals(void);

/* The signal that asked to stop, or 0. */
int cli_signal(void);

/* Fails with DW_CANCELLED if a signal asked to stop: call it between two steps. */
dw_status cli_check_signal(dw_error *err);

typedef struct cli_progress {
    const char *label;
    bool shown;
    double t_start; /* seconds */
    double t_drawn;
} cli_progress;

/* The bar appears only if the work takes long enough. */
cli_progress cli_progress_start(const cli_session *s, const char *label);

/* Moves the bar; a total of 0 means unknown. Returns non-zero if a signal asked to
 * stop. Fits dw_progress. */
int cli_progress_report(void *progress, uint64_t bytes_done, uint64_t bytes_total);

/* The bar as a dw_progress. */
dw_progress cli_progress_hook(cli_progress *progress);

/* A dw_progress without a bar, only for signals. */
dw_progress cli_signal_hook(void);

/* Wipes the bar. */
void cli_progress_end(cli_progress *progress);

/* Seconds of a clock that only moves forward. */
double cli_now(void);

/* Sleeps until the time is over or a signal asks to stop. */
void cli_sleep(double seconds);

/* Waits at most SECONDS for a child that leads a process group of its own, and passes a
 * signal that asks to stop on to it. *STATUS is as from waitpid; false if the child has
 * not ended by then. */
bool cli_wait_child_for(pid_t pid, double seconds, int *status);

#endif
