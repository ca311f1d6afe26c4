#include "unit/suite.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <sys/stat.h>

#include "base/hash.h"
#include "failing_allocator.h"
#include "stream/sign.h"
#include "temp_dir.h"

/* A key from its 32 secret bytes, by way of a file as OpenSSL writes it. */
static dw_sign_key *key_of_seed(const uint8_t seed[32])
{
    const char *path = temp_path("seed.pem");
    EVP_PKEY *pair = EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, NULL, seed, 32);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(chmod(path, 0600), 0);
    assert_int_equal(PEM_write_PrivateKey(f, pair, NULL, NULL, 0, NULL, NULL), 1);
    fclose(f);
    EVP_PKEY_free(pair);
    dw_sign_key *key = NULL;
    assert_int_equal(dw_sign_key_open(&key, path, NULL), DW_OK);
    unlink(path);
    return key;
}

/* RFC 8032, section 7.1, tests 1 to 3. */
TEST(test_rfc_8032)
{
    static const struct {
        const char *seed, *public_key, *message, *signature;
    } vectors[] = {
        {"9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
         "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", "",
         "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33ba"
         "c"
         "c61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"},
        {"4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
         "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c", "72",
         "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996"
         "e"
         "458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"},
        {"c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
         "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025", "af82",
         "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f29"
         "0"
         "ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"},
    };
    for (size_t i = 0; i < 3; i++) {
        uint8_t seed[32], public_key[32], found[32], message[2], wanted[64], made[64];
        size_t n = strlen(vectors[i].message) / 2;
        assert_true(dw_hex_decode(seed, 32, vectors[i].seed));
        assert_true(dw_hex_decode(public_key, 32, vectors[i].public_key));
        assert_true(dw_hex_decode(message, n, vectors[i].message));
        assert_true(dw_hex_decode(wanted, 64, vectors[i].signature));
        dw_sign_key *key = key_of_seed(seed);
        dw_sign_key_public(key, found);
        assert_memory_equal(found, public_key, 32);
        assert_int_equal(dw_sign(key, made, n ? message : NULL, n, NULL), DW_OK);
        assert_memory_equal(made, wanted, 64);
        assert_int_equal(dw_sign_verify(public_key, made, n ? message : NULL, n, NULL),
                         DW_OK);
        dw_sign_key_close(key);
    }
}

TEST(test_wrong_signatures)
{
    static const char text[] = "version 17";
    uint8_t seed[32] = {1}, other_seed[32] = {2}, public_key[32], other_key[32], made[64];
    dw_sign_key *key = key_of_seed(seed), *other = key_of_seed(other_seed);
    dw_error err = {0};
    dw_sign_key_public(key, public_key);
    dw_sign_key_public(other, other_key);
    assert_int_equal(dw_sign(key, made, text, sizeof text, NULL), DW_OK);
    assert_int_equal(dw_sign_verify(public_key, made, text, sizeof text, NULL), DW_OK);
    assert_int_equal(dw_sign_verify(other_key, made, text, sizeof text, &err),
                     DW_UNTRUSTED);
    assert_int_equal(dw_sign_verify(public_key, made, text, sizeof text - 1, &err),
                     DW_UNTRUSTED);
    for (size_t i = 0; i < sizeof made; i++) {
        made[i] ^= 0x40;
        assert_int_equal(dw_sign_verify(public_key, made, text, sizeof text, &err),
                         DW_UNTRUSTED);
        made[i] ^= 0x40;
    }
    assert_int_equal(ERR_peek_error(), 0); /* no error is left in OpenSSL's queue */
    dw_sign_key_close(key);
    dw_sign_key_close(other);
    dw_sign_key_close(NULL);
}

TEST(test_create)
{
    char text[DW_PUBLIC_KEY_TEXT], again[DW_PUBLIC_KEY_TEXT];
    uint8_t public_key[32], read[32];
    struct stat st;
    dw_error err = {0};
    const char *path = temp_path("new.pem");
    mode_t mask = umask(0);
    assert_int_equal(dw_sign_key_create(path, text, NULL), DW_OK);
    umask(mask);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);

    dw_sign_key *key = NULL;
    assert_int_equal(dw_sign_key_open(&key, path, NULL), DW_OK);
    dw_sign_key_public(key, public_key);
    dw_sign_key_close(key);
    dw_public_key_format(again, public_key);
    assert_string_equal(again, text);
    assert_int_equal(dw_public_key_read(read, text, NULL), DW_OK);
    assert_memory_equal(read, public_key, 32);

    /* the file is kept */
    size_t n_before, n_after;
    uint8_t *before = get_file(path, &n_before);
    assert_int_equal(dw_sign_key_create(path, again, &err), DW_CONFLICT);
    assert_string_equal(err.where, path);
    uint8_t *after = get_file(path, &n_after);
    assert_int_equal(n_before, n_after);
    assert_memory_equal(before, after, n_before);
    free(before);
    free(after);
    assert_int_equal(symlink(path, temp_path("link.pem")), 0);
    assert_int_equal(dw_sign_key_create(temp_path("link.pem"), again, &err), DW_CONFLICT);
    assert_int_equal(dw_sign_key_create(temp_path("no/key.pem"), again, &err),
                     DW_NOT_FOUND);

    /* another key is different */
    assert_int_equal(dw_sign_key_create(temp_path("other.pem"), again, NULL), DW_OK);
    assert_string_not_equal(again, text);
}

/* `openssl pkey` reads the file and finds the same public key. */
TEST(test_openssl_reads_it)
{
    if (system("command -v openssl >/dev/null") != 0)
        skip();
    char text[DW_PUBLIC_KEY_TEXT], command[1024], digits[65];
    uint8_t der[256];
    assert_int_equal(dw_sign_key_create(temp_path("cli.pem"), text, NULL), DW_OK);
    snprintf(command, sizeof command, "openssl pkey -in '%s' -pubout -outform DER",
             temp_path("cli.pem"));
    FILE *f = popen(command, "r");
    assert_non_null(f);
    size_t n = fread(der, 1, sizeof der, f);
    assert_int_equal(pclose(f), 0);
    assert_int_equal(n, 44); /* a fixed header, then the key */
    dw_hex_encode(digits, der + n - 32, 32);
    assert_string_equal(text + strlen("deltawire-key:"), digits);
}

static void expect_open_fails(const char *path, dw_status wanted)
{
    dw_sign_key *key = NULL;
    dw_error err = {0};
    assert_int_equal(dw_sign_key_open(&key, path, &err), wanted);
    assert_null(key);
    assert_string_equal(err.where, path);
    assert_int_equal(ERR_peek_error(), 0);
}

TEST(test_open_refuses)
{
    static const mode_t open_modes[] = {0640, 0604, 0620, 0602, 0644, 0777};
    char text[DW_PUBLIC_KEY_TEXT];
    const char *path = temp_path("modes.pem");
    assert_int_equal(dw_sign_key_create(path, text, NULL), DW_OK);
    for (size_t i = 0; i < sizeof open_modes / sizeof *open_modes; i++) {
        assert_int_equal(chmod(path, open_modes[i]), 0);
        expect_open_fails(path, DW_INVALID);
    }
    assert_int_equal(chmod(path, 0400), 0);
    dw_sign_key *key = NULL;
    assert_int_equal(dw_sign_key_open(&key, path, NULL), DW_OK);
    dw_sign_key_close(key);

    expect_open_fails(temp_path("none.pem"), DW_NOT_FOUND);
    path = temp_path("bad.pem");
    put_text(path, "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n");
    assert_int_equal(chmod(path, 0600), 0);
    expect_open_fails(path, DW_CORRUPT);
    put_text(path, "");
    expect_open_fails(path, DW_CORRUPT);
    put_text(path, text); /* the public key */
    expect_open_fails(path, DW_CORRUPT);
    char *large = calloc(20000, 1);
    put_file(path, large, 20000);
    free(large);
    expect_open_fails(path, DW_CORRUPT);
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_open_fails(path, DW_INVALID);
    unlink(path);
}

/* Another type of key, and one with a password: nobody is asked for it. */
TEST(test_open_refuses_other_keys)
{
    if (system("command -v openssl >/dev/null") != 0)
        skip();
    char command[1024];
    const char *path = temp_path("foreign.pem");
    snprintf(command, sizeof command,
             "umask 077; openssl genpkey -algorithm X25519 -out '%s' 2>/dev/null", path);
    assert_int_equal(system(command), 0);
    expect_open_fails(path, DW_UNSUPPORTED);
    snprintf(command, sizeof command,
             "umask 077; openssl genpkey -algorithm ED25519 -aes256 -pass pass:secret "
             "-out '%s' 2>/dev/null",
             path);
    assert_int_equal(system(command), 0);
    expect_open_fails(path, DW_CORRUPT);
}

TEST(test_public_keys)
{
    static const char good[] =
        "deltawire-key:d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a";
    static const char *const bad[] = {
        "deltawire-key:",
        "deltawire-key:d75a",
        "deltawire-key:D75A980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "deltawire-key:d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a0",
        "deltawire-key:d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a "
        "x",
        "deltawire-key:d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511g",
        "deltawire-key: 75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
    };
    uint8_t key[32];
    char text[DW_PUBLIC_KEY_TEXT], line[256];
    dw_error err = {0};
    const char *path = temp_path("public");
    assert_int_equal(dw_public_key_read(key, good, NULL), DW_OK);
    dw_public_key_format(text, key);
    assert_string_equal(text, good);
    snprintf(line, sizeof line, "%s\r\n", good);
    assert_int_equal(dw_public_key_read(key, line, NULL), DW_OK);
    put_text(path, line);
    assert_int_equal(dw_public_key_read(key, path, NULL), DW_OK);
    dw_public_key_format(text, key);
    assert_string_equal(text, good);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(dw_public_key_read(key, bad[i], &err), DW_INVALID);
        put_text(path, bad[i]);
        assert_int_equal(dw_public_key_read(key, path, &err), DW_CORRUPT);
    }
    snprintf(line, sizeof line, "%s\n%s\n", good, good);
    put_text(path, line);
    assert_int_equal(dw_public_key_read(key, path, &err), DW_CORRUPT);
    put_file(path, good, sizeof good); /* a NUL at the end */
    assert_int_equal(dw_public_key_read(key, path, &err), DW_CORRUPT);
    assert_int_equal(dw_public_key_read(key, temp_path("none"), &err), DW_NOT_FOUND);
    assert_int_equal(dw_public_key_read(key, temp_dir, &err), DW_INVALID);
}

static dw_status open_and_close(dw_error *err)
{
    dw_sign_key *key = NULL;
    dw_status status = dw_sign_key_open(&key, temp_path("memory.pem"), err);
    if (status == DW_OK)
        dw_sign_key_close(key);
    return status;
}

TEST(test_no_memory)
{
    char text[DW_PUBLIC_KEY_TEXT];
    assert_int_equal(dw_sign_key_create(temp_path("memory.pem"), text, NULL), DW_OK);
    fail_every_allocation(open_and_close, NULL);
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
