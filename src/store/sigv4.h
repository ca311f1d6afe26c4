/* AWS Signature Version 4 for S3: the Authorization header of a request.
 *
 *     canonical request        what is signed: method, path, query, headers, payload
 *       | SHA-256
 *     string to sign           + date and scope: DATE/REGION/s3/aws4_request
 *       | HMAC with a key that is derived from the secret, the date and the scope
 *     signature
 *
 * libcurl signs too, but wrongly in the versions that distributions carry.
 */
#ifndef DW_STORE_SIGV4_H
#define DW_STORE_SIGV4_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/hash.h"
#include "deltawire/base.h"

typedef struct dw_sigv4_credentials {
    const char *access_key, *secret_key, *session_token /* or NULL */;
} dw_sigv4_credentials;

typedef struct dw_sigv4_header {
    const char *name; /* lower case */
    const char *value;
} dw_sigv4_header;

typedef struct dw_sigv4_request {
    const char *method;
    const char *host;  /* as in the Host header */
    const char *path;  /* canonical URI: already percent-encoded, as sent */
    const char *query; /* "" or encoded "a=b&c=d", any order */
    const dw_sigv4_header *headers;
    size_t n_headers; /* signed besides host, x-amz-date, x-amz-content-sha256 and
                         x-amz-security-token; any order, each name once */
    const char *payload_sha256; /* hex or "UNSIGNED-PAYLOAD" */
    const char *service;        /* NULL: s3 */
    const char *region;
    int64_t wall_ms;
} dw_sigv4_request;

#define DW_SIGV4_DATE 17 /* "20130524T000000Z" with its NUL */

/* Appends the value of Authorization, with its NUL, to OUT, and returns that of
 * x-amz-date. Besides both and REQUEST's headers, the request must also have
 * x-amz-content-sha256 and, with a session token, x-amz-security-token. */
dw_status dw_sigv4_authorization(dw_writer *out, char date_out[DW_SIGV4_DATE],
                                 const dw_sigv4_request *request,
                                 const dw_sigv4_credentials *credentials, dw_error *err);

/* Appends TEXT with all characters as %XX, except for RFC 3986's unreserved ones and,
 * with KEEP_SLASH, '/'. */
void dw_percent_encode(dw_writer *out, const char *text, bool keep_slash);

/* ---- the two halves, for any service, as the published test vectors need them ---- */

/* Appends the canonical request over HEADERS, which it sorts. */
void dw_sigv4_canonical_request(dw_writer *out, const char *method, const char *path,
                                const char *query, dw_sigv4_header *headers,
                                size_t n_headers, const char *payload_sha256);

dw_status dw_sigv4_signature(char out[DW_SHA256_TEXT], const dw_writer *canonical_request,
                             const char *date, const char *region, const char *service,
                             const char *secret_key, dw_error *err);

#endif
