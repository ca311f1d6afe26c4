/* The XML of S3: the servers' answers, and the one body that is sent.
 *
 * Uses expat. A document type declaration ends the parse: no answer of S3 has one, and
 * without it there are no entities that could grow when they are expanded. Namespaces are
 * ignored, because servers differ in them.
 */
#ifndef DW_STORE_S3_XML_H
#define DW_STORE_S3_XML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "deltawire/base.h"

typedef struct dw_s3_error {
    char code[64]; /* cut if longer, like the message */
    char message[256];
} dw_s3_error;

/* True if the body is an <Error> document, also after whitespace or a declaration, also
 * if it is incomplete, and also if out of memory: a caller that looks for an error in a
 * 200 must not take a failure for success. */
bool dw_s3_error_parse(dw_s3_error *out, const void *xml, size_t n_bytes);

#define DW_S3_PAGE_ENTRIES                                                               \
    10000 /* of one page of a listing; Amazon sends at most 1,000 */
#define DW_S3_KEY_BYTES 4096

typedef struct dw_s3_list_entry {
    char *key;
    uint64_t n_bytes;
    int64_t modified_ms; /* 0 if unknown */
} dw_s3_list_entry;

typedef struct dw_s3_list_page {
    dw_s3_list_entry *entries;
    size_t n_entries;
    bool truncated;
    char *next_token; /* NULL if none was sent; never NULL if truncated */
} dw_s3_list_page;

/* The next functions read a server's answer. DW_CORRUPT if it is another document, was
 * cut off, or has faults. WHERE is for errors. */

/* Reads a ListBucketResult of ListObjectsV2 into a dw_s3_list_page. Decodes
 * percent-encoded keys if it has <EncodingType>url</EncodingType>. */
dw_status dw_s3_list_parse(void *page, const void *xml, size_t n_bytes, const char *where,
                           dw_error *err);
void dw_s3_list_page_release(dw_s3_list_page *page);

/* The UploadId of an InitiateMultipartUploadResult into a char *, to be freed with
 * dw_free. */
dw_status dw_s3_upload_id_parse(void *id, const void *xml, size_t n_bytes,
                                const char *where, dw_error *err);

/* A CompleteMultipartUploadResult, into NULL. */
dw_status dw_s3_complete_parse(void *unused, const void *xml, size_t n_bytes,
                               const char *where, dw_error *err);

/* ---- STS, which gives keys ---- */

typedef struct dw_sts_keys {
    char *access_key, *secret_key,
        *session_token; /* the caller's, also after a failure */
    int64_t expires_ms;
} dw_sts_keys;

/* The Credentials of a document with this ROOT. */
dw_status dw_sts_keys_parse(dw_sts_keys *out, const char *root, const void *xml,
                            size_t n_bytes, const char *where, dw_error *err);

/* An ErrorResponse; both texts are empty if it is another document. */
void dw_sts_error_parse(dw_s3_error *out, const void *xml, size_t n_bytes);

/* ---- what is sent ---- */

/* Appends the body of CompleteMultipartUpload: parts 1 to N_ETAGS. */
void dw_s3_complete_write(dw_writer *out, char *const *etags, size_t n_etags);

#endif
