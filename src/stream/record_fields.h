/* Members of a record's JSON: a table names each with its kind and its place in the
 * struct, and one reader and one writer serve all tables.
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

typedef struct dw_fields {
    const dw_json *object;
    char path[40];     /* the prefix of members' names in errors: "", "objects[3]." */
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

/* ---- single members ---- */

/* The member, or NULL and a fault if it is missing or no array. */
const dw_json *dw_field_array(dw_fields *f, const char *name);
/* The same, with at most MAX entries, which are counted. */
const dw_json *dw_field_list(dw_fields *f, const char *name, size_t max, size_t *n);
/* Makes INSIDE the member, an object; false after a fault. */
bool dw_field_object(dw_fields *inside, dw_fields *f, const char *name);
uint64_t dw_field_number(dw_fields *f, const char *name);
/* A string of at most MAX bytes, borrowed from the JSON; "" after a fault. */
const char *dw_field_text(dw_fields *f, const char *name, size_t max);
void dw_field_id(dw_fields *f, char out[DW_ID_TEXT], const char *name);

/* VALUE as a number below DW_NUMBER_END; false if it is anything else. */
bool dw_json_number(uint64_t *out, const dw_json *value);

/* ---- tables ---- */

typedef enum dw_member_kind {
    DW_MEMBER_NUMBER,  /* uint64_t */
    DW_MEMBER_RANK,    /* uint32_t, at most 100,000 */
    DW_MEMBER_VERSION, /* uint64_t; null is DW_NO_VERSION */
    DW_MEMBER_TEXT,    /* char *, owned: at most DW_MAX_NOTE bytes; NULL is "" */
    DW_MEMBER_LABEL,   /* char [n]: text that fits */
    DW_MEMBER_CLEANED, /* char [n]: text that is cut and cleaned */
    DW_MEMBER_TIME,    /* char [n]; a write fills an empty one with the time */
    DW_MEMBER_ID,      /* char [DW_ID_TEXT] */
    DW_MEMBER_SHA256,  /* uint8_t [DW_SHA256_BYTES] */
    DW_MEMBER_DIGEST,  /* dw_digest */
    DW_MEMBER_TRUE,    /* bool: the number 1 */
    DW_MEMBER_WORD,    /* an enum or bool: the index of one of the words `of` */
    DW_MEMBER_OBJECT,  /* a struct with the members `of` */
    DW_MEMBER_OWN,     /* by the dw_member_own `of` */
} dw_member_kind;

typedef struct dw_member {
    const char *name; /* NULL ends a table */
    dw_member_kind kind;
    size_t at, n_bytes;                  /* in the struct */
    bool is_optional;                    /* left out if it is empty or zero */
    bool or_null;                        /* null if it does not apply, else missing */
    bool (*applies)(const void *holder); /* NULL: always. Looks at members before it */
    const void *of;                      /* TEXT, LABEL: the letters of a word, or NULL */
} dw_member;

/* VALUE: the member's place; of a DW_MEMBER_WHOLE the struct. */
typedef struct dw_member_own {
    void (*read)(dw_fields *f, const char *name, void *value);
    void (*write)(dw_writer *out, const void *value); /* without the name */
    void (*release)(void *value);                     /* may be NULL */
    bool (*is_given)(const void *value);              /* for is_optional */
} dw_member_own;

#define DW_MEMBER(type, field, name_, kind_, ...)                                        \
    {                                                                                    \
        .name = name_, .kind = DW_MEMBER_##kind_, .at = offsetof(type, field),           \
        .n_bytes = sizeof((type *)0)->field, __VA_ARGS__                                 \
    }
#define DW_MEMBER_WHOLE(name_, ...)                                                      \
    {                                                                                    \
        .name = name_, .kind = DW_MEMBER_OWN, __VA_ARGS__                                \
    }

void dw_members_read(dw_fields *f, const dw_member *members, void *holder);
void dw_members_write(dw_writer *out, const dw_member *members, const void *holder,
                      bool is_first); /* no comma before them */
void dw_members_release(const dw_member *members, void *holder);

/* An array of objects, each of which is a struct with the same members. */
typedef struct dw_member_list {
    const dw_member *members;
    size_t n_bytes; /* of a struct */
    size_t key_at;  /* a char [] of it: no two are the same */
    size_t max;
    void (*check)(dw_fields *f, const void *entry); /* what the table does not say */
} dw_member_list;

/* The structs, which dw_items_release frees, also after a fault. */
void *dw_field_items(dw_fields *f, const char *name, const dw_member_list *list,
                     size_t *n);
void dw_write_items(dw_writer *out, const dw_member_list *list, const void *items,
                    size_t n);
void dw_items_release(const dw_member_list *list, void *items, size_t n);

/* ---- records ---- */

typedef struct dw_record_type {
    const char *kind;
    size_t n_bytes; /* of the struct, which begins with char stream[DW_ID_TEXT] */
    size_t seal_at; /* of its dw_record_seal; 0: none, and it is never signed */
    size_t max_bytes;
    const dw_member *members;
    void (*check)(dw_fields *f, const void *record); /* may be NULL */
} dw_record_type;

dw_status dw_record_parse(const dw_record_type *type, void *out, const void *bytes,
                          size_t n_bytes, const char *where, dw_error *err);
dw_status dw_record_write(const dw_record_type *type, dw_writer *out, void *record,
                          const dw_sign_key *key, dw_error *err);
void dw_record_release(const dw_record_type *type, void *record);

#endif
