/* The S3 driver with replies that a real server gives only in trouble. */
#include <time.h>

#include "unit/suite.h"

#include "base/error.h"
#include "base/clock.h"
#include "scripted_server.h"
#include "net/http.h"
#include "store/s3.h"

#define HEAD(status, more, n)                                                            \
    "HTTP/1.1 " status "\r\n" more "Content-Length: " #n "\r\n\r\n"
#define EMPTY(status)          HEAD(status, "", 0)
#define ERROR_OF(status, code) /* has no length, so it closes */                         \
    "HTTP/1.1 " status "\r\nConnection: close\r\n\r\n<Error><Code>" code "</Code>"       \
    "<Message>m</Message></Error>"
#define NO_KEY ERROR_OF("404 Not Found", "NoSuchKey")
#define STORED HEAD("200 OK", "ETag: \"e\"\r\n", 0)

static dw_error err;
static scripted_server server;
static dw_store *store;

#define expect(wanted, call)                                                             \
    do {                                                                                 \
        dw_status got_ = (call);                                                         \
        if (got_ != (wanted))                                                            \
            print_error("%s: %s: %s\n", dw_status_name(got_), err.where, err.text);      \
        assert_int_equal(got_, wanted);                                                  \
    } while (0)

static void begin_at(dw_s3_location location, const char *const *replies, unsigned n)
{
    script_start(&server, replies, n);
    location.endpoint = server.endpoint;
    location.bucket = "bucket";
    location.prefix = "pre";
    location.region = "us-east-1";
    location.path_style = true;
    assert_int_equal(dw_key_ring_fixed(&location.keys, "ACCESSKEYID", "topsecret",
                                       "sessiontoken", "the test", NULL),
                     DW_OK);
    dw_store_options options = {.struct_bytes = sizeof options,
                                .n_connections = 1,
                                .n_tries = 3,
                                .deadline_ms = 300000};
    expect(DW_OK,
           dw_s3_store_open_at(&store, "s3://bucket/pre", &location, &options, &err));
}

#define BEGIN(...)                                                                       \
    do {                                                                                 \
        const char *const replies_[] = {__VA_ARGS__};                                    \
        begin_at((dw_s3_location){0}, replies_, sizeof replies_ / sizeof *replies_);     \
    } while (0)

static void end(void)
{
    dw_store_close(store);
    script_end(&server);
}

/* Reads N_BYTES from OFFSET, and expects TEXT. */
static void expect_read(uint64_t offset, size_t n_bytes, const char *text)
{
    char got[64] = "";
    size_t n_read = 99;
    expect(DW_OK, dw_store_get(store, "k", offset, got, n_bytes, &n_read, NULL, &err));
    assert_int_equal(n_read, strlen(text));
    assert_memory_equal(got, text, n_read);
}

static dw_status put(dw_put_mode mode)
{
    dw_source source = {.n_bytes = 5, .bytes = "hello"};
    return dw_store_put(store, "k", &source, mode, NULL, &err);
}

/* ---- reading ---- */

TEST(test_ranges)
{
    BEGIN(HEAD("206 Partial Content", "Content-Range: bytes 3-6/10\r\n", 4) "defg",
          HEAD("206 Partial Content", "content-range:bytes 8-9/10\r\n", 2) "ij",
          EMPTY("416 Range Not Satisfiable"),
          /* a server without ranges */
          HEAD("200 OK", "", 10) "abcdefghij", HEAD("200 OK", "", 10) "abcdefghij",
          HEAD("200 OK", "", 10) "abcdefghij",
          "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
          "3\r\nabc\r\n7\r\ndefghij\r\n0\r\n\r\n");
    expect_read(3, 4, "defg");
    assert_non_null(strstr(server.requests[0], "GET /bucket/pre/k HTTP/1.1\r\n"));
    assert_non_null(strstr(server.requests[0], "Range: bytes=3-6\r\n"));
    expect_read(8, 4, "ij");
    expect_read(10, 4, "");
    expect_read(3, 20, "defghij");
    expect_read(20, 4, "");
    expect_read(2, 4, "cdef"); /* leaves the connection in the middle of the body */
    expect_read(9, 4, "j");
    end();
}

TEST(test_wrong_ranges)
{
    BEGIN(HEAD("206 Partial Content", "Content-Range: bytes 0-3/10\r\n", 4) "abcd",
          HEAD("206 Partial Content", "", 4) "defg",
          HEAD("206 Partial Content", "Content-Range: bytes 3-7/10\r\n", 5) "defgh",
          /* shorter than the object */
          HEAD("206 Partial Content", "Content-Range: bytes 3-4/10\r\n", 2) "de",
          HEAD("206 Partial Content", "Content-Range: bytes 5-6/10\r\n", 2) "fg");
    char got[8];
    size_t n_read;
    expect(DW_UNAVAILABLE, dw_store_get(store, "k", 3, got, 4, &n_read, NULL, &err));
    assert_non_null(strstr(err.text, "3 tries"));
    dw_store_counts counts;
    dw_store_get_counts(store, &counts);
    assert_int_equal(counts.n_requests, 3);
    assert_int_equal(counts.n_retries, 2);
    expect_read(3, 4, "defg");
    end();
}

/* The received part of a broken reply is kept, and the rest is requested. */
TEST(test_resume)
{
    BEGIN("HTTP/1.1 206 Partial Content\r\nConnection: close\r\nContent-Length: 6\r\n"
          "Content-Range: bytes 3-8/10\r\n\r\ndef",
          HEAD("206 Partial Content", "Content-Range: bytes 6-8/10\r\n", 3) "ghi");
    expect_read(3, 6, "defghi");
    assert_non_null(strstr(server.requests[1], "Range: bytes=6-8\r\n"));
    end();
}

TEST(test_redirects)
{
    static char to_self[256], reply[512];
    static scripted_server cdn;
    const char *const cdn_replies[] = {
        HEAD("403 Forbidden", "", 0),
        HEAD("206 Partial Content", "Content-Range: bytes 3-6/10\r\n", 4) "defg"};
    script_start(&cdn, cdn_replies, 2);
    snprintf(to_self, sizeof to_self, "%s/signed?x=1", cdn.endpoint);
    snprintf(reply, sizeof reply,
             "HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n", to_self);
    const char *const replies[] = {reply, reply};
    begin_at((dw_s3_location){.follow_redirects = true}, replies, 2);
    expect_read(3, 4, "defg"); /* an expired address is requested again */
    assert_non_null(strstr(cdn.requests[1], "GET /signed?x=1 HTTP/1.1\r\n"));
    assert_non_null(strstr(cdn.requests[1], "Range: bytes=3-6\r\n"));
    for (unsigned i = 0; i < 2; i++) {
        assert_null(strstr(cdn.requests[i], "Authorization"));
        assert_null(strstr(cdn.requests[i], "x-amz-"));
        assert_null(strstr(cdn.requests[i], "sessiontoken"));
    }
    end();
    script_end(&cdn);

    BEGIN(HEAD("302 Found", "Location: http://127.0.0.1:1/\r\n", 0)); /* not allowed */
    char byte;
    size_t n_read;
    expect(DW_IO, dw_store_get(store, "k", 0, &byte, 1, &n_read, NULL, &err));
    end();
}

TEST(test_403_of_the_missing)
{
    const char *const replies[] = {
        ERROR_OF("403 Forbidden", "AccessDenied"),
        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n<ListBucketResult><Contents>"
        "<Key>pre/k2</Key><Size>1</Size></Contents></ListBucketResult>",
        EMPTY("403 Forbidden"),
        "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n<ListBucketResult><Contents>"
        "<Key>pre/k</Key><Size>1</Size></Contents></ListBucketResult>",
        EMPTY("403 Forbidden"),
        ERROR_OF("403 Forbidden", "AccessDenied"),
    };
    begin_at((dw_s3_location){.missing_is_403 = true}, replies, 6);
    char byte;
    size_t n_read;
    expect(DW_NOT_FOUND, dw_store_get(store, "k", 0, &byte, 1, &n_read, NULL, &err));
    expect(DW_DENIED, dw_store_stat(store, "k", NULL, NULL, &err));
    expect(DW_DENIED, dw_store_stat(store, "k", NULL, NULL, &err));
    end();
}

/* ---- writing ---- */

#define OK_TEXT(text) "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" text
TEST(test_put_replies)
{
    BEGIN(STORED, EMPTY("412 Precondition Failed"), HEAD("200 OK", "", 7),
          /* 409: others write it. It tries again, and then checks who has won */
          ERROR_OF("409 Conflict", "ConditionalRequestConflict"), STORED,
          EMPTY("409 Conflict"), HEAD("200 OK", "", 7),
          /* the reply of a create is lost: the next try finds its own object */
          "", EMPTY("412 Precondition Failed"), HEAD("200 OK", "", 5),
          /* a failure at the end does not show if the object exists */
          HEAD("500 Oh", "Connection: close\r\n", 0), "", EMPTY("503 Slow"),
          /* no conditions here: a check, and a plain write */
          ERROR_OF("501 Not Implemented", "NotImplemented"), EMPTY("404 Not Found"),
          STORED,
          /* this is remembered */
          HEAD("200 OK", "", 7));
    expect(DW_OK, put(DW_PUT_CREATE));
    assert_non_null(strstr(server.requests[0], "if-none-match: *\r\n"));
    assert_non_null(strstr(server.requests[0], ";if-none-match;"));
    assert_non_null(strstr(server.requests[0], "x-amz-security-token: sessiontoken\r\n"));
    expect(DW_CONFLICT, put(DW_PUT_CREATE));
    expect(DW_OK, put(DW_PUT_CREATE));
    expect(DW_CONFLICT, put(DW_PUT_CREATE));
    expect(DW_CONFLICT, put(DW_PUT_CREATE));
    expect(DW_UNAVAILABLE, put(DW_PUT_CREATE));
    expect(DW_OK, put(DW_PUT_CREATE));
    assert_null(strstr(server.requests[15], "if-none-match"));
    expect(DW_CONFLICT, put(DW_PUT_CREATE));
    end();
}

/* A reply that does not show what became of the object is not believed. */
TEST(test_put_is_not_believed)
{
    /* an error after '200 OK' */
    BEGIN(ERROR_OF("200 OK", "InternalError"), STORED, ERROR_OF("200 OK", "SlowDown"),
          STORED, ERROR_OF("200 OK", "AccessDenied"), ERROR_OF("200 OK", "ExpiredToken"));
    expect(DW_OK, put(DW_PUT_CREATE));
    expect(DW_OK, put(DW_PUT_REPLACE));
    expect(DW_DENIED, put(DW_PUT_REPLACE));
    expect(DW_DENIED, put(DW_PUT_REPLACE));
    assert_non_null(
        strstr(err.text, "the session token has expired or is wrong (the test)"));
    end();

    /* nothing was stored, or something else is there */
    BEGIN(EMPTY("204 No Content"), EMPTY("404 Not Found"), STORED,
          OK_TEXT("<html>welcome</html>"), HEAD("200 OK", "", 6), STORED,
          EMPTY("412 Precondition Failed"), EMPTY("404 Not Found"), STORED,
          EMPTY("200 OK"), EMPTY("404 Not Found"), EMPTY("200 OK"),
          EMPTY("404 Not Found"), EMPTY("202 Accepted"), EMPTY("404 Not Found"));
    expect(DW_OK, put(DW_PUT_CREATE));
    expect(DW_OK, put(DW_PUT_REPLACE));
    expect(DW_OK, put(DW_PUT_CREATE));
    expect(DW_UNAVAILABLE, put(DW_PUT_REPLACE));
    assert_non_null(strstr(err.text, "answered with 202, but does not have the object"));
    end();

    /* a server without ETags: the object is there. Of a create the caller finds out whose
     * it is */
    BEGIN(EMPTY("200 OK"), HEAD("200 OK", "", 5), EMPTY("204 No Content"),
          HEAD("200 OK", "", 5));
    expect(DW_OK, put(DW_PUT_REPLACE));
    expect(DW_CONFLICT, put(DW_PUT_CREATE));
    end();
}

#define UPLOAD_ID                                                                        \
    OK_TEXT("<InitiateMultipartUploadResult><UploadId>a/b</UploadId>"                    \
            "</InitiateMultipartUploadResult>")
#define COMPLETE                                                                         \
    OK_TEXT("<CompleteMultipartUploadResult><Key>k</Key></"                              \
            "CompleteMultipartUploadResult>")
#define PART        HEAD("200 OK", "ETag: \"e\"\r\n", 0)
#define PUT_N_BYTES ((size_t)20 << 20) /* three parts */

static dw_status put_large(dw_put_mode mode)
{
    void *bytes = calloc(1, PUT_N_BYTES);
    dw_source source = {.n_bytes = PUT_N_BYTES, .bytes = bytes};
    dw_status status = dw_store_put(store, "k", &source, mode, NULL, &err);
    free(bytes);
    return status;
}

TEST(test_upload_replies)
{
    /* an error after '200 OK' counts as an error; the upload is removed */
    BEGIN(UPLOAD_ID, PART, PART, PART,
          OK_TEXT("\n\n<?xml version=\"1.0\"?><Error><Code>InvalidPart</Code></Error>"),
          OK_TEXT("<Error><Code>InternalError</Code></Error>"),
          OK_TEXT("<Error><Code>InternalError</Code></Error>"), EMPTY("204 No Content"));
    expect(DW_UNAVAILABLE, put_large(DW_PUT_REPLACE));
    assert_non_null(strstr(server.requests[0], "POST /bucket/pre/k?uploads= HTTP"));
    assert_non_null(strstr(server.requests[1], "?partNumber=1&uploadId=a%2Fb HTTP"));
    assert_non_null(strstr(server.requests[7], "DELETE /bucket/pre/k?uploadId=a%2Fb "));
    end();

    /* the reply to the last request was lost: the object exists */
    BEGIN(UPLOAD_ID, PART, PART, PART, "", ERROR_OF("404 Not Found", "NoSuchUpload"),
          HEAD("200 OK", "", 20971520));
    expect(DW_OK, put_large(DW_PUT_REPLACE));
    end();

    /* the same for a create: it must find out who made it */
    BEGIN(EMPTY("404 Not Found"), NO_KEY, UPLOAD_ID, PART, PART, PART, "",
          ERROR_OF("404 Not Found", "NoSuchUpload"), HEAD("200 OK", "", 20971520),
          EMPTY("404 Not Found"));
    expect(DW_CONFLICT, put_large(DW_PUT_CREATE));
    end();

    /* 200 without a result is not enough */
    BEGIN(UPLOAD_ID, PART, PART, PART, OK_TEXT("\n\n"), OK_TEXT("<html>welcome</html>"),
          COMPLETE);
    expect(DW_OK, put_large(DW_PUT_REPLACE));
    end();
    BEGIN(UPLOAD_ID, PART, PART, PART, EMPTY("200 OK"),
          OK_TEXT("<Error><Code>NoSuchUpload</Code></Error>"),
          HEAD("200 OK", "", 20971520));
    expect(DW_OK, put_large(DW_PUT_REPLACE));
    end();

    /* final errors inside a 200 */
    BEGIN(EMPTY("404 Not Found"), NO_KEY, UPLOAD_ID, PART, PART, PART,
          OK_TEXT("<Error><Code>PreconditionFailed</Code></Error>"),
          HEAD("200 OK", "", 20971520), EMPTY("204 No Content"));
    expect(DW_CONFLICT, put_large(DW_PUT_CREATE));
    end();
    BEGIN(EMPTY("404 Not Found"), NO_KEY, UPLOAD_ID, PART, PART, PART,
          EMPTY("412 Precondition Failed"), EMPTY("404 Not Found"),
          EMPTY("204 No Content"));
    expect(DW_UNAVAILABLE, put_large(DW_PUT_CREATE));
    end();
    BEGIN(UPLOAD_ID, PART, PART, PART,
          OK_TEXT("<Error><Code>AccessDenied</Code></Error>"), EMPTY("204 No Content"));
    expect(DW_DENIED, put_large(DW_PUT_REPLACE));
    end();

    /* an error, or something else, in place of an upload id; and a part of one */
    BEGIN(ERROR_OF("200 OK", "InternalError"),
          OK_TEXT("<InitiateMultipartUploadResult><UploadId>a"), UPLOAD_ID, PART, PART,
          PART, COMPLETE);
    expect(DW_OK, put_large(DW_PUT_REPLACE));
    end();

    /* a part without an ETag is not there, nor could it be named later */
    BEGIN(UPLOAD_ID, EMPTY("200 OK"), ERROR_OF("200 OK", "InternalError"), PART, PART,
          PART, COMPLETE);
    expect(DW_OK, put_large(DW_PUT_REPLACE));
    end();
    BEGIN(UPLOAD_ID, EMPTY("200 OK"), EMPTY("204 No Content"), EMPTY("200 OK"),
          EMPTY("204 No Content"));
    expect(DW_UNAVAILABLE, put_large(DW_PUT_REPLACE));
    end();
}

/* The result of the probe stays, whatever a later reply says. */
/* ---- buffers ---- */

/* A server that takes uploads on several connections. It does not answer the parts of
 * the anchor before the gate is opened. */
typedef struct gated_server {
    int fd;
    char endpoint[64];
    pthread_t thread;
    pthread_t connections[64];
    unsigned n_connections;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_open;
    bool is_anchor_done;
    unsigned n_read; /* parts of the anchor that were given a buffer */
} gated_server;

static gated_server gated;

static void *serve_connection(void *argument)
{
    const int fd = (int)(intptr_t)argument;
    static _Thread_local char request[SCRIPT_REQUEST], body[SCRIPT_BODY];
    while (script_read(fd, request, body)) {
        const char *reply = strstr(request, "?uploads")        ? UPLOAD_ID
                            : strncmp(request, "POST", 4) == 0 ? COMPLETE
                                                               : PART;
        pthread_mutex_lock(&gated.lock);
        while (strcmp(reply, PART) == 0 && strstr(request, "/anchor") && !gated.is_open)
            pthread_cond_wait(&gated.changed, &gated.lock);
        pthread_mutex_unlock(&gated.lock);
        send(fd, reply, strlen(reply), MSG_NOSIGNAL);
        if (strstr(reply, "Connection: close"))
            break;
    }
    close(fd);
    return NULL;
}

static void *serve_connections(void *unused)
{
    (void)unused;
    for (int fd; (fd = accept(gated.fd, NULL, NULL)) >= 0;) {
        assert_true(gated.n_connections < 64);
        assert_int_equal(pthread_create(&gated.connections[gated.n_connections++], NULL,
                                        serve_connection, (void *)(intptr_t)fd),
                         0);
    }
    return NULL;
}

#define BUFFER_PART ((uint64_t)16 << 20) /* three fill the buffers */

static dw_status read_zeros(void *is_anchor, uint64_t offset, void *into, size_t n_bytes,
                            dw_error *error)
{
    (void)offset;
    (void)error;
    memset(into, 0, n_bytes);
    pthread_mutex_lock(&gated.lock);
    gated.n_read += is_anchor != NULL;
    pthread_cond_broadcast(&gated.changed);
    pthread_mutex_unlock(&gated.lock);
    return DW_OK;
}

static void *put_anchor(void *status)
{
    const dw_source source = {
        .n_bytes = 5 * BUFFER_PART, .read = read_zeros, .context = status};
    *(dw_status *)status =
        dw_store_put(store, "anchor", &source, DW_PUT_REPLACE, NULL, NULL);
    pthread_mutex_lock(&gated.lock);
    gated.is_anchor_done = true;
    pthread_cond_broadcast(&gated.changed);
    pthread_mutex_unlock(&gated.lock);
    return NULL;
}

/* Only a fault gets there: the version waits for the anchor's buffers. */
static int give_up(void *n_asked, uint64_t n_done, uint64_t n_total)
{
    (void)n_total;
    return n_done == 0 && ++*(unsigned *)n_asked > 600;
}

/* While an anchor uploads, as slowly as can be, a version still gets a buffer. */
TEST(test_version_beside_anchor)
{
    gated = (gated_server){.lock = PTHREAD_MUTEX_INITIALIZER,
                           .changed = PTHREAD_COND_INITIALIZER};
    gated.fd = script_listen(gated.endpoint);
    assert_int_equal(pthread_create(&gated.thread, NULL, serve_connections, NULL), 0);
    dw_s3_location location = {.endpoint = gated.endpoint,
                               .bucket = "bucket",
                               .prefix = "pre",
                               .region = "us-east-1",
                               .path_style = true};
    expect(DW_OK, dw_key_ring_fixed(&location.keys, "ACCESSKEYID", "topsecret", NULL,
                                    "the test", &err));
    const dw_store_options options = {.struct_bytes = sizeof options,
                                      .n_connections = 8,
                                      .part_bytes = BUFFER_PART,
                                      .deadline_ms = 300000};
    expect(DW_OK,
           dw_s3_store_open_at(&store, "s3://bucket/pre", &location, &options, &err));
    dw_status anchored = DW_INVALID;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, put_anchor, &anchored), 0);
    pthread_mutex_lock(&gated.lock);
    while (gated.n_read < 2 && !gated.is_anchor_done)
        pthread_cond_wait(&gated.changed, &gated.lock);
    pthread_mutex_unlock(&gated.lock);

    unsigned n_asked = 0;
    const dw_progress progress = {give_up, &n_asked};
    const dw_source version = {.n_bytes = BUFFER_PART + 1, .read = read_zeros};
    expect(DW_OK,
           dw_store_put(store, "version", &version, DW_PUT_REPLACE, &progress, &err));

    pthread_mutex_lock(&gated.lock);
    assert_int_equal(gated.n_read, 2); /* the third buffer is kept for versions */
    gated.is_open = true;
    pthread_cond_broadcast(&gated.changed);
    pthread_mutex_unlock(&gated.lock);
    pthread_join(thread, NULL);
    assert_int_equal(anchored, DW_OK);
    assert_int_equal(gated.n_read, 5);
    dw_store_close(store);
    shutdown(gated.fd, SHUT_RDWR);
    pthread_join(gated.thread, NULL);
    close(gated.fd);
    for (unsigned i = 0; i < gated.n_connections; i++)
        pthread_join(gated.connections[i], NULL);
}

TEST(test_conditional_is_kept)
{
    bool conditional;
    BEGIN(EMPTY("200 OK"), EMPTY("412 Precondition Failed"), EMPTY("204 No Content"),
          ERROR_OF("501 Not Implemented", "NotImplemented"), STORED);
    expect(DW_OK, dw_store_conditional(store, &conditional, &err));
    assert_true(conditional);
    expect(DW_UNSUPPORTED, put(DW_PUT_CREATE));
    expect(DW_OK, put(DW_PUT_CREATE));
    assert_non_null(strstr(server.requests[4], "if-none-match: *\r\n"));
    end();
}

TEST(test_conditional)
{
    bool conditional;
    BEGIN(EMPTY("200 OK"), EMPTY("412 Precondition Failed"), EMPTY("204 No Content"));
    expect(DW_OK, dw_store_conditional(store, &conditional, &err));
    assert_true(conditional);
    assert_non_null(strstr(server.requests[0], "PUT /bucket/pre/probe/"));
    assert_non_null(strstr(server.requests[2], "DELETE /bucket/pre/probe/"));
    expect(DW_OK,
           dw_store_conditional(store, &conditional, &err)); /* does not ask again */
    assert_true(conditional);
    end();
    BEGIN(EMPTY("200 OK"), EMPTY("200 OK"), EMPTY("204 No Content"));
    expect(DW_OK, dw_store_conditional(store, &conditional, &err));
    assert_false(conditional);
    end();
    BEGIN(ERROR_OF("501 Not Implemented", "NotImplemented"));
    expect(DW_OK, dw_store_conditional(store, &conditional, &err));
    assert_false(conditional);
    end();
    BEGIN(EMPTY("403 Forbidden"), ERROR_OF("400 Bad Request", "ExpiredToken"),
          EMPTY("400 Bad Request"), ERROR_OF("400 Bad Request", "InvalidArgument"));
    expect(DW_DENIED, dw_store_conditional(store, &conditional, &err));
    expect(DW_DENIED, dw_store_conditional(store, &conditional, &err));
    expect(DW_IO, dw_store_conditional(store, &conditional, &err));
    expect(DW_OK, dw_store_conditional(store, &conditional, &err));
    assert_false(conditional);
    end();
}

/* ---- another time, another place ---- */

TEST(test_clock)
{
    /* the server's clock is a year ahead; the reply to HEAD has no body with the code */
    time_t later = time(NULL) + 365 * 86400;
    struct tm t;
    gmtime_r(&later, &t);
    static char skewed[256], date[32];
    char text[64];
    strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &t);
    strftime(date, sizeof date, "x-amz-date: %Y%m%dT%H", &t);
    snprintf(skewed, sizeof skewed,
             "HTTP/1.1 403 Forbidden\r\nDate: %s\r\nContent-Length: 0\r\n\r\n", text);
    BEGIN(skewed, HEAD("200 OK", "Last-Modified: Thu, 01 Jan 1970 00:00:02 GMT\r\n", 3),
          HEAD("200 OK", "", 4), skewed);
    uint64_t n_bytes;
    int64_t modified_ms;
    expect(DW_OK, dw_store_stat(store, "k", &n_bytes, &modified_ms, &err));
    assert_int_equal(n_bytes, 3);
    assert_int_equal(modified_ms, 2000);
    assert_null(strstr(server.requests[0], date));
    assert_non_null(strstr(server.requests[1], date));
    expect(DW_OK, dw_store_stat(store, "k", &n_bytes, &modified_ms, &err));
    assert_non_null(strstr(server.requests[2], date)); /* it is kept */
    assert_int_equal(modified_ms, 0);
    expect(DW_DENIED, dw_store_stat(store, "k", NULL, NULL, &err)); /* not the clock */
    end();
}

TEST(test_region)
{
    BEGIN(HEAD("301 Moved", "x-amz-bucket-region: eu-west-9\r\n", 0),
          HEAD("200 OK", "", 3), HEAD("200 OK", "", 3),
          HEAD("301 Moved", "x-amz-bucket-region: evil.example/\r\n", 0));
    expect(DW_OK, dw_store_stat(store, "k", NULL, NULL, &err));
    assert_non_null(strstr(server.requests[0], "/us-east-1/s3/"));
    assert_non_null(strstr(server.requests[1], "/eu-west-9/s3/"));
    expect(DW_OK, dw_store_stat(store, "k", NULL, NULL, &err));
    assert_non_null(strstr(server.requests[2], "/eu-west-9/s3/"));
    expect(DW_IO, dw_store_stat(store, "k", NULL, NULL, &err));
    end();
}

/* ---- hostile and broken ---- */

/* Keys of the program's own function, numbered by its calls. */
static dw_status give_keys(void *context, dw_credentials *out, dw_error *error)
{
    static const char *const names[] = {"FIRSTKEYID", "SECONDKEYID"};
    unsigned *n_calls = context;
    if (*n_calls == 2)
        return dw_fail(error, DW_DENIED, "vault", "sealed");
    out->access_key = names[*n_calls];
    out->secret_key = "topsecret";
    ++*n_calls;
    return DW_OK;
}

/* Gives keys once, and then fails without a text. */
static dw_status give_keys_once(void *context, dw_credentials *out, dw_error *error)
{
    unsigned *n_calls = context;
    (void)error;
    if (++*n_calls > 1)
        return DW_NOT_FOUND;
    out->access_key = "FIRSTKEYID";
    out->secret_key = "topsecret";
    return DW_OK;
}

static void open_with(dw_status (*credentials)(void *, dw_credentials *, dw_error *),
                      unsigned *n_calls)
{
    const dw_store_options options = {.struct_bytes = sizeof options,
                                      .endpoint = server.endpoint,
                                      .region = "us-east-1",
                                      .n_connections = 1,
                                      .credentials = credentials,
                                      .credentials_context = n_calls};
    expect(DW_OK, dw_store_open(&store, "s3://bucket/pre", &options, &err));
}

/* A refused request stays refused if no new keys come. */
TEST(test_keys_fail_silently)
{
    const char *const replies[] = {ERROR_OF("400 Bad Request", "ExpiredToken")};
    unsigned n_calls = 0;
    script_start(&server, replies, 1);
    open_with(give_keys_once, &n_calls);
    expect(DW_DENIED, put(DW_PUT_REPLACE));
    assert_int_equal(n_calls, 2);
    expect(DW_DENIED, dw_store_remove(store, "k", &err));
    expect(DW_DENIED, dw_store_stat(store, "k", NULL, NULL, &err));
    assert_non_null(strstr(err.text, "without a reason"));
    end();
}

TEST(test_keys_are_renewed)
{
    const char *const replies[] = {STORED, ERROR_OF("400 Bad Request", "ExpiredToken"),
                                   STORED, ERROR_OF("400 Bad Request", "RequestExpired")};
    unsigned n_calls = 0;
    script_start(&server, replies, 4);
    open_with(give_keys, &n_calls);
    assert_int_equal(n_calls, 0);
    expect(DW_OK, put(DW_PUT_REPLACE));
    expect(DW_OK, put(DW_PUT_REPLACE));
    assert_int_equal(n_calls, 2);
    assert_non_null(strstr(server.requests[1], "Credential=FIRSTKEYID/"));
    assert_non_null(strstr(server.requests[2], "Credential=SECONDKEYID/"));
    expect(DW_DENIED, put(DW_PUT_REPLACE));
    assert_string_equal(err.text, "sealed");
    end();
}

TEST(test_errors)
{
    BEGIN(ERROR_OF("403 Forbidden", "SignatureDoesNotMatch"),
          ERROR_OF("403 Forbidden", "InvalidAccessKeyId"),
          ERROR_OF("400 Bad Request", "InvalidRequest"),
          ERROR_OF("400 Bad Request", "ExpiredToken"),
          ERROR_OF("400 Bad Request", "InvalidToken"),
          HEAD("503 Slow Down", "Retry-After: 3600\r\n", 0));
    const dw_status codes[] = {DW_DENIED, DW_DENIED, DW_IO,
                               DW_DENIED, DW_DENIED, DW_UNAVAILABLE};
    const char *const texts[] = {"...EYID",       "...EYID",       "InvalidRequest",
                                 "session token", "session token", "503"};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        expect(codes[i], put(DW_PUT_REPLACE));
        assert_non_null(strstr(err.text, texts[i]));
        assert_string_equal(err.where, "s3://bucket/pre/k");
        assert_null(strstr(err.text, "ACCESSKEY"));
        assert_null(strstr(err.text, "topsecret"));
        assert_null(strstr(err.text, "sessiontoken"));
    }
    end();

    /* the reply to HEAD has no code */
    BEGIN(EMPTY("400 Bad Request"));
    expect(DW_DENIED, dw_store_stat(store, "k", NULL, NULL, &err));
    assert_non_null(
        strstr(err.text, "the session token has expired or is wrong (the test)"));
    end();
}

/* A missing bucket differs from a missing object, and HEAD cannot distinguish them. */
TEST(test_no_bucket)
{
    BEGIN(EMPTY("404 Not Found"), ERROR_OF("404 Not Found", "NoSuchBucket"));
    expect(DW_UNAVAILABLE, dw_store_stat(store, "k", NULL, NULL, &err));
    assert_non_null(strstr(err.text, "there is no bucket 'bucket'. Create it"));
    end();
    /* once the bucket was seen, HEAD is enough */
    BEGIN(EMPTY("404 Not Found"), NO_KEY, EMPTY("404 Not Found"));
    expect(DW_NOT_FOUND, dw_store_stat(store, "k", NULL, NULL, &err));
    expect(DW_NOT_FOUND, dw_store_stat(store, "k", NULL, NULL, &err));
    end();
}

/* The error of a wrong URL names the right form. */
TEST(test_bad_names)
{
    const dw_store_options options = {.struct_bytes = sizeof options,
                                      .endpoint = "http://127.0.0.1:9",
                                      .region = "x",
                                      .anonymous = true};
    static const char *const urls[] = {"s3://bucket/my run", "s3://bucket/a//b",
                                       "s3://bucket/a:b"};
    for (size_t i = 0; i < sizeof urls / sizeof *urls; i++) {
        expect(DW_INVALID, dw_store_open(&store, urls[i], &options, &err));
        assert_non_null(strstr(err.text, "letters, digits and -_./=+@"));
    }
    expect(DW_INVALID, dw_store_open(&store, "s3://my bucket/run", &options, &err));
    assert_non_null(strstr(err.text, "letters, digits and -._"));
}

static char *long_reply(const char *head, char fill, size_t n)
{
    size_t n_head = strlen(head);
    char *reply = malloc(n_head + n + 1);
    memcpy(reply, head, n_head);
    memset(reply + n_head, fill, n);
    reply[n_head + n] = 0;
    return reply;
}

TEST(test_no_end)
{
    char *body = long_reply("HTTP/1.1 404 No\r\nConnection: close\r\n\r\n", 'x', 4 << 20);
    char *head = long_reply("HTTP/1.1 200 OK\r\nConnection: close\r\nx: ", 'y', 90000);
    BEGIN(body, head, ERROR_OF("404 Not Found", "NoSuchKey"));
    expect(DW_NOT_FOUND, put(DW_PUT_REPLACE));
    end();
    free(body);
    free(head);
}

/* What is no answer is asked for again. A status that makes no sense is named. */
TEST(test_no_http)
{
    char *line = long_reply("HTTP/1.1 200 OK\r\nConnection: close\r\nx: ", 'y', 400000);
    BEGIN("SSH-2.0-OpenSSH_9.2\r\nConnection: close\r\n\r\n", line, STORED);
    expect(DW_OK, put(DW_PUT_REPLACE));
    end();
    BEGIN("ICY 200\r\nConnection: close\r\n\r\n", "\r\n\r\nConnection: close",
          "SSH-2.0-OpenSSH_9.2\r\nConnection: close\r\n\r\n");
    expect(DW_UNAVAILABLE, put(DW_PUT_REPLACE));
    assert_non_null(strstr(err.text, "after 3 tries"));
    end();
    free(line);

    BEGIN(EMPTY("304 Not Modified"));
    expect(DW_IO, dw_store_stat(store, "k", NULL, NULL, &err));
    assert_string_equal(err.text, "the server answered HEAD with 304");
    end();
}

static dw_status count_entry(void *context, const dw_store_entry *entry, dw_error *error)
{
    (void)error;
    (void)entry;
    ++*(unsigned *)context;
    return DW_OK;
}

TEST(test_list)
{
    unsigned n = 0;
    BEGIN(OK_TEXT("<ListBucketResult><IsTruncated>true</IsTruncated>"
                  "<NextContinuationToken>t/1</NextContinuationToken>"
                  "<Contents><Key>pre/a</Key><Size>1</Size></Contents>"
                  "<Contents><Key>pre/b</Key><Size>1</Size></Contents>"
                  "<Contents><Key>pre/b c</Key><Size>1</Size></Contents>"
                  "<Contents><Key>other/d</Key><Size>1</Size></Contents>"
                  "</ListBucketResult>"),
          OK_TEXT("<ListBucketResult><IsTruncated>false</IsTruncated>"
                  "<Contents><Key>pre/b</Key><Size>1</Size></Contents>"
                  "<Contents><Key>pre/c</Key><Size>1</Size></Contents>"
                  "</ListBucketResult>"));
    expect(DW_OK, dw_store_list(store, "", "a", count_entry, &n, &err));
    assert_int_equal(n, 2); /* b and c, once each */
    assert_non_null(
        strstr(server.requests[0], "GET /bucket?list-type=2&prefix=pre%2F&start-after="));
    assert_non_null(strstr(server.requests[1], "&continuation-token=t%2F1 HTTP"));
    end();
}

/* An error, a page of a proxy and a part of a list are no lists. */
TEST(test_list_again)
{
    unsigned n = 0;
    BEGIN(ERROR_OF("200 OK", "InternalError"),
          OK_TEXT("<ListBucketResult><Contents><Key>pre/a</Key><Size>1</Size>"),
          OK_TEXT("<ListBucketResult><Contents><Key>pre/a</Key><Size>1</Size></Contents>"
                  "</ListBucketResult>"),
          EMPTY("200 OK"), OK_TEXT("<!DOCTYPE html><html>welcome</html>"),
          OK_TEXT("<ListBucketResult><Contents>"));
    expect(DW_OK, dw_store_list(store, "", NULL, count_entry, &n, &err));
    assert_int_equal(n, 1);
    expect(DW_UNAVAILABLE, dw_store_list(store, "", NULL, count_entry, &n, &err));
    assert_int_equal(n, 1);
    assert_non_null(
        strstr(err.text, "after 3 tries, the last with: the server's answer"));
    end();
}

TEST(test_list_out_of_order)
{
    unsigned n = 0;
    BEGIN(OK_TEXT("<ListBucketResult>"
                  "<Contents><Key>pre/b</Key><Size>1</Size></Contents>"
                  "<Contents><Key>pre/c</Key><Size>1</Size></Contents>"
                  "<Contents><Key>pre/a</Key><Size>1</Size></Contents>"
                  "</ListBucketResult>"));
    expect(DW_UNSUPPORTED, dw_store_list(store, "", NULL, count_entry, &n, &err));
    assert_non_null(strstr(err.text, "'a' after 'c'"));
    end();
}

TEST(test_content_range)
{
    uint64_t first, last, total;
    assert_true(dw_http_parse_content_range("bytes 5-9/20", &first, &last, &total));
    assert_true(first == 5 && last == 9 && total == 20);
    const char *const bad[] = {
        "",
        "bytes",
        "bytes 5-9/*",
        "bytes */20",
        "bytes 9-5/20",
        "bytes 5-20/20",
        "bytes -5-9/20",
        "bytes 5-9/20x",
        "bytes 5 - 9/20",
        "5-9/20",
        "bytes 5-9/99999999999999999999",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(dw_http_parse_content_range(bad[i], &first, &last, &total));
}

int main(void)
{
    unsetenv("http_proxy");
    return suite_run(NULL, NULL);
}
