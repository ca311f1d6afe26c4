/* Mirroring reads one place version by version and writes another. Each is a deltawire
 * stream or another system's.
 *
 *     stream ──▶ WORK/from, a directory that follows ──▶ publisher, its baseline in
 *     format ──▶ a model in a nameless file in WORK  ──▶ WORK/to; or a format, with a
 *                                                        model as a reader of TO has it
 *
 * TO itself records which version of FROM it holds: in the number of another system's
 * version, in the training step and the notes of a deltawire version, or, if both are
 * deltawire streams, in the source of the version. So a mirror that was killed continues
 * after the newest version in TO. Everything else that it keeps can be made again.
 */
#ifndef CLI_MIRROR_H
#define CLI_MIRROR_H

#include <deltawire/checkpoint.h>
#include <deltawire/follow.h>
#include <deltawire/publish.h>

#include "command_line.h"
#include "formats/formats.h"
#include "keys.h"
#include "peer_options.h"
#include "quantize_options.h"
#include "progress_bar.h"
#include "stream_open.h"

/* ---- the source (mirror_source.c) ---- */

typedef struct cli_source {
    const char *url;
    const dw_store_options *options;
    const char *into; /* a stream: the directory for its weights */
    const char *work; /* another system's: for its model */
    const char *base; /* the checkpoint behind a version 0 that was not uploaded; NULL */
    dw_trust trust;
    const cli_session *session;

    dw_store *store;
    cli_fork_opener fork_opener;
    dw_follower *follower; /* a deltawire stream */
    dw_foreign *foreign;   /* or another system's */
} cli_source;

/* Opens the stream, deltawire's or another system's. DW_NOT_FOUND if there is none. */
dw_status cli_source_open(cli_source *source, dw_error *err);
void cli_source_close(cli_source *source);

bool cli_source_is_foreign(const cli_source *source);

/* Another system's: whether NOTES of the version that was made of VERSION are those of
 * that version. DW_STALE if FROM has another one of that number now. */
dw_status cli_source_check_notes(cli_source *source, uint64_t version, const char *notes,
                                 dw_error *err);
/* Writes such notes for the version that the weights are at. */
void cli_source_write_notes(const cli_source *source, char *notes, size_t n_bytes);

/* Another system's: the weights are VERSION's, and are in TO, a stream that has them as
 * TO_VERSION. */
dw_status cli_source_seed(cli_source *source, dw_store *to, uint64_t to_version,
                          uint64_t version, const dw_progress *progress, dw_error *err);

/* The lowest version above AFTER that can be reached, or DW_NO_VERSION if there is none
 * yet. AFTER may be DW_NO_VERSION: then all versions count. */
dw_status cli_source_next(cli_source *source, uint64_t after, uint64_t *version,
                          dw_error *err);

/* Brings the weights to VERSION. */
dw_status cli_source_go(cli_source *source, uint64_t version, const dw_progress *progress,
                        dw_error *err);

/* The weights, and the version they are at. Valid until the next move. */
const dw_tensor *cli_source_tensors(const cli_source *source, size_t *n_tensors);
uint64_t cli_source_version(const cli_source *source);
/* The commit of that version, if FROM is a deltawire stream. Valid until the next call.
 */
dw_status cli_source_commit(const cli_source *source, dw_version_info *out,
                            dw_error *err);

/* ---- mirror_files.c ---- */

/* Copies of the companion files of that version. */
typedef struct cli_source_files {
    bool is_given;      /* false: it says nothing about files */
    bool is_known;      /* they are those of SHA256, and were not fetched */
    uint8_t sha256[32]; /* of their names and hashes */
    dw_file *items;
    size_t n;
} cli_source_files;
/* KNOWN: the hash of the files that the caller has, or NULL. Release OUT in any case. */
dw_status cli_source_files_read(const cli_source *source, const uint8_t *known,
                                cli_source_files *out, dw_error *err);
void cli_source_files_release(cli_source_files *files);
dw_status cli_source_state(const cli_source *source, dw_digest *state, dw_error *err);

/* ---- the target (mirror_target.c) ---- */

#define CLI_NOTES_SIZE  1024
#define CLI_NOTES_BEGIN "mirrored from version "

typedef struct cli_target {
    const char *url;
    const dw_store_options *options;
    const char *work;        /* for the baseline, or the model */
    const dw_format *format; /* NULL: a deltawire stream */
    dw_foreign_options foreign_options;
    const dw_sign_key *sign_key;
    bool new_key;
    bool no_provenance;
    bool take_over;
    const dw_quant_options *quantize; /* or NULL */
    uint8_t files_sha256[32]; /* of the companion files that TO has from FROM ... */
    bool knows_files;         /* ... if this is set */
    const char *from_stream;  /* the id of FROM, if it is a deltawire stream; else NULL */
    const cli_session *session;

    dw_store *store;
    dw_publisher *publisher;
    dw_foreign *foreign;        /* its model is at the newest version, or at none */
    char notes[CLI_NOTES_SIZE]; /* of the newest version, if FROM is another system's */
    const dw_tensor *tensors;   /* those that the publisher was opened with */
    const void *data;           /* of the first of them */
} cli_target;

/* What was written for a version of FROM. */
typedef struct cli_mirrored {
    uint64_t from_version;
    uint64_t version; /* in TO */
    bool is_whole;
    bool was_there;
    bool is_compared; /* with the weights of FROM */
    uint64_t n_changed;
    uint64_t n_objects;
    uint64_t n_bytes;
} cli_mirrored;

/* Opens the store. Sets its newest version, and which version of FROM that is;
 * DW_NO_VERSION if there is none. */
dw_status cli_target_open(cli_target *target, uint64_t *from_version, uint64_t *version,
                          dw_error *err);
void cli_target_close(cli_target *target);

/* Proves that the newest version of TO, another system's, has SOURCE's weights. */
dw_status cli_target_prove(cli_target *target, const cli_source *source,
                           const dw_progress *progress, dw_error *err);

/* Writes SOURCE's weights as a version of TO, and proves that TO holds them. If TO has
 * that version already, this only proves it; if it has a later one, which another mirror
 * made, OUT names that one. */
dw_status cli_target_write(cli_target *target, const cli_source *source,
                           const dw_progress *progress, cli_mirrored *out, dw_error *err);

/* ---- all of it (mirror_loop.c) ---- */

typedef struct cli_mirror {
    cli_source source;
    cli_target target;
    bool once;
    uint64_t until; /* or DW_NO_VERSION */
    double interval;
    const cli_session *session;
    cli_progress bar;

    uint64_t at;      /* the version of FROM that TO holds, or DW_NO_VERSION */
    uint64_t to_at;   /* its number in TO, or DW_NO_VERSION */
    uint64_t skipped; /* a later one that cannot be quantised, or DW_NO_VERSION */
    bool has_source;
    bool has_target;
    bool is_proven; /* TO's newest version was compared, as far as FROM has it */
    uint64_t n_done;
} cli_mirror;

/* Runs until a signal asks to stop (DW_CANCELLED), --until is reached (its version may
 * have been skipped), or, with --once, all is mirrored. */
dw_status cli_mirror_loop(cli_mirror *m, dw_error *err);

#endif
