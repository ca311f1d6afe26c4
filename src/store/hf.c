#include "store/hf.h"

#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "net/credentials.h"
#include "store/s3.h"
#include "store/store.h"

enum { MAX_TOKEN = 4096 };

/* ---- the URL ---- */

typedef struct bucket_name {
    char *text; /* owned; the rest points into it */
    const char *namespace, *name, *prefix;
} bucket_name;

static bool is_name(const char *text)
{
    return *text && *text != '.' &&
           text[strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                             "0123456789-._")] == '\0';
}

static dw_status parse_url(bucket_name *out, const char *url, dw_error *err)
{
    static const char start[] = "hf://buckets/";
    const char *fault = "the URL must be hf://buckets/NAMESPACE/NAME[/PREFIX]";
    if (strncmp(url, start, strlen(start)) != 0)
        return dw_fail(err, DW_INVALID, url, "%s", fault);
    out->text = dw_copy_string(url + strlen(start));
    if (!out->text)
        return dw_fail_memory(err, url);
    for (size_t n = strlen(out->text); n > 0 && out->text[n - 1] == '/'; n--)
        out->text[n - 1] = '\0';
    char *name = strchr(out->text, '/');
    if (name)
        *name++ = '\0';
    char *prefix = name ? strchr(name, '/') : NULL;
    if (prefix)
        *prefix++ = '\0';
    out->namespace = out->text;
    out->name = name;
    out->prefix = prefix ? prefix : "";
    if (!name || !is_name(out->namespace) || !is_name(name))
        return dw_fail(err, DW_INVALID, url, "%s", fault);
    if (*out->prefix && !dw_store_key_valid(out->prefix))
        return dw_fail(err, DW_INVALID, url,
                       "'%.80s' cannot be the prefix of keys: " DW_KEY_RULE, out->prefix);
    return DW_OK;
}

/* ---- the gateway ---- */

static dw_status open_gateway(dw_store **out, const char *url, const bucket_name *bucket,
                              dw_key_ring *keys, const dw_store_options *options,
                              dw_error *err)
{
    const char *given = options && options->endpoint ? options->endpoint
                                                     : dw_environment("HF_S3_ENDPOINT");
    dw_writer endpoint = {0};
    dw_write_text(&endpoint, given ? given : "https://s3.hf.co/");
    if (!given)
        dw_write_text(&endpoint, bucket->namespace);
    dw_write_u8(&endpoint, 0);
    if (endpoint.failed) {
        dw_key_ring_close(keys);
        return dw_fail_memory(err, url);
    }
    dw_s3_location location = {
        .endpoint = (const char *)endpoint.bytes,
        .bucket = bucket->name,
        .prefix = bucket->prefix,
        .region = "us-east-1",
        .path_style = true,
        .keys = keys,
        .follow_redirects = true,
        .missing_is_403 = true,
    };
    dw_status status = dw_s3_store_open_at(out, url, &location, options, err);
    dw_writer_release(&endpoint);
    return status;
}

/* ---- the token ---- */

static dw_status token_path(char **out, dw_error *err)
{
    const char *given = dw_environment("HF_TOKEN_PATH");
    const char *hub = dw_environment("HF_HOME"), *home = dw_environment("HOME");
    *out = dw_copy_string("");
    if (given || hub || home) {
        dw_free(*out);
        *out = given ? dw_copy_string(given)
               : hub ? dw_join_path(hub, "token")
                     : dw_join_path(home, ".cache/huggingface/token");
    }
    return *out ? DW_OK : dw_fail_memory(err, NULL);
}

/* Sets TOKEN to "" if there is none; ORIGIN is where it is. */
static dw_status find_token(char token[MAX_TOKEN], char origin[DW_KEYS_ORIGIN],
                            dw_error *err)
{
    token[0] = '\0';
    snprintf(origin, DW_KEYS_ORIGIN, "HF_TOKEN");
    const char *given = dw_environment("HF_TOKEN");
    if (given) {
        if (strlen(given) >= MAX_TOKEN)
            return dw_fail(err, DW_INVALID, NULL, "HF_TOKEN is too long to be a token");
        memcpy(token, given, strlen(given) + 1);
        return DW_OK;
    }
    char *path;
    dw_status status = token_path(&path, err);
    if (status != DW_OK)
        return status;
    snprintf(origin, DW_KEYS_ORIGIN, "the token in %s", path);
    FILE *file = *path ? fopen(path, "re") : NULL;
    if (file) {
        setvbuf(file, NULL, _IONBF, 0); /* so that no copy stays in a buffer */
        size_t n = fread(token, 1, MAX_TOKEN - 1, file);
        fclose(file);
        while (n > 0 && strchr(" \t\r\n", token[n - 1]))
            n--;
        token[n] = '\0';
    }
    dw_free(path);
    return DW_OK;
}

static dw_status open_with_token(dw_store **out, const char *url,
                                 const bucket_name *bucket,
                                 const dw_store_options *options, dw_error *err)
{
    char token[MAX_TOKEN], origin[DW_KEYS_ORIGIN];
    dw_status status = find_token(token, origin, err);
    if (status != DW_OK)
        return status;
    if (!*token)
        return dw_fail(err, DW_DENIED, url,
                       "there are no credentials: set HF_S3_ACCESS_KEY_ID and "
                       "HF_S3_SECRET_ACCESS_KEY (made in the Hub's token settings), or "
                       "HF_TOKEN to read only");
    const char *endpoint = dw_environment("HF_ENDPOINT");
    dw_writer names = {0};
    dw_write_text(&names, bucket->namespace);
    dw_write_u8(&names, '/');
    dw_write_text(&names, bucket->name);
    dw_write_u8(&names, 0);
    if (names.failed)
        status = dw_fail_memory(err, url);
    else if (!dw_is_header_word(token))
        status = dw_fail(err, DW_INVALID, url,
                         "the Hub's token holds a character that it cannot have");
    else
        status = dw_hf_native_open(
            out, url,
            &(dw_hf_location){.endpoint = endpoint ? endpoint : "https://huggingface.co",
                              .bucket = (const char *)names.bytes,
                              .prefix = bucket->prefix,
                              .token = token,
                              .origin = origin},
            options, err);
    OPENSSL_cleanse(token, sizeof token);
    dw_writer_release(&names);
    return status;
}

dw_status dw_hf_store_open(dw_store **out, const char *url,
                           const dw_store_options *options, dw_error *err)
{
    *out = NULL;
    const char *access_key = dw_environment("HF_S3_ACCESS_KEY_ID");
    const char *secret_key = dw_environment("HF_S3_SECRET_ACCESS_KEY");
    dw_key_ring *keys = NULL;
    bucket_name bucket = {0};
    dw_status status = parse_url(&bucket, url, err);
    if (status == DW_OK && !access_key != !secret_key)
        status = dw_fail(err, DW_INVALID, url,
                         "of HF_S3_ACCESS_KEY_ID and HF_S3_SECRET_ACCESS_KEY only one is "
                         "set");
    else if (status == DW_OK && access_key) {
        status =
            dw_key_ring_fixed(&keys, access_key, secret_key, NULL,
                              "HF_S3_ACCESS_KEY_ID and HF_S3_SECRET_ACCESS_KEY", err);
        if (status == DW_OK)
            status = open_gateway(out, url, &bucket, keys, options, err);
    } else if (status == DW_OK)
        status = open_with_token(out, url, &bucket, options, err);
    dw_free(bucket.text);
    return status;
}
