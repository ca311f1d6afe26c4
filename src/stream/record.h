/* The records of a stream: the contents of its JSON objects (docs/PROTOCOL.md, section
 * 2).
 *
 * A parse takes untrusted bytes and returns a struct in which every count, name and
 * number was checked; a write is its inverse. Strings and arrays of a parsed record are
 * owned by it and freed by its release function.
 */
#ifndef DW_STREAM_RECORD_H
#define DW_STREAM_RECORD_H

#include "base/bytes.h"
#include "base/hash.h"
#include "base/process.h"
#include "base/text.h"
#include "deltawire/tensor.h"
#include "deltawire/stream.h"

#define DW_STREAM_FORMAT "deltawire-stream/1"
#define DW_RECORD_BYTES  (64u << 20)  /* of the largest record that is read */
#define DW_LATEST_BYTES  (8u << 20)   /* ... of kind latest */
#define DW_SMALL_BYTES   (128u << 10) /* ... of kind epoch, floor, follower */
#define DW_ID_TEXT       33           /* 32 hexadecimal digits and a NUL */
#define DW_MAX_NOTE      4096         /* bytes of step, notes, job, messages */
#define DW_MAX_EDGES     65536        /* of the hint */
#define DW_KEY_TEXT      160          /* any key of a stream, with its NUL */
#define DW_TIME_ROOM     32           /* a time of a record, with its NUL */
#define DW_LIBRARY_TEXT  64           /* the version of a library, with its NUL */

/* ---- keys ---- */
#define DW_KEY_STREAM "stream.json"
#define DW_KEY_LATEST "latest.json"
#define DW_KEY_FLOOR  "floor.json"
void dw_key_commit(char out[DW_KEY_TEXT], uint64_t version);
void dw_key_shortcut(char out[DW_KEY_TEXT], uint64_t version,
                     uint64_t from); /* or DW_NO_VERSION */
/* What sorts between the shortcuts to VERSION and those to versions before it. */
void dw_key_before_shortcuts(char out[DW_KEY_TEXT], uint64_t version);
void dw_key_epoch(char out[DW_KEY_TEXT], uint64_t epoch);
void dw_key_receipt(char out[DW_KEY_TEXT], uint64_t epoch, uint32_t rank);
void dw_key_follower(char out[DW_KEY_TEXT], const char *id);
/* PURPOSE is NULL for a version's own objects, else "fold" or "anchor". */
void dw_key_object(char out[DW_KEY_TEXT], uint64_t version, const char *write_id,
                   const char *purpose, unsigned part);
/* The INDEX-th companion file that the attempt WRITE_ID at VERSION stored. */
void dw_key_file(char out[DW_KEY_TEXT], uint64_t version, const char *write_id,
                 unsigned index);
/* The inverses, for listings; false if KEY is none of that kind. */
bool dw_key_is_commit(const char *key, uint64_t *version);
bool dw_key_is_shortcut(const char *key, uint64_t *version, uint64_t *from);
bool dw_key_is_epoch(const char *key, uint64_t *epoch);
bool dw_key_is_object(const char *key, uint64_t *version, bool *of_shortcut);
bool dw_key_is_receipt(const char *key, uint64_t *epoch);
bool dw_key_is_file(const char *key, uint64_t *version);
/* Whether the key begins as those of the objects of VERSION do. */
bool dw_key_is_of(const char *key, uint64_t version);
/* Whether two keys of objects are of one version and one attempt: their ids begin with
 * the same digits. The ranks of a turn share these (dw_rank_write_id). */
#define DW_ATTEMPT_DIGITS 16
bool dw_key_same_attempt(const char *key, const char *other);
bool dw_follower_id_valid(const char *id); /* 1 to 64 of A-Za-z0-9_.- , no leading dot */

/* ---- ids ---- */

/* One that nobody has drawn before: of a stream, a writer, an attempt. */
dw_status dw_random_id(char out[DW_ID_TEXT], dw_error *err);

/* ---- parts of records ---- */

/* Which part of the model: tensors FIRST..END-1 whole (tensor == SIZE_MAX), or elements
 * FIRST..END-1 of one tensor. */
typedef struct dw_cover {
    size_t tensor;
    uint64_t first;
    uint64_t end;
} dw_cover;

typedef struct dw_object {
    char key[DW_KEY_TEXT];
    uint64_t n_bytes;
    uint8_t sha256[DW_SHA256_BYTES];
    dw_cover *covers; /* NULL: everything */
    size_t n_covers;
} dw_object;

typedef struct dw_objects {
    dw_object *items;
    size_t n;
} dw_objects;

void dw_objects_release(dw_objects *objects);
uint64_t dw_objects_bytes(const dw_objects *objects);

/* A companion file of a version (record_files.h). */
typedef struct dw_file_entry {
    char *name;
    char key[DW_KEY_TEXT];
    uint64_t n_bytes;
    uint8_t sha256[DW_SHA256_BYTES];
} dw_file_entry;

typedef struct dw_file_list {
    bool is_given; /* false: the version says nothing about files */
    dw_file_entry *items;
    size_t n;
} dw_file_list;

/* Checks covers against a table of tensors: in range, sub-byte slices on whole bytes. */
dw_status dw_covers_check(const dw_cover *covers, size_t n_covers,
                          const dw_tensor *tensors, size_t n_tensors, const char *where,
                          dw_error *err);

/* The same for all objects of a record, and that no two of them are about the same part;
 * with MUST_COVER_ALL, as for an anchor, that together they are about everything. */
dw_status dw_objects_check(const dw_objects *objects, const dw_tensor *tensors,
                           size_t n_tensors, bool must_cover_all, const char *where,
                           dw_error *err);

/* Every record: by whom it was signed, where it was, and its hash. */
typedef struct dw_record_seal {
    bool is_signed;
    uint8_t key[DW_PUBLIC_KEY_BYTES]; /* the signature by it was found good */
    uint8_t sha256[DW_SHA256_BYTES];  /* of the record's bytes */
} dw_record_seal;

/* Which software wrote a record, and on which machine: for people, nothing is decided by
 * it. A parse cleans both (base/text.h), so that they can be printed. "": not recorded.
 */
typedef struct dw_provenance {
    char library[DW_LIBRARY_TEXT];
    char host[DW_HOST_NAME_TEXT];
} dw_provenance;

/* ---- the records ----
 * The id of the stream is the first member of each. */

/* How the tensors were made of the trainer's: for writers, which must go on in the same
 * way, and for people. A reader needs none of it. */
#define DW_QUANTIZED_TEXT 33
typedef struct dw_quantized {
    char scheme[DW_QUANTIZED_TEXT];  /* "": not quantised */
    char rounded[DW_QUANTIZED_TEXT]; /* what F32 was rounded to first: "bf16", "none" */
} dw_quantized;

typedef struct dw_stream_record {
    char stream[DW_ID_TEXT];
    char created[DW_TIME_ROOM];
    bool single_writer;
    dw_quantized quantized;
    dw_tensor *tensors; /* data NULL; names ascending */
    size_t n_tensors;
    void *arena; /* names and dims */
    dw_record_seal seal;
} dw_stream_record;

typedef struct dw_epoch_record {
    char stream[DW_ID_TEXT];
    uint64_t epoch;
    char writer[DW_ID_TEXT];
    char *job;
    char *start; /* which start of the job, if its ranks must know; may be NULL */
    char created[DW_TIME_ROOM];
    dw_provenance made_by;
    dw_process process; /* that claimed it; pid 0: not recorded */
    dw_record_seal seal;
} dw_epoch_record;

typedef struct dw_fork {
    char *url;
    char stream[DW_ID_TEXT];
    uint64_t version;
    uint8_t commit_sha256[DW_SHA256_BYTES];
} dw_fork;

/* The version of another stream that a version was made of. */
typedef struct dw_origin {
    char stream[DW_ID_TEXT]; /* "": none */
    uint64_t version;
    uint8_t commit_sha256[DW_SHA256_BYTES];
} dw_origin;

typedef struct dw_commit_record {
    char stream[DW_ID_TEXT];
    uint64_t version;
    uint8_t parent_sha256[DW_SHA256_BYTES]; /* version 0: zeros */
    uint64_t epoch;
    char writer[DW_ID_TEXT];
    char write_id[DW_ID_TEXT];
    char created[DW_TIME_ROOM];
    dw_provenance made_by;
    char *step;
    char *notes;
    dw_digest state;
    uint64_t n_changed;
    dw_times times;        /* dw_publish_moment */
    uint64_t suspect_from; /* followers may have been wrong from this version up to the
                              one before; 0: none */
    dw_content content;
    bool restart; /* DELTA without objects, whose anchor is the only shortcut to it */
    char *base;   /* BASE: what it is, for people; else NULL */
    uint8_t base_sha256[DW_SHA256_BYTES]; /* BASE: of its tensors (base.h), or zeros */
    dw_fork fork;
    dw_origin source; /* of a derived stream */
    dw_file_list files;
    dw_objects objects;
    dw_record_seal seal;
} dw_commit_record;

typedef struct dw_shortcut_record {
    char stream[DW_ID_TEXT];
    uint64_t version;
    uint64_t from; /* DW_NO_VERSION: an anchor */
    uint8_t commit_sha256[DW_SHA256_BYTES];
    uint8_t from_sha256[DW_SHA256_BYTES];
    dw_digest state;
    char created[DW_TIME_ROOM];
    dw_objects objects;
    dw_record_seal seal;
} dw_shortcut_record;

/* What a rank says of its turn. */
typedef enum dw_receipt_says {
    DW_SAYS_PART,   /* its part is there */
    DW_SAYS_BEGUN,  /* it has begun */
    DW_SAYS_FAILED, /* it failed, and goes on to another turn */
    DW_SAYS_LEFT,   /* it takes no turn any more */
} dw_receipt_says;

typedef struct dw_receipt_record {
    char stream[DW_ID_TEXT];
    uint64_t version;
    uint64_t epoch;
    char writer[DW_ID_TEXT];
    char process[DW_ID_TEXT]; /* drawn by each process that opens the stream */
    uint64_t turn;            /* what this is about: the same on all ranks */
    uint64_t attempt;         /* how often the rank has begun it */
    uint32_t rank;
    uint32_t n_ranks;
    dw_receipt_says says;
    char *reason; /* FAILED, LEFT: for people; else NULL */
    /* PART */
    dw_digest share;
    uint64_t n_changed;
    uint64_t suspect_from; /* as in a commit */
    dw_cover *covers;      /* all that the rank owns; none: nothing */
    size_t n_covers;
    dw_objects objects;
    dw_record_seal seal;
} dw_receipt_record;

typedef struct dw_latest_record {
    char stream[DW_ID_TEXT];
    uint64_t version;
    dw_edge *edges;
    size_t n_edges; /* at most DW_MAX_EDGES */
} dw_latest_record;

typedef struct dw_floor_record {
    char stream[DW_ID_TEXT];
    uint64_t version;
} dw_floor_record;

typedef struct dw_follower_record {
    char stream[DW_ID_TEXT];
    char id[65];
    uint64_t version; /* DW_NO_VERSION: none yet */
    char *host;
    char *status;
    char *message;
    char time[DW_TIME_ROOM];
    dw_times times; /* dw_follow_moment */
} dw_follower_record;

/* Whether the bytes end like a signed record, and the key that is named there. The
 * signature is not checked. */
bool dw_record_signer(uint8_t key[DW_PUBLIC_KEY_BYTES], const void *bytes,
                      size_t n_bytes);

/* Whether the bytes are as they were written, by the signature or the seal at their end:
 * DW_UNTRUSTED if the one, DW_CORRUPT if the other does not match, or if there
 * is neither. Each parse begins with it; this is for callers that hand records on
 * unparsed. */
dw_status dw_record_check(dw_record_seal *seal, const void *bytes, size_t n_bytes,
                          const char *where, dw_error *err);

/* A parse takes the bytes of a record and the object's name for errors; DW_CORRUPT
 * if they break the format, DW_UNSUPPORTED for another format version or a feature
 * that is required and unknown, DW_UNTRUSTED if a signature is there and wrong. */
#define DW_DECLARE_RECORD(kind)                                                          \
    dw_status dw_##kind##_record_parse(dw_##kind##_record *out, const void *bytes,       \
                                       size_t n, const char *where, dw_error *err);      \
    void dw_##kind##_record_release(dw_##kind##_record *record)

DW_DECLARE_RECORD(stream);
DW_DECLARE_RECORD(epoch);
DW_DECLARE_RECORD(commit);
DW_DECLARE_RECORD(shortcut);
DW_DECLARE_RECORD(receipt);
DW_DECLARE_RECORD(latest);
DW_DECLARE_RECORD(floor);
DW_DECLARE_RECORD(follower);

/* Each write appends the record's bytes to OUT, signed if KEY is not NULL, else
 * sealed. `seal` of the record is not read; that of stream, epoch, commit, shortcut and
 * receipt is filled with what was written. An empty time is filled with now. */
dw_status dw_stream_record_write(dw_writer *out, dw_stream_record *record,
                                 const dw_sign_key *key, dw_error *err);
dw_status dw_epoch_record_write(dw_writer *out, dw_epoch_record *record,
                                const dw_sign_key *key, dw_error *err);
dw_status dw_commit_record_write(dw_writer *out, dw_commit_record *record,
                                 const dw_sign_key *key, dw_error *err);
dw_status dw_shortcut_record_write(dw_writer *out, dw_shortcut_record *record,
                                   const dw_sign_key *key, dw_error *err);
dw_status dw_receipt_record_write(dw_writer *out, dw_receipt_record *record,
                                  const dw_sign_key *key, dw_error *err);
dw_status dw_latest_record_write(dw_writer *out, dw_latest_record *record, dw_error *err);
dw_status dw_floor_record_write(dw_writer *out, dw_floor_record *record, dw_error *err);
dw_status dw_follower_record_write(dw_writer *out, dw_follower_record *record,
                                   dw_error *err);

#endif
