/* The SGLang driver against a server that answers like SGLang, and fails in every way. */
#include "unit/suite.h"

#include "deltawire/deltawire.h"
#define DRIVER "sglang"
#include "unit/engine_script.h"

#define LABEL    "0123456789abcdef0123456789abcdef:7" /* of a_patch */
#define INFO     REPLY("200 OK", "{\"model_path\":\"/m\",\"weight_version\":\"" LABEL "\"}")
#define SERVER   REPLY("200 OK", "{\"version\":\"0.5.23\",\"weight_version\":\"old\"}")
#define OK_REPLY REPLY("200 OK", "{\"message\":\"done\",\"status\":\"ok\"}")
#define UPDATED  REPLY("200 OK", "{\"success\":true,\"message\":\"Succeeded\"}")
#define MISSING  REPLY("404 Not Found", "{\"detail\":\"Not Found\"}")

TEST(test_probe)
{
    token = "key";
    BEGIN(INFO, SERVER, INFO, INFO, UNLABELLED, UNLABELLED, UPDATED, INFO);
    for (unsigned i = 0; i < 3; i++) { /* the software is asked for once */
        if (i == 2)                    /* from now on the label is believed */
            assert_int_equal(dw_engine_apply(engine, &a_patch, &whole, &err), DW_OK);
        assert_int_equal(dw_engine_probe(engine, &info, &err), DW_OK);
        assert_int_equal(info.version, i == 2 ? 7 : DW_NO_VERSION);
        assert_string_equal(info.software, "SGLang 0.5.23");
    }
    assert_string_equal(engine->driver->name, "sglang");
    end();
    assert_memory_equal(s.requests[0], "GET /model_info HTTP/1.1\r\n", 26);
    assert_memory_equal(s.requests[1], "GET /server_info HTTP/1.1\r\n", 27);
    assert_non_null(strstr(s.requests[2], "Authorization: Bearer key\r\n"));
}

TEST(test_probe_older)
{
    BEGIN(MISSING, REPLY("200 OK", "{\"weight_version\":\"default\"}"), MISSING,
          REPLY("500 X", ""));
    assert_int_equal(dw_engine_probe(engine, &info, &err), DW_OK);
    assert_int_equal(info.version, DW_NO_VERSION);
    assert_string_equal(info.software, "");
    end();
    assert_memory_equal(s.requests[1], "GET /get_model_info ", 20);
    assert_memory_equal(s.requests[3], "GET /get_server_info ", 21);

    /* the message names the version that is too old */
    BEGIN(MISSING, REPLY("200 OK", "{\"model_path\":\"a\"}"), MISSING,
          REPLY("200 OK", "{\"version\":\"0.4.9\"}"));
    assert_int_equal(dw_engine_probe(engine, &info, &err), DW_UNSUPPORTED);
    assert_non_null(strstr(err.text, "SGLang 0.4.9 does not say"));
    end();
}

typedef dw_status (*engine_call)(void);

static dw_status call_probe(void)
{
    return dw_engine_probe(engine, &info, &err);
}

static dw_status call_pause(void)
{
    return dw_engine_pause(engine, &a_patch, &err);
}

static dw_status call_apply(void)
{
    return dw_engine_apply(engine, &a_patch, &whole, &err);
}

static dw_status call_resume(void)
{
    return dw_engine_resume(engine, &a_patch, &err);
}

static void check_fails(engine_call call, const char *reply, dw_status code,
                        const char *words)
{
    /* it is resumed only once it is known to be whole */
    const bool resumes = call == call_resume;
    const char *replies[3];
    unsigned n = 0;
    if (resumes || call == call_apply)
        replies[n++] = UNLABELLED;
    if (resumes)
        replies[n++] = UPDATED;
    replies[n++] = reply;
    set_limit(reply);
    begin(replies, n);
    if (resumes)
        expect_apply(DW_OK, true);
    whole = true;
    assert_int_equal(call(), code);
    assert_int_equal(err.code, code);
    assert_non_null(strstr(err.text, words));
    assert_true(whole == (call != call_apply));
    assert_false(dw_engine_is_gone(engine));
    end();
}

TEST(test_every_call_fails)
{
    static const engine_call calls[] = {call_probe, call_pause, call_apply, call_resume};
    for (size_t c = 0; c < 4; c++)
        for (size_t i = 0; i < N_CALL_FAULTS; i++)
            check_fails(calls[c], call_faults[i].reply, call_faults[i].code,
                        call_faults[i].words);
    for (size_t c = 1; c < 4; c++) {
        check_fails(calls[c], MISSING, DW_UNSUPPORTED, "SGLang 0.5.6 or later");
        check_fails(calls[c], REPLY("200 OK", "{}"), DW_INVALID, "makes no sense");
    }
    check_fails(call_pause, REPLY("200 OK", "{\"status\":\"paused\"}"), DW_INVALID,
                "makes no sense");
    check_fails(call_apply,
                REPLY("400 X", "{\"success\":false,\"message\":\"no such file\"}"),
                DW_CONFLICT, "400: no such file");
    check_fails(call_apply,
                REPLY("200 OK", "{\"success\":false,\"message\":\"no such file\"}"),
                DW_CONFLICT, "did not take the weights: no such file");
    check_fails(call_apply, REPLY("200 OK", "{\"success\":false}"), DW_CONFLICT,
                "does not say why");
}

/* A killed process may have left it in the middle of an update. It is resumed only if its
 * label is the update's version, or after another update. */
TEST(test_not_resumed)
{
    BEGIN(OK_REPLY);
    assert_int_equal(dw_engine_pause(engine, &a_patch, &err), DW_OK);
    assert_int_equal(dw_engine_resume(engine, &a_patch, &err), DW_CONFLICT);
    assert_int_equal(dw_engine_resume(engine, NULL, &err), DW_CONFLICT);
    end();
}

/* A fresh engine, whose label says that no update has begun, and one whose update was
 * refused. */
TEST(test_label_shows_whole)
{
    BEGIN(REPLY("200 OK", "{\"weight_version\":\"default\"}"), SERVER,
          UNLABELLED, /* the label is set to what it is */
          OK_REPLY, OK_REPLY, REPLY("200 OK", "{\"weight_version\":\"default\"}"),
          UNLABELLED, REPLY("401 X", ""), UNLABELLED, /* the label comes back */
          OK_REPLY);
    whole = false;
    assert_int_equal(dw_engine_probe(engine, &info, &err), DW_OK);
    assert_int_equal(dw_engine_resume(engine, &a_patch, &err), DW_OK);
    assert_int_equal(dw_engine_pause(engine, &a_patch, &err), DW_OK);
    expect_apply(DW_DENIED, true);
    assert_int_equal(dw_engine_resume(engine, &a_patch, &err), DW_OK);
    end();
    static const char back[] =
        "{\"new_version\":\"default\",\"abort_all_requests\":false}";
    assert_string_equal(s.bodies[2], back);
    assert_string_equal(s.bodies[8], back);
    assert_memory_equal(s.requests[9], "POST /continue_generation ", 26);
}

TEST(test_calls)
{
    BEGIN(OK_REPLY, UNLABELLED, UPDATED, OK_REPLY);
    whole = false;
    assert_int_equal(dw_engine_pause(engine, &a_patch, &err), DW_OK);
    expect_apply(DW_OK, true);
    assert_int_equal(dw_engine_resume(engine, &a_patch, &err), DW_OK);
    end();
    assert_memory_equal(s.requests[0], "POST /pause_generation HTTP/1.1\r\n", 33);
    assert_string_equal(s.bodies[0], "{\"mode\":\"retract\"}");
    assert_memory_equal(s.requests[2], "POST /update_weights_from_disk HTTP/1.1\r\n", 41);
    assert_string_equal(
        s.bodies[2],
        "{\"model_path\":\"/models/a \\\"b\\\"\",\"weight_version\":\"" LABEL "\","
        "\"flush_cache\":true,\"abort_all_requests\":false}");
    assert_memory_equal(s.requests[3], "POST /continue_generation HTTP/1.1\r\n", 36);
    assert_string_equal(s.bodies[3], "{}");
}

/* An engine is whole if it took an update over and none has failed since. */
TEST(test_whole)
{
    static const char denied[] = REPLY("401 X", "");
    static const char failed[] = REPLY("400 X", "{\"success\":false}");
    BEGIN(UNLABELLED, UPDATED, INFO, UNLABELLED, denied, UNLABELLED, failed, UNLABELLED,
          denied, failed);
    assert_int_equal(dw_engine_apply(engine, &a_patch, &whole, &err), DW_OK);
    expect_apply(DW_DENIED, true);
    expect_apply(DW_CONFLICT, false);
    expect_apply(DW_DENIED, false);
    /* as long as the label stays, nothing is updated */
    assert_int_equal(dw_engine_apply(engine, &a_patch, &whole, &err), DW_CONFLICT);
    dw_engine_update bad = a_patch;
    bad.dir = NULL;
    assert_int_equal(dw_engine_apply(engine, &bad, &whole, &err), DW_UNSUPPORTED);
    bad.dir = "/\xff";
    assert_int_equal(dw_engine_apply(engine, &bad, &whole, &err), DW_INVALID);
    end();
    assert_memory_equal(s.requests[3], "POST /update_weight_version ", 28);
    assert_memory_equal(s.requests[9], "POST /update_weight_version ", 28);
    assert_string_equal(s.bodies[3],
                        "{\"new_version\":\"none\",\"abort_all_requests\":false}");
}

/* Whatever version an engine names, an update that stops half way makes the label wrong.
 */
TEST(test_label_goes)
{
    static const uint64_t versions[] = {9, 7, 5}; /* the engine names 7 */
    for (size_t i = 0; i < 3; i++) {
        BEGIN(INFO, SERVER, INFO, UNLABELLED, UNLABELLED, REPLY("500 X", ""));
        dw_engine_update update = a_patch;
        update.version = versions[i];
        assert_int_equal(dw_engine_probe(engine, &info, &err), DW_OK);
        assert_int_equal(dw_engine_apply(engine, &update, &whole, &err), DW_CONFLICT);
        end();
        /* its label shows that it is whole; then it goes */
        assert_string_equal(s.bodies[3], "{\"new_version\":\"" LABEL
                                         "\",\"abort_all_requests\":false}");
        assert_string_equal(s.bodies[4],
                            "{\"new_version\":\"none\",\"abort_all_requests\":false}");
        assert_memory_equal(s.requests[5], "POST /update_weights_from_disk ", 31);
    }
    BEGIN(REPLY("200 OK", "{\"weight_version\":\"none\"}"), SERVER,
          REPLY("200 OK", "{\"weight_version\":\"none\"}"), UPDATED);
    assert_int_equal(dw_engine_probe(engine, &info, &err), DW_OK);
    assert_int_equal(dw_engine_apply(engine, &a_patch, &whole, &err), DW_OK);
    end();
    assert_memory_equal(s.requests[3], "POST /update_weights_from_disk ", 31);
}

TEST(test_gone)
{
    char url[64];
    find_free_url(url);
    engine = open_engine("sglang", url, NULL);
    assert_int_equal(call_probe(), DW_UNAVAILABLE);
    assert_true(dw_engine_is_gone(engine));
    dw_engine_close(engine);
}

TEST(test_allocations)
{
    check_allocations(
        "sglang",
        REPLY("200 OK", "{\"status\":\"ok\",\"success\":true,\"weight_version\":\"7\"}"));
}

RUN_TESTS(NULL, NULL)
