/* Hostile requests, and the headers of every answer. */
#include <errno.h>

#include "unit/suite.h"

#include "agent_fixture.h"

#define JSON "Content-Type: application/json\r\n"

static int agent_begin_at_version(void **state)
{
    agent_begin(state);
    dw_agent_report_version(agent, 6, NULL);
    return 0;
}

static int get_with(const char *path, const char *headers)
{
    return http_ask(port, "GET", path, headers, NULL, &reply);
}

static int post_with(const char *headers, const char *body)
{
    return http_ask(port, "POST", "/pin", headers, body, &reply);
}

/* ---- methods and paths ---- */

TEST_WITH(test_methods, agent_begin_at_version, agent_end)
{
    assert_int_equal(http_ask(port, "HEAD", "/status", "", NULL, &reply), 200);
    assert_int_equal(reply.n_body, 0);
    assert_true(http_has(&reply, "Content-Type", "application/json"));
    static const char *const others[] = {"DELETE", "PUT", "OPTIONS", "TRACE", "FROB"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        assert_int_equal(http_ask(port, others[i], "/status", "", NULL, &reply), 405);
        assert_true(http_has(&reply, "Allow", "GET, HEAD"));
        assert_null(strstr(reply.text, "Access-Control"));
    }
    assert_int_equal(http_ask(port, "GET", "/pin", "", NULL, &reply), 405);
    assert_true(http_has(&reply, "Allow", "POST"));
    assert_int_equal(http_ask(port, "POST", "/", JSON, "{}", &reply), 405);
    static const char *const nowhere[] = {"/x",       "/status/", "//", "/../etc/passwd",
                                          "/%2e%2e/", "/STATUS"};
    for (size_t i = 0; i < sizeof nowhere / sizeof *nowhere; i++)
        assert_int_equal(http_get(port, nowhere[i], &reply), 404);
}

TEST_WITH(test_page, agent_begin_at_version, agent_end)
{
    assert_int_equal(http_get(port, "/", &reply), 200);
    assert_true(http_has(&reply, "Content-Type", "text/html; charset=utf-8"));
    assert_true(http_has(&reply, "X-Content-Type-Options", "nosniff"));
    assert_true(http_has(&reply, "Referrer-Policy", "no-referrer"));
    const char *policy = strstr(reply.text, "\r\nContent-Security-Policy: ");
    assert_non_null(policy);
    assert_non_null(strstr(policy, "default-src 'none'; script-src 'sha256-"));
    assert_non_null(strstr(policy, "connect-src 'self'"));
    assert_non_null(strstr(policy, "frame-ancestors 'none'"));
    assert_non_null(strstr(reply.body, "<html"));
}

TEST_WITH(test_pipeline, agent_begin_at_version, agent_end)
{
    http_raw(port,
             "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
             "POST /pin HTTP/1.1\r\nHost: localhost\r\n" JSON
             "Content-Length: 13\r\n\r\n{\"version\":3}"
             "GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
             &reply);
    const char *second = strstr(reply.body, "HTTP/1.1 200");
    assert_non_null(second);
    assert_non_null(strstr(second, "{\"pinned\":3}HTTP/1.1 200"));
}

/* ---- tokens, hosts, origins ---- */

TEST_WITH(test_token, agent_begin_at_version, agent_end)
{
    agent_end(NULL);
    agent_start(&(dw_agent_options){.token = "Secret-Token"});
    static const char *const open_paths[] = {"/", "/healthz"};
    for (size_t i = 0; i < 2; i++)
        assert_int_equal(http_get(port, open_paths[i], &reply), 200);
    assert_int_equal(http_get(port, "/readyz", &reply), 503);
    static const char *const wrong[] = {
        "",
        "Authorization: Bearer\r\n",
        "Authorization: Bearer \r\n",
        "Authorization: Bearer Secret-Toke\r\n",
        "Authorization: Bearer Secret-Token1\r\n",
        "Authorization: Bearer secret-token\r\n",
        "Authorization: Basic Secret-Token\r\n",
        "Authorization: Secret-Token\r\n",
        "Authorization: Bearer x\r\nAuthorization: Bearer Secret-Token\r\n",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(get_with("/status", wrong[i]), 401);
        assert_true(http_has(&reply, "WWW-Authenticate", "Bearer realm=\"deltawire\""));
        assert_int_equal(get_with("/metrics", wrong[i]), 401);
        assert_int_equal(post_with(wrong[i], NULL), 401);
    }
    assert_int_equal(get_with("/status?token=Secret-Token", ""), 401);
    assert_int_equal(get_with("/status", "Authorization: Bearer Secret-Token\r\n"), 200);
    assert_int_equal(get_with("/status", "Authorization: bearer  Secret-Token\r\n"), 200);
}

TEST_WITH(test_host, agent_begin_at_version, agent_end)
{
    static const char *const foreign[] = {
        "Host: evil.example\r\n",
        "Host: evil.example:9470\r\n",
        "Host: 10.0.0.1\r\n",
        "Host: localhost.evil.example\r\n",
        "Host: \r\n",
    };
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        assert_int_equal(get_with("/status", foreign[i]), 421);
        assert_int_equal(get_with("/", foreign[i]), 421);
    }
    assert_int_equal(get_with("/status", "Host: 127.0.0.1:8080\r\n"), 200);
    assert_int_equal(get_with("/status", "Host: [::1]\r\n"), 200);
    assert_int_equal(http_raw(port, "GET /healthz HTTP/1.0\r\n\r\n", &reply), 200);
    assert_int_equal(http_raw(port, "GET /healthz HTTP/1.1\r\n\r\n", &reply), 400);
}

TEST_WITH(test_origin, agent_begin_at_version, agent_end)
{
    static const char *const foreign[] = {
        "Origin: https://evil.example\r\n" JSON,
        "Origin: null\r\n" JSON,
        "Origin: http://localhost:1\r\n" JSON,
        "Origin: \r\n" JSON,
        "Origin: localhost\r\n" JSON,
    };
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        assert_int_equal(post_with(foreign[i], "{\"version\":3}"), 403);
    static const char *const forms[] = {
        "", "Content-Type: text/plain\r\n",
        "Content-Type: application/x-www-form-urlencoded\r\n",
        "Content-Type: application/jsonp\r\n"};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        assert_int_equal(post_with(forms[i], "{\"version\":3}"), 415);
    uint64_t version;
    assert_false(dw_agent_pinned(agent, &version));
    assert_int_equal(post_with("Origin: http://localhost\r\n" JSON, "{\"version\":3}"),
                     200);
    assert_int_equal(post_with("Host: localhost:81\r\nOrigin: http://localhost:81\r\n"
                               "Content-Type: application/json; charset=utf-8\r\n",
                               "{\"version\":4}"),
                     200);
    assert_true(dw_agent_pinned(agent, &version));
    assert_int_equal(version, 4);
}

/* ---- bodies ---- */

TEST_WITH(test_bodies, agent_begin_at_version, agent_end)
{
    static const char *const wrong[] = {
        "{",
        "{}",
        "[]",
        "null",
        "3",
        "{\"version\":}",
        "{\"version\":\"3\"}",
        "{\"version\":3.5}",
        "{\"version\":-1}",
        "{\"version\":null}",
        "{\"version\":99999999999999999999}",
        "{\"version\":3,\"version\":4}",
        "{\"version\":3,\"more\":1}",
        "{\"version\":3} x",
        "{\"Version\":3}",
        "\xff\xfe",
        "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
    };
    uint64_t version;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (post_with(JSON, wrong[i]) != 400)
            fail_msg("%d for %s", reply.code, wrong[i]);
    char large[5000];
    memset(large, ' ', sizeof large);
    large[4097] = '\0';
    assert_int_equal(post_with(JSON, large), 413);
    large[4096] = '\0';
    assert_int_equal(post_with(JSON, large), 400);
    memcpy(large, "{\"version\":3}", 13);
    assert_int_equal(post_with(JSON, large), 200);
    assert_true(dw_agent_pinned(agent, &version));
    assert_int_equal(version, 3);
    assert_int_equal(post_with(JSON "Transfer-Encoding: chunked\r\n", NULL), 411);
    assert_int_equal(
        http_ask(port, "GET", "/status", "Content-Length: 99999999\r\n", NULL, &reply),
        413);
    assert_int_equal(http_ask(port, "GET", "/healthz", "", "a body", &reply), 200);
    expect_alive();
}

/* Two lengths in one request: a proxy in front may have used the other one. */
TEST_WITH(test_two_lengths, agent_begin_at_version, agent_end)
{
    static const char *const doubled[] = {
        "Content-Length: 13\r\nContent-Length: 13\r\n",
        "Content-Length: 13\r\ncontent-length: 0\r\n",
        "Content-Length: 0\r\nContent-Length: 13\r\n",
        "Content-Length: 13\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 13\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
    };
    for (size_t i = 0; i < sizeof doubled / sizeof *doubled; i++) {
        char request[512];
        snprintf(request, sizeof request,
                 "POST /pin HTTP/1.1\r\nHost: localhost\r\n" JSON
                 "%s\r\n{\"version\":3}GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
                 "Connection: close\r\n\r\n",
                 doubled[i]);
        if (http_raw(port, request, &reply) != 400)
            fail_msg("%d for %s", reply.code, doubled[i]);
        assert_null(strstr(reply.body, "HTTP/1.1")); /* nothing else is answered */
        assert_false(dw_agent_pinned(agent, &(uint64_t){0}));
    }
    assert_int_equal(http_ask(port, "GET", "/status",
                              "Content-Length: 0\r\nContent-Length: 0\r\n", NULL, &reply),
                     400);
    expect_alive();
}

/* ---- sizes and numbers ---- */

TEST_WITH(test_huge, agent_begin_at_version, agent_end)
{
    static char request[1 << 18];
    int n = snprintf(request, sizeof request,
                     "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: ");
    memset(request + n, 'x', 100000);
    strcpy(request + n + 100000, "\r\n\r\n");
    http_raw(port, request, &reply);
    assert_true(reply.code == 431 || reply.code == 0);
    expect_alive();
    n = snprintf(request, sizeof request, "GET /");
    memset(request + n, 'x', 100000);
    strcpy(request + n + 100000, " HTTP/1.1\r\nHost: localhost\r\n\r\n");
    http_raw(port, request, &reply);
    assert_true(reply.code == 414 || reply.code == 431 || reply.code == 0);
    expect_alive();
    n = snprintf(request, sizeof request, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n");
    for (int i = 0; i < 3000; i++)
        n += snprintf(request + n, sizeof request - (size_t)n, "X-%d: y\r\n", i);
    strcpy(request + n, "\r\n");
    http_raw(port, request, &reply);
    assert_true(reply.code == 431 || reply.code == 0);
    expect_alive();
}

TEST_WITH(test_garbage, agent_begin_at_version, agent_end)
{
    static const char *const garbage[] = {
        "\x16\x03\x01\x02\x01\x01\xfc\x03\r\n\r\n",
        "GET\r\n\r\n",
        "GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
        "GET / HTTP/1.1 HTTP/1.1\r\n\r\n",
        " / \r\n\r\n",
        "POST /pin HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        "POST /pin HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5x\r\n\r\n",
        "POST /pin HTTP/1.1\r\nHost: localhost\r\n" JSON
        "Content-Length: 5\r\nContent-Length: 50\r\nConnection: close\r\n\r\nhello",
    };
    for (size_t i = 0; i < sizeof garbage / sizeof *garbage; i++) {
        int fd = http_connect(port);
        http_send(fd, garbage[i]);
        shutdown(fd, SHUT_WR);
        http_receive(fd, &reply);
        close(fd);
        assert_int_not_equal(reply.code, 200);
        expect_alive();
    }
}

/* A silent connection is closed. */
TEST_WITH(test_silence, agent_begin_at_version, agent_end)
{
    char byte;
    int fd = http_connect(port);
    assert_true(recv(fd, &byte, 1, 0) <= 0 && errno != EAGAIN);
    close(fd);
    expect_alive();
}

TEST_WITH(test_stop_with_guests, agent_begin_at_version, agent_end)
{
    char byte;
    int fd = http_connect(port);
    http_send(fd, "GET /st");
    expect_alive();
    agent_end(NULL);
    assert_true(recv(fd, &byte, 1, 0) <= 0 && errno != EAGAIN);
    close(fd);
}

RUN_TESTS(NULL, NULL)
