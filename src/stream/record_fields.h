/* Members of a record's JSON, each checked as it is taken.
 *
 * As with dw_reader, the first fault is kept and every later read does nothing but return
 * zero: a parser looks at `status` once, behind a group of reads.
 */
#ifndef DW_STREAM_RECORD_FIELDS_H
#define DW_STREAM_RECORD_FIELDS_H

#include "base/json.h"
#include "base/json_tree.h"
#include "stream/record.h"

#define DW_NUMBER_END (1ull << 53) /* numbers are below: every JSON parser has them */
#define DW_TIME_ROOM  32           /* of `created` in a record */

typedef struct dw_fields {
    const dw_json *object;
    const char *path;  /* the prefix of members' names in errors: "", "objects[3]." */
    const char *where; /* the record's object */
    dw_error *err;
    dw_status status;
    dw_json *root; /* owned: the tree of a whole record */
} dw_fields;

void dw_fields_release(dw_fields *f);

/* "member 'PATH+NAME' fault", kept if it is the first. */
void dw_fields_fail(dw_fields *f, dw_status code, const char *name, const char *format,
                    ...) __attribute__((format(printf, 4, 5)));
void dw_fields_fail_memory(dw_fields *f);

/* The member, or NULL and a fault if it is missing or of another type. */
const dw_json *dw_field_array(dw_fields *f, const char *name);
const dw_json *dw_field_object(dw_fields *f, const char *name);

uint64_t dw_field_number(dw_fields *f, const char *name);
/* A number, or DW_NO_VERSION for null. */
uint64_t dw_field_version(dw_fields *f, const char *name);
void dw_field_null(dw_fields *f, const char *name);

/* A string of at most MAX bytes, borrowed from the JSON; "" after a fault. */
const char *dw_field_text(dw_fields *f, const char *name, size_t max);
/* A copy to be freed, of at most DW_MAX_NOTE bytes; NULL after a fault. */
char *dw_field_note(dw_fields *f, const char *name);
void dw_field_id(dw_fields *f, char out[DW_ID_TEXT], const char *name);
void dw_field_sha256(dw_fields *f, uint8_t out[DW_SHA256_BYTES], const char *name);
dw_digest dw_field_digest(dw_fields *f, const char *name);
/* The members "rank" and "n_ranks"; not set after a fault. */
void dw_field_rank(dw_fields *f, uint32_t *rank, uint32_t *n_ranks);
void dw_field_time(dw_fields *f, char out[DW_TIME_ROOM], const char *name);
/* The member "times", which is optional as each of its own members is. */
void dw_field_times(dw_fields *f, dw_times *out, const char *(*name)(unsigned moment));

/* VALUE as a number below DW_NUMBER_END; false if it is anything else. */
bool dw_json_number(uint64_t *out, const dw_json *value);

#endif
