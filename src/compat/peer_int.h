/* Reads the buckets of other systems: from the names of objects to steps of a replica.
 *
 *     peer.c             the format, and the list of versions
 *     peer_record.c      records of versions, fetched and kept
 *     trl.c, slime.c     parse a record
 *     payload.c          one packed tensor: a zstd frame, XOR or positions, a checksum
 *     packed.c           turns a version of packed tensors into deltawire deltas
 *     whole.c            a version that is a whole checkpoint
 *     step.c             a version, fetched, proven and ready to be applied
 *     peer_replica.c     a directory that is brought from version to version
 *     peer_route.c       the versions on its way
 */
#ifndef DW_COMPAT_PEER_INT_H
#define DW_COMPAT_PEER_INT_H

#include "base/json_tree.h"
#include "compat/payload.h"
#include "compat/peer.h"
#include "stream/listing.h"

#define DW_PEER_RECORD_BYTES (16u << 20)  /* of an index; also of all kept records */
#define DW_PEER_HEAD_BYTES   (256u << 10) /* of a TRL file, read for its header */
#define DW_PEER_KEPT_RECORDS 16

typedef struct dw_peer_file {
    char key[DW_KEY_TEXT];
    uint64_t n_bytes; /* as listed */
    size_t first;     /* of its entries */
    size_t end;
} dw_peer_file;

/* A record's entry of one tensor. The strings belong to the record's JSON. */
typedef struct dw_peer_entry {
    const char *name;
    const char *file; /* a plain name beside the record */
} dw_peer_entry;

typedef struct dw_peer_record {
    uint64_t version;
    bool is_whole;
    uint64_t named_base; /* DW_NO_VERSION: it is whole, or the format names no base */
    dw_packing packing;
    dw_checksum checksum;
    char refusal[160]; /* why this library cannot read it; "": it can */
    dw_peer_file *files;
    size_t n_files;
    dw_peer_entry *entries; /* by file, then name; TRL: none */
    size_t n_entries;
    size_t n_tensors;                /* TRL: in the file */
    uint64_t n_bytes;                /* of the files */
    uint8_t sha256[DW_SHA256_BYTES]; /* distinguishes it from another version with the
                                        same number */
    dw_listed listed;                /* its own object at the time of the read */
    dw_json *root;
} dw_peer_record;

struct dw_peer {
    dw_store *store;
    dw_peer_format format;
    bool is_listed;
    dw_listing listings[2]; /* TRL: anchors, deltas; else one */
    uint64_t *versions;     /* ascending */
    size_t n_versions;
    dw_peer_record
        *records[DW_PEER_KEPT_RECORDS]; /* the last ones read; an index can be long */
    size_t n_records;
};

/* The object that completes the version: TRL's file, slime's index. */
dw_listed *dw_peer_find(const dw_peer *peer, uint64_t version);

/* Whether the version was listed, and its index in the list. */
bool dw_peer_has(const dw_peer *peer, uint64_t version, size_t *place);

/* Gets the record. Reads it again if the listing shows another object. Lives until the
 * next dw_peer_list, or until another is read. */
dw_status dw_peer_record_get(dw_peer *peer, uint64_t version, const dw_peer_record **out,
                             dw_error *err);
void dw_peer_record_free(dw_peer_record *record);

/* How many tensors a whole anchor of TRL has: as many as the oldest readable one. */
dw_status dw_peer_full_count(dw_peer *peer, size_t *n_tensors, dw_error *err);

/* The version that RECORD starts from, if the model has N_FULL tensors; DW_NO_VERSION
 * if it is whole. For an anchor that lacks some it is the version listed before. */
uint64_t dw_peer_base(const dw_peer *peer, const dw_peer_record *record, size_t n_full);

/* ---- parsers, one for each format; the bytes are untrusted ---- */

/* HEAD holds the first N_HEAD bytes of the file, with its header. */
dw_status dw_peer_read_trl(dw_peer_record *out, bool is_anchor, const void *head,
                           size_t n_head, const char *where, dw_error *err);
dw_status dw_peer_read_slime(dw_peer_record *out, const void *text, size_t n_bytes,
                             const char *where, dw_error *err);

/* ---- helpers of the parsers ---- */

/* Sorts the entries and lists their files, DIR/NAME. Refuses names that lead out of DIR,
 * and duplicate tensors. */
dw_status dw_peer_list_files(dw_peer_record *record, const char *dir, const char *where,
                             dw_error *err);

/* Sets the checksum, or the refusal if it is not known. */
void dw_peer_set_checksum(dw_peer_record *record, const char *name);

/* Sets the refusal, unless it is already set. */
void dw_peer_refuse(dw_peer_record *record, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
