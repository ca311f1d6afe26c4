/* Publishes one checkpoint, or each one that a trainer saves. */
#ifndef CLI_CMD_PUBLISH_H
#define CLI_CMD_PUBLISH_H

#include <deltawire/publish.h>

#include "checkpoint_read.h"
#include "command_line.h"
#include "keys.h"
#include "publish_files.h"
#include "quantize_options.h"

typedef struct cli_publish {
    const char *url;
    dw_store_options store;
    cli_keys keys; /* loaded */
    dw_publish_options options;
    cli_quantize quantize; /* options.quantize points to its options */
    const char *fork_url;  /* --fork, without @N; or NULL */
    const char *baseline;  /* --baseline, or NULL: in the user's cache */
    cli_with with;         /* companion files */
    const char *step;      /* or NULL */
    const char *notes;
    bool keep_f32;        /* do not round F32 to BF16 */
    bool skip_same;       /* publish nothing if the head has these weights */
    uint64_t past;        /* ... or version PAST, with the digest PAST_STATE, has them; */
    dw_digest past_state; /* DW_NO_VERSION: none */
    uint64_t expect_head; /* DW_CONFLICT if the head is another; DW_NO_VERSION: any */
    bool begin_new;       /* refuse a stream that is there; set the baseline of one that
                             is gone aside */
    bool leave_files;     /* the version has the companion files of its parent */
    uint64_t known_head; /* known to have existed: a stream without it is absent or rolled
                            back; DW_NO_VERSION: none */
} cli_publish;

typedef struct cli_published {
    bool opened;       /* the checkpoint could be opened; an error came later */
    bool files_failed; /* its companion files cannot be read */
    bool changed;  /* it failed because the checkpoint was written to while it was read */
    bool created;  /* the stream is new, and this is its version 0 */
    bool skipped;  /* skip_same: it was published already ... */
    uint64_t same; /* ... as this version; the report's is the head */
    uint64_t n_model_bytes;
    uint64_t n_model_elems;
    size_t n_files; /* companion files that were given with it */
    dw_publish_report report;
    dw_error aftermath; /* an error after the commit; DW_OK: nothing */
} cli_published;

/* The baseline's directory in the user's cache. Free it with dw_free. NULL after an
 * error. */
char *cli_publish_cache_dir(const cli_publish *p, dw_error *err);

/* Publishes the checkpoint. *OUT is filled as far as it went. */
dw_status cli_publish_once(const cli_publish *p, const cli_session *s,
                           const char *checkpoint, cli_published *out, dw_error *err);

/* Publishes each complete checkpoint under DIR until a signal asks to stop. Returns the
 * exit code. */
int cli_publish_watch(cli_publish *p, const cli_session *s, const char *dir);

/* ---- publish_room.c ---- */

/* Fails before the first write if the disk of DIR has no room for the baseline and, if
 * the stream IS_NEW and on the same disk, for version 0. */
dw_status cli_publish_check_room(const cli_publish *p, const dw_store *store, bool is_new,
                                 const cli_weights *weights, const char *dir,
                                 dw_error *err);

/* ---- cmd_publish.c ---- */

/* Prints what was published: rows or a JSON object. If EVENT is not NULL, one line. */
void cli_published_print(const cli_published *done, const cli_session *s, const char *url,
                         const char *checkpoint, const char *event);

#endif
