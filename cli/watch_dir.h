/* A trainer's output directory, looked at again and again: which checkpoints in it are
 * complete and new.
 *
 * Nobody says when a checkpoint is complete. It counts as such when its files had the
 * same sizes and times at two looks, and no file that is still under a temporary name is
 * newer than they are; whether it opens is the caller's to try.
 */
#ifndef CLI_WATCH_DIR_H
#define CLI_WATCH_DIR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <deltawire/digest.h>
#include <deltawire/error.h>
#include <deltawire/stream.h>

/* What a directory lacks to be published. */
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
        print; /* of names, sizes and times at the last look; 0: not to be used yet */
    bool is_stable; /* the same at the look before */
    uint64_t done;  /* the print that it had when it was dealt with; 0: never */
    bool seen;      /* at this look */
    time_t written; /* when its weights were */

    /* a version of this step that was there when the watch began; DW_NO_VERSION: none */
    uint64_t version;
    dw_digest state;

    cli_watch_fault fault;
    unsigned n_useless; /* looks since it has a fault */
    bool reported;      /* its fault was reported */
} cli_watched;

typedef struct cli_watch {
    const char *dir;
    cli_watched *items;
    size_t n_items;
    bool has_step; /* of the newest version */
    uint64_t step;
} cli_watch;

/* Takes a look. What has gone is forgotten. */
dw_status cli_watch_look(cli_watch *watch, dw_error *err);

/* The complete checkpoint to deal with next: that of the lowest step, DIR itself last; or
 * NULL. Lives until the next look. */
cli_watched *cli_watch_next(cli_watch *watch);

/* It was published, or never will be, until its files change. */
void cli_watch_done(cli_watched *item);

/* The same for all there are with a step up to that: they were published earlier. */
void cli_watch_skip(cli_watch *watch, uint64_t step);

/* A directory that cannot be published and has been like that for some looks; each is
 * given once. NULL: none. Lives until the next look. */
cli_watched *cli_watch_useless(cli_watch *watch);

/* The fault, and what to do. */
const char *cli_watch_fault_text(cli_watch_fault fault);

void cli_watch_release(cli_watch *watch);

#endif
