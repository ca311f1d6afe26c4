/* The TLS files. They are checked here because libmicrohttpd does not report what is
 * wrong with a bad one. */
#include <errno.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <string.h>

#include "agent/auth.h"
#include "base/error.h"
#include "base/mem.h"

#define MAX_FILE (1 << 20)

static dw_status read_text(char **out, const char *path, dw_error *err)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return dw_fail_errno(err, path, "open");
    char *text = dw_alloc(MAX_FILE + 1);
    dw_status status = text ? DW_OK : dw_fail_memory(err, path);
    if (text) {
        errno = 0;
        size_t n = fread(text, 1, MAX_FILE + 1, file);
        if (ferror(file))
            status = dw_fail_errno(err, path, "read");
        else if (n > MAX_FILE || memchr(text, '\0', n))
            status = dw_fail(err, DW_CORRUPT, path, "this is no PEM file");
        else
            text[n] = '\0';
    }
    fclose(file);
    if (status == DW_OK)
        *out = text;
    else
        dw_free(text);
    return status;
}

/* Refuses a key with a password: nobody can be asked for it. */
static int no_password(char *out, int size, int is_writing, void *context)
{
    (void)out, (void)size, (void)is_writing, (void)context;
    return -1;
}

static X509 *read_cert(const char *text)
{
    BIO *bio = BIO_new_mem_buf(text, -1);
    X509 *cert = bio ? PEM_read_bio_X509(bio, NULL, no_password, NULL) : NULL;
    BIO_free(bio);
    return cert;
}

static EVP_PKEY *read_key(const char *text)
{
    BIO *bio = BIO_new_mem_buf(text, -1);
    EVP_PKEY *key = bio ? PEM_read_bio_PrivateKey(bio, NULL, no_password, NULL) : NULL;
    BIO_free(bio);
    return key;
}

static dw_status check_pair(const dw_tls_files *files, const dw_agent_options *options,
                            dw_error *err)
{
    dw_status status = DW_OK;
    X509 *cert = read_cert(files->cert);
    EVP_PKEY *key = read_key(files->key);
    if (!cert)
        status = dw_fail(err, DW_CORRUPT, options->tls_cert,
                         "no certificate in it, as PEM: BEGIN CERTIFICATE");
    else if (!key)
        status = dw_fail(err, DW_CORRUPT, options->tls_key,
                         "no private key in it, as PEM and without a password");
    else if (X509_check_private_key(cert, key) != 1)
        status = dw_fail(err, DW_MISMATCH, options->tls_key,
                         "this is not the key of the certificate %s", options->tls_cert);
    X509_free(cert);
    EVP_PKEY_free(key);
    ERR_clear_error();
    return status;
}

dw_status dw_tls_files_read(dw_tls_files *out, const dw_agent_options *options,
                            dw_error *err)
{
    *out = (dw_tls_files){0};
    if (!options->tls_cert)
        return DW_OK;
    dw_status status = read_text(&out->cert, options->tls_cert, err);
    if (status == DW_OK)
        status = read_text(&out->key, options->tls_key, err);
    if (status == DW_OK)
        status = check_pair(out, options, err);
    if (status != DW_OK)
        dw_tls_files_release(out);
    return status;
}

void dw_tls_files_release(dw_tls_files *files)
{
    if (files->key)
        OPENSSL_cleanse(files->key, strlen(files->key));
    dw_free(files->cert);
    dw_free(files->key);
    *files = (dw_tls_files){0};
}
