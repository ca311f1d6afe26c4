#include "store/google_fetch.h"

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/json_tree.h"
#include "base/mem.h"
#include "net/credentials.h"
#include "store/key_fetch.h"
#include "store/sigv4.h"

enum {
    TOKEN_MS = 10000,
    METADATA_MS = 1000,
    LIFETIME_S = 3600, /* of an assertion: the most that Google takes */
    MAX_FILE_BYTES = 64 << 10,
    MAX_SIGNATURE = 2048,
};

#define SCOPE         "https://www.googleapis.com/auth/devstorage.read_write"
#define TOKEN_URI     "https://oauth2.googleapis.com/token"
#define METADATA_HOST "169.254.169.254"

static const char *member(const dw_json *object, const char *name)
{
    return dw_json_string(dw_json_get(object, name));
}

/* ---- the token endpoint ---- */

/* {"access_token", "expires_in"} */
static dw_status take_token(dw_keys *out, const dw_http_call *call, const char *where,
                            dw_error *err)
{
    dw_json *root = NULL;
    dw_status status =
        dw_json_read(&root, call->text.bytes, call->text.n_bytes, "token", where, err);
    if (status != DW_OK)
        return status;
    const char *token = member(root, "access_token");
    uint64_t seconds;
    if (!token)
        status = dw_fail(err, DW_DENIED, where, "%s: the answer has no access_token",
                         out->origin);
    else if (!(out->session_token = dw_copy_string(token)))
        status = dw_fail_memory(err, where);
    else if (dw_json_unsigned(dw_json_get(root, "expires_in"), &seconds) &&
             seconds < UINT32_MAX)
        out->expires_ms = dw_wall_clock_ms() + (int64_t)seconds * 1000;
    dw_json_free(root);
    return status;
}

/* {"error", "error_description"} */
static dw_status refuse(const dw_keys *keys, const dw_http_call *call, const char *where,
                        dw_error *err)
{
    dw_json *root = NULL;
    dw_json_read(&root, call->text.bytes, call->text.n_bytes, "answer", where, NULL);
    const char *code = member(root, "error"), *text = member(root, "error_description");
    dw_status status = dw_key_refused(keys, call->status, code ? code : "",
                                      text ? text : "", where, err);
    dw_json_free(root);
    return status;
}

static dw_status post(dw_keys *out, const char *uri, dw_writer *body, dw_error *err)
{
    static const char *const headers[] = {
        "Content-Type: application/x-www-form-urlencoded"};
    char where[DW_HOST_TEXT];
    dw_http_call call = {.method = "POST",
                         .url = uri ? uri : TOKEN_URI,
                         .headers = headers,
                         .n_headers = 1,
                         .send = body->bytes,
                         .n_send = body->n_bytes,
                         .timeout_ms = TOKEN_MS};
    dw_error fault = {0};
    if (body->failed)
        return dw_fail_memory(err, out->origin);
    snprintf(out->place, sizeof out->place, "%s", dw_key_host(where, call.url));
    dw_status status = dw_http_once(&call, where, &fault);
    if (status != DW_OK)
        dw_fail(err, status, where, "%s: %s", out->origin, fault.text);
    else if (call.status != 200)
        status = refuse(out, &call, where, err);
    else
        status = take_token(out, &call, where, err);
    dw_key_call_release(&call);
    return status;
}

/* ---- a service account: a signed assertion ---- */

static void write_base64url(dw_writer *out, const void *bytes, size_t n_bytes)
{
    unsigned char *text = dw_alloc(4 * (n_bytes / 3 + 1) + 1);
    if (text)
        EVP_EncodeBlock(text, bytes, (int)n_bytes);
    else
        out->failed = true;
    for (const unsigned char *c = text; c && *c && *c != '='; c++)
        dw_write_u8(out, *c == '+' ? '-' : *c == '/' ? '_' : *c);
    dw_free(text);
}

static int no_password(char *buffer, int size, int writing, void *context)
{
    (void)buffer, (void)size, (void)writing, (void)context;
    return 0;
}

/* Appends the signature of all that OUT holds. */
static bool sign(dw_writer *out, const char *pem)
{
    unsigned char signature[MAX_SIGNATURE];
    size_t n = sizeof signature;
    BIO *bio = BIO_new_mem_buf(pem, -1);
    EVP_PKEY *key = bio ? PEM_read_bio_PrivateKey(bio, NULL, no_password, NULL) : NULL;
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    const bool good =
        key && EVP_PKEY_get_id(key) == EVP_PKEY_RSA && context && !out->failed &&
        EVP_DigestSignInit(context, NULL, EVP_sha256(), NULL, key) == 1 &&
        EVP_DigestSign(context, signature, &n, out->bytes, out->n_bytes) == 1;
    EVP_MD_CTX_free(context);
    EVP_PKEY_free(key);
    BIO_free(bio);
    ERR_clear_error();
    dw_write_u8(out, '.');
    if (good)
        write_base64url(out, signature, n);
    return good;
}

static void add_claim(dw_writer *out, const char *name, const char *value)
{
    dw_write_format(out, ",\"%s\":", name);
    dw_write_json_string(out, value);
}

/* RFC 7523: a JSON Web Token, signed with RS256. */
static bool write_assertion(dw_writer *out, const dw_json *file, const char *audience)
{
    const char *key_id = member(file, "private_key_id");
    const long long now_s = dw_wall_clock_ms() / 1000;
    dw_writer head = {0}, claims = {0};
    dw_write_text(&head, "{\"alg\":\"RS256\",\"typ\":\"JWT\"");
    if (key_id)
        add_claim(&head, "kid", key_id);
    dw_write_u8(&head, '}');
    dw_write_format(&claims, "{\"iat\":%lld,\"exp\":%lld", now_s, now_s + LIFETIME_S);
    add_claim(&claims, "iss", member(file, "client_email"));
    add_claim(&claims, "scope", SCOPE);
    add_claim(&claims, "aud", audience);
    dw_write_u8(&claims, '}');
    out->failed = out->failed || head.failed || claims.failed;
    write_base64url(out, head.bytes, head.n_bytes);
    dw_write_u8(out, '.');
    write_base64url(out, claims.bytes, claims.n_bytes);
    dw_writer_release(&head);
    dw_writer_release(&claims);
    const bool good = sign(out, member(file, "private_key"));
    dw_write_u8(out, 0);
    return good;
}

static dw_status by_service_account(dw_keys *out, const dw_json *file, const char *path,
                                    dw_error *err)
{
    const char *uri = member(file, "token_uri");
    dw_writer assertion = {0}, body = {0};
    const bool good = write_assertion(&assertion, file, uri ? uri : TOKEN_URI);
    dw_write_text(&body, "grant_type=");
    dw_percent_encode(&body, "urn:ietf:params:oauth:grant-type:jwt-bearer", false);
    dw_status status = DW_OK;
    if (assertion.failed)
        status = dw_fail_memory(err, path);
    else if (!good)
        status = dw_fail(err, DW_INVALID, path,
                         "%s: the private_key is no RSA key in PEM; make a new key file "
                         "of the account",
                         out->origin);
    else
        dw_key_add_field(&body, "assertion", (char *)assertion.bytes);
    if (status == DW_OK)
        status = post(out, uri, &body, err);
    dw_secret_release(&assertion);
    dw_secret_release(&body);
    return status;
}

/* ---- a user: a refresh token ---- */

static dw_status by_user(dw_keys *out, const dw_json *file, dw_error *err)
{
    static const char *const names[] = {"client_id", "client_secret", "refresh_token"};
    dw_writer body = {0};
    dw_write_text(&body, "grant_type=refresh_token");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        dw_key_add_field(&body, names[i], member(file, names[i]));
    dw_status status = post(out, member(file, "token_uri"), &body, err);
    dw_secret_release(&body);
    return status;
}

/* ---- files ---- */

static dw_status read_file(dw_json **out, const char *path, const dw_keys *keys,
                           dw_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    dw_error fault = {0};
    *out = NULL;
    dw_status status = dw_read_file(&bytes, &n, path, MAX_FILE_BYTES, &fault);
    if (status == DW_OK)
        status = dw_json_read(out, bytes, n, "file", path, &fault);
    if (bytes)
        OPENSSL_cleanse(bytes, n);
    dw_free(bytes);
    return status == DW_OK || status == DW_NO_MEMORY
               ? status
               : dw_fail(err, DW_DENIED, path, "%s: %s", keys->origin, fault.text);
}

static dw_status lacks(const dw_json *file, const char *a, const char *b,
                       const char *path, const dw_keys *keys, dw_error *err)
{
    if (member(file, a) && member(file, b))
        return DW_OK;
    return dw_fail(err, DW_INVALID, path, "%s: the file has no '%s'", keys->origin,
                   member(file, a) ? b : a);
}

dw_status dw_google_fetch_by_file(dw_keys *out, const char *path, bool check_only,
                                  dw_error *err)
{
    dw_json *file;
    snprintf(out->origin, sizeof out->origin, "Google credentials");
    dw_status status = read_file(&file, path, out, err);
    if (status != DW_OK)
        return status;
    const char *type = member(file, "type");
    if (type && strcmp(type, "service_account") == 0) {
        status = lacks(file, "client_email", "private_key", path, out, err);
        if (status == DW_OK) {
            snprintf(out->origin, sizeof out->origin, "service account %.80s of %.140s",
                     member(file, "client_email"), path);
            status = check_only ? DW_OK : by_service_account(out, file, path, err);
        }
    } else if (type && strcmp(type, "authorized_user") == 0) {
        status = lacks(file, "client_id", "refresh_token", path, out, err);
        snprintf(out->origin, sizeof out->origin, "the user of %.200s", path);
        if (status == DW_OK && !check_only)
            status = by_user(out, file, err);
    } else {
        status = dw_fail(err, DW_UNSUPPORTED, path,
                         "Google credentials of the type '%.40s' are not supported, only "
                         "service_account and authorized_user; give a token: export "
                         "GOOGLE_OAUTH_ACCESS_TOKEN=$(gcloud auth "
                         "application-default print-access-token)",
                         type ? type : "");
    }
    dw_json_free(file);
    return status;
}

/* ---- the metadata server ---- */

const char *dw_google_metadata_host(void)
{
    const char *given = dw_environment("GCE_METADATA_HOST");
    return given ? given : METADATA_HOST;
}

dw_status dw_google_fetch_metadata(dw_keys *out, bool *answered, dw_error *err)
{
    static const char *const headers[] = {"Metadata-Flavor: Google"};
    char url[512];
    snprintf(out->origin, sizeof out->origin, "metadata server %.200s",
             dw_google_metadata_host());
    snprintf(url, sizeof url,
             "http://%.255s/computeMetadata/v1/instance/service-accounts/default/token",
             dw_google_metadata_host());
    dw_http_call call = {.method = "GET",
                         .url = url,
                         .headers = headers,
                         .n_headers = 1,
                         .timeout_ms = METADATA_MS,
                         .direct = true};
    dw_status status = dw_key_ask(&call, out, err);
    const char *flavor = dw_http_header(&call, "metadata-flavor");
    const bool is_google = flavor && strcmp(flavor, "Google") == 0;
    *answered = *answered || is_google;
    if (status == DW_OK)
        status = is_google ? take_token(out, &call, out->origin, err)
                           : dw_fail(err, DW_DENIED, out->origin,
                                     "this is not Google's metadata server");
    dw_key_call_release(&call);
    return status;
}
