/* Versions of other systems, read and written.
 *
 *     trl     anchors/step_%06d.safetensors, deltas/step_%06d.safetensors
 *     slime   weight_v%06d/model.safetensors.index.json and the files it names
 *
 * A dw_foreign is a bucket of such versions, and a model in a nameless file, which is
 * brought from version to version:
 *
 *     import   dw_foreign_go reads a version; the caller publishes the model
 *     export   dw_foreign_write writes a version, reads it into the model, and compares
 *
 * Nothing is kept between processes: the other end, or the bucket itself, fills the model
 * again. These formats guarantee less than a stream; docs/STORES.md lists what each can
 * hold. All that a format allows to check is checked.
 *
 * Objects are created and never replaced. These formats cannot keep two writers apart, so
 * only one process may write. A second one is mostly, not always, noticed (DW_CONFLICT).
 */
#ifndef DW_FORMATS_FORMATS_H
#define DW_FORMATS_FORMATS_H

#include "deltawire/delta.h"
#include "deltawire/stream.h"

typedef struct dw_format dw_format;
typedef struct dw_foreign dw_foreign;

/* "trl", "slime"; NULL for any other name. */
const dw_format *dw_format_named(const char *name);
const char *dw_format_name(const dw_format *format);

/* Finds the format of the versions at the root of STORE, only from the names of objects.
 * DW_NOT_FOUND if it is no known format, or a deltawire stream. */
dw_status dw_format_detect(const dw_format **out, dw_store *store, dw_error *err);

typedef struct dw_foreign_options {
    const char *work_dir; /* for the model, and for objects too large for memory, in files
                             without a name. NULL: TMPDIR, or /tmp */
    unsigned n_threads;   /* 0: all cores */

    /* of dw_foreign_write */
    unsigned trl_layout;  /* TRL: 1, or 3 */
    dw_codec trl_codec;   /* TRL: DW_CODEC_GAP or DW_CODEC_RAW; layout 1 has only RAW */
    bool overwrite;       /* slime: positions and bytes, for tensors below 4 GiB. Else
                             the new bytes XOR the old ones */
    unsigned whole_every; /* write the whole model if this divides the version. 0: the
                             format's default, which is 10 in TRL's layout 1, 20 in
                             layout 3, and never in slime */
    uint64_t max_shard_bytes; /* slime: the size of the tensors in one file before
                                 compression; 0: 1 GiB. Bounds memory too */
} dw_foreign_options;

/* Opens the versions in STORE, which may be none yet. DW_CONFLICT if it holds another
 * format or a deltawire stream. The string in OPTIONS must stay. */
dw_status dw_foreign_open(dw_foreign **out, dw_store *store, const dw_format *format,
                          const dw_foreign_options *options, dw_error *err);
void dw_foreign_close(dw_foreign *foreign);

typedef struct dw_foreign_version {
    uint64_t version;
    bool is_anchor; /* of TRL */
} dw_foreign_version;

/* Lists the versions, ascending. One of slime counts once its index exists. The array
 * lives until the next call or dw_foreign_write. */
dw_status dw_foreign_list(dw_foreign *foreign, const dw_foreign_version **versions,
                          size_t *n_versions, dw_error *err);

#define DW_FOREIGN_MARK 32

typedef struct dw_foreign_facts {
    bool is_whole; /* it has all weights */
    uint64_t base; /* else: the version that it starts from */
    size_t n_tensors;
    /* distinguishes it from another version with the same number, for example of a run
     * that was started again */
    uint8_t mark[DW_FOREIGN_MARK];
} dw_foreign_facts;

/* Reads the beginning of a listed version. DW_NOT_FOUND if it was not listed. TRL names
 * no base: it is the version listed before, also of an anchor that lacks some tensors. */
dw_status dw_foreign_look(dw_foreign *foreign, uint64_t version, dw_foreign_facts *out,
                          dw_error *err);

/* ---- the model ---- */

/* The version that the model is at. DW_NO_VERSION if it is none: a read failed half-way,
 * or there was none yet. */
uint64_t dw_foreign_at(const dw_foreign *foreign);

/* The mark that it had when the model was brought there. NULL if it was not listed. */
const uint8_t *dw_foreign_mark(const dw_foreign *foreign);

/* Its weights, names ascending. Valid until dw_foreign_fill or close. */
const dw_tensor *dw_foreign_tensors(const dw_foreign *foreign, size_t *n_tensors);

/* Stores all weights of a version into TENSORS. */
typedef dw_status (*dw_foreign_fill_fn)(void *context, const dw_tensor *tensors,
                                        size_t n_tensors, dw_error *err);

/* Makes a model of these names, ascending, types and shapes. FILL gives it the weights of
 * VERSION, which need not be in the bucket. If FILL is NULL, they are those of TABLE. */
dw_status dw_foreign_fill(dw_foreign *foreign, const dw_tensor *table, size_t n_tensors,
                          uint64_t version, dw_foreign_fill_fn fill, void *context,
                          dw_error *err);

/* Brings the model to a version that was listed: over the versions that it starts from,
 * back to the model's own or to a whole one. DW_NOT_FOUND if no such chain leads to it.
 * DW_STALE if one of them was replaced meanwhile; the model is then at no version. */
dw_status dw_foreign_go(dw_foreign *foreign, uint64_t version,
                        const dw_progress *progress, dw_error *err);

typedef struct dw_foreign_report {
    bool is_whole;      /* the whole model was written */
    uint64_t n_changed; /* elements that differ from the model's version */
    uint64_t n_objects;
    uint64_t n_bytes;
} dw_foreign_report;

/* Writes TENSORS, names ascending, as VERSION, which follows the model's, and proves it:
 * reads it into the model, which must then be TENSORS, bit for bit. If VERSION is not the
 * next number, or the model is at none, it is written whole. A version without changes is
 * a file without tensors. (TRL's own trainer skips the number.)
 *
 * After an error the version may be there or not: dw_foreign_list tells. DW_CORRUPT if it
 * is there with other weights, DW_MISMATCH for another model, DW_UNSUPPORTED if the
 * format cannot hold a tensor: TRL has only BF16. */
dw_status dw_foreign_write(dw_foreign *foreign, uint64_t version,
                           const dw_tensor *tensors, size_t n_tensors,
                           const dw_progress *progress, dw_foreign_report *report,
                           dw_error *err);

/* Compares the model with these weights; DW_MISMATCH names the tensor that differs. */
dw_status dw_foreign_compare(const dw_foreign *foreign, const dw_tensor *tensors,
                             size_t n_tensors, dw_error *err);

#endif
