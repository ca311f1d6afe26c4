/* Streams: the versions of a model in a store.
 *
 * publish.h writes versions, and follow.h brings weights to them. This header reads a
 * stream's records, checks, repairs, collects and copies it, and adds shortcuts.
 * docs/PROTOCOL.md describes the objects of a stream.
 */
#ifndef DELTAWIRE_STREAM_H
#define DELTAWIRE_STREAM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "deltawire/base.h"
#include "deltawire/store.h"
#include "deltawire/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- keys ---- */

/* Ed25519 keys: who may write a stream.
 *
 * A trainer signs its commits with a secret key. A follower that is given public keys
 * refuses everything that is not signed with one of them. The file of a secret key is PEM
 * as OpenSSL writes it (`openssl pkey -in FILE` reads it). A public key is one line of
 * text: `deltawire-key:` and 64 hexadecimal digits. */

#define DW_PUBLIC_KEY_BYTES 32
#define DW_PUBLIC_KEY_TEXT  79 /* "deltawire-key:", 64 digits, NUL */

typedef struct dw_sign_key dw_sign_key;

/* Makes a new key and writes it to PATH, which only its owner can read. DW_CONFLICT if
 * the file exists. PUBLIC_TEXT takes the public key. */
DW_API dw_status dw_sign_key_create(const char *path,
                                    char public_text[DW_PUBLIC_KEY_TEXT], dw_error *err);

/* Reads a secret key. Refuses a file that others may read. */
DW_API dw_status dw_sign_key_open(dw_sign_key **out, const char *path, dw_error *err);

/* Wipes and frees. */
DW_API void dw_sign_key_close(dw_sign_key *key);

/* The public key of a secret key: the one to give to followers. */
DW_API void dw_sign_key_public(const dw_sign_key *key, uint8_t out[DW_PUBLIC_KEY_BYTES]);

/* Reads a public key from its text, or from the file at this path. */
DW_API dw_status dw_public_key_read(uint8_t out[DW_PUBLIC_KEY_BYTES],
                                    const char *text_or_path, dw_error *err);
DW_API void dw_public_key_format(char out[DW_PUBLIC_KEY_TEXT],
                                 const uint8_t key[DW_PUBLIC_KEY_BYTES]);

/* ---- stream ---- */

typedef struct dw_stream dw_stream;

/* In place of a version number. A function that has no use for one of them returns
 * DW_INVALID or DW_NOT_FOUND. */
#define DW_NO_VERSION UINT64_MAX /* no version: none was reached, or none is meant */
#define DW_NEWEST     (UINT64_MAX - 1) /* the newest version at the time of the call */

/* The keys and the stream that a reader accepts. Without keys it accepts every record,
 * but a signature must still be good. Borrowed for the call. */
typedef struct dw_trust {
    const uint8_t (*keys)[DW_PUBLIC_KEY_BYTES];
    size_t n_keys;
    const char *stream; /* the id that the stream must have, since a key may have signed
                           other streams too. NULL: any, but a directory stays with the
                           stream that its weights are from */
} dw_trust;

/* ---- reading ------------------------------------------------------------------ */

/* Opens the stream at the root of STORE. DW_NOT_FOUND if there is none. TRUST may be
 * NULL. */
DW_API dw_status dw_stream_open(dw_stream **out, dw_store *store, const dw_trust *trust,
                                dw_error *err);
DW_API void dw_stream_close(dw_stream *stream);

/* The stream's id: 32 hexadecimal digits. */
DW_API const char *dw_stream_id(const dw_stream *stream);

/* The names, types and shapes of the model's tensors. Their data is NULL. */
DW_API const dw_tensor *dw_stream_tensors(const dw_stream *stream, size_t *n_tensors);

typedef struct dw_stream_info {
    const char *quantization; /* the name of the scheme (publish.h), which may be one
                                 that this library does not know; NULL if the weights are
                                 not quantised */
    const char *rounded; /* of a quantised stream: what F32 weights were rounded to first,
                            "bf16" or "none"; else NULL */
    bool single_writer;  /* the store cannot keep several writers apart (PROTOCOL.md,
                            section 10) */
    uint64_t reserved[4];
} dw_stream_info;
DW_API void dw_stream_get_info(const dw_stream *stream, dw_stream_info *out);

/* The newest committed version. DW_NOT_FOUND if there is none yet. DW_CORRUPT if it is
 * not known, because a commit below a newer one is missing. */
DW_API dw_status dw_stream_head(dw_stream *stream, uint64_t *version, dw_error *err);

/* DW_CORRUPT if one of the newest 1,000 commits is missing, or if latest.json names a
 * commit that is missing. Commits below a restart or the floor may be missing. Lists
 * these commits; dw_stream_verify checks all. */
DW_API dw_status dw_stream_check_log(dw_stream *stream, dw_error *err);

/* The lowest version that is still kept: 0, or more after a collection. Also 0 if the
 * record of the floor is damaged. */
DW_API dw_status dw_stream_floor(dw_stream *stream, uint64_t *version, dw_error *err);

typedef enum dw_content {
    DW_CONTENT_DELTA = 0,
    DW_CONTENT_ANCHOR = 1, /* the whole model */
    DW_CONTENT_BASE = 2,   /* no objects: both sides have the checkpoint */
    DW_CONTENT_FORK = 3,   /* no objects: it is a version of another stream */
} dw_content;

/* The version of another stream that a version was made of: the source of a derived
 * stream, for example of one that holds the same weights quantised. */
typedef struct dw_version_source {
    const char *stream; /* the id of that stream */
    uint64_t version;
    const uint8_t *commit_sha256; /* of its commit, 32 bytes */
} dw_version_source;

/* Strings live until the next call with the same stream. */
/* A time line: when each moment of a version came, in microseconds. 0: not known. */
#define DW_N_MOMENTS 6
typedef struct dw_times {
    uint64_t us[DW_N_MOMENTS];
} dw_times;

/* The moments of a writer, from dw_publisher_publish on. The first five overlap. */
typedef enum dw_publish_moment {
    DW_CAPTURED, /* the weights were read, and may change again */
    DW_ENCODED,
    DW_PROVEN,    /* all objects were decoded, and lead to the weights */
    DW_HASHED,    /* the last object has its SHA-256 */
    DW_UPLOADED,  /* the last object is in the store */
    DW_COMMITTED, /* known to the writer only: the commit itself does not have it */
} dw_publish_moment;

/* The moments of a follower's newest version, since it saw that there is one. */
typedef enum dw_follow_moment {
    DW_FETCHED,
    DW_STAGED, /* decoded and proven, in one pass */
    DW_PREPARED,
    DW_PAUSED,  /* all engines are paused; 0: none was */
    DW_STORED,  /* the new values are in the weights */
    DW_RESUMED, /* all engines serve; 0: none was paused */
} dw_follow_moment;

static inline const char *dw_publish_moment_name(unsigned moment)
{
    static const char *const names[] = {"captured", "encoded",  "proven",
                                        "hashed",   "uploaded", "committed"};
    return names[moment];
}

static inline const char *dw_follow_moment_name(unsigned moment)
{
    static const char *const names[] = {"fetched", "staged", "prepared",
                                        "paused",  "stored", "resumed"};
    return names[moment];
}

typedef struct dw_version_info {
    uint64_t version;
    dw_content content;
    uint64_t epoch;
    const char *created; /* RFC 3339 */
    const char *step;    /* the training step: the trainer's own number or name */
    const char *notes;
    dw_digest state;
    uint64_t n_changed;
    uint64_t n_objects;
    uint64_t n_bytes; /* of the objects */
    bool is_signed;
    uint8_t key[DW_PUBLIC_KEY_BYTES];
    const char *base;           /* BASE: its name, for people; else NULL */
    const uint8_t *base_sha256; /* BASE: the SHA-256 of its tensors, 32 bytes. NULL: the
                                   record has none, so a checkpoint that somebody made to
                                   have the same digest would be accepted */
    const char *fork_url;       /* FORK; else NULL */
    uint64_t fork_version;
    uint64_t suspect_from; /* the writer found its baseline damaged before this version:
                              the versions from SUSPECT_FROM up to the one before this one
                              may not be the trainer's weights. This one is. 0: none */
    bool restart;          /* DELTA: a restart; only its anchor leads to it */
    /* For people: the version of the library that wrote the commit, and the name of the
     * writer's machine (of rank 0, if there were several), without control characters.
     * "": not recorded. A writer can put any text here, so decide nothing by it. */
    const char *library;
    const char *host;
    uint64_t n_files;      /* companion files (below) */
    uint64_t n_file_bytes; /* of all of them, also those that an older version stored */
    const uint8_t *commit_sha256; /* of this version's commit, 32 bytes */
    dw_version_source source;     /* of a derived stream; its `stream` is NULL if none */
    dw_times times;               /* dw_publish_moment; of rank 0 */
    uint64_t reserved[2];
} dw_version_info;

/* DW_NOT_FOUND if there is no such version. */
DW_API dw_status dw_stream_version(dw_stream *stream, uint64_t version,
                                   dw_version_info *out, dw_error *err);

/* An edge between versions: a delta or a fold; from DW_NO_VERSION: an anchor. */
typedef struct dw_edge {
    uint64_t from;
    uint64_t to;
    uint64_t n_bytes;
    uint64_t n_objects;
} dw_edge;

/* The shortcuts: folds and anchors beside the commits themselves, ordered by `to`. The
 * array lives until the next call with the same stream. */
DW_API dw_status dw_stream_shortcuts(dw_stream *stream, const dw_edge **shortcuts,
                                     size_t *n_shortcuts, dw_error *err);
/* The cheapest route from version FROM (DW_NO_VERSION: from nothing) to version TO, which
 * must be committed: its steps in order. DW_NOT_FOUND if no route leads there. The array
 * lives until the next call with the same stream. */
DW_API dw_status dw_stream_route(dw_stream *stream, uint64_t from, uint64_t to,
                                 const dw_edge **edges, size_t *n_edges, dw_error *err);

typedef struct dw_follower_info {
    const char *id;
    uint64_t version; /* DW_NO_VERSION: none yet */
    const char *host;
    const char *status;  /* "following", "behind", "error", "stopped", ... */
    const char *message; /* the error; may be empty */
    const char *time;    /* of the report, RFC 3339 */
    dw_times times;      /* dw_follow_moment */
} dw_follower_info;

typedef void (*dw_follower_fn)(void *context, const dw_follower_info *follower);

/* Calls FN for every follower that reports to the stream. */
DW_API dw_status dw_stream_followers(dw_stream *stream, dw_follower_fn fn, void *context,
                                     dw_error *err);

/* ---- checking, repairing, collecting, copying ---------------------------------- */

/* DW_OK if the checkpoint at PATH is the base of the stream. DW_MISMATCH if it has
 * another digest, DW_UNTRUSTED if it has another SHA-256, DW_INVALID if the stream has no
 * base. */
DW_API dw_status dw_stream_check_base(dw_stream *stream, const char *path,
                                      unsigned n_threads, dw_error *err);

typedef struct dw_verify_report {
    uint64_t n_versions;
    uint64_t n_shortcuts;
    uint64_t n_objects;
    uint64_t n_bytes;
    uint64_t n_unnamed; /* objects that no record names: leftovers of failed attempts */
    uint64_t n_orphans; /* objects whose record is missing or damaged. That is reported as
                           a fault; they are needed once the record is restored */
    uint64_t n_faults;
    uint64_t n_left;       /* damaged or missing records and objects below the newest
                              restart. Nobody needs them: they are no faults */
    uint64_t suspect_from; /* the newest versions that may not be the trainer's weights,
                              up to SUSPECT_END - 1 (dw_version_info); 0: none */
    uint64_t suspect_end;
    uint64_t reserved[4];
} dw_verify_report;

/* Takes a fault. The check goes on. */
typedef void (*dw_fault_fn)(void *context, const dw_error *fault);

/* Reads every record and every object above the floor. Checks formats, signatures, the
 * chain of hashes, epochs, sizes and SHA-256, and that every delta opens and names its
 * versions. If there are faults it returns the code of the first, whose text says what to
 * do. FN and REPORT may be NULL. */
DW_API dw_status dw_stream_verify(dw_stream *stream, dw_fault_fn fn, void *context,
                                  const dw_progress *progress, dw_verify_report *report,
                                  dw_error *err);

typedef struct dw_replay_options {
    size_t struct_bytes;   /* set by dw_replay_options_init */
    const char *spool_dir; /* takes a copy of the model; NULL: TMPDIR */
    const char *base;      /* the base, if the stream has one */
    /* Opens the store of the stream that this one forks from; NULL: dw_store_open. */
    dw_status (*open_store)(void *context, dw_store **out, const char *url,
                            dw_error *err);
    void *open_context;
    unsigned n_threads;
    dw_progress progress;
} dw_replay_options;

static inline void dw_replay_options_init(dw_replay_options *options)
{
    memset(options, 0, sizeof *options);
    options->struct_bytes = sizeof *options;
}

typedef struct dw_replay_report {
    uint64_t n_decoded; /* versions that decode */
    uint64_t first;     /* the first of them; DW_NO_VERSION: no version decodes */
    uint64_t n_left;    /* versions that a later restart left behind */
    uint64_t n_faults;
    uint64_t reserved[4];
} dw_replay_report;

/* Decodes every version above the floor from the one before, as a follower does. This
 * finds what dw_stream_verify cannot find: intact objects that lead to other weights than
 * the commit names. Versions that a restart left behind are no faults. If there are
 * faults it returns the code of the first, whose text names the version. TRUST, FN and
 * REPORT may be NULL. */
DW_API dw_status dw_stream_replay(dw_store *store, const dw_trust *trust,
                                  const dw_replay_options *options, dw_fault_fn fn,
                                  void *context, dw_replay_report *report, dw_error *err);

typedef struct dw_publish_options dw_publish_options; /* publish.h */

typedef struct dw_repair_report {
    uint64_t version; /* committed: the restart */
    uint64_t source;  /* its weights are those of this version; DW_NO_VERSION: TENSORS */
    dw_digest state;
    uint64_t n_bytes; /* of its anchor */
    uint64_t n_objects;
    uint64_t reserved[4];
} dw_repair_report;

/* Repairs a stream whose newest versions do not decode or have lost objects. The next
 * version is a restart: it has an anchor and needs no version before it, and followers
 * cross over to it by themselves. The weights are TENSORS or, if that is NULL, those of
 * the newest version that still decodes; DW_INVALID if that is the head. If the stream is
 * quantised and TENSORS are not its own, they are quantised as it is. Takes over from the
 * stream's writer. These members of OPTIONS are used: base, fork_store, spool_dir
 * (takes a copy of the model), sign_key, trust, single_writer, no_provenance,
 * max_anchor_bytes, n_threads, first_step, first_notes, confirm, progress and files. All
 * files that are given are stored again, so this also replaces those that were lost.
 * REPORT may be NULL. */
DW_API dw_status dw_stream_repair(dw_store *store, const dw_tensor *tensors,
                                  size_t n_tensors, const dw_publish_options *options,
                                  dw_repair_report *report, dw_error *err);

typedef struct dw_compactor dw_compactor;

typedef struct dw_compact_options {
    size_t struct_bytes;  /* set by dw_compact_options_init */
    const char *work_dir; /* keeps one copy of the model, two while it folds; NULL:
                             TMPDIR. No file has a name */
    const char *base;     /* the base, if the stream has one */
    unsigned fold_every;  /* these are as in dw_publish_options */
    unsigned anchor_every;
    double anchor_factor;
    uint64_t max_object_bytes;
    uint64_t max_anchor_bytes;
    const dw_sign_key *sign_key;
    dw_trust trust;
    unsigned n_threads;
    uint64_t n_keep; /* these too are as in dw_publish_options */
    bool keep_shortcuts;
} dw_compact_options;

static inline void dw_compact_options_init(dw_compact_options *options)
{
    memset(options, 0, sizeof *options);
    options->struct_bytes = sizeof *options;
    options->fold_every = 16;
    options->anchor_factor = 0.1;
}

/* Opens a compactor: a follower of the stream that adds folds and anchors to it, and
 * removes those that newer anchors supersede. It may run beside the publisher, followers,
 * collections and other compactors, and be killed.
 */
DW_API dw_status dw_compactor_open(dw_compactor **out, dw_store *store,
                                   const dw_compact_options *options, dw_error *err);
DW_API void dw_compactor_close(dw_compactor *compactor);

/* Makes the fold or the anchor that is due first, if any. *MADE, which may be NULL, takes
 * it; its `to` is DW_NO_VERSION if none was due. PROGRESS can cancel it. */
DW_API dw_status dw_compactor_step(dw_compactor *compactor, const dw_progress *progress,
                                   dw_edge *made, dw_error *err);

typedef struct dw_collect_options {
    size_t struct_bytes; /* set by dw_collect_options_init */
    uint64_t n_keep;     /* how many of the newest versions stay reachable; at least 1 */
    bool dry_run;        /* report what would be removed, and remove nothing */
    void (*removed)(void *context, const char *key, uint64_t n_bytes); /* may be NULL */
    void *context;
    dw_progress progress;
    unsigned n_anchors;  /* of the anchors only this many of the newest stay, and those
                            from which alone other versions are reached; and only the
                            folds that begin at these newest or above. 0: all stay */
    bool shortcuts_only; /* remove nothing but anchors and folds */
} dw_collect_options;

static inline void dw_collect_options_init(dw_collect_options *options)
{
    memset(options, 0, sizeof *options);
    options->struct_bytes = sizeof *options;
}

typedef struct dw_collect_report {
    uint64_t floor; /* versions below it are gone */
    uint64_t old_floor;
    uint64_t n_objects; /* removed, or to be removed */
    uint64_t n_bytes;
    const char *held_by; /* why the floor is not higher: "anchor", "follower ID" or
                            "keep"; lives until the next call */
    uint64_t bad_anchor; /* the lowest version whose anchor could not be the floor,
                            because its bytes are not that version; DW_NO_VERSION: none */
    const char *ahead;   /* the key of a follower's record that names AHEAD_VERSION, which
                            is above the newest version and has no commit: commits were
                            lost, or the record is wrong. Nothing of versions above the
                            newest is ever removed. NULL: none; lives like HELD_BY */
    uint64_t ahead_version;
    uint64_t wanted; /* the floor if every version had an anchor */
    uint64_t reserved[1];
} dw_collect_report;

/* Removes the records and objects that no kept version and no listed follower needs. May
 * run beside publishers, followers and other collectors. First it reads the anchor at the
 * new floor and compares it with its version. If the anchor is bad it tries an older one;
 * if there is none, it removes nothing and returns DW_CORRUPT. REPORT may be NULL. */
DW_API dw_status dw_stream_collect(dw_stream *stream, const dw_collect_options *options,
                                   dw_collect_report *report, dw_error *err);

/* Removes a follower from the list, so that nothing is kept for it. */
DW_API dw_status dw_stream_forget_follower(dw_stream *stream, const char *id,
                                           dw_error *err);

typedef struct dw_copy_report {
    uint64_t n_objects; /* copied now */
    uint64_t n_bytes;
    uint64_t n_present; /* were there before */
    uint64_t head;
    uint64_t reserved[4];
} dw_copy_report;

/* Copies the stream to another store: all records and objects above the floor. Checks
 * them on the way. Commits come last and in order, so followers of the copy see only
 * complete versions. A second call copies what is new. REPORT may be NULL. */
DW_API dw_status dw_stream_copy(dw_stream *stream, dw_store *to,
                                const dw_progress *progress, dw_copy_report *report,
                                dw_error *err);

/* ---- companion files ---- */

/* Companion files: the small files that belong to a model, such as config.json and those
 * of a tokenizer.
 *
 * A version can carry them (docs/PROTOCOL.md, section 2): at most 1,024 files, together
 * at most 64 MiB. Their names have no path. dw_publish_options and dw_publish_note take
 * them; a follower installs them in its directory together with the weights. This header
 * collects them from a directory and reads them from a stream. */

/* A file to publish. Borrowed. */
typedef struct dw_file {
    const char *name;
    const void *bytes; /* may be NULL if there are none */
    uint64_t n_bytes;
} dw_file;

/* ---- the files of a directory --------------------------------------------------- */

/* Which files of a directory to take: the usual names (docs/deltawire.1 lists them
 * under publish, --with) and those that match WITH, less those that match WITHOUT. The
 * patterns are those of fnmatch(3), for names without a path. They never take weights,
 * hidden files or those of deltawire. */
typedef struct dw_companion_rules {
    size_t struct_bytes; /* set by dw_companion_rules_init */
    const char *const *with;
    size_t n_with;
    const char *const *without;
    size_t n_without;
    bool no_defaults; /* only what matches WITH */
} dw_companion_rules;

static inline void dw_companion_rules_init(dw_companion_rules *rules)
{
    memset(rules, 0, sizeof *rules);
    rules->struct_bytes = sizeof *rules;
}

typedef struct dw_companions dw_companions;

/* Reads the files of DIR that the rules take into memory. Links to files are followed, as
 * caches of Hugging Face consist of them. Directories are passed over, unless WITH has
 * the very name. Anything else that is no regular file is an error: DW_NOT_FOUND if a
 * link leads nowhere or a name of WITH is not there, otherwise DW_INVALID. DW_STALE if a
 * file changes or vanishes while it is read, or its name ends in .json and it is empty or
 * ends too early. DW_INVALID if it cannot become JSON, if a name has control characters,
 * or if there are too many files or bytes. */
DW_API dw_status dw_companions_load(dw_companions **out, const char *dir,
                                    const dw_companion_rules *rules, dw_error *err);
DW_API void dw_companions_close(dw_companions *companions);

/* The files, ordered by name. They live as long as COMPANIONS. */
DW_API const dw_file *dw_companions_files(const dw_companions *companions,
                                          size_t *n_files);

/* ---- the files of a version ------------------------------------------------------ */

/* A file of a version. */
typedef struct dw_file_info {
    const char *name;
    uint64_t n_bytes;
    uint8_t sha256[32];
    uint64_t version; /* that stored these bytes first */
} dw_file_info;

/* The files of a version, ordered by name. IS_GIVEN is false if the version says nothing
 * about files, so that a reader leaves those it has; it may be NULL. The array lives
 * until the next call with the same stream. */
DW_API dw_status dw_stream_files(dw_stream *stream, uint64_t version,
                                 const dw_file_info **files, size_t *n_files,
                                 bool *is_given, dw_error *err);

/* Fetches a file of a version, and checks its size and SHA-256. DW_NOT_FOUND if the
 * version has no file of that name, or if a collection removed it. The bytes live until
 * the next call with the same stream. */
DW_API dw_status dw_stream_read_file(dw_stream *stream, uint64_t version,
                                     const char *name, const void **bytes,
                                     uint64_t *n_bytes, dw_error *err);

#ifdef __cplusplus
}
#endif

#endif
