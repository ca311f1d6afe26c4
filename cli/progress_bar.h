/* A progress bar on stderr if that is a terminal, and signals as cancellation: the
 * library is asked to stop and cleans up after itself. */
#ifndef CLI_PROGRESS_BAR_H
#define CLI_PROGRESS_BAR_H

#include <stdbool.h>
#include <sys/types.h>

#include <deltawire/delta.h>

#include "command_line.h"

/* The first SIGINT, SIGTERM or SIGHUP asks to stop; a second one kills as usual. */
void cli_catch_signals(void);

/* In a child that the parent waits for with cli_wait_child: in a group of its own, so
 * that signals of the terminal reach it only through the parent. Further signals do not
 * kill: a service manager signals both processes, and then the parent passes it on.
 * Writes to the terminal do not stop the child either. */
void cli_catch_signals_as_child(void);

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

/* The bar appears with the first report that comes late enough to be worth it. */
cli_progress cli_progress_start(const cli_session *s, const char *label);

/* Moves the bar; a total of 0 means unknown. Returns non-zero if a signal asked to
 * stop. Fits dw_progress. */
int cli_progress_report(void *progress, uint64_t bytes_done, uint64_t bytes_total);

/* The bar as the library's hook. */
dw_progress cli_progress_hook(cli_progress *progress);

/* No bar, only signals: for waiting. */
dw_progress cli_signal_hook(void);

/* Wipes the bar. */
void cli_progress_end(cli_progress *progress);

/* Seconds of a clock that only moves forward. */
double cli_now(void);

/* Sleeps, or until a signal asks to stop. */
void cli_sleep(double seconds);

/* Waits for a child that leads a process group of its own, and passes a signal that asks
 * to stop on to it. Returns its status as waitpid does. */
int cli_wait_child(pid_t pid);

/* The same for at most SECONDS: false if it has not ended by then. */
bool cli_wait_child_for(pid_t pid, double seconds, int *status);

#endif
