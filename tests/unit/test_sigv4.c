/* Signature Version 4 against the examples that Amazon published: those of the S3
 * documentation ("Signature Calculations for the Authorization Header") and some of the
 * aws-sig-v4-test-suite. tests/interop/test_sigv4.py compares with botocore. */
#include "unit/suite.h"

#include "failing_allocator.h"
#include "store/sigv4.h"

#define EMPTY_SHA256 "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define SCOPE                                                                            \
    "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/"            \
    "aws4_request, "

static const dw_sigv4_credentials example_keys = {
    "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", NULL};

static const int64_t may_24_2013_ms = 1369353600000;

static dw_sigv4_request example_request(void)
{
    return (dw_sigv4_request){.method = "GET",
                              .host = "examplebucket.s3.amazonaws.com",
                              .path = "/",
                              .query = "",
                              .payload_sha256 = EMPTY_SHA256,
                              .region = "us-east-1",
                              .wall_ms = may_24_2013_ms};
}

static void assert_authorization(const dw_sigv4_request *request, const char *expected)
{
    dw_writer out = {0};
    char date[DW_SIGV4_DATE];
    dw_error err;
    assert_int_equal(dw_sigv4_authorization(&out, date, request, &example_keys, &err),
                     DW_OK);
    assert_string_equal(date, "20130524T000000Z");
    assert_int_equal(out.bytes[out.n_bytes - 1], '\0');
    assert_string_equal((char *)out.bytes, expected);
    dw_writer_release(&out);
}

TEST(test_get_object)
{
    dw_sigv4_request r = example_request();
    r.path = "/test.txt";
    r.headers = (dw_sigv4_header[]){{"range", "bytes=0-9"}};
    r.n_headers = 1;
    assert_authorization(
        &r, SCOPE "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, Signature="
                  "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
}

TEST(test_put_object)
{
    dw_writer path = {0};
    dw_percent_encode(&path, "/test$file.text", true);
    dw_write_u8(&path, 0);
    dw_sigv4_request r = example_request();
    r.method = "PUT";
    r.path = (char *)path.bytes;
    r.headers = (dw_sigv4_header[]){{"x-amz-storage-class", "REDUCED_REDUNDANCY"},
                                    {"date", "Fri, 24 May 2013 00:00:00 GMT"}};
    r.n_headers = 2;
    r.payload_sha256 = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072";
    assert_authorization(
        &r, SCOPE "SignedHeaders=date;host;x-amz-content-sha256;x-amz-date;"
                  "x-amz-storage-class, Signature="
                  "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd");
    dw_writer_release(&path);
}

TEST(test_get_bucket_lifecycle)
{
    dw_sigv4_request r = example_request();
    r.query = "lifecycle";
    assert_authorization(
        &r, SCOPE "SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature="
                  "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543");
}

TEST(test_list_objects)
{
    dw_sigv4_request r = example_request();
    r.query = "prefix=J&max-keys=2"; /* to be sorted */
    assert_authorization(
        &r, SCOPE "SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature="
                  "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7");
}

/* The test suite signs for a service named "service", and only host and x-amz-date. */
static void assert_suite_signature(const char *path, const char *query,
                                   const char *expected)
{
    dw_sigv4_header headers[] = {{"x-amz-date", "20150830T123600Z"},
                                 {"host", "example.amazonaws.com"}};
    dw_writer request = {0};
    dw_sigv4_canonical_request(&request, "GET", path, query, headers, 2, EMPTY_SHA256);
    char signature[DW_SHA256_TEXT];
    assert_int_equal(dw_sigv4_signature(signature, &request, "20150830T123600Z",
                                        "us-east-1", "service",
                                        "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", NULL),
                     DW_OK);
    assert_string_equal(signature, expected);
    dw_writer_release(&request);
}

TEST(test_suite)
{
    /* get-vanilla */
    assert_suite_signature(
        "/", "", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31");
    /* get-vanilla-query-order-key-case */
    assert_suite_signature(
        "/", "Param2=value2&Param1=value1",
        "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500");
    /* get-vanilla-utf8-query */
    dw_writer text = {0};
    dw_percent_encode(&text, "\xe1\x88\xb4", false);
    dw_write_text(&text, "=bar");
    dw_write_u8(&text, 0);
    assert_suite_signature(
        "/", (char *)text.bytes,
        "2cdec8eed098649ff3a119c94853b13c643bcf08f8b0a1d91e12c9027818dd04");
    dw_writer_release(&text);
    /* get-utf8 */
    dw_percent_encode(&text, "/\xe1\x88\xb4", true);
    dw_write_u8(&text, 0);
    assert_suite_signature(
        (char *)text.bytes, "",
        "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85");
    dw_writer_release(&text);
}

static void assert_canonical(const char *query, const char *value, const char *expected)
{
    dw_sigv4_header header = {"h", value};
    dw_writer out = {0};
    dw_sigv4_canonical_request(&out, "M", "/p", query, &header, 1, "x");
    dw_write_u8(&out, 0);
    assert_string_equal((char *)out.bytes, expected);
    dw_writer_release(&out);
}

TEST(test_canonical_form)
{
    assert_canonical("", "", "M\n/p\n\nh:\n\nh\nx");
    assert_canonical("", " \ta  b\t c ", "M\n/p\n\nh:a b c\n\nh\nx");
    /* by name first, though '-' and '.' sort before '=' */
    assert_canonical("a-b=1&a=2&a.c&a=1&=&a=1=0", "v",
                     "M\n/p\n=&a=1&a=1=0&a=2&a-b=1&a.c=\nh:v\n\nh\nx");
}

TEST(test_percent_encode)
{
    dw_writer out = {0};
    dw_percent_encode(&out, "aZ09-._~/ +%=&\xff", false);
    dw_percent_encode(&out, "a/b c", true);
    dw_write_u8(&out, 0);
    assert_string_equal((char *)out.bytes, "aZ09-._~%2F%20%2B%25%3D%26%FFa/b%20c");
    dw_writer_release(&out);
}

TEST(test_session_token_is_signed)
{
    dw_sigv4_request r = example_request();
    dw_sigv4_credentials keys = example_keys;
    keys.session_token = "the-token";
    dw_writer with = {0}, without = {0};
    char date[DW_SIGV4_DATE];
    assert_int_equal(dw_sigv4_authorization(&with, date, &r, &keys, NULL), DW_OK);
    keys.session_token = NULL;
    assert_int_equal(dw_sigv4_authorization(&without, date, &r, &keys, NULL), DW_OK);
    assert_non_null(strstr((char *)with.bytes, ";x-amz-security-token, "));
    assert_null(strstr((char *)with.bytes, "the-token"));
    assert_string_not_equal(strstr((char *)with.bytes, "Signature="),
                            strstr((char *)without.bytes, "Signature="));
    dw_writer_release(&with);
    dw_writer_release(&without);
}

static void assert_refused(const dw_sigv4_request *r, dw_sigv4_credentials keys,
                           const char *word)
{
    dw_writer out = {0};
    char date[DW_SIGV4_DATE];
    dw_error err;
    assert_int_equal(dw_sigv4_authorization(&out, date, r, &keys, &err), DW_INVALID);
    assert_non_null(strstr(err.text, word));
    assert_null(strstr(err.text, "hush"));
    assert_int_equal(out.n_bytes, 0);
    dw_writer_release(&out);
}

TEST(test_refusals)
{
    dw_sigv4_request r = example_request();
    assert_refused(&r, (dw_sigv4_credentials){"hush\n", "s", NULL}, "access key id");
    assert_refused(&r, (dw_sigv4_credentials){"a", "hush ", NULL}, "secret access key");
    assert_refused(&r, (dw_sigv4_credentials){"a", "s", "hush\r\nX: y"}, "session token");
    r.region = "us east";
    assert_refused(&r, example_keys, "region");
    r = example_request();
    r.wall_ms = -1;
    assert_refused(&r, example_keys, "clock");
    r.wall_ms = 253402300800000; /* the year 10000 */
    assert_refused(&r, example_keys, "clock");
}

static dw_status sign_once(dw_error *err)
{
    dw_sigv4_request r = example_request();
    r.query = "b=1&a=2";
    dw_writer out = {0};
    char date[DW_SIGV4_DATE];
    dw_status status = dw_sigv4_authorization(&out, date, &r, &example_keys, err);
    dw_writer_release(&out);
    return status;
}

TEST(test_no_memory)
{
    fail_every_allocation(sign_once, NULL);
}

RUN_TESTS(NULL, NULL)
