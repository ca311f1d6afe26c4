/* The table of a format, and what the formats share.
 *
 *     foreign.c         the bucket, its versions, the model
 *     foreign_write.c   one version: compared, written, proven; objects
 *     trl.c, slime.c    the two formats
 *     frame.c           a packed tensor of slime
 */
#ifndef DW_FORMATS_FORMATS_INSIDE_H
#define DW_FORMATS_FORMATS_INSIDE_H

#include "base/bytes.h"
#include "codec/patch.h"
#include "deltawire/checkpoint.h"
#include "formats/formats.h"
#include "tensor/safetensors.h"
#include "tensor/shard_index.h"
#include "weights/whole_model.h"

#define DW_FORMAT_DIGITS     6           /* of a version in a key, at least */
#define DW_FORMAT_HEAD_BYTES (64u << 10) /* of a file, read for its mark */

struct dw_foreign {
    dw_store *store;
    const dw_format *format;
    dw_foreign_options options;
    dw_foreign_version *versions; /* as listed, ascending */
    size_t n_versions;
    size_t n_room;

    dw_patch *table; /* owns names and shapes of the model; NULL: there is none yet */
    dw_scratch_model model;
    size_t n_tensors;
    uint64_t at;
    uint64_t marked; /* the version that MARK is of, or DW_NO_VERSION */
    uint8_t mark[DW_FOREIGN_MARK];
};

/* A version to write. */
typedef struct dw_foreign_job {
    uint64_t version;
    uint64_t base_version;
    const dw_tensor *base;     /* [n] names ascending; NULL: there is none */
    const dw_tensor *next;     /* [n] the same names, types and shapes */
    const uint64_t *n_changed; /* [n] elements of each tensor; only if there is a base */
    size_t n;
    bool is_whole;
    const dw_progress *progress;
} dw_foreign_job;

struct dw_format {
    const char *name;
    const char *prefixes[2]; /* of its keys; the second may be NULL */
    /* Whether KEY completes a version. */
    bool (*parse)(const char *key, dw_foreign_version *out);
    dw_status (*look)(dw_foreign *foreign, const dw_foreign_version *version,
                      dw_foreign_facts *out, dw_error *err);
    /* Changes the model into that version, or, if it is whole, may make it. Calls
     * dw_foreign_change before the first store. */
    dw_status (*read)(dw_foreign *foreign, const dw_foreign_version *version,
                      const dw_progress *progress, dw_error *err);
    bool (*is_due)(const dw_foreign_options *options, uint64_t version); /* whole */
    dw_status (*write)(dw_foreign *foreign, const dw_foreign_job *job,
                       dw_foreign_report *report, dw_error *err);
};

extern const dw_format dw_format_trl, dw_format_slime;

/* ---- keys ---- */

/* BEFORE, the number in at least six digits, AFTER: the key, and its inverse. */
void dw_format_key(char out[DW_KEY_TEXT], const char *before, uint64_t version,
                   const char *after);
bool dw_format_parse(const char *key, const char *before, const char *after,
                     uint64_t *version);

/* ---- the model ---- */

/* Makes it, unless there is one. TENSORS in any order. */
dw_status dw_foreign_learn(dw_foreign *foreign, const dw_tensor *tensors, size_t n,
                           const char *where, dw_error *err);
/* From here on it is at no version. */
void dw_foreign_change(dw_foreign *foreign);
/* Its tensor of that name. DW_MISMATCH if there is none. */
dw_status dw_foreign_find(const dw_foreign *foreign, const char *name,
                          const dw_tensor **out, const char *where, dw_error *err);
/* Whether it has the tensors of FILE, which get its new weights. */
dw_status dw_foreign_check(const dw_foreign *foreign, const dw_safetensors *file,
                           const char *where, dw_error *err);
dw_status dw_foreign_store(dw_foreign *foreign, const dw_safetensors *file,
                           dw_error *err);

/* ---- objects ---- */

/* A safetensors file of a version. */
typedef struct dw_foreign_file {
    dw_blob blob;
    dw_safetensors file;
    char where[DW_ERROR_WHERE_SIZE];
} dw_foreign_file;

/* Release it also after a failure. */
dw_status dw_foreign_fetch(dw_foreign_file *out, const dw_foreign *foreign,
                           const char *key, const dw_progress *progress, dw_error *err);
void dw_foreign_file_release(dw_foreign_file *file);

/* Appends the first N_BYTES of the object, or all of it if it has fewer. */
dw_status dw_foreign_fetch_head(dw_writer *out, const dw_foreign *foreign,
                                const char *key, size_t n_bytes, dw_error *err);

/* Creates an object and counts it. If the key is taken by an object with the same bytes,
 * that counts as success, because the first reply may have been lost. DW_CONFLICT if it
 * has other bytes. */
dw_status dw_foreign_put(dw_foreign *foreign, const char *key, const dw_source *source,
                         const dw_foreign_job *job, dw_foreign_report *report,
                         dw_error *err);
/* A safetensors file of these tensors. */
dw_status dw_foreign_put_file(dw_foreign *foreign, const char *key,
                              const dw_tensor *tensors, size_t n_tensors,
                              const dw_pair *metadata, size_t n_metadata,
                              const dw_foreign_job *job, dw_foreign_report *report,
                              dw_error *err);

/* ---- parsers of untrusted bytes ---- */

/* The first bytes of a TRL file, with its header. Sets is_whole for an anchor, and
 * n_tensors. */
dw_status dw_trl_head_parse(dw_foreign_facts *out, const dw_foreign_version *version,
                            const void *head, size_t n_head, const char *where,
                            dw_error *err);

typedef struct dw_slime_index {
    dw_shard_index map; /* files are plain names */
    bool is_whole;
    uint64_t base;
    bool overwrite;
    const char *checksum; /* a name that frame.h knows; NULL: none */
} dw_slime_index;

/* DW_UNSUPPORTED for an encoding, a compression or a checksum that is not known. */
dw_status dw_slime_index_parse(dw_slime_index *out, uint64_t version, const void *text,
                               size_t n_bytes, const char *where, dw_error *err);
void dw_slime_index_release(dw_slime_index *index);

#endif
