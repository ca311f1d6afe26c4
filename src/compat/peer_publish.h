/* Publishing for peers: writes versions in the formats of other systems.
 *
 *     trl     an anchor or a delta, one file a version
 *     slime   a directory a version: shards, and the index last
 *
 *     dw_peer_publisher_open      reads the newest version back as the baseline
 *     dw_peer_publisher_publish   publishes the weights, and proves the version
 *
 * A version is written against the baseline, a checkpoint directory that the functions of
 * peer.h keep at the newest version in the store. After each publish the baseline
 * follows, and is compared with the weights: DW_OK means that a reader of the store gets
 * these weights, bit for bit.
 *
 * Objects are created and never replaced. These formats cannot keep two writers apart, so
 * only one process may write. A second one is mostly, not always, noticed (DW_CONFLICT).
 * docs/STORES.md lists what each format can hold.
 */
#ifndef DW_COMPAT_PEER_PUBLISH_H
#define DW_COMPAT_PEER_PUBLISH_H

#include <string.h>

#include "deltawire/delta.h"
#include "compat/peer.h"

typedef struct dw_peer_publisher dw_peer_publisher;

typedef enum dw_peer_delta {
    DW_PEER_XOR = 0,       /* new XOR old */
    DW_PEER_OVERWRITE = 1, /* positions and bytes; tensors below 4 GiB */
} dw_peer_delta;

typedef enum dw_peer_checksum {
    DW_PEER_XXH3_128 = 0,
    DW_PEER_ADLER32 = 1,
} dw_peer_checksum;

typedef struct dw_peer_publish_options {
    size_t struct_bytes; /* set by dw_peer_publish_options_init */
    dw_peer_format format;
    unsigned trl_layout;  /* TRL: 1, or 3, the default */
    dw_codec trl_codec;   /* TRL: DW_CODEC_GAP, the default, or DW_CODEC_RAW; layout 1 has
                             only RAW */
    unsigned whole_every; /* TRL, slime: write the whole model if the version is a
                             multiple of this. 0: the format's default, which is 10 in
                             TRL's layout 1, 20 in layout 3, and never in slime */
    dw_peer_delta delta;  /* slime */
    dw_peer_checksum checksum; /* slime */
    uint64_t max_shard_bytes;  /* slime: the size of the tensors in one file before
                                  compression; 0: 1 GiB. Bounds memory too */
    uint64_t first_version;    /* the first version in an empty store; default 1 */
    const char *baseline_dir; /* kept for the next start; NULL: a temporary one in TMPDIR,
                                 so the next start reads everything back */
    unsigned n_threads;       /* 0: all cores */
    dw_progress progress;     /* for opening and publishing */
} dw_peer_publish_options;

static inline void dw_peer_publish_options_init(dw_peer_publish_options *options,
                                                dw_peer_format format)
{
    memset(options, 0, sizeof *options);
    options->struct_bytes = sizeof *options;
    options->format = format;
    options->trl_layout = 3;
    options->trl_codec = DW_CODEC_GAP;
    options->first_version = 1;
}

/* Opens STORE for writing versions at its root, and brings the baseline to the newest
 * version in it. TENSORS stay the caller's and are read at each publish. DW_CONFLICT if
 * the store holds another format or a deltawire stream; DW_MISMATCH if it holds another
 * model; DW_UNSUPPORTED, with the tensor's name, if the format cannot hold a tensor: TRL
 * has only BF16. */
dw_status dw_peer_publisher_open(dw_peer_publisher **out, dw_store *store,
                                 const dw_tensor *tensors, size_t n_tensors,
                                 const dw_peer_publish_options *options, dw_error *err);
void dw_peer_publisher_close(dw_peer_publisher *publisher);

typedef struct dw_peer_publish_report {
    uint64_t version;
    bool is_whole;      /* the whole model was written */
    bool was_there;     /* nothing was written: the store already had this version */
    uint64_t n_changed; /* elements that differ from the version before */
    uint64_t n_objects;
    uint64_t n_bytes;
    uint64_t reserved[4];
} dw_peer_publish_report;

/* Publishes the weights as VERSION, or as the next one (DW_NO_VERSION), and proves it. If
 * nothing changed, it still writes a version: a file without tensors. (TRL's own trainer
 * skips the number.) If VERSION is not the next one, the whole model is written.
 *
 * After an error the version may be there or not. Call this again with the same weights:
 * it finds out and sets was_there. DW_CONFLICT if VERSION is there with other weights.
 * REPORT may be NULL. */
dw_status dw_peer_publisher_publish(dw_peer_publisher *publisher, uint64_t version,
                                    dw_peer_publish_report *report, dw_error *err);

#endif
