#include "store/aws_fetch.h"

#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json_tree.h"
#include "base/mem.h"
#include "base/shell.h"
#include "net/credentials.h"
#include "net/endpoint.h"
#include "store/key_fetch.h"
#include "store/s3_xml.h"
#include "store/sigv4.h"

enum {
    STS_MS = 10000,
    CONTAINER_MS = 5000,
    INSTANCE_MS = 1000,
    PROCESS_MS = 60000,
    MAX_TOKEN_BYTES = 64 << 10,
};

#define CONTAINER_HOST "http://169.254.170.2"
#define INSTANCE_HOST  "http://169.254.169.254"
#define INSTANCE_HOST6 "http://[fd00:ec2::254]"

/* ---- replies ---- */

static bool copy_member(char **out, const dw_json *root, const char *name)
{
    const char *text = dw_json_string(dw_json_get(root, name));
    *out = text ? dw_copy_string(text) : NULL;
    return *out || !text;
}

/* "2026-11-18T16:00:00Z", or with an offset such as +02:00, which commands print. 0: no
 * such time. */
static int64_t parse_expiry(const char *text)
{
    char utc[64];
    int hours = 0, minutes = 0;
    size_t n = strlen(text);
    if (n < 7 || n >= sizeof utc || text[n - 1] == 'Z')
        return dw_time_parse(text);
    const char *offset = text + n - 6;
    if ((*offset != '+' && *offset != '-') ||
        sscanf(offset + 1, "%2d:%2d", &hours, &minutes) != 2)
        return 0;
    snprintf(utc, sizeof utc, "%.*sZ", (int)(n - 6), text);
    int64_t at_ms = dw_time_parse(utc);
    int64_t off_ms = (hours * 60 + minutes) * (int64_t)60000;
    return at_ms == 0 ? 0 : *offset == '+' ? at_ms - off_ms : at_ms + off_ms;
}

/* {"AccessKeyId", "SecretAccessKey", TOKEN, "Expiration"} */
static dw_status keys_from_json(dw_keys *out, const dw_writer *text,
                                const char *token_name, const char *where, dw_error *err)
{
    dw_json *root = NULL;
    dw_status status =
        dw_json_read(&root, text->bytes, text->n_bytes, "credentials", where, err);
    if (status != DW_OK)
        return status;
    const char *expires = dw_json_string(dw_json_get(root, "Expiration"));
    if (!copy_member(&out->access_key, root, "AccessKeyId") ||
        !copy_member(&out->secret_key, root, "SecretAccessKey") ||
        !copy_member(&out->session_token, root, token_name))
        status = dw_fail_memory(err, where);
    else if (!out->access_key || !out->secret_key)
        status =
            dw_fail(err, DW_DENIED, where,
                    "%s: the answer has no AccessKeyId and SecretAccessKey", out->origin);
    else if (expires && (out->expires_ms = parse_expiry(expires)) == 0)
        status = dw_fail(err, DW_INVALID, where,
                         "%s: the answer's Expiration is not a time", out->origin);
    dw_json_free(root);
    return status;
}

/* A file with one secret line, which others rotate. */
static dw_status read_secret(char **out, const char *path, const dw_keys *keys,
                             dw_error *err)
{
    uint8_t *bytes = NULL;
    size_t n = 0;
    dw_error fault = {0};
    *out = NULL;
    dw_status status = dw_read_file(&bytes, &n, path, MAX_TOKEN_BYTES, &fault);
    if (status != DW_OK)
        return dw_fail(err, status == DW_NO_MEMORY ? status : DW_UNAVAILABLE, path,
                       "%s: %s", keys->origin, fault.text);
    while (n > 0 && strchr(" \t\r\n", bytes[n - 1]))
        n--;
    char *secret = dw_alloc(n + 1);
    if (secret) {
        memcpy(secret, bytes, n);
        secret[n] = '\0';
    }
    OPENSSL_cleanse(bytes, n);
    dw_free(bytes);
    if (!secret)
        return dw_fail_memory(err, path);
    if (n == 0 || strlen(secret) != n || strpbrk(secret, "\r\n")) {
        dw_secret_free(secret);
        return dw_fail(err, DW_INVALID, path, "%s: the file holds no token",
                       keys->origin);
    }
    *out = secret;
    return DW_OK;
}

/* ---- STS ---- */

static void write_address(dw_writer *out, const dw_aws_role *role)
{
    if (role->endpoint)
        dw_write_text(out, role->endpoint);
    else
        dw_write_format(out, "https://sts.%.60s.amazonaws.com%s", role->region,
                        strncmp(role->region, "cn-", 3) == 0 ? ".cn" : "");
    dw_write_u8(out, 0);
}

/* Writes the lines Authorization, x-amz-*, each with its NUL, and where they START. */
static dw_status sign(dw_writer *lines, size_t starts[4], size_t *n_lines,
                      const dw_endpoint *to, const dw_writer *body,
                      const dw_aws_role *role, const dw_keys *by, dw_error *err)
{
    uint8_t digest[DW_SHA256_BYTES];
    char payload[DW_SHA256_TEXT], date[DW_SIGV4_DATE];
    dw_status status = dw_sha256_of(digest, body->bytes, body->n_bytes, err);
    if (status != DW_OK)
        return status;
    dw_hex_encode(payload, digest, sizeof digest);
    char path[1024];
    snprintf(path, sizeof path, "%s/", to->path);
    const dw_sigv4_request request = {
        .method = "POST",
        .host = to->host,
        .path = path,
        .query = "",
        .payload_sha256 = payload,
        .service = "sts",
        .region = role->region,
        .wall_ms = dw_wall_clock_ms(),
    };
    const dw_sigv4_credentials credentials = {by->access_key, by->secret_key,
                                              by->session_token};
    dw_write_text(lines, "Authorization: ");
    status = dw_sigv4_authorization(lines, date, &request, &credentials, err);
    const struct {
        const char *name, *value;
    } rest[] = {{"x-amz-date", date},
                {"x-amz-content-sha256", payload},
                {"x-amz-security-token", by->session_token}};
    starts[0] = 0;
    *n_lines = 1;
    for (size_t i = 0; status == DW_OK && i < 3; i++) {
        if (!rest[i].value)
            continue;
        starts[(*n_lines)++] = lines->n_bytes;
        dw_write_format(lines, "%s: ", rest[i].name);
        dw_write_text(lines, rest[i].value);
        dw_write_u8(lines, 0);
    }
    return status == DW_OK && lines->failed ? dw_fail_memory(err, NULL) : status;
}

static dw_status judge_sts(dw_keys *out, const dw_http_call *call, const char *root,
                           dw_error *err)
{
    dw_s3_error fault;
    if (call->status != 200) {
        dw_sts_error_parse(&fault, call->text.bytes, call->text.n_bytes);
        return dw_key_refused(out, call->status, fault.code, fault.message, call->url,
                              err);
    }
    dw_sts_keys keys = {0};
    dw_status status = dw_sts_keys_parse(&keys, root, call->text.bytes,
                                         call->text.n_bytes, call->url, err);
    out->access_key = keys.access_key;
    out->secret_key = keys.secret_key;
    out->session_token = keys.session_token;
    out->expires_ms = keys.expires_ms;
    return status;
}

/* BODY begins with Action=...; BY NULL: not signed. */
static dw_status ask_sts(dw_keys *out, const dw_aws_role *role, dw_writer *body,
                         const dw_keys *by, const char *root, dw_error *err)
{
    dw_key_add_field(body, "Version", "2011-06-15");
    dw_key_add_field(body, "RoleArn", role->arn);
    dw_key_add_field(body, "RoleSessionName",
                     role->session_name ? role->session_name : "deltawire");
    dw_key_add_field(body, "ExternalId", role->external_id);
    dw_key_add_field(body, "DurationSeconds", role->duration);
    dw_writer url = {0}, lines = {0};
    dw_endpoint to = {0};
    size_t starts[4], n_lines = 0;
    write_address(&url, role);
    dw_status status = url.failed || body->failed ? dw_fail_memory(err, NULL) : DW_OK;
    if (status == DW_OK)
        status = dw_http_init(err);
    if (status == DW_OK)
        status = dw_endpoint_parse(&to, (char *)url.bytes, "STS", err);
    if (status == DW_OK && by)
        status = sign(&lines, starts, &n_lines, &to, body, role, by, err);
    if (status == DW_OK) {
        char address[1200];
        const size_t n = strlen(out->place);
        snprintf(address, sizeof address, "%s://%s%s/", to.scheme, to.host, to.path);
        snprintf(out->place + n, sizeof out->place - n, "%s%s", n ? ", at " : "",
                 address);
        const char *headers[5] = {"Content-Type: application/x-www-form-urlencoded"};
        for (size_t i = 0; i < n_lines; i++)
            headers[1 + i] = (const char *)lines.bytes + starts[i];
        dw_http_call call = {.method = "POST",
                             .url = address,
                             .headers = headers,
                             .n_headers = 1 + n_lines,
                             .send = body->bytes,
                             .n_send = body->n_bytes,
                             .timeout_ms = STS_MS};
        dw_error fault = {0};
        status = dw_http_once(&call, address, &fault);
        status = status == DW_OK ? judge_sts(out, &call, root, err)
                                 : dw_fail(err, fault.code, address, "%s: %s",
                                           out->origin, fault.text);
        dw_key_call_release(&call);
    }
    dw_endpoint_release(&to);
    dw_writer_release(&url);
    dw_secret_release(&lines);
    return status;
}

dw_status dw_aws_fetch_web_identity(dw_keys *out, const dw_aws_role *role,
                                    const char *token_path, dw_error *err)
{
    snprintf(out->origin, sizeof out->origin, "web identity, role %.180s", role->arn);
    snprintf(out->place, sizeof out->place, "%.120s", token_path);
    char *token;
    dw_status status = read_secret(&token, token_path, out, err);
    if (status != DW_OK)
        return status;
    dw_writer body = {0};
    dw_write_text(&body, "Action=AssumeRoleWithWebIdentity");
    dw_key_add_field(&body, "WebIdentityToken", token);
    status = ask_sts(out, role, &body, NULL, "AssumeRoleWithWebIdentityResponse", err);
    dw_secret_free(token);
    dw_secret_release(&body);
    return status;
}

dw_status dw_aws_fetch_role(dw_keys *out, const dw_aws_role *role, const dw_keys *by,
                            dw_error *err)
{
    snprintf(out->origin, sizeof out->origin, "role %.120s, by %.100s", role->arn,
             by->origin);
    dw_writer body = {0};
    dw_write_text(&body, "Action=AssumeRole");
    dw_status status = ask_sts(out, role, &body, by, "AssumeRoleResponse", err);
    dw_writer_release(&body);
    return status;
}

/* ---- the container endpoint ---- */

bool dw_aws_container_url_allowed(const char *url)
{
    /* hosts of http://, with what may follow them */
    static const char *const hosts[] = {"localhost",      "127.",
                                        "[::1]",          "169.254.170.2",
                                        "169.254.170.23", "[fd00:ec2::23]"};
    if (strncasecmp(url, "https://", 8) == 0)
        return true;
    if (strncasecmp(url, "http://", 7) != 0)
        return false;
    const char *host = url + 7;
    size_t n_host = strcspn(host, "/?#");
    if (memchr(host, '@', n_host))
        return false;
    if (*host != '[')
        n_host = strcspn(host, ":/?#");
    else if (memchr(host, ']', n_host))
        n_host = (size_t)((const char *)memchr(host, ']', n_host) - host) + 1;
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++)
        if (strncasecmp(host, hosts[i], strlen(hosts[i])) == 0 &&
            (n_host == strlen(hosts[i]) ||
             (i == 1 && strspn(host, "0123456789.") == n_host)))
            return true;
    return false;
}

/* The line Authorization: TOKEN; NULL in OUT if there is none. */
static dw_status container_token(char **out, const dw_keys *keys, dw_error *err)
{
    const char *path = dw_environment("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
    const char *given = dw_environment("AWS_CONTAINER_AUTHORIZATION_TOKEN");
    char *token = NULL;
    *out = NULL;
    dw_status status = path ? read_secret(&token, path, keys, err) : DW_OK;
    if (status != DW_OK || (!path && !given))
        return status;
    dw_writer line = {0};
    dw_write_text(&line, "Authorization: ");
    dw_write_text(&line, token ? token : given);
    dw_write_u8(&line, 0);
    dw_secret_free(token);
    if (!line.failed && strpbrk((char *)line.bytes, "\r\n")) {
        dw_secret_release(&line);
        return dw_fail(err, DW_INVALID, NULL,
                       "AWS_CONTAINER_AUTHORIZATION_TOKEN holds a line break");
    }
    *out = (char *)line.bytes;
    return line.failed ? dw_fail_memory(err, NULL) : DW_OK;
}

dw_status dw_aws_fetch_container(dw_keys *out, dw_error *err)
{
    const char *relative = dw_environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
    const char *full = dw_environment("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    char url[2048], host[DW_HOST_TEXT], *token = NULL;
    int n = snprintf(url, sizeof url, "%s%s", relative ? CONTAINER_HOST : "",
                     relative ? relative
                     : full   ? full
                              : "");
    snprintf(out->origin, sizeof out->origin, "container endpoint %s",
             dw_key_host(host, url));
    if (n < 0 || (size_t)n >= sizeof url || (relative && *relative != '/') ||
        !dw_aws_container_url_allowed(url))
        return dw_fail(err, DW_INVALID, out->origin,
                       "AWS_CONTAINER_CREDENTIALS_%s_URI must be %s",
                       relative ? "RELATIVE" : "FULL",
                       relative ? "a path"
                                : "an https:// URL, or http:// on this machine or on "
                                  "the address of ECS or EKS");
    dw_status status = container_token(&token, out, err);
    if (status != DW_OK)
        return status;
    const char *const headers[] = {"Accept: application/json", token};
    dw_http_call call = {.method = "GET",
                         .url = url,
                         .headers = headers,
                         .n_headers = token ? 2 : 1,
                         .timeout_ms = CONTAINER_MS,
                         .direct = strncasecmp(url, "http:", 5) == 0};
    status = dw_key_ask(&call, out, err);
    if (status == DW_OK)
        status = keys_from_json(out, &call.text, "Token", host, err);
    dw_key_call_release(&call);
    dw_secret_free(token);
    return status;
}

/* ---- instance metadata ---- */

const char *dw_aws_instance_address(void)
{
    const char *disabled = dw_environment("AWS_EC2_METADATA_DISABLED");
    const char *given = dw_environment("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    const char *mode = dw_environment("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE");
    if (disabled && strcasecmp(disabled, "true") == 0)
        return "";
    if (given)
        return given;
    return mode && strcasecmp(mode, "IPv6") == 0 ? INSTANCE_HOST6 : INSTANCE_HOST;
}

/* A reply that becomes part of a request: one word, its first line. */
static dw_status take_word(char *out, size_t n_room, const dw_http_call *call,
                           const dw_keys *keys, dw_error *err)
{
    const char *bytes = (const char *)call->text.bytes;
    size_t n = 0;
    while (n < call->text.n_bytes && bytes[n] > ' ' && bytes[n] <= '~')
        n++;
    if (n == 0 || n >= n_room)
        return dw_fail(err, DW_DENIED, call->url, "%s: the answer is not one word",
                       keys->origin);
    memcpy(out, bytes, n);
    out[n] = '\0';
    return DW_OK;
}

static dw_status ask_instance(dw_writer *text, const dw_keys *keys, const char *method,
                              const char *path, const char *header, char *word,
                              size_t n_word, bool *answered, dw_error *err)
{
    const char *address = dw_aws_instance_address();
    size_t n = strlen(address);
    char url[1024];
    snprintf(url, sizeof url, "%.*s%s", (int)(n > 0 && address[n - 1] == '/' ? n - 1 : n),
             address, path);
    dw_http_call call = {.method = method,
                         .url = url,
                         .headers = &header,
                         .n_headers = 1,
                         .timeout_ms = INSTANCE_MS,
                         .direct = true};
    dw_status status = dw_key_ask(&call, keys, err);
    if (call.status != 0)
        *answered = true;
    if (status == DW_OK && word)
        status = take_word(word, n_word, &call, keys, err);
    if (status == DW_OK && text) {
        *text = call.text; /* moved */
        call.text = (dw_writer){0};
    }
    dw_key_call_release(&call);
    return status;
}

dw_status dw_aws_fetch_instance(dw_keys *out, bool *answered, dw_error *err)
{
    static const char roles[] = "/latest/meta-data/iam/security-credentials/";
    char token[1024], header[1100], role[128], path[256];
    dw_writer text = {0};
    snprintf(out->origin, sizeof out->origin, "instance metadata %.200s",
             dw_aws_instance_address());
    dw_status status = ask_instance(NULL, out, "PUT", "/latest/api/token",
                                    "X-aws-ec2-metadata-token-ttl-seconds: 21600", token,
                                    sizeof token, answered, err);
    if (status != DW_OK)
        return status;
    snprintf(header, sizeof header, "X-aws-ec2-metadata-token: %s", token);
    status =
        ask_instance(NULL, out, "GET", roles, header, role, sizeof role, answered, err);
    if (status == DW_OK) {
        snprintf(path, sizeof path, "%s%s", roles, role);
        status = ask_instance(&text, out, "GET", path, header, NULL, 0, answered, err);
    }
    if (status == DW_OK) {
        snprintf(out->origin, sizeof out->origin, "instance metadata %.100s, role %.100s",
                 dw_aws_instance_address(), role);
        status = keys_from_json(out, &text, "Token", out->origin, err);
    }
    OPENSSL_cleanse(token, sizeof token);
    OPENSSL_cleanse(header, sizeof header);
    dw_secret_release(&text);
    return status;
}

/* ---- a command ---- */

dw_status dw_aws_fetch_process(dw_keys *out, const char *profile, const char *command,
                               dw_error *err)
{
    static char *const nothing[] = {NULL};
    dw_writer text = {0};
    dw_shell_end end;
    snprintf(out->origin, sizeof out->origin, "credential_process of profile '%.100s'",
             profile);
    dw_error fault = {0}; /* it names the command, which may hold secrets */
    dw_status status = dw_shell_run(command, nothing, PROCESS_MS, &text, &end, &fault);
    if (status != DW_OK)
        dw_fail(err, status, out->origin, "%s", fault.text);
    else if (end.timed_out || end.code != 0)
        status = dw_fail(err, end.timed_out ? DW_UNAVAILABLE : DW_DENIED, out->origin,
                         "%s%s%s", end.timed_out ? "took longer than a minute" : "failed",
                         *end.last_line ? ": " : "", end.last_line);
    else
        status = keys_from_json(out, &text, "SessionToken", out->origin, err);
    if (status == DW_CORRUPT)
        status = DW_DENIED; /* it is all that the command printed */
    dw_secret_release(&text);
    return status;
}
