/* What all records have in common: their first members, and the seal or the signature at
 * their end. */
#ifndef DW_STREAM_RECORD_SEAL_H
#define DW_STREAM_RECORD_SEAL_H

#include "stream/record_fields.h"

/* Checks the end of the record, then parses the JSON, checks `format`, `kind` and
 * `requires`, and takes `stream`. SEAL may be NULL. On DW_OK the caller releases FIELDS
 * with dw_fields_release. */
dw_status dw_record_open(dw_fields *fields, char stream[DW_ID_TEXT], dw_record_seal *seal,
                         const char *kind, size_t max_bytes, const void *bytes,
                         size_t n_bytes, const char *where, dw_error *err);

/* Writes up to and with `stream`; what follows begins with a comma. */
void dw_record_begin(dw_writer *out, const char *kind, const char *stream);

/* Ends the record that began at byte START of OUT, signed if KEY is not NULL, else
 * sealed, and fills SEAL, which may be NULL. */
dw_status dw_record_end(dw_writer *out, size_t start, dw_record_seal *seal,
                        const dw_sign_key *key, dw_error *err);

#endif
