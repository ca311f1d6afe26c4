/* Scans a trainer's output directory repeatedly for complete new checkpoints.
 *
 * Trainers do not signal that a checkpoint is complete. It counts as complete if its
 * files had the same sizes and times in two scans, and no file with a temporary name is
 * newer. The caller then tries to open it.
 */
#ifndef CLI_WATCH_DIR_H
#define CLI_WATCH_DIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <deltawire/tensor.h>
#include <deltawire/base.h>
#include <deltawire/stream.h>

/* The reason why a directory is not published. */
typedef enum cli_watch_fault {
    CLI_WATCH_GOOD,
    CLI_WATCH_EMPTY,
    CLI_WATCH_ONLY_BIN,    /* weights, but none that are safetensors */
    CLI_WATCH_NO_WEIGHTS,  /* files or directories, but no weights */
    CLI_WATCH_UNKNOWN_NAME /* weights, but no step in its name */
} cli_watch_fault;

typedef struct cli_watched {
    char *path; /* DIR/checkpoint-123, or DIR itself */
    bool has_step;
    uint64_t step;
    uint64_t
        print; /* a hash of names, sizes and times at the last scan; 0: not usable yet */
    uint64_t file_print;   /* the same of its companion files */
    unsigned n_file_tries; /* that failed because of them */
    bool is_stable;        /* both were the same in the scan before */
    uint64_t done;         /* its print when it was handled; 0: never */
    bool seen;             /* in this scan */
    time_t written;        /* when its weights were written */

    /* a version of this step that existed when the watch began; DW_NO_VERSION: none */
    uint64_t version;
    dw_digest state;

    cli_watch_fault fault;
    unsigned n_useless; /* scans since it has a fault */
    bool reported;      /* its fault was reported */
} cli_watched;

typedef struct cli_watch {
    const char *dir;
    dw_companion_rules rules; /* which companion files belong to a checkpoint */
    cli_watched *items;
    size_t n_items;
    bool has_step; /* of the newest version */
    uint64_t step;
} cli_watch;

/* Scans once. Forgets what is gone. */
dw_status cli_watch_look(cli_watch *watch, dw_error *err);

/* The complete checkpoint to handle next: that of the lowest step, DIR itself last; or
 * NULL. Valid until the next scan. */
cli_watched *cli_watch_next(cli_watch *watch);

/* Marks it as handled until its files change. */
void cli_watch_done(cli_watched *item);

/* A directory that could not be published for some scans; each is returned once. NULL:
 * none. Valid until the next scan. */
cli_watched *cli_watch_useless(cli_watch *watch);

/* Describes the fault, and what to do. */
const char *cli_watch_fault_text(cli_watch_fault fault);

void cli_watch_release(cli_watch *watch);

#endif
