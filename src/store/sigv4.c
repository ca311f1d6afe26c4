#include "store/sigv4.h"

#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "base/mem.h"
#include "net/credentials.h"

#define ALGORITHM "AWS4-HMAC-SHA256"

/* ---- percent-encoding ---- */

static bool is_unreserved(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
           c == '-' || c == '.' || c == '_' || c == '~';
}

void dw_percent_encode(dw_writer *out, const char *text, bool keep_slash)
{
    for (; *text; text++) {
        if (is_unreserved(*text) || (keep_slash && *text == '/'))
            dw_write_u8(out, (uint8_t)*text);
        else
            dw_write_format(out, "%%%02X", (unsigned)(unsigned char)*text);
    }
}

/* ---- the canonical request ---- */

/* One "name=value" of a query; without a '=' the value is empty. */
typedef struct parameter {
    const char *name, *value;
    size_t n_name, n_value;
} parameter;

static int compare_bytes(const char *a, size_t n_a, const char *b, size_t n_b)
{
    int order = memcmp(a, b, n_a < n_b ? n_a : n_b);
    return order ? order : (n_a > n_b) - (n_a < n_b);
}

/* Sorts by name and then by value: "a=1" comes before "a-b=1", although '-' < '='. */
static int compare_parameters(const void *a, const void *b)
{
    const parameter *p = a, *q = b;
    int order = compare_bytes(p->name, p->n_name, q->name, q->n_name);
    return order ? order : compare_bytes(p->value, p->n_value, q->value, q->n_value);
}

static void write_query(dw_writer *out, const char *query)
{
    if (!*query)
        return;
    size_t n_most = 1;
    for (const char *p = query; *p; p++)
        n_most += *p == '&';
    parameter *parameters = dw_alloc_array(n_most, sizeof *parameters);
    if (!parameters) {
        out->failed = true;
        return;
    }
    size_t n = 0;
    for (const char *p = query; n < n_most; p++, n++) {
        size_t n_bytes = strcspn(p, "&");
        size_t n_name = strcspn(p, "=&");
        size_t n_sign = n_name < n_bytes;
        parameters[n] = (parameter){.name = p,
                                    .value = p + n_name + n_sign,
                                    .n_name = n_name,
                                    .n_value = n_bytes - n_name - n_sign};
        p += n_bytes;
    }
    qsort(parameters, n, sizeof *parameters, compare_parameters);
    for (size_t i = 0; i < n; i++) {
        if (i > 0)
            dw_write_u8(out, '&');
        dw_write_bytes(out, parameters[i].name, parameters[i].n_name);
        dw_write_u8(out, '=');
        dw_write_bytes(out, parameters[i].value, parameters[i].n_value);
    }
    dw_free(parameters);
}

/* Removes blanks at the ends, and replaces runs of blanks with one space. */
static void write_header_value(dw_writer *out, const char *value)
{
    const char *blanks = " \t";
    for (bool first = true;; first = false) {
        value += strspn(value, blanks);
        if (!*value)
            return;
        if (!first)
            dw_write_u8(out, ' ');
        size_t n_word = strcspn(value, blanks);
        dw_write_bytes(out, value, n_word);
        value += n_word;
    }
}

static int compare_headers(const void *a, const void *b)
{
    return strcmp(((const dw_sigv4_header *)a)->name, ((const dw_sigv4_header *)b)->name);
}

static void write_signed_names(dw_writer *out, const dw_sigv4_header *headers,
                               size_t n_headers)
{
    for (size_t i = 0; i < n_headers; i++) {
        if (i > 0)
            dw_write_u8(out, ';');
        dw_write_text(out, headers[i].name);
    }
}

void dw_sigv4_canonical_request(dw_writer *out, const char *method, const char *path,
                                const char *query, dw_sigv4_header *headers,
                                size_t n_headers, const char *payload_sha256)
{
    qsort(headers, n_headers, sizeof *headers, compare_headers);
    dw_write_text(out, method);
    dw_write_u8(out, '\n');
    dw_write_text(out, path);
    dw_write_u8(out, '\n');
    write_query(out, query);
    dw_write_u8(out, '\n');
    for (size_t i = 0; i < n_headers; i++) {
        dw_write_text(out, headers[i].name);
        dw_write_u8(out, ':');
        write_header_value(out, headers[i].value);
        dw_write_u8(out, '\n');
    }
    dw_write_u8(out, '\n');
    write_signed_names(out, headers, n_headers);
    dw_write_u8(out, '\n');
    dw_write_text(out, payload_sha256);
}

/* ---- the signature ---- */

/* Replaces the key in KEY with an HMAC made with it. */
static dw_status derive(uint8_t key[DW_SHA256_BYTES], const char *text, size_t n_text,
                        dw_error *err)
{
    uint8_t next[DW_SHA256_BYTES] = {0};
    dw_status status = dw_hmac_sha256(next, key, sizeof next, text, n_text, err);
    memcpy(key, next, sizeof next);
    OPENSSL_cleanse(next, sizeof next);
    return status;
}

static dw_status signing_key(uint8_t out[DW_SHA256_BYTES], const char *date,
                             const char *region, const char *service,
                             const char *secret_key, dw_error *err)
{
    size_t n_secret = strlen(secret_key);
    char *first = dw_alloc(4 + n_secret + 1);
    if (!first)
        return dw_fail_memory(err, NULL);
    memcpy(first, "AWS4", 4);
    memcpy(first + 4, secret_key, n_secret + 1);
    dw_status status = dw_hmac_sha256(out, first, 4 + n_secret, date, 8, err);
    OPENSSL_cleanse(first, 4 + n_secret);
    dw_free(first);
    if (status == DW_OK)
        status = derive(out, region, strlen(region), err);
    if (status == DW_OK)
        status = derive(out, service, strlen(service), err);
    if (status == DW_OK)
        status = derive(out, "aws4_request", 12, err);
    return status;
}

/* DATE/REGION/SERVICE/aws4_request, with only the day of the date. */
static void write_scope(dw_writer *out, const char *date, const char *region,
                        const char *service)
{
    dw_write_bytes(out, date, 8);
    dw_write_u8(out, '/');
    dw_write_text(out, region);
    dw_write_u8(out, '/');
    dw_write_text(out, service);
    dw_write_text(out, "/aws4_request");
}

static dw_status write_string_to_sign(dw_writer *out, const dw_writer *canonical_request,
                                      const char *date, const char *region,
                                      const char *service, dw_error *err)
{
    uint8_t hash[DW_SHA256_BYTES];
    char hex[DW_SHA256_TEXT];
    dw_status status =
        dw_sha256_of(hash, canonical_request->bytes, canonical_request->n_bytes, err);
    if (status != DW_OK)
        return status;
    dw_hex_encode(hex, hash, sizeof hash);
    dw_write_format(out, ALGORITHM "\n%s\n", date);
    write_scope(out, date, region, service);
    dw_write_format(out, "\n%s", hex);
    return out->failed ? dw_fail_memory(err, NULL) : DW_OK;
}

dw_status dw_sigv4_signature(char out[DW_SHA256_TEXT], const dw_writer *canonical_request,
                             const char *date, const char *region, const char *service,
                             const char *secret_key, dw_error *err)
{
    uint8_t key[DW_SHA256_BYTES] = {0};
    dw_writer text = {0};
    dw_status status =
        write_string_to_sign(&text, canonical_request, date, region, service, err);
    if (status == DW_OK)
        status = signing_key(key, date, region, service, secret_key, err);
    if (status == DW_OK)
        status = derive(key, (const char *)text.bytes, text.n_bytes, err);
    if (status == DW_OK)
        dw_hex_encode(out, key, sizeof key);
    OPENSSL_cleanse(key, sizeof key);
    dw_writer_release(&text);
    return status;
}

/* ---- the header ---- */

/* Checks credentials, which come from files and variables and go into header lines: a
 * stray line break would end a header. No message may contain them. */
static dw_status check_words(const dw_sigv4_request *request,
                             const dw_sigv4_credentials *credentials, dw_error *err)
{
    const char *bad =
        !dw_is_header_word(request->region)           ? "region"
        : !dw_is_header_word(credentials->access_key) ? "access key id"
        : !dw_is_header_word(credentials->secret_key) ? "secret access key"
        : credentials->session_token && !dw_is_header_word(credentials->session_token)
            ? "session token"
            : NULL;
    if (bad)
        return dw_fail(err, DW_INVALID, NULL,
                       "the %s holds a space or another character that it cannot have",
                       bad);
    return DW_OK;
}

static dw_status format_date(char out[DW_SIGV4_DATE], int64_t wall_ms, dw_error *err)
{
    time_t seconds = (time_t)(wall_ms / 1000);
    struct tm t;
    if (wall_ms < 0 || !gmtime_r(&seconds, &t) ||
        strftime(out, DW_SIGV4_DATE, "%Y%m%dT%H%M%SZ", &t) != DW_SIGV4_DATE - 1)
        return dw_fail(err, DW_INVALID, NULL,
                       "the clock shows no date that can be signed");
    return DW_OK;
}

dw_status dw_sigv4_authorization(dw_writer *out, char date_out[DW_SIGV4_DATE],
                                 const dw_sigv4_request *request,
                                 const dw_sigv4_credentials *credentials, dw_error *err)
{
    dw_status status = check_words(request, credentials, err);
    if (status == DW_OK)
        status = format_date(date_out, request->wall_ms, err);
    if (status != DW_OK)
        return status;

    size_t n = request->n_headers;
    dw_sigv4_header *headers = dw_alloc_array(n + 4, sizeof *headers);
    if (!headers)
        return dw_fail_memory(err, NULL);
    if (n > 0)
        memcpy(headers, request->headers, n * sizeof *headers);
    headers[n++] = (dw_sigv4_header){"host", request->host};
    headers[n++] = (dw_sigv4_header){"x-amz-content-sha256", request->payload_sha256};
    headers[n++] = (dw_sigv4_header){"x-amz-date", date_out};
    if (credentials->session_token)
        headers[n++] =
            (dw_sigv4_header){"x-amz-security-token", credentials->session_token};

    const char *service = request->service ? request->service : "s3";
    char signature[DW_SHA256_TEXT];
    dw_writer canonical = {0};
    dw_sigv4_canonical_request(&canonical, request->method, request->path, request->query,
                               headers, n, request->payload_sha256);
    status = canonical.failed
                 ? dw_fail_memory(err, NULL)
                 : dw_sigv4_signature(signature, &canonical, date_out, request->region,
                                      service, credentials->secret_key, err);
    dw_writer_release(&canonical);
    if (status == DW_OK) {
        dw_write_text(out, ALGORITHM " Credential=");
        dw_write_text(out, credentials->access_key);
        dw_write_u8(out, '/');
        write_scope(out, date_out, request->region, service);
        dw_write_text(out, ", SignedHeaders=");
        write_signed_names(out, headers, n);
        dw_write_text(out, ", Signature=");
        dw_write_bytes(out, signature, sizeof signature); /* with the NUL */
        if (out->failed)
            status = dw_fail_memory(err, NULL);
    }
    dw_free(headers);
    return status;
}
