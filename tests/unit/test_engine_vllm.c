/* The vLLM driver against a server that answers like vLLM, and fails in every way. */
#include "unit/suite.h"

#include "deltawire/deltawire.h"
#define DRIVER "vllm"
#include "unit/engine_script.h"

#define VERSION REPLY("200 OK", "{\"version\":\"0.32.0\"}")
#define STREAM  "0123456789abcdef0123456789abcdef" /* of a_patch */
#define LABEL   REPLY("200 OK", "{\"weight_version\":\"" STREAM ":7\"}")
#define SERVING REPLY("200 OK", "{\"is_paused\":false}")
#define STOPPED REPLY("200 OK", "{\"is_paused\":true}")
#define PAUSED  REPLY("200 OK", "{\"status\":\"paused\"}")
#define RESUMED REPLY("200 OK", "{\"status\":\"resumed\"}")
#define DONE    REPLY("200 OK", "{\"message\":\"Weights updated\"}")
#define MISSING REPLY("404 Not Found", "{\"detail\":\"Not Found\"}")
#define ACTIVE                                                                           \
    REPLY("500 X", "{\"error\":{\"message\":\"Call to collective_rpc method failed: "    \
                   "start_weight_update called while a weight update is already "        \
                   "active.\"}}")

TEST(test_probe)
{
    static const struct {
        const char *label;
        uint64_t version;
    } labels[] = {
        {STREAM ":7", 7},
        {STREAM ":0", 0},
        {STREAM ":9999999999999999999", 9999999999999999999u},
        {STREAM ":18446744073709551615", DW_NO_VERSION},
        {STREAM ":07", DW_NO_VERSION},
        {STREAM ":-1", DW_NO_VERSION},
        {STREAM ":", DW_NO_VERSION},
        {STREAM, DW_NO_VERSION},
        {"7", DW_NO_VERSION}, /* of which stream? */
        {":7", DW_NO_VERSION},
        {"fedcba9876543210fedcba9876543210:7", DW_NO_VERSION},
        {"default", DW_NO_VERSION},
        {"", DW_NO_VERSION},
    };
    for (size_t i = 0; i < sizeof labels / sizeof *labels; i++) {
        char reply[256];
        snprintf(reply, sizeof reply, REPLY("200 OK", "{\"weight_version\":\"%s\"}"),
                 labels[i].label);
        BEGIN(UNLABELLED, DONE, STOPPED, DONE, DONE, VERSION, reply);
        assert_int_equal(dw_engine_apply(engine, &a_patch, &whole, &err), DW_OK);
        assert_int_equal(dw_engine_probe(engine, &info, &err), DW_OK);
        assert_int_equal(info.version, labels[i].version);
        assert_string_equal(info.software, "vLLM 0.32.0");
        end();
        assert_memory_equal(s.requests[5], "GET /version HTTP/1.1\r\n", 23);
        assert_memory_equal(s.requests[6], "GET /weight_info HTTP/1.1\r\n", 27);
    }
}

/* A label outlives the process that set it, and any program can set it. So it is not
 * believed before this process has brought the engine to a version. */
TEST(test_first_contact)
{
    BEGIN(VERSION, LABEL);
    assert_int_equal(dw_engine_probe(engine, &info, &err), DW_OK);
    assert_int_equal(info.version, DW_NO_VERSION);
    end();
}

static void check_probe_fails(const char *const *replies, unsigned n, dw_status code,
                              const char *words)
{
    set_limit(replies[n - 1]);
    begin(replies, n);
    assert_int_equal(dw_engine_probe(engine, &info, &err), code);
    assert_non_null(strstr(err.text, words));
    assert_non_null(strstr(err.where, s.endpoint));
    assert_false(dw_engine_is_gone(engine));
    end();
}

TEST(test_probe_refuses)
{
    check_probe_fails((const char *const[]){MISSING}, 1, DW_UNSUPPORTED, "is not vLLM");
    check_probe_fails((const char *const[]){REPLY("200 OK", "{\"version\":7}")}, 1,
                      DW_INVALID, "names a version there");
    check_probe_fails((const char *const[]){VERSION, MISSING, MISSING}, 3, DW_UNSUPPORTED,
                      "vLLM 0.32.0 does not show its control interface: start it with "
                      "VLLM_SERVER_DEV_MODE=1");
    check_probe_fails((const char *const[]){REPLY("200 OK", "{\"version\":\"0.9.1\"}"),
                                            MISSING, MISSING},
                      3, DW_UNSUPPORTED, "vLLM 0.9.1 is too old");
    /* it has the routes, but no versions */
    check_probe_fails(
        (const char *const[]){REPLY("200 OK", "{\"version\":\"dev\"}"), MISSING, SERVING},
        3, DW_UNSUPPORTED, "vLLM dev is too old");
    for (size_t i = 0; i < N_CALL_FAULTS; i++) {
        const call_fault *f = &call_faults[i];
        check_probe_fails((const char *const[]){f->reply}, 1, f->code, f->words);
        check_probe_fails((const char *const[]){VERSION, f->reply}, 2, f->code, f->words);
    }
}

TEST(test_pause_resume)
{
    token = "top-secret";
    BEGIN(SERVING, PAUSED, RESUMED, PAUSED);
    assert_int_equal(dw_engine_pause(engine, &a_patch, &err), DW_OK);
    assert_int_equal(dw_engine_resume(engine, &a_patch, &err), DW_OK);
    /* it was found serving once: no need to ask again */
    assert_int_equal(dw_engine_pause(engine, &a_patch, &err), DW_OK);
    end();
    assert_memory_equal(s.requests[0], "GET /is_paused HTTP/1.1\r\n", 25);
    assert_memory_equal(s.requests[1], "POST /pause?mode=keep HTTP/1.1\r\n", 32);
    assert_memory_equal(s.requests[2], "POST /resume HTTP/1.1\r\n", 23);
    assert_non_null(strstr(s.requests[1], "Content-Length: 0\r\n"));
    for (unsigned i = 0; i < 4; i++)
        assert_non_null(strstr(s.requests[i], "Authorization: Bearer top-secret\r\n"));
}

/* Begins with an engine that is found paused with LABEL, and asks for its label. */
static void find_paused(const char *label, const char *const then[2])
{
    static char named[192];
    snprintf(named, sizeof named, REPLY("200 OK", "{\"weight_version\":\"%s\"}"), label);
    const char *const replies[] = {STOPPED, PAUSED,  VERSION, named,
                                   STOPPED, then[0], then[1]};
    begin(replies, then[1] ? 7 : then[0] ? 6 : 5);
    assert_int_equal(dw_engine_pause(engine, &a_patch, &err), DW_OK);
    assert_int_equal(dw_engine_probe(engine, &info, &err), DW_OK);
}

/* An engine that is found paused may be in the middle of an update. An update takes the
 * label away, so it is whole if it has one. An older engine, which keeps its label, is
 * whole if that is the update's version. */
TEST(test_found_paused)
{
    static const struct {
        const char *label;
        const char *then[2];
        bool is_known; /* UPDATE is given */
        dw_status code;
    } cases[] = {
        {"none", {NULL, NULL}, true, DW_CONFLICT},
        {"none", {NULL, NULL}, false, DW_CONFLICT},
        {STREAM ":7", {RESUMED, NULL}, true, DW_OK},
        {STREAM ":7", {UNLABELLED, RESUMED}, false, DW_OK},
        {STREAM ":7", {MISSING, NULL}, false, DW_CONFLICT},
        {STREAM ":6", {UNLABELLED, RESUMED}, true, DW_OK},
        {STREAM ":6", {MISSING, NULL}, true, DW_CONFLICT},
        {"7", {MISSING, NULL}, true, DW_CONFLICT}, /* of another stream, perhaps */
        {"default", {UNLABELLED, RESUMED}, true, DW_OK},
        {"default", {MISSING, NULL}, true, DW_CONFLICT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        find_paused(cases[i].label, cases[i].then);
        assert_int_equal(
            dw_engine_resume(engine, cases[i].is_known ? &a_patch : NULL, &err),
            cases[i].code);
        end();
        if (cases[i].then[1]) { /* the label stays as it is */
            char body[128];
            snprintf(body, sizeof body,
                     "{\"new_version\":\"%s\",\"abort_all_requests\":false}",
                     cases[i].label);
            assert_string_equal(s.bodies[5], body);
        }
    }
}

/* An engine that serves is whole, whatever its label is, and even if it was not asked. */
TEST(test_found_serving)
{
    BEGIN(VERSION, REPLY("200 OK", "{\"weight_version\":\"default\"}"), SERVING, RESUMED);
    assert_int_equal(dw_engine_probe(engine, &info, &err), DW_OK);
    assert_int_equal(dw_engine_resume(engine, &a_patch, &err), DW_OK);
    end();
}

/* An update that fails before it touches weights gives the label back before the engine
 * is resumed: no answer names no version. */
TEST(test_label_comes_back)
{
    static const char failed[] = REPLY("500 X", "");
    static const struct {
        const char *drop, *start; /* START NULL: it does not come so far */
        dw_status code;
    } cases[] = {{UNLABELLED, failed, DW_CONFLICT},
                 {"", NULL, DW_UNAVAILABLE}, /* done or not: nobody knows */
                 {failed, NULL, DW_CONFLICT}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *replies[16] = {VERSION, LABEL, SERVING, PAUSED, cases[i].drop};
        unsigned n = 5;
        if (cases[i].start)
            replies[n++] = cases[i].start;
        const unsigned first = n + 1;
        replies[n++] = STOPPED;
        replies[n++] = failed;  /* its label stays away, so it stays paused */
        replies[n++] = VERSION; /* the next check: */
        replies[n++] = REPLY("200 OK", "{\"weight_version\":\"none\"}");
        replies[n++] = STOPPED;
        replies[n++] = UNLABELLED; /* the label is back */
        replies[n++] = RESUMED;
        begin(replies, n);
        whole = false;
        assert_int_equal(dw_engine_probe(engine, &info, &err), DW_OK);
        assert_int_equal(dw_engine_pause(engine, &a_patch, &err), DW_OK);
        assert_int_equal(dw_engine_apply(engine, &a_patch, &whole, &err), cases[i].code);
        assert_true(whole);
        assert_int_equal(dw_engine_resume(engine, &a_patch, &err), DW_CONFLICT);
        assert_int_equal(dw_engine_probe(engine, &info, &err), DW_OK);
        assert_int_equal(info.version, DW_NO_VERSION);
        assert_int_equal(dw_engine_resume(engine, &a_patch, &err), DW_OK);
        end();
        for (unsigned at = first; at <= first + 4; at += 4)
            assert_string_equal(s.bodies[at], "{\"new_version\":\"" STREAM
                                              ":7\",\"abort_all_requests\":false}");
        assert_memory_equal(s.requests[first + 5], "POST /resume ", 13);
    }
}

TEST(test_pause_resume_fail)
{
    call_fault more[] = {
        {"missing", MISSING, DW_UNSUPPORTED, "VLLM_SERVER_DEV_MODE=1"},
        {"wrong", REPLY("200 OK", "{\"status\":\"ok\"}"), DW_INVALID, "makes no sense"},
        {"empty", REPLY("200 OK", "{}"), DW_INVALID, "makes no sense"},
    };
    for (size_t i = 0; i < N_CALL_FAULTS + 3; i++) {
        const call_fault *f =
            i < N_CALL_FAULTS ? &call_faults[i] : &more[i - N_CALL_FAULTS];
        for (unsigned at = 0; at < 3; at++) {
            const char *replies[] = {SERVING, PAUSED, RESUMED};
            replies[at] = f->reply;
            set_limit(f->reply);
            begin(replies, at + 1);
            dw_status status = dw_engine_pause(engine, &a_patch, &err);
            if (at == 2) {
                assert_int_equal(status, DW_OK);
                status = dw_engine_resume(engine, &a_patch, &err);
            }
            assert_int_equal(status, f->code);
            assert_int_equal(err.code, f->code);
            assert_non_null(strstr(err.text, f->words));
            assert_false(dw_engine_is_gone(engine));
            end();
        }
    }
}

TEST(test_apply)
{
    BEGIN(UNLABELLED, DONE, STOPPED, DONE, DONE, /* the patch */
          UNLABELLED, DONE, STOPPED, DONE, DONE);
    whole = false;
    expect_apply(DW_OK, true);
    dw_engine_update snapshot = a_patch;
    snapshot.patch = NULL;
    assert_int_equal(dw_engine_apply(engine, &snapshot, &whole, &err), DW_OK);
    end();
    assert_memory_equal(s.requests[0], "POST /update_weight_version ", 28);
    assert_string_equal(s.bodies[0],
                        "{\"new_version\":\"none\",\"abort_all_requests\":false}");
    assert_memory_equal(s.requests[1], "POST /start_weight_update HTTP/1.1\r\n", 36);
    assert_string_equal(s.bodies[1], "{}");
    assert_memory_equal(s.requests[2], "GET /is_paused HTTP/1.1\r\n", 25);
    assert_memory_equal(s.requests[3], "POST /update_weights HTTP/1.1\r\n", 31);
    assert_non_null(strstr(s.requests[3], "Content-Type: application/json\r\n"));
    assert_string_equal(s.bodies[3],
                        "{\"update_info\":{\"format\":\"deltawire/1\",\"kind\":\"patch\","
                        "\"stream\":\"0123456789abcdef0123456789abcdef\",\"from_"
                        "version\":6,\"version\":7,"
                        "\"state\":\"0000000000abcdef\",\"dir\":\"/models/a \\\"b\\\"\","
                        "\"patch\":\"/models/a \\\"b\\\"/.deltawire/patch\"}}");
    assert_memory_equal(s.requests[4], "POST /finish_weight_update HTTP/1.1\r\n", 37);
    assert_string_equal(s.bodies[4], "{\"weight_version\":\"" STREAM ":7\"}");
    assert_memory_equal(s.requests[5], "POST /update_weight_version ", 28);
    assert_non_null(strstr(s.bodies[8], "\"kind\":\"snapshot\""));
    assert_non_null(strstr(s.bodies[8], "\"from_version\":null"));
    assert_non_null(strstr(s.bodies[8], "\"patch\":null"));
}

/* Whatever version an engine names, an update that stops half way makes the label wrong:
 * a directory may go back to that version. An engine that names none keeps its label. */
TEST(test_label_goes)
{
    static const uint64_t versions[] = {9, 7, 5}; /* the engine names 7 */
    for (size_t i = 0; i < 3; i++) {
        BEGIN(VERSION, LABEL, SERVING, PAUSED, UNLABELLED, DONE, STOPPED,
              REPLY("500 X", ""));
        dw_engine_update update = a_patch;
        update.version = versions[i];
        assert_int_equal(dw_engine_probe(engine, &info, &err), DW_OK);
        assert_int_equal(dw_engine_pause(engine, &update, &err), DW_OK);
        assert_int_equal(dw_engine_apply(engine, &update, &whole, &err), DW_CONFLICT);
        end();
        assert_memory_equal(s.requests[4], "POST /update_weight_version ", 28);
        assert_memory_equal(s.requests[7], "POST /update_weights ", 21);
    }
    BEGIN(VERSION, REPLY("200 OK", "{\"weight_version\":\"none\"}"), DONE, STOPPED, DONE,
          DONE);
    assert_int_equal(dw_engine_probe(engine, &info, &err), DW_OK);
    assert_int_equal(dw_engine_apply(engine, &a_patch, &whole, &err), DW_OK);
    end();
    assert_memory_equal(s.requests[2], "POST /start_weight_update ", 26);
}

/* An engine that says that it stored nothing is whole, and is named as before. */
TEST(test_nothing_stored)
{
    static const char refused[] =
        REPLY("500 X", "{\"error\":{\"message\":\"Call to collective_rpc method failed: "
                       "nothing was stored: the version has no lm_head.weight\"}}");
    BEGIN(VERSION, LABEL, SERVING, PAUSED, UNLABELLED, DONE, STOPPED, refused, STOPPED,
          DONE, RESUMED);
    whole = false;
    assert_int_equal(dw_engine_probe(engine, &info, &err), DW_OK);
    assert_int_equal(dw_engine_pause(engine, &a_patch, &err), DW_OK);
    expect_apply(DW_CONFLICT, true);
    assert_non_null(strstr(err.text, "the version has no lm_head.weight"));
    assert_int_equal(dw_engine_resume(engine, NULL, &err), DW_OK);
    end();
    assert_memory_equal(s.requests[9], "POST /update_weight_version ", 28);
    assert_string_equal(s.bodies[9], "{\"new_version\":\"" STREAM
                                     ":7\",\"abort_all_requests\":false}");
}

/* An engine that restarted after the pause is paused again before its update, and loses
 * the label that it started with. If the update is refused, it gets that label back, not
 * the one of the process before. */
TEST(test_restarted)
{
    for (int refuses = 0; refuses < 2; refuses++) {
        const char *replies[] = {VERSION,
                                 LABEL,
                                 SERVING,
                                 PAUSED,
                                 UNLABELLED,
                                 DONE,
                                 SERVING,
                                 PAUSED,
                                 UNLABELLED,
                                 refuses ? REPLY("400 X", "") : DONE,
                                 refuses ? STOPPED : DONE,
                                 UNLABELLED,
                                 RESUMED};
        begin(replies, refuses ? 13 : 11);
        whole = false;
        assert_int_equal(dw_engine_probe(engine, &info, &err), DW_OK);
        assert_int_equal(dw_engine_pause(engine, &a_patch, &err), DW_OK);
        assert_int_equal(dw_engine_apply(engine, &a_patch, &whole, &err),
                         refuses ? DW_CONFLICT : DW_OK);
        assert_true(whole);
        if (refuses)
            assert_int_equal(dw_engine_resume(engine, &a_patch, &err), DW_OK);
        end();
        assert_memory_equal(s.requests[7], "POST /pause?mode=keep ", 22);
        assert_string_equal(s.bodies[8],
                            "{\"new_version\":\"none\",\"abort_all_requests\":false}");
        assert_memory_equal(s.requests[9], "POST /update_weights ", 21);
        if (refuses)
            assert_string_equal(
                s.bodies[11],
                "{\"new_version\":\"default\",\"abort_all_requests\":false}");
    }
}

/* Each call of an update fails in each way. WHOLE must be true only if nothing was
 * touched and the engine was found serving. */
TEST(test_apply_fails)
{
    enum { LABEL_OFF = 2, START, ASK, UPDATE, FINISH, N_CALLS };
    for (size_t i = 0; i < N_CALL_FAULTS; i++)
        for (unsigned at = LABEL_OFF; at < N_CALLS; at++)
            for (unsigned was_paused = 0; was_paused < 2; was_paused++) {
                const call_fault *f = &call_faults[i];
                const char *replies[] = {was_paused ? STOPPED : SERVING,
                                         PAUSED,
                                         UNLABELLED,
                                         DONE,
                                         STOPPED,
                                         DONE,
                                         DONE};
                replies[at] = f->reply;
                set_limit(f->reply);
                begin(replies, at + 1);
                assert_int_equal(dw_engine_pause(engine, &a_patch, &err), DW_OK);
                whole = true;
                assert_int_equal(dw_engine_apply(engine, &a_patch, &whole, &err),
                                 f->code);
                assert_non_null(strstr(err.text, f->words));
                bool untouched = at <= START || (at == UPDATE && f->code == DW_DENIED);
                assert_int_equal(whole, untouched && !was_paused);
                end();
            }
}

/* After a failed update the engine counts as a mix until one succeeds. */
TEST(test_whole_again)
{
    static const char failed[] = REPLY("500 X", "");
    const char *replies[] = {
        SERVING,    PAUSED,     UNLABELLED, DONE,   STOPPED, failed, /* update */
        STOPPED,    PAUSED,     UNLABELLED, failed,                  /* start */
        UNLABELLED, DONE,       STOPPED,    DONE,   DONE, /* the whole update */
        PAUSED,     UNLABELLED, failed};                  /* start */
    begin(replies, sizeof replies / sizeof *replies);
    assert_int_equal(dw_engine_pause(engine, &a_patch, &err), DW_OK);
    expect_apply(DW_CONFLICT, false);
    assert_int_equal(dw_engine_pause(engine, &a_patch, &err), DW_OK);
    expect_apply(DW_CONFLICT, false);
    expect_apply(DW_OK, true);
    assert_int_equal(dw_engine_pause(engine, &a_patch, &err), DW_OK);
    expect_apply(DW_CONFLICT, true);
    end();
}

/* A session that a killed process left open is closed, and its weights are not trusted.
 */
TEST(test_session_left_open)
{
    BEGIN(UNLABELLED, ACTIVE, DONE, DONE, STOPPED, DONE, DONE);
    assert_int_equal(dw_engine_apply(engine, &a_patch, &whole, &err), DW_OK);
    end();
    assert_memory_equal(s.requests[2], "POST /finish_weight_update ", 27);
    assert_string_equal(s.bodies[2], "{\"weight_version\":null}");
    assert_memory_equal(s.requests[3], "POST /start_weight_update ", 26);

    BEGIN(SERVING, PAUSED, UNLABELLED, ACTIVE, ACTIVE);
    assert_int_equal(dw_engine_pause(engine, &a_patch, &err), DW_OK);
    expect_apply(DW_CONFLICT, false);
    end();
}

TEST(test_no_back_end)
{
    BEGIN(UNLABELLED, REPLY("500 X", "{\"error\":{\"message\":\"Weight transfer not "
                                     "configured. Please set it.\"}}"));
    assert_int_equal(dw_engine_apply(engine, &a_patch, &whole, &err), DW_UNSUPPORTED);
    assert_non_null(strstr(err.text, "--weight-transfer-config"));
    end();
}

TEST(test_not_utf8)
{
    engine = open_engine("vllm", "http://127.0.0.1:1", NULL);
    dw_engine_update bad = a_patch;
    bad.dir = "/a\xff";
    assert_int_equal(dw_engine_apply(engine, &bad, &whole, &err), DW_INVALID);
    bad.dir = NULL;
    assert_int_equal(dw_engine_apply(engine, &bad, &whole, &err), DW_UNSUPPORTED);
    dw_engine_close(engine);
}

/* A refused connection is not the same as no answer. Proxies are not used. */
TEST(test_gone)
{
    char url[64];
    find_free_url(url);
    scripted_server proxy;
    script_start(&proxy, NULL, 0);
    setenv("http_proxy", proxy.endpoint, 1);
    setenv("all_proxy", proxy.endpoint, 1);
    engine = open_engine("vllm", url, NULL);
    assert_int_equal(dw_engine_probe(engine, &info, &err), DW_UNAVAILABLE);
    assert_true(dw_engine_is_gone(engine));
    assert_non_null(strstr(err.text, "nobody listens there"));
    assert_int_equal(dw_engine_pause(engine, &a_patch, &err), DW_UNAVAILABLE);
    assert_int_equal(dw_engine_apply(engine, &a_patch, &whole, &err), DW_UNAVAILABLE);
    assert_int_equal(dw_engine_resume(engine, &a_patch, &err), DW_UNAVAILABLE);
    dw_engine_close(engine);
    unsetenv("http_proxy");
    unsetenv("all_proxy");
    script_end(&proxy);
}

/* A dead kept connection is replaced. Then nobody listens any more. */
TEST(test_kept_connection)
{
    /* the server reads the second request, hangs up, and gets it again */
    static const char kept[] = "HTTP/1.1 200 OK\r\nContent-Length: 19\r\n\r\n"
                               "{\"status\":\"paused\"}";
    BEGIN(SERVING, kept, "", PAUSED);
    assert_int_equal(dw_engine_pause(engine, NULL, &err), DW_OK);
    assert_int_equal(dw_engine_pause(engine, NULL, &err), DW_OK);
    script_end(&s);
    assert_int_equal(dw_engine_pause(engine, NULL, &err), DW_UNAVAILABLE);
    assert_true(dw_engine_is_gone(engine));
    dw_engine_close(engine);
}

TEST(test_long_reply)
{
    size_t n = (1 << 20) + 1000;
    char *reply = malloc(n + 1);
    assert_non_null(reply);
    memset(reply, ' ', n);
    reply[n] = '\0';
    static const char head[] = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{";
    memcpy(reply, head, sizeof head - 1);
    check_probe_fails((const char *const[]){reply}, 1, DW_INVALID, "too long");
    /* of a long message the beginning is shown */
    static const char bad[] = "HTTP/1.1 500 X\r\nConnection: close\r\n\r\n\xc3\xa4";
    memset(reply, 'e', 5000);
    memcpy(reply, bad, sizeof bad - 1);
    reply[5000] = '\0';
    check_probe_fails((const char *const[]){reply}, 1, DW_CONFLICT,
                      "500: \xc3\xa4"
                      "eee");
    free(reply);
}

/* A server that repeats the token does not get it into an error message. */
TEST(test_token_stays_hidden)
{
    token = "top-secret";
    BEGIN(REPLY("403 X", "no top-secret here"),
          REPLY("200 OK", "{\"status\":\"top-secret\"}"));
    assert_int_equal(dw_engine_pause(engine, NULL, &err), DW_DENIED);
    assert_null(strstr(err.text, "top-secret"));
    assert_non_null(strstr(err.text, "another token"));
    assert_int_equal(dw_engine_pause(engine, NULL, &err), DW_INVALID);
    assert_null(strstr(err.text, "top-secret"));
    end();
}

/* 200 is not a success if the body is not vLLM's. */
TEST(test_wrong_success)
{
    static const char *const wrong[] = {
        REPLY("200 OK", "{}"),
        REPLY("200 OK", "{\"message\":true}"),
        REPLY("200 OK", "{\"message\":{\"text\":\"Weights updated\"}}"),
        REPLY("200 OK", "{\"status\":\"ok\"}"),
        REPLY("200 OK", "{\"message\":\"x\",\"error\":\"a worker fell\"}"),
        REPLY("200 OK", "{\"message\":\"x\",\"detail\":[]}"),
        REPLY("200 OK", ""),
        REPLY("200 OK", "\"Weights updated\""),
        REPLY("204 No Content", ""),
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        for (unsigned at = 1; at < 5; at++) {
            if (at == 2)
                continue; /* /is_paused */
            const char *replies[] = {UNLABELLED, DONE, STOPPED, DONE, DONE};
            replies[at] = wrong[i];
            begin(replies, at + 1);
            whole = true;
            expect_apply(DW_INVALID, false);
            assert_non_null(strstr(err.text, "makes no sense"));
            end();
        }
}

/* Nothing in the library limits a token, and a URL may have 1,024 bytes. */
TEST(test_long_url_and_token)
{
    enum { N_TOKEN = 4096, MAX_URL = 1024 };
    char long_token[N_TOKEN + 1], url[MAX_URL + 2], spec[MAX_URL + 16];
    memset(long_token, 't', N_TOKEN);
    long_token[N_TOKEN] = '\0';
    script_start(&s, (const char *const[]){SERVING, PAUSED}, 2);
    memset(url, 'p', sizeof url);
    const size_t n = strlen(s.endpoint);
    memcpy(url, s.endpoint, n);
    url[n] = '/';
    url[MAX_URL] = '\0';
    snprintf(spec, sizeof spec, "vllm=%s", url);
    dw_engine_options options = {.token = long_token};
    assert_int_equal(dw_engine_open(&engine, spec, &options, &err), DW_OK);
    assert_int_equal(dw_engine_pause(engine, &a_patch, &err), DW_OK);
    end();
    assert_non_null(strstr(s.requests[1], long_token));
    assert_non_null(strstr(s.requests[1], "ppp/pause?mode=keep HTTP/1.1\r\n"));

    url[MAX_URL] = 'p';
    url[MAX_URL + 1] = '\0';
    snprintf(spec, sizeof spec, "vllm=%s", url);
    assert_int_equal(dw_engine_open(&engine, spec, &options, &err), DW_INVALID);
    assert_non_null(strstr(err.text, "more than 1024 bytes"));
}

TEST(test_allocations)
{
    check_allocations(
        "vllm",
        REPLY("200 OK",
              "{\"status\":\"paused\",\"message\":\"x\",\"is_paused\":true,\"version\":"
              "\"0.32.0\",\"weight_version\":\"7\"}"));
}

RUN_TESTS(NULL, NULL)
