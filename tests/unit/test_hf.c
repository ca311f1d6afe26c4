/* hf:// stores against tests/servers/hf_server.c, a program that replaces the Hub, which
 * tests cannot reach. */
#include <sys/wait.h>
#include <unistd.h>

#include "unit/suite.h"

#include "inner.h"
#include "store/hf.h"
#include "store/store.h"
#include "temp_dir.h"
#include "unit/stream_fixture.h"

static pid_t server;
static int server_input;
static char hub[64], gateway[128];

static int start_server(void **state)
{
    if (temp_dir_make(state) != 0)
        return -1;
    int in[2], out[2];
    if (pipe(in) != 0 || pipe(out) != 0)
        return -1;
    server = fork();
    if (server == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        close(in[1]);
        execl(HF_SERVER, "hf_server", (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    server_input = in[1];
    FILE *ports = fdopen(out[0], "r");
    unsigned hub_port, cdn_port;
    if (!ports || fscanf(ports, "%u %u", &hub_port, &cdn_port) != 2)
        return -1;
    fclose(ports);
    snprintf(hub, sizeof hub, "http://127.0.0.1:%u", hub_port);
    snprintf(gateway, sizeof gateway, "%s/gateway/ns", hub);
    return 0;
}

static int stop_server(void **state)
{
    close(server_input);
    int status;
    waitpid(server, &status, 0);
    return temp_dir_remove(state) || status;
}

static int clean_environment(void **state)
{
    (void)state;
    const char *names[] = {"HF_S3_ACCESS_KEY_ID", "HF_S3_SECRET_ACCESS_KEY", "HF_TOKEN",
                           "HF_TOKEN_PATH", "HF_HOME"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
    setenv("HOME", temp_dir, 1);
    setenv("HF_ENDPOINT", hub, 1);
    setenv("HF_S3_ENDPOINT", gateway, 1);
    return 0;
}

static dw_store *open_store(const char *url)
{
    dw_store *store;
    dw_error err = {0};
    if (dw_store_open(&store, url, NULL, &err) != DW_OK)
        fail_msg("%s: %s", err.where, err.text);
    return store;
}

static dw_store *open_gateway(const char *url)
{
    setenv("HF_S3_ACCESS_KEY_ID", "AKHF", 1);
    setenv("HF_S3_SECRET_ACCESS_KEY", "hf-secret", 1);
    dw_store *store = open_store(url);
    unsetenv("HF_S3_ACCESS_KEY_ID");
    unsetenv("HF_S3_SECRET_ACCESS_KEY");
    return store;
}

static dw_store *open_native(const char *url)
{
    setenv("HF_TOKEN", "hf_test", 1);
    return open_store(url);
}

static void put(dw_store *store, const char *key, const char *text)
{
    dw_error err = {0};
    if (dw_store_put_bytes(store, key, text, strlen(text), DW_PUT_REPLACE, &err) != DW_OK)
        fail_msg("%s: %s", err.where, err.text);
}

static void assert_get(dw_store *store, const char *key, uint64_t offset, size_t n_bytes,
                       const char *expected)
{
    char room[64] = {0};
    size_t n_read;
    dw_error err = {0};
    if (dw_store_get(store, key, offset, room, n_bytes, &n_read, NULL, &err) != DW_OK)
        fail_msg("%s: %s", err.where, err.text);
    assert_int_equal(n_read, strlen(expected));
    assert_string_equal(room, expected);
}

static dw_status add_key(void *context, const dw_store_entry *entry, dw_error *err)
{
    (void)err;
    char *text = context;
    sprintf(text + strlen(text), "%s:%d ", entry->key, (int)entry->n_bytes);
    return DW_OK;
}

static void assert_list(dw_store *store, const char *prefix, const char *after,
                        const char *expected)
{
    char text[512] = "";
    dw_error err = {0};
    if (dw_store_list(store, prefix, after, add_key, text, &err) != DW_OK)
        fail_msg("%s: %s", err.where, err.text);
    assert_string_equal(text, expected);
}

static void assert_missing(dw_store *store, const char *key)
{
    char room[8];
    size_t n_read;
    uint64_t n_bytes;
    dw_error err;
    assert_int_equal(dw_store_get(store, key, 0, room, 8, &n_read, NULL, &err),
                     DW_NOT_FOUND);
    assert_int_equal(dw_store_stat(store, key, &n_bytes, NULL, &err), DW_NOT_FOUND);
}

static void assert_reads(dw_store *store)
{
    uint64_t n_bytes;
    assert_get(store, "d/a", 0, 60, "hello");
    assert_get(store, "d/a", 1, 3, "ell");
    assert_get(store, "d/a", 5, 8, "");
    assert_get(store, "empty", 0, 8, "");
    assert_int_equal(dw_store_stat(store, "d/a", &n_bytes, NULL, NULL), DW_OK);
    assert_int_equal(n_bytes, 5);
    assert_int_equal(dw_store_stat(store, "empty", &n_bytes, NULL, NULL), DW_OK);
    assert_int_equal(n_bytes, 0);
    assert_missing(store, "d/none");
    assert_list(store, "", NULL, "d/a:5 d/b+c:1 d/e/f:2 empty:0 z@=:3 ");
    assert_list(store, "d/", NULL, "d/a:5 d/b+c:1 d/e/f:2 ");
    assert_list(store, "d/e", NULL, "d/e/f:2 ");
    assert_list(store, "", "d/b+c", "d/e/f:2 empty:0 z@=:3 ");
    assert_list(store, "nowhere/", NULL, "");
}

/* It tells where the keys come from, and has seen the server's clock. */
static void assert_facts(dw_store *store, const char *keys)
{
    dw_store_facts facts;
    dw_store_get_facts(store, &facts);
    if (strncmp(facts.keys, keys, strlen(keys)) != 0)
        fail_msg("keys: %s", facts.keys);
    assert_non_null(strstr(facts.server, "http://127.0.0.1:"));
    assert_true(facts.has_clock);
    assert_in_range(facts.clock_offset_ms + 3600000, 0, 7200000);
}

TEST_WITH(test_gateway_and_native, clean_environment, NULL)
{
    dw_store *store = open_gateway("hf://buckets/ns/b/run/1/");
    assert_string_equal(dw_store_url(store), "hf://buckets/ns/b/run/1");
    put(store, "d/e/f", "12");
    put(store, "d/a", "hello");
    put(store, "d/b+c", "x");
    put(store, "empty", "");
    put(store, "z@=", "123");
    put(store, "gone", "1");
    assert_int_equal(dw_store_remove(store, "gone", NULL), DW_OK);
    assert_reads(store);
    dw_error err;
    assert_int_equal(dw_store_put_bytes(store, "d/a", "y", 1, DW_PUT_CREATE, &err),
                     DW_CONFLICT);
    bool conditional = false;
    assert_int_equal(dw_store_conditional(store, &conditional, NULL), DW_OK);
    assert_true(conditional);
    assert_facts(store, "HF_S3_ACCESS_KEY_ID");
    dw_store_close(store);

    store = open_native("hf://buckets/ns/b/run/1");
    assert_reads(store);
    assert_facts(store, "HF_TOKEN,");
    assert_int_equal(dw_store_put_bytes(store, "k", "y", 1, DW_PUT_REPLACE, &err),
                     DW_DENIED);
    assert_non_null(strstr(err.text, "HF_S3_ACCESS_KEY_ID"));
    assert_int_equal(dw_store_remove(store, "d/a", &err), DW_DENIED);
    assert_int_equal(dw_store_conditional(store, &conditional, &err), DW_DENIED);
    dw_store_close(store);
}

TEST_WITH(test_wrong_keys, clean_environment, NULL)
{
    setenv("HF_S3_ACCESS_KEY_ID", "AKHF", 1);
    setenv("HF_S3_SECRET_ACCESS_KEY", "wrong-hush", 1);
    dw_store *store = open_store("hf://buckets/ns/b");
    dw_error err;
    assert_int_equal(dw_store_put_bytes(store, "k", "y", 1, DW_PUT_REPLACE, &err),
                     DW_DENIED);
    assert_null(strstr(err.text, "hush"));
    dw_store_close(store);
    unsetenv("HF_S3_ACCESS_KEY_ID");
    assert_int_equal(dw_store_open(&store, "hf://buckets/ns/b", NULL, &err), DW_INVALID);
    unsetenv("HF_S3_SECRET_ACCESS_KEY");

    setenv("HF_TOKEN", "hf_hush", 1);
    store = open_store("hf://buckets/ns/b");
    assert_int_equal(dw_store_stat(store, "k", NULL, NULL, &err), DW_DENIED);
    assert_non_null(strstr(err.text, "HF_TOKEN"));
    assert_null(strstr(err.text, "hush"));
    dw_store_close(store);
}

TEST_WITH(test_rate_limit_is_waited_for, clean_environment, NULL)
{
    dw_store *store = open_gateway("hf://buckets/ns/limits");
    put(store, "limited", "now");
    dw_store_close(store);
    store = open_native("hf://buckets/ns/limits");
    assert_get(store, "limited", 0, 8, "now");
    dw_store_counts counts;
    dw_store_get_counts(store, &counts);
    assert_int_equal(counts.n_retries, 1);
    dw_store_close(store);
}

TEST_WITH(test_listing_stays_with_the_hub, clean_environment, NULL)
{
    dw_store *store = open_gateway("hf://buckets/ns/astray");
    put(store, "a", "1");
    put(store, "b", "1");
    put(store, "c", "1");
    dw_store_close(store);
    store = open_native("hf://buckets/ns/astray");
    char text[64] = "";
    dw_error err;
    assert_int_equal(dw_store_list(store, "", NULL, add_key, text, &err), DW_CORRUPT);
    assert_non_null(strstr(err.text, "another host"));
    assert_string_equal(text, "");
    dw_store_close(store);
    store = open_native("hf://buckets/ns/nothing-here");
    assert_int_equal(dw_store_list(store, "", NULL, add_key, text, &err), DW_NOT_FOUND);
    dw_store_close(store);
}

TEST_WITH(test_token_files, clean_environment, NULL)
{
    dw_store *store;
    dw_error err;
    assert_int_equal(dw_store_open(&store, "hf://buckets/ns/b", NULL, &err), DW_DENIED);
    assert_non_null(strstr(err.text, "HF_TOKEN"));
    put_text(temp_path("token"), "hf_test\n");
    setenv("HF_HOME", temp_dir, 1);
    store = open_store("hf://buckets/ns/b/run/1");
    assert_get(store, "d/a", 0, 8, "hello");
    assert_facts(store, "the token in /");
    dw_store_close(store);
    put_text(temp_path("other"), "hf_hush\nX-Header: 1\n");
    setenv("HF_TOKEN_PATH", temp_path("other"), 1);
    assert_int_equal(dw_store_open(&store, "hf://buckets/ns/b", NULL, &err), DW_INVALID);
    assert_null(strstr(err.text, "hush"));
}

TEST_WITH(test_bad_urls, clean_environment, NULL)
{
    setenv("HF_TOKEN", "hf_test", 1);
    const char *bad[] = {"hf://",
                         "hf://models/ns/b",
                         "hf://buckets/",
                         "hf://buckets/ns",
                         "hf://buckets/ns/",
                         "hf://buckets//b",
                         "hf://buckets/ns/b?x",
                         "hf://buckets/ns/b/../c",
                         "hf://buckets/../b"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        dw_store *store;
        dw_error err;
        assert_int_equal(dw_store_open(&store, bad[i], NULL, &err), DW_INVALID);
        assert_null(store);
    }
    setenv("HF_ENDPOINT", "ftp://x", 1);
    dw_store *store;
    assert_int_equal(dw_store_open(&store, "hf://buckets/ns/b", NULL, NULL), DW_INVALID);
}

/* Brings a follower of STORE to the newest version. If that is WANTED's, its weights must
 * be, too. */
static dw_status follow(dw_follower *f, const model *memory, const model *wanted,
                        dw_error *err)
{
    dw_follow_report report;
    dw_status status = dw_follower_sync(f, DW_NEWEST, NULL, &report, err);
    if (status == DW_OK)
        assert_true(model_equal(memory, wanted));
    return status;
}

/* Credentials expire while a stream is published and followed: the errors say what to do,
 * nothing is lost, and with good ones the same handles go on. */
TEST_WITH(test_credentials_expire, clean_environment, NULL)
{
    static const char *const codes[] = {"InvalidAccessKeyId", "AccessDenied",
                                        "ExpiredToken"};
    static const char *const says[] = {"HF_S3_ACCESS_KEY_ID", "expired", "expired"};
    const char *url = "hf://buckets/ns/tokens";
    dw_store *control = open_gateway("hf://buckets/ns/control");
    dw_store *stores[2] = {open_gateway(url), open_native(url)};
    dw_follower *followers[2];
    model memory[2];
    fixture x;
    setenv("HF_S3_ACCESS_KEY_ID", "AKHF", 1);
    setenv("HF_S3_SECRET_ACCESS_KEY", "hf-secret", 1);
    fixture_open(&x, url, NULL);
    for (size_t i = 0; i < 2; i++) {
        dw_follow_options options;
        dw_follow_options_init(&options);
        memory[i] = fixture_model();
        options.tensors = memory[i].tensors;
        options.n_tensors = memory[i].n;
        assert_fine(&x, dw_follower_open(&followers[i], stores[i], &options, &x.err));
        assert_fine(&x, follow(followers[i], &memory[i], &x.at[0], &x.err));
    }
    for (size_t k = 0; k < 3; k++) {
        uint64_t ticket;
        put(control, "expired", codes[k]);
        model_change(&x.live, 30);
        assert_fine(&x, dw_publisher_publish(x.publisher, &ticket, NULL, &x.err));
        assert_int_equal(
            dw_publisher_wait(x.publisher, ticket, UINT_MAX, NULL, NULL, &x.err),
            DW_DENIED);
        assert_non_null(strstr(x.err.text, says[k]));
        for (size_t i = 0; i < 2; i++) {
            assert_int_equal(follow(followers[i], &memory[i], &x.at[k], &x.err),
                             DW_DENIED);
            assert_non_null(strstr(x.err.text, i == 0 ? "expired" : "check HF_TOKEN"));
            assert_true(model_equal(&memory[i], &x.at[k]));
        }
        put(control, "renewed", "");
        fixture_publish(&x);
        for (size_t i = 0; i < 2; i++)
            assert_fine(&x, follow(followers[i], &memory[i], &x.at[k + 1], &x.err));
    }
    for (size_t i = 0; i < 2; i++) {
        dw_follower_close(followers[i]);
        model_free(&memory[i]);
        dw_store_close(stores[i]);
    }
    fixture_close(&x);
    dw_store_close(control);
}

RUN_TESTS(start_server, stop_server)
