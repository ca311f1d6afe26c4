/* Addresses to listen at, and the hosts that count as loopback. */
#include <sys/socket.h>

#include "unit/suite.h"

#include "agent/listen.h"
#include "agent/agent.h"

static dw_error err;

TEST(test_parse)
{
    static const struct {
        const char *text, *host, *port; /* host NULL: refused */
    } cases[] = {
        {"127.0.0.1:9470", "127.0.0.1", "9470"},
        {"localhost:0", "localhost", "0"},
        {"[::1]:9470", "::1", "9470"},
        {"[fe80::1%eth0]:1", "fe80::1%eth0", "1"},
        {"0.0.0.0:65535", "0.0.0.0", "65535"},
        {"", NULL, NULL},
        {":9470", NULL, NULL},
        {"9470", NULL, NULL},
        {"localhost", NULL, NULL},
        {"localhost:", NULL, NULL},
        {"localhost:http", NULL, NULL},
        {"localhost:65536", NULL, NULL},
        {"localhost:000080", NULL, NULL},
        {"localhost:-1", NULL, NULL},
        {"localhost: 80", NULL, NULL},
        {"localhost:80 ", NULL, NULL},
        {"::1:9470", NULL, NULL},
        {"[::1]", NULL, NULL},
        {"[::1:9470", NULL, NULL},
        {"[]:9470", NULL, NULL},
        {"[::1]9470", NULL, NULL},
        {"a:1:2", NULL, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dw_listen_name name;
        dw_status status = dw_listen_parse(&name, cases[i].text, &err);
        if ((status == DW_OK) != (cases[i].host != NULL))
            fail_msg("'%s'", cases[i].text);
        if (status == DW_OK) {
            assert_string_equal(name.host, cases[i].host);
            assert_string_equal(name.port, cases[i].port);
        } else {
            assert_int_equal(status, DW_INVALID);
        }
    }
    char longest[400];
    memset(longest, 'a', sizeof longest);
    strcpy(longest + 300, ":80");
    dw_listen_name name;
    assert_int_equal(dw_listen_parse(&name, longest, &err), DW_INVALID);
}

TEST(test_loopback_names)
{
    static const char *const own[] = {
        "localhost",     "localhost:80",       "LOCALHOST",       "localhost.",
        "a.localhost:1", "127.0.0.1",          "127.8.9.1:65535", "[::1]",
        "[::1]:9470",    "[::ffff:127.0.0.1]", "a.b.localhost",
    };
    static const char *const foreign[] = {
        "",
        "example.com",
        "localhost.example.com",
        "notlocalhost",
        "127.0.0.1.example.com",
        "128.0.0.1",
        "0.0.0.0",
        "[::]",
        "[::2]",
        "::1",
        "localhost:x",
        "localhost:80:80",
        "[localhost]",
        "[127.0.0.1]",
        "127.1:1x",
        "localhost/",
        "user@localhost",
        "localhost:99999",
        ".",
        "localhost..",
    };
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (!dw_host_is_loopback(own[i]))
            fail_msg("'%s' is not taken for loopback", own[i]);
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (dw_host_is_loopback(foreign[i]))
            fail_msg("'%s' is taken for loopback", foreign[i]);
    assert_true(dw_host_is("Node-7:9470", "node-7"));
    assert_true(dw_host_is("node-7", "node-7"));
    assert_false(dw_host_is("node-70", "node-7"));
    assert_true(dw_host_is("[fd00::1]:80", "fd00::1"));
}

TEST(test_bind)
{
    dw_listener one, two;
    assert_int_equal(dw_listener_open(&one, "127.0.0.1:0", &err), DW_OK);
    assert_true(one.is_loopback);
    assert_true(one.port > 0);
    assert_int_equal(listen(one.fd, 1), 0);
    char text[64];
    snprintf(text, sizeof text, "127.0.0.1:%u", one.port);
    assert_int_equal(dw_listener_open(&two, text, &err), DW_CONFLICT);
    assert_string_equal(err.where, text);
    dw_listener_close(&one);
    dw_listener_close(&one); /* closing twice does no harm */
    assert_int_equal(dw_listener_open(&two, "localhost:0", &err), DW_OK);
    assert_true(two.is_loopback);
    dw_listener_close(&two);
    assert_int_equal(dw_listener_open(&two, "0.0.0.0:0", &err), DW_OK);
    assert_false(two.is_loopback);
    dw_listener_close(&two);
    /* example addresses, which no machine has, and a name that no server is asked for */
    assert_int_equal(dw_listener_open(&two, "192.0.2.1:0", &err), DW_INVALID);
    assert_int_equal(dw_listener_open(&two, "no..name:0", &err), DW_INVALID);
    if (dw_listener_open(&two, "[::1]:0", &err) == DW_OK) { /* if there is IPv6 */
        assert_true(two.is_loopback);
        dw_listener_close(&two);
    }
}

/* ---- the agent's own rules ---- */

static void expect_start(dw_status wanted, dw_agent_options options, const char *text)
{
    dw_agent *agent;
    dw_status status = dw_agent_start(&agent, &options, &err);
    if (status != wanted)
        fail_msg("%s: %s", dw_status_name(status), err.text);
    if (status == DW_OK)
        assert_int_equal(strncmp(dw_agent_url(agent), text, strlen(text)), 0);
    else
        assert_non_null(strstr(err.text, text));
    dw_agent_stop(agent);
}

TEST(test_guard)
{
    expect_start(DW_OK, (dw_agent_options){0}, "http://127.0.0.1:");
    expect_start(DW_OK, (dw_agent_options){.listen = "localhost:0"}, "http://localhost:");
    expect_start(DW_INVALID, (dw_agent_options){.listen = "0.0.0.0:0"}, "needs a token");
    expect_start(DW_INVALID, (dw_agent_options){.listen = "0.0.0.0:0", .plain = true},
                 "needs a token");
    expect_start(DW_INVALID, (dw_agent_options){.listen = "0.0.0.0:0", .token = "secret"},
                 "needs TLS");
    expect_start(
        DW_OK,
        (dw_agent_options){.listen = "0.0.0.0:0", .token = "secret", .plain = true},
        "http://0.0.0.0:");
    expect_start(DW_INVALID, (dw_agent_options){.tls_cert = "cert.pem"}, "go together");
    expect_start(DW_INVALID, (dw_agent_options){.token = ""}, "a token is");
    expect_start(DW_INVALID, (dw_agent_options){.token = "two words"}, "a token is");
}

RUN_TESTS(NULL, NULL)
