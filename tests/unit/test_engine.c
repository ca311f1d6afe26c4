/* Engines by name, engines with the host's own driver, and the calls of rollouts. */
#include "unit/suite.h"

#include "deltawire/deltawire.h"
#include "engine/engine_int.h"
#include "unit/failing_allocator.h"

typedef struct own_engine {
    dw_status status; /* that every call returns */
    bool whole;
    unsigned n_closed;
} own_engine;

static dw_status answer(own_engine *own, dw_error *err)
{
    if (own->status != DW_OK) {
        err->code = own->status;
        strcpy(err->text, "its own words");
    }
    return own->status;
}

static dw_status own_probe(void *self, dw_engine_info *out, dw_error *err)
{
    out->version = 5;
    memset(out->software, 'x', sizeof out->software);
    return answer(self, err);
}

static dw_status own_call(void *self, const dw_engine_update *update, dw_error *err)
{
    assert_int_equal(update->version, 7);
    return answer(self, err);
}

static dw_status own_apply(void *self, const dw_engine_update *update, bool *whole,
                           dw_error *err)
{
    assert_int_equal(update->version, 7);
    assert_false(*whole);
    *whole = ((own_engine *)self)->whole;
    return answer(self, err);
}

static void own_close(void *self)
{
    ((own_engine *)self)->n_closed++;
}

static const dw_engine_driver own_driver = {"own",     own_probe, own_call,
                                            own_apply, own_call,  own_close};

static const dw_engine_update update = {.version = 7, .dir = "/d"};

TEST(test_own)
{
    own_engine own = {0};
    dw_engine *engine;
    dw_error err = {0};
    assert_int_equal(dw_engine_new(&engine, &own_driver, &own, "here", NULL, &err),
                     DW_OK);
    assert_string_equal(engine->driver->name, "own");
    assert_string_equal(engine->where, "here");
    dw_engine_info info;
    bool whole = false;
    assert_true(engine->driver->probe);
    assert_int_equal(dw_engine_probe(engine, &info, &err), DW_OK);
    assert_int_equal(info.version, 5);
    assert_int_equal(dw_engine_pause(engine, &update, &err), DW_OK);
    assert_int_equal(dw_engine_apply(engine, &update, &whole, &err), DW_OK);
    assert_true(whole); /* even if the driver set it to false */
    assert_int_equal(dw_engine_resume(engine, &update, &err), DW_OK);
    assert_false(dw_engine_is_gone(engine));
    dw_engine_close(engine);
    assert_int_equal(own.n_closed, 1);
}

TEST(test_own_fails)
{
    own_engine own = {.status = DW_CONFLICT, .whole = true};
    dw_engine *engine;
    dw_engine_info info;
    dw_error err = {0};
    bool whole = false;
    assert_int_equal(dw_engine_new(&engine, &own_driver, &own, NULL, NULL, &err), DW_OK);
    assert_null(engine->where);
    assert_int_equal(dw_engine_probe(engine, &info, &err), DW_CONFLICT);
    assert_int_equal(dw_engine_pause(engine, &update, &err), DW_CONFLICT);
    assert_int_equal(dw_engine_apply(engine, &update, &whole, &err), DW_CONFLICT);
    assert_true(whole);
    assert_int_equal(dw_engine_resume(engine, &update, &err), DW_CONFLICT);
    assert_string_equal(err.text, "its own words");
    dw_engine_close(engine);
}

TEST(test_nothing_to_do)
{
    const dw_engine_driver nothing = {.name = "none"};
    dw_engine *engine;
    dw_error err = {0};
    assert_int_equal(dw_engine_new(&engine, &nothing, NULL, NULL, NULL, &err), DW_OK);
    dw_engine_info info = {.version = 3};
    bool whole = false;
    assert_false(engine->driver->probe);
    assert_int_equal(dw_engine_probe(engine, &info, &err), DW_OK);
    assert_int_equal(info.version, DW_NO_VERSION);
    assert_string_equal(info.software, "");
    assert_int_equal(dw_engine_pause(engine, &update, &err), DW_OK);
    assert_int_equal(dw_engine_apply(engine, &update, &whole, &err), DW_OK);
    assert_true(whole);
    assert_int_equal(dw_engine_resume(engine, &update, &err), DW_OK);
    dw_engine_close(engine);
    dw_engine_close(NULL);
}

TEST(test_specs)
{
    static const char *const bad[] = {
        "",
        "vllm",
        "vllm=",
        "vllm=localhost:8000",
        "vllm=ftp://localhost",
        "vllm=http://user:hidden@localhost:8000",
        "vllm=http://localhost:8000?key=hidden",
        "vllm=http://localhost:8000#hidden",
        "vllm=http://",
        "VLLM=http://localhost",
        "none=hidden",
        "vllm=http://localhost:99999",
        "vllm=http://local host",
    };
    dw_engine *engine;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        dw_error err = {0};
        assert_int_equal(dw_engine_open(&engine, bad[i], NULL, &err), DW_INVALID);
        assert_null(engine);
        assert_null(strstr(err.text, "hidden"));
        assert_null(strstr(err.where, "hidden"));
        assert_true(err.text[0] != '\0');
    }
    assert_int_equal(dw_engine_open(&engine, NULL, NULL, NULL), DW_INVALID);
    dw_error err = {0};
    assert_int_equal(dw_engine_open(&engine, "vllm=http://[::1]:8000/a//", NULL, &err),
                     DW_OK);
    assert_string_equal(engine->driver->name, "vllm");
    assert_string_equal(engine->where, "http://[::1]:8000/a");
    dw_engine_close(engine);
}

TEST(test_tokens)
{
    dw_engine *engine;
    dw_engine_options options = {.token = "hidden\r\nHost: b"};
    dw_error err = {0};
    assert_int_equal(dw_engine_open(&engine, "vllm=http://a", &options, &err),
                     DW_INVALID);
    assert_null(strstr(err.text, "hidden"));
    options.token = "";
    assert_int_equal(dw_engine_open(&engine, "vllm=http://a", &options, &err),
                     DW_INVALID);
}

static dw_status open_and_close(dw_error *err)
{
    dw_engine *engine = NULL;
    dw_engine_options options = {.token = "t"};
    dw_status status = dw_engine_open(&engine, "vllm=http://localhost", &options, err);
    dw_engine_close(engine);
    return status;
}

static own_engine counted;

static dw_status new_and_close(dw_error *err)
{
    dw_engine *engine = NULL;
    counted.n_closed = 0;
    dw_status status = dw_engine_new(&engine, &own_driver, &counted, "here", NULL, err);
    dw_engine_close(engine);
    assert_int_equal(counted.n_closed, status == DW_OK ? 1 : 0);
    return status;
}

TEST(test_allocations)
{
    fail_every_allocation(open_and_close, NULL);
    fail_every_allocation(new_and_close, NULL);
}

RUN_TESTS(NULL, NULL)
