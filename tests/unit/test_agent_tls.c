/* The agent over TLS, with a certificate that the test makes, and libcurl as client. */
#include "unit/suite.h"

#include <curl/curl.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include "agent_fixture.h"
#include "temp_dir.h"

static void write_key(const char *path, EVP_PKEY *key, const char *password)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(PEM_write_PrivateKey(file, key, password ? EVP_aes_128_cbc() : NULL,
                                          (const unsigned char *)password,
                                          password ? (int)strlen(password) : 0, NULL,
                                          NULL),
                     1);
    fclose(file);
}

static void write_cert(const char *path, EVP_PKEY *key)
{
    X509 *cert = X509_new();
    X509_NAME *name = X509_get_subject_name(cert);
    X509_set_version(cert, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert), -3600);
    X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)"test",
                               -1, -1, 0);
    X509_set_issuer_name(cert, name);
    X509_EXTENSION *host =
        X509V3_EXT_conf_nid(NULL, NULL, NID_subject_alt_name, "IP:127.0.0.1");
    X509_add_ext(cert, host, -1);
    X509_EXTENSION_free(host);
    X509_set_pubkey(cert, key);
    assert_true(X509_sign(cert, key, EVP_sha256()) > 0);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(PEM_write_X509(file, cert), 1);
    fclose(file);
    X509_free(cert);
}

static int make_files(void **state)
{
    if (temp_dir_make(state) != 0)
        return -1;
    EVP_PKEY *key = EVP_PKEY_Q_keygen(NULL, NULL, "EC", "P-256");
    EVP_PKEY *other = EVP_PKEY_Q_keygen(NULL, NULL, "EC", "P-256");
    write_cert(temp_path("cert.pem"), key);
    write_key(temp_path("key.pem"), key, NULL);
    write_key(temp_path("locked.pem"), key, "password");
    write_key(temp_path("other.pem"), other, NULL);
    put_text(temp_path("text.pem"), "this is no certificate\n");
    EVP_PKEY_free(key);
    EVP_PKEY_free(other);
    return 0;
}

static dw_agent_options with_files(const char *cert, const char *key)
{
    return (dw_agent_options){.tls_cert = temp_path(cert), .tls_key = temp_path(key)};
}

static size_t take(char *bytes, size_t size, size_t n, void *text)
{
    strncat(text, bytes, size * n);
    return size * n;
}

/* The answer's code, or 0 if there is none. */
static long ask(const char *url, bool trusting, const char *token, char text[65536])
{
    CURL *curl = curl_easy_init();
    struct curl_slist *headers = NULL;
    char header[256];
    long code = 0;
    text[0] = '\0';
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_NOPROXY, "*");
    if (trusting)
        curl_easy_setopt(curl, CURLOPT_CAINFO, temp_path("cert.pem"));
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, text);
    if (token) {
        snprintf(header, sizeof header, "Authorization: Bearer %s", token);
        headers = curl_slist_append(NULL, header);
        curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    }
    if (curl_easy_perform(curl) == CURLE_OK)
        curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &code);
    curl_slist_free_all(headers);
    curl_easy_cleanup(curl);
    return code;
}

TEST(test_tls)
{
    static char text[65536];
    char url[128];
    dw_agent_options options = with_files("cert.pem", "key.pem");
    options.token = "secret";
    agent_start(&options);
    assert_int_equal(strncmp(dw_agent_url(agent), "https://127.0.0.1:", 18), 0);
    snprintf(url, sizeof url, "https://127.0.0.1:%u/status", port);
    assert_int_equal(ask(url, true, "secret", text), 200);
    assert_non_null(strstr(text, "\"kind\":\"follower\""));
    assert_int_equal(ask(url, true, "wrong", text), 401);
    assert_int_equal(ask(url, false, "secret", text), 0); /* it is not trusted */
    /* plain HTTP gets no answer and does no harm */
    assert_int_not_equal(http_get(port, "/healthz", &reply), 200);
    assert_int_equal(ask(url, true, "secret", text), 200);
    agent_end(NULL);
}

/* Beyond loopback a token and TLS are enough, and any Host is accepted. */
TEST(test_not_loopback)
{
    static char text[65536];
    char url[128];
    dw_agent_options options = with_files("cert.pem", "key.pem");
    options.token = "secret";
    options.listen = "0.0.0.0:0";
    agent_start(&options);
    snprintf(url, sizeof url, "https://127.0.0.1:%u/healthz", port);
    assert_int_equal(ask(url, true, NULL, text), 200);
    agent_end(NULL);
}

TEST(test_files)
{
    static const struct {
        const char *cert, *key;
        dw_status status;
        const char *where;
    } cases[] = {
        {"cert.pem", "other.pem", DW_MISMATCH, "other.pem"},
        {"cert.pem", "missing.pem", DW_NOT_FOUND, "missing.pem"},
        {"missing.pem", "key.pem", DW_NOT_FOUND, "missing.pem"},
        {"text.pem", "key.pem", DW_CORRUPT, "text.pem"},
        {"cert.pem", "text.pem", DW_CORRUPT, "text.pem"},
        {"cert.pem", "locked.pem", DW_CORRUPT, "locked.pem"},
        {"key.pem", "cert.pem", DW_CORRUPT, "key.pem"},
        {".", "key.pem", DW_IO, "."},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dw_error err;
        dw_agent_options options = with_files(cases[i].cert, cases[i].key);
        dw_status status = dw_agent_start(&agent, &options, &err);
        if (status != cases[i].status)
            fail_msg("%s, %s: %s: %s", cases[i].cert, cases[i].key,
                     dw_status_name(status), err.text);
        assert_non_null(strstr(err.where, cases[i].where));
        assert_null(agent);
    }
}

RUN_TESTS(make_files, temp_dir_remove)
