/* Publishing: the trainer writes versions into a stream.
 *
 *     dw_publisher_open      opens or creates the stream; commits version 0 of a new one
 *     dw_publisher_publish   publishes the weights as they are; returns a ticket
 *     dw_publisher_captured  waits until the weights may change again
 *     dw_publisher_wait      waits until the version is committed
 *
 * A thread of the publisher compares the weights with the baseline, its copy of the
 * newest committed version, and encodes and uploads the changes. The baseline changes
 * only when a version is committed, so the next version also covers a step that failed or
 * was skipped. One process writes a stream at a time. A process that opens it takes over
 * once the earlier one writes nothing more (quiet_ms); if it does, it gets DW_CONFLICT
 * (docs/PROTOCOL.md).
 *
 * A publisher belongs to one thread at a time, but any thread may call dw_publisher_wait,
 * _captured and _cancel.
 */
#ifndef DELTAWIRE_PUBLISH_H
#define DELTAWIRE_PUBLISH_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "deltawire/base.h"
#include "deltawire/stream.h"
#include "deltawire/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- quantising ---- */

/* Quantising: a trainer's weights in BF16, F16 or F32 as the fp8 or int8 weights and
 * scales that engines load.
 *
 * A quantised weight takes the name and the shape of its source. A second tensor has its
 * scales, in F32: a value of the engine is the quantised element times its scale.
 *
 *     scheme     X.weight          scales of X.weight, [rows, columns]
 *     fp8-block  F8_E4M3           X.weight_scale_inv [ceil(rows/128), ceil(columns/128)]
 *     fp8-row    F8_E4M3           X.weight_scale     [rows, 1]
 *     int8-row   I8                X.weight_scale     [rows, 1]
 *
 * fp8-block is the format of DeepSeek-V3 and Qwen3-FP8, the others are those of
 * compressed-tensors. A tensor of three dimensions is a stack of matrices, and so are its
 * scales. docs/FORMAT.md, section 15, has the arithmetic. */

typedef enum dw_quant_scheme {
    DW_QUANT_NONE = 0,
    DW_QUANT_FP8_BLOCK = 1, /* one scale a block of 128 x 128 */
    DW_QUANT_FP8_ROW = 2,   /* one scale a row */
    DW_QUANT_INT8_ROW = 3,
} dw_quant_scheme;

/* "fp8-block", "fp8-row", "int8-row", "none"; "?" if SCHEME is none of them. */
DW_API const char *dw_quant_scheme_name(dw_quant_scheme scheme);

/* Finds a scheme by its name. */
DW_API bool dw_quant_scheme_from_name(dw_quant_scheme *out, const char *name);

/* Which tensors are quantised. By default, matrices whose name ends in `.weight` and
 * stacks of experts' matrices, except embeddings, output heads, norms and routers. The
 * patterns are those of fnmatch(3), over the names of tensors. KEEP goes before CONVERT,
 * and CONVERT before the default. A pattern that matches no tensor that it could decide
 * about is DW_INVALID. */
typedef struct dw_quant_options {
    size_t struct_bytes; /* set by dw_quant_options_init */
    dw_quant_scheme scheme;
    const char *const *keep; /* [n_keep] these stay as they are */
    size_t n_keep;
    const char *const *convert; /* [n_convert] these are quantised */
    size_t n_convert;
    bool from_f32; /* quantise F32 as it is; else it is rounded to BF16 first, as
                      dw_cast_bf16 does, and the result is that of a BF16 model */
} dw_quant_options;

static inline void dw_quant_options_init(dw_quant_options *options)
{
    memset(options, 0, sizeof *options);
    options->struct_bytes = sizeof *options;
}

/* ---- publishing ---- */

typedef struct dw_publisher dw_publisher;

/* What a publish does if the one before is not committed yet. */
typedef enum dw_when_busy {
    DW_BUSY_WAIT = 0, /* wait for it, at most max_wait_ms: then publish nothing now. The
                         next version covers this step */
    DW_BUSY_FOLD = 1, /* the same, but cancel it first, unless it is being committed or
                         restarts the stream, and publish both as one */
} dw_when_busy;

/* How version 0 of a new stream is made. */
typedef enum dw_first_version {
    DW_FIRST_ANCHOR = 0, /* upload the whole model */
    DW_FIRST_BASE = 1,   /* upload nothing: followers have the checkpoint, and its digest
                            identifies it */
    DW_FIRST_FORK = 2,   /* upload nothing: it is a version of another stream. If the
                            weights differ from it, the first delta holds the changes */
} dw_first_version;

/* A range of a tensor's elements, row-major, that this process has. */
typedef struct dw_shard {
    size_t tensor; /* its index in the list of tensors */
    uint64_t first;
    uint64_t n_elems;
    void *data; /* borrowed */
} dw_shard;

/* A collective call of all ranks: MAXIMA, N numbers below 2^31, become the largest over
 * all ranks, each by itself (an all-reduce with MAX). Ranks whose shards share quantised
 * blocks or rows agree on scales so, in dw_publisher_open, dw_publisher_publish and
 * dw_publisher_is_current, on the thread that calls these: each rank must call them in
 * the same order, also if a call failed. A rank that fails before it tells the others,
 * and all fail at once. If it ended, this function must return an error after a time
 * limit of its own. */
typedef dw_status (*dw_agree_fn)(void *context, uint32_t *maxima, size_t n,
                                 dw_error *err);

/* Where the baseline of tensors on devices is. The deltas are the same. */
typedef enum dw_baseline_memory {
    DW_BASELINE_DEVICE = 0, /* in memory of their device */
    DW_BASELINE_HOST = 1, /* in pinned memory of the host. At each publish it goes to the
                             device, where it is compared, and takes no memory there but
                             two buffers (docs/PYTHON.md, GPUs) */
} dw_baseline_memory;

typedef struct dw_publish_options {
    size_t struct_bytes; /* set by dw_publish_options_init */
    dw_first_version first;
    const char *base_name;    /* BASE: the name of the checkpoint, for people */
    const char *base;         /* the checkpoint that the stream starts from, if it was not
                                 uploaded. It replaces a baseline that was lost */
    dw_store *fork_store;     /* FORK: the store of the other stream; must outlive the
                                 publisher ... */
    uint64_t fork_version;    /* ... and the version there; default DW_NEWEST */
    const char *baseline_dir; /* keeps the baseline in this directory, mapped, for the
                                 next start. NULL: in memory; the next start reads it
                                 back from the stream */
    const char *spool_dir;    /* for data that does not fit in memory, and for upkeep,
                                 which keeps one copy of the model here, and two while it
                                 folds. NULL: baseline_dir, or TMPDIR */
    dw_when_busy when_busy;
    unsigned max_wait_ms; /* how long a publish may hold its caller because of the version
                             before; UINT_MAX, the default: no limit; 0: not at all. Ranks
                             decide together, and so need `agree` for a limit */
    const dw_sign_key *sign_key; /* or NULL; must outlive the publisher */
    dw_trust trust;              /* for the versions that are there */
    bool new_key;                /* allow that the newest version is signed by another key
                                    than SIGN_KEY, or that it is signed and SIGN_KEY is
                                    NULL. Else that is DW_UNTRUSTED */
    bool single_writer;          /* accept a store that cannot create conditionally: the
                                    caller makes sure that nobody else writes */
    bool no_provenance;          /* do not record the version of this library and the
                                    name of this machine in commits and epochs */
    unsigned fold_every;         /* a fold over every N versions after an anchor; 0:
                                    none. Default 16. Needs spool_dir or baseline_dir */
    unsigned anchor_every;       /* an anchor every N versions; 0: never by count */
    double anchor_factor;        /* an anchor if the cheapest route from the newest one
                                    takes more than this share of the model's bytes; 0:
                                    never. Default 0.1 */
    unsigned sweep_every;        /* compare the whole baseline with the committed digests
                                    within N versions, a share after each. A damaged
                                    baseline is read back from the stream; if a version of
                                    it does not decode, the next version restarts the
                                    stream. Default 64; 0: never */
    uint64_t max_object_bytes;   /* of a delta's objects; 0: 32 MiB. Bounds memory too */
    uint64_t max_anchor_bytes;   /* of an anchor's objects; 0: 4 GiB */
    unsigned n_threads;

    const bool *as_bf16; /* [n_tensors] the tensors in F32 that are published as BF16,
                            rounded as dw_cast_bf16 does while they are compared; NULL:
                            none. Borrowed for the call, as the shards are */

    const dw_shard *shards; /* NULL: the tensors' own data, all of it */
    size_t n_shards;
    uint32_t rank; /* of n_ranks; rank 0 commits */
    uint32_t n_ranks;
    const char *job; /* names the job, the same on every rank. A writer of the same job is
                        taken over from at once. NULL: TORCHELASTIC_RUN_ID or
                        SLURM_JOB_ID, if the environment has one */
    unsigned rank_timeout_ms; /* how long ranks wait for one that says nothing new, twice
                                 as long for rank 0; 0: 10 minutes */

    const char *first_step; /* training step and notes of the version that open commits */
    const char *first_notes;
    bool publish_changed; /* if the stream has versions and the newest differs from the
                             weights, open publishes the weights and waits until they are
                             committed. Set it if the next publish comes only after
                             training: a trainer that resumes from an older checkpoint
                             would otherwise leave followers with weights that it has
                             discarded. That version has ticket 1. Not for shards, whose
                             ranks must decide together: see dw_publisher_is_current */

    /* Called before each commit, also of version 0, after all weights were read. Any
     * result but DW_OK commits nothing and becomes the result of the version. For weights
     * that somebody else may change, such as files: it checks if they did. Called from
     * the publisher's thread, for version 0 from the caller's. May be NULL. */
    dw_status (*confirm)(void *context, dw_error *err);
    void *confirm_context;

    dw_progress progress; /* of open: fetching a baseline, uploading version 0. Called
                             with 0 of 0 while open waits for other ranks */

    /* The companion files of the next version that is committed, which is version 0 of a
     * new stream: exactly these, if HAS_FILES is set. Else a version has those of the one
     * before it, and the first one of a fork those of its source. Borrowed for the call.
     * Of several ranks, those of rank 0 count. */
    const dw_file *files;
    size_t n_files;
    bool has_files;

    const dw_quant_options *quantize; /* the stream holds the weights quantised; NULL: as
                                         they are. Must be the same for all
                                         versions of a stream. Not with DW_FIRST_BASE.
                                         Weights that are not finite are DW_NOT_FINITE,
                                         and nothing is published. A config.json among
                                         the companion files gets a
                                         `quantization_config`. Borrowed for the call */
    dw_agree_fn agree; /* of ranks that quantise, or have a limit of waiting: all of them
                          set it. NULL: DW_INVALID if their shards share blocks or rows */
    void *agree_context;
    const dw_version_source *first_source; /* of the version that open commits; NULL:
                                              none. Borrowed for the call */
    dw_baseline_memory baseline_memory;    /* for tensors on devices */
    uint64_t n_keep;     /* whenever upkeep makes an anchor, old versions are dropped as
                            dw_stream_collect does; the newest N_KEEP stay. 0: all stay. Not
                            in a store that cannot create conditionally */
    bool keep_shortcuts; /* anchors and folds stay when newer anchors supersede them. Else
                            they are removed; every version stays reachable */

    const char *start; /* of ranks: the same string on all of them, and another one for
                          every start of the job. NULL: `job` is so */
    unsigned quiet_ms; /* another writer that may still live must write nothing for so
                          long before open takes over from it; if it goes on, that is
                          DW_CONFLICT. A writer that was closed, ended on this machine, or
                          is of the same job need not. Default 60000 */
    bool take_over;    /* take over at once */
    /* Takes lines for people, while open runs and on its thread: who wrote the newest
     * version, if that writer did not close the stream, and whether open waits for it. */
    void (*notice)(void *context, const char *line);
    void *notice_context;
} dw_publish_options;

static inline void dw_publish_options_init(dw_publish_options *options)
{
    memset(options, 0, sizeof *options);
    options->struct_bytes = sizeof *options;
    options->fork_version = DW_NEWEST;
    options->max_wait_ms = UINT_MAX;
    options->fold_every = 16;
    options->anchor_factor = 0.1;
    options->sweep_every = 64;
    options->n_ranks = 1;
    options->quiet_ms = 60000;
}

/* Opens the stream at the root of STORE for writing, and takes over from its writer. If
 * there is no stream it creates one and commits version 0 (dw_publisher_created reports
 * which). Else it brings the baseline to the head. TENSORS and their data stay the
 * caller's and are read at each publish; their data is not used if there are shards.
 *
 * Tensors may be on devices (tensor.h); shards are on the device of their
 * tensor. The baseline of such tensors is in memory of the device, of the same size, or
 * in pinned memory of the host (baseline_memory). Not with baseline_dir and not with
 * quantize: DW_UNSUPPORTED. Wait for what writes the weights before this call and before
 * dw_publisher_is_current: only dw_publisher_publish takes streams of the device
 * (dw_publish_note). */
DW_API dw_status dw_publisher_open(dw_publisher **out, dw_store *store,
                                   const dw_tensor *tensors, size_t n_tensors,
                                   const dw_publish_options *options, dw_error *err);

/* Waits for the version in progress, as long as the store's deadlines allow, and frees.
 * Cancels upkeep in progress: to have folds and anchors made, call dw_publisher_drain
 * first. A later publisher makes what was cancelled.
 */
DW_API void dw_publisher_close(dw_publisher *publisher);

/* The stream's id. */
DW_API const char *dw_publisher_stream_id(const dw_publisher *publisher);

/* Whether open committed version 0; false if it resumed a stream with versions. Of
 * several ranks, ask rank 0. */
DW_API bool dw_publisher_created(const dw_publisher *publisher);

/* The newest version that this publisher knows to be committed. */
DW_API uint64_t dw_publisher_version(dw_publisher *publisher);

/* Sets *IS_CURRENT if the weights are those of the newest version; of shards, those that
 * this process has. Reads all of them. Waits for the version in progress. If a sharded
 * publisher resumes a stream, all ranks call this together, and all publish if any rank
 * gets false. */
DW_API dw_status dw_publisher_is_current(dw_publisher *publisher, bool *is_current,
                                         dw_error *err);

/* A stream of a device: a CUstream (cudaStream_t) as a pointer, NULL for the default one.
 */
typedef struct dw_device_stream {
    dw_device *device;
    void *stream;
} dw_device_stream;

typedef struct dw_publish_note {
    size_t struct_bytes;   /* set by dw_publish_note_init */
    const char *step;      /* the trainer's own number or name of the step; may be NULL.
                              Of several ranks: a number that is the same on all of them
                              for the same weights, and goes up. A version is one step
                              on all ranks; one that a rank does not publish is none */
    const char *notes;     /* free text, at most 4,096 bytes; may be NULL */
    const bool *unchanged; /* [n_tensors] the tensors that were not written since the last
                              publish that returned a ticket, in the order of
                              dw_publisher_open. They are not compared if the stream has
                              what that publish saw. NULL: none */
    const dw_file *files;  /* if HAS_FILES is set, the companion files of this version and
                              those after it, exactly these. They are copied; only those
                              that changed are stored. If the version fails or is
                              skipped, the next one has them */
    size_t n_files;
    bool has_files;
    const dw_version_source *source; /* what these weights were made of; NULL: nothing */
    const dw_device_stream *streams; /* of weights on devices: the streams that write
                                        them, at most one for each device. NULL, or for
                                        devices that it does not name: the default
                                        stream. Borrowed for the call */
    size_t n_streams;
    dw_progress progress; /* called with 0 of 0 while the call waits for the version
                             before; it can end the wait: DW_CANCELLED */
} dw_publish_note;

static inline void dw_publish_note_init(dw_publish_note *note)
{
    memset(note, 0, sizeof *note);
    note->struct_bytes = sizeof *note;
}

#define DW_TICKET_SKIPPED 0 /* max_wait_ms passed: the next version covers this step */

/* Publishes the weights as they are, and returns a ticket for the version. The weights
 * must not change until dw_publisher_captured reports it. NOTE may be NULL. After
 * DW_CONFLICT (another writer took over) this publisher can publish nothing more.
 *
 * Weights on devices are read after what their streams were given to do before the call,
 * and before what the streams are given after it, so the caller need not wait. The first
 * call, and those after a version in which much changed, return when the weights were
 * read. DW_UNAVAILABLE if many more weights changed than in the version before: the next
 * version covers it. */
DW_API dw_status dw_publisher_publish(dw_publisher *publisher, uint64_t *ticket,
                                      const dw_publish_note *note, dw_error *err);

/* Waits until the weights are read, at most TIMEOUT_MS (0: returns at once; UINT_MAX: no
 * limit), and sets *DONE if they are. */
DW_API dw_status dw_publisher_captured(dw_publisher *publisher, uint64_t ticket,
                                       unsigned timeout_ms, bool *done, dw_error *err);

typedef struct dw_publish_report {
    uint64_t version;   /* committed */
    bool unchanged;     /* no weight differs; a version was committed nevertheless */
    uint64_t n_changed; /* elements */
    uint64_t n_bytes;   /* of the delta's objects */
    uint64_t n_objects;
    dw_digest state;
    dw_times times; /* dw_publish_moment */
    bool restarted; /* the newest version did not decode: this one has an anchor, and
                          followers cross over to it by themselves */
    uint64_t suspect_from;  /* the baseline was damaged, or versions did not decode: the
                               versions from this one up to VERSION - 1 may not be the
                               weights that were published. 0: none */
    uint64_t upkeep_behind; /* for how many versions a fold or an anchor has been due
                               that is not made yet; 0: none is due */
    uint64_t n_file_bytes;  /* of the companion files that were stored with it */
    uint64_t n_merged;      /* earlier publishes that became no version of their own: this
                               one covers them */
    uint64_t waited_ms;     /* how long this and those publishes waited for the version
                               before */
    bool removal_denied;    /* superseded anchors or old versions stay, because the store
                               does not let this writer remove them */
    uint64_t n_not_finite;  /* changed weights that are infinite or not a number; of a
                               rank, its own. Weights on devices are not counted */
} dw_publish_report;

/* Waits until the version of TICKET is committed or has failed, and returns its result.
 * DW_CANCELLED if a later publish covers it (DW_BUSY_FOLD). DW_UNAVAILABLE with *DONE
 * false if TIMEOUT_MS pass first (UINT_MAX: no limit). REPORT may be NULL. The results of
 * the last 64 tickets are kept. */
DW_API dw_status dw_publisher_wait(dw_publisher *publisher, uint64_t ticket,
                                   unsigned timeout_ms, bool *done,
                                   dw_publish_report *report, dw_error *err);

/* Upkeep: a second thread, of several ranks that of rank 0, makes the folds and anchors
 * that are due. It is a dw_compactor, which reads versions from the store, so a publish
 * never waits for it.
 *
 * Waits until no version is under way and no upkeep is due. Reports what went wrong with
 * upkeep since the last call; that harms no version, and the next version tries again. */
DW_API dw_status dw_publisher_drain(dw_publisher *publisher, dw_error *err);

/* Cancels the version in progress, unless it is being committed or restarts the stream.
 * Its result becomes DW_CANCELLED, and the next publish covers it. Does not wait. */
DW_API void dw_publisher_cancel(dw_publisher *publisher);

#ifdef __cplusplus
}
#endif

#endif
