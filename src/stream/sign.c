#include "stream/sign.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/mem.h"

#define KEY_PREFIX     "deltawire-key:"
#define MAX_FILE_BYTES 16384 /* of a key of either kind; a PEM may carry comments */

struct dw_sign_key {
    EVP_PKEY *pair;
    uint8_t public_key[DW_PUBLIC_KEY_BYTES];
};

/* With good arguments libcrypto only fails for lack of memory. */
static dw_status fail_crypto(dw_error *err, const char *where)
{
    ERR_clear_error();
    return dw_fail(err, DW_NO_MEMORY, where, "Ed25519 failed");
}

/* ---- files ---- */

static dw_status write_all(int fd, const void *bytes, size_t n_bytes, const char *path,
                           dw_error *err)
{
    const uint8_t *at = bytes;
    while (n_bytes > 0) {
        ssize_t n = write(fd, at, n_bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return dw_fail_errno(err, path, "write");
        at += n;
        n_bytes -= (size_t)n;
    }
    return fsync(fd) == 0 ? DW_OK : dw_fail_errno(err, path, "sync");
}

/* The file must not be there: a key that is overwritten is a stream that is lost. */
static dw_status create_secret_file(const char *path, const void *bytes, size_t n_bytes,
                                    dw_error *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 && errno == EEXIST)
        return dw_fail(err, DW_CONFLICT, path, "there is a file already: it is kept");
    if (fd < 0)
        return dw_fail_errno(err, path, "create");
    dw_status status = write_all(fd, bytes, n_bytes, path, err);
    if (close(fd) != 0 && status == DW_OK)
        status = dw_fail_errno(err, path, "close");
    if (status == DW_OK)
        status = dw_sync_parent(path, err);
    if (status != DW_OK)
        unlink(path);
    return status;
}

static dw_status read_open_file(char *out, size_t *n_bytes, int fd, bool is_secret,
                                const char *path, dw_error *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return dw_fail_errno(err, path, "stat");
    if (!S_ISREG(st.st_mode))
        return dw_fail(err, DW_INVALID, path, "not a regular file");
    if (is_secret && (st.st_mode & (S_IRWXG | S_IRWXO)) != 0)
        return dw_fail(err, DW_INVALID, path,
                       "others than its owner have rights to this secret key (mode "
                       "%04o): chmod 600",
                       (unsigned)st.st_mode & 07777u);
    *n_bytes = 0;
    for (;;) {
        ssize_t n = read(fd, out + *n_bytes, MAX_FILE_BYTES + 1 - *n_bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return dw_fail_errno(err, path, "read");
        *n_bytes += (size_t)n;
        if (*n_bytes > MAX_FILE_BYTES)
            return dw_fail(err, DW_CORRUPT, path, "too long for a key");
        if (n == 0)
            return DW_OK;
    }
}

/* Into OUT, of MAX_FILE_BYTES + 1. */
static dw_status read_key_file(char *out, size_t *n_bytes, bool is_secret,
                               const char *path, dw_error *err)
{
    /* without O_NONBLOCK a FIFO would be waited for, not refused */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return dw_fail_errno(err, path, "open");
    dw_status status = read_open_file(out, n_bytes, fd, is_secret, path, err);
    close(fd);
    return status;
}

/* ---- secret keys ---- */

static bool get_public(uint8_t out[DW_PUBLIC_KEY_BYTES], const EVP_PKEY *pair)
{
    size_t n = DW_PUBLIC_KEY_BYTES;
    return EVP_PKEY_get_raw_public_key(pair, out, &n) == 1 && n == DW_PUBLIC_KEY_BYTES;
}

dw_status dw_sign_key_create(const char *path, char public_text[DW_PUBLIC_KEY_TEXT],
                             dw_error *err)
{
    uint8_t public_key[DW_PUBLIC_KEY_BYTES];
    char *pem = NULL;
    long n_pem = 0;
    EVP_PKEY *pair = EVP_PKEY_Q_keygen(NULL, NULL, "ED25519");
    BIO *bio = BIO_new(BIO_s_secmem()); /* wiped when freed */
    dw_status status;
    if (pair && bio && get_public(public_key, pair) &&
        PEM_write_bio_PrivateKey(bio, pair, NULL, NULL, 0, NULL, NULL) == 1 &&
        (n_pem = BIO_get_mem_data(bio, &pem)) > 0)
        status = create_secret_file(path, pem, (size_t)n_pem, err);
    else
        status = fail_crypto(err, path);
    if (status == DW_OK)
        dw_public_key_format(public_text, public_key);
    BIO_free(bio);
    EVP_PKEY_free(pair);
    return status;
}

/* Instead of libcrypto's own, which would ask at the terminal. */
static int no_password(char *out, int size, int writing, void *context)
{
    (void)out;
    (void)size;
    (void)writing;
    (void)context;
    return -1;
}

static dw_status parse_secret(dw_sign_key *key, const char *pem, size_t n_bytes,
                              const char *path, dw_error *err)
{
    BIO *bio = BIO_new_mem_buf(pem, (int)n_bytes);
    if (!bio)
        return fail_crypto(err, path);
    key->pair = PEM_read_bio_PrivateKey(bio, NULL, no_password, NULL);
    BIO_free(bio);
    ERR_clear_error();
    if (!key->pair)
        return dw_fail(err, DW_CORRUPT, path,
                       "no secret key in PEM, or one with a password");
    if (EVP_PKEY_get_id(key->pair) != EVP_PKEY_ED25519)
        return dw_fail(err, DW_UNSUPPORTED, path, "the key is not of type Ed25519");
    return get_public(key->public_key, key->pair) ? DW_OK : fail_crypto(err, path);
}

dw_status dw_sign_key_open(dw_sign_key **out, const char *path, dw_error *err)
{
    size_t n_bytes = 0;
    *out = NULL;
    char *pem = dw_alloc(MAX_FILE_BYTES + 1);
    dw_sign_key *key = dw_alloc_zeroed(1, sizeof *key);
    dw_status status = pem && key ? read_key_file(pem, &n_bytes, true, path, err)
                                  : dw_fail_memory(err, path);
    if (status == DW_OK)
        status = parse_secret(key, pem, n_bytes, path, err);
    if (pem)
        OPENSSL_cleanse(pem, MAX_FILE_BYTES + 1);
    dw_free(pem);
    if (status == DW_OK)
        *out = key;
    else
        dw_sign_key_close(key);
    return status;
}

void dw_sign_key_close(dw_sign_key *key)
{
    if (!key)
        return;
    EVP_PKEY_free(key->pair); /* which wipes it */
    dw_free(key);
}

void dw_sign_key_public(const dw_sign_key *key, uint8_t out[DW_PUBLIC_KEY_BYTES])
{
    memcpy(out, key->public_key, DW_PUBLIC_KEY_BYTES);
}

/* ---- signatures ---- */

dw_status dw_sign(const dw_sign_key *key, uint8_t signature[DW_SIGNATURE_BYTES],
                  const void *bytes, size_t n_bytes, dw_error *err)
{
    size_t n = DW_SIGNATURE_BYTES;
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    bool good =
        context && EVP_DigestSignInit(context, NULL, NULL, NULL, key->pair) == 1 &&
        EVP_DigestSign(context, signature, &n, n_bytes ? bytes : "", n_bytes) == 1;
    EVP_MD_CTX_free(context);
    return good && n == DW_SIGNATURE_BYTES ? DW_OK : fail_crypto(err, NULL);
}

dw_status dw_sign_verify(const uint8_t key[DW_PUBLIC_KEY_BYTES],
                         const uint8_t signature[DW_SIGNATURE_BYTES], const void *bytes,
                         size_t n_bytes, dw_error *err)
{
    EVP_PKEY *public_key =
        EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, NULL, key, DW_PUBLIC_KEY_BYTES);
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    dw_status status = DW_OK;
    if (!public_key || !context ||
        EVP_DigestVerifyInit(context, NULL, NULL, NULL, public_key) != 1) {
        status = fail_crypto(err, NULL);
    } else if (EVP_DigestVerify(context, signature, DW_SIGNATURE_BYTES,
                                n_bytes ? bytes : "", n_bytes) != 1) {
        ERR_clear_error();
        char text[DW_PUBLIC_KEY_TEXT];
        dw_public_key_format(text, key);
        status =
            dw_fail(err, DW_UNTRUSTED, NULL, "the signature is not good for %s", text);
    }
    EVP_MD_CTX_free(context);
    EVP_PKEY_free(public_key);
    return status;
}

/* ---- public keys ---- */

/* TEXT ends in a NUL; white space around the line is let pass. */
static bool parse_public(uint8_t out[DW_PUBLIC_KEY_BYTES], const char *text)
{
    static const char white[] = " \t\r\n";
    char digits[2 * DW_PUBLIC_KEY_BYTES + 1];
    text += strspn(text, white);
    if (strncmp(text, KEY_PREFIX, strlen(KEY_PREFIX)) != 0)
        return false;
    text += strlen(KEY_PREFIX);
    size_t n_digits = strcspn(text, white);
    if (n_digits != sizeof digits - 1 || text[n_digits + strspn(text + n_digits, white)])
        return false;
    memcpy(digits, text, n_digits);
    digits[n_digits] = '\0';
    return dw_hex_decode(out, DW_PUBLIC_KEY_BYTES, digits);
}

dw_status dw_public_key_read(uint8_t out[DW_PUBLIC_KEY_BYTES], const char *text_or_path,
                             dw_error *err)
{
    if (strncmp(text_or_path, KEY_PREFIX, strlen(KEY_PREFIX)) == 0) {
        if (parse_public(out, text_or_path))
            return DW_OK;
        return dw_fail(err, DW_INVALID, text_or_path,
                       "a public key is '" KEY_PREFIX "' and 64 lower-case digits");
    }
    char text[MAX_FILE_BYTES + 1];
    size_t n_bytes = 0;
    dw_status status = read_key_file(text, &n_bytes, false, text_or_path, err);
    if (status != DW_OK)
        return status;
    text[n_bytes] = '\0';
    bool good = strlen(text) == n_bytes && parse_public(out, text);
    OPENSSL_cleanse(text, sizeof text); /* a secret key, if somebody mixed them up */
    if (good)
        return DW_OK;
    return dw_fail(err, DW_CORRUPT, text_or_path,
                   "no public key: that is one line, '" KEY_PREFIX
                   "' and 64 lower-case digits");
}

void dw_public_key_format(char out[DW_PUBLIC_KEY_TEXT],
                          const uint8_t key[DW_PUBLIC_KEY_BYTES])
{
    memcpy(out, KEY_PREFIX, strlen(KEY_PREFIX));
    dw_hex_encode(out + strlen(KEY_PREFIX), key, DW_PUBLIC_KEY_BYTES);
}
