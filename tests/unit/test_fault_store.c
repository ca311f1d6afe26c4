#include "unit/suite.h"

#include "base/clock.h"
#include "store/fault_store.h"
#include "failing_allocator.h"
#include "store_text.h"

/* The kind of the next calls, and the questions to the plan. */
typedef struct chooser {
    store_fault kind;
    uint64_t n_next;
    char operation[8];
    char key[64];
} chooser;

static store_fault choose(void *context, uint64_t n, const char *operation,
                          const char *key)
{
    chooser *c = context;
    assert_int_equal(n, c->n_next++);
    strcpy(c->operation, operation);
    strcpy(c->key, key);
    return c->kind;
}

static chooser chosen;
static dw_store *inner, *store;
static int set_up(void **state)
{
    (void)state;
    chosen = (chooser){0};
    store_fault_plan plan = {.choose = choose, .context = &chosen, .delay_ms = 30};
    return dw_store_open(&inner, "mem:inner", NULL, NULL) != DW_OK ||
           fault_store_new(&store, inner, &plan, NULL) != DW_OK;
}

static int tear_down(void **state)
{
    (void)state;
    dw_store_close(store);
    dw_store_close(inner);
    return 0;
}

static char listed[200];

static dw_status list(const char *prefix)
{
    listed[0] = '\0';
    return dw_store_list(store, prefix, NULL, append, listed, &err);
}

TEST_WITH(test_none, set_up, tear_down)
{
    char text[100];
    bool conditional = false;
    assert_int_equal(put(store, "a/k", "hello", DW_PUT_CREATE), DW_OK);
    assert_string_equal(chosen.operation, "put");
    assert_string_equal(chosen.key, "a/k");
    assert_int_equal(put(store, "a/k", "hello", DW_PUT_CREATE), DW_CONFLICT);
    assert_int_equal(get(store, "a/k", text), DW_OK);
    assert_string_equal(text, "hello");
    assert_string_equal(chosen.operation, "get");
    assert_int_equal(list("a/"), DW_OK);
    assert_string_equal(listed, "a/k ");
    assert_string_equal(chosen.operation, "list");
    assert_string_equal(chosen.key, "a/");
    assert_int_equal(dw_store_stat(store, "a/k", NULL, NULL, &err), DW_OK);
    assert_string_equal(chosen.operation, "stat");
    assert_int_equal(dw_store_remove(store, "a/k", &err), DW_OK);
    assert_string_equal(chosen.operation, "remove");
    assert_int_equal(chosen.n_next, 6);
    assert_int_equal(dw_store_conditional(store, &conditional, &err), DW_OK);
    assert_true(conditional);
    assert_string_equal(dw_store_url(store), "mem:inner");
    dw_store_counts counts;
    dw_store_get_counts(store, &counts);
    assert_int_equal(counts.n_requests, 6);
}

TEST_WITH(test_fail_and_deny, set_up, tear_down)
{
    static const struct {
        store_fault kind;
        dw_status status;
    } cases[] = {{STORE_FAULT_FAIL, DW_UNAVAILABLE}, {STORE_FAULT_DENY, DW_DENIED}};
    char text[100];
    assert_int_equal(put(inner, "k", "old", DW_PUT_CREATE), DW_OK);
    for (size_t i = 0; i < 2; i++) {
        chosen.kind = cases[i].kind;
        assert_int_equal(put(store, "k", "new", DW_PUT_REPLACE), cases[i].status);
        assert_int_equal(err.code, cases[i].status);
        assert_non_null(strstr(err.text, "on purpose"));
        assert_string_equal(err.where, "mem:inner/k");
        assert_int_equal(get(store, "k", text), cases[i].status);
        assert_int_equal(dw_store_stat(store, "k", NULL, NULL, &err), cases[i].status);
        assert_int_equal(dw_store_remove(store, "k", &err), cases[i].status);
        assert_int_equal(list(""), cases[i].status);
        assert_string_equal(listed, "");
        assert_int_equal(get(inner, "k", text), DW_OK);
        assert_string_equal(text, "old"); /* nothing was done */
    }
}

TEST_WITH(test_lost, set_up, tear_down)
{
    char text[100];
    chosen.kind = STORE_FAULT_LOST;
    assert_int_equal(put(store, "k", "new", DW_PUT_CREATE), DW_UNAVAILABLE);
    assert_int_equal(get(inner, "k", text), DW_OK);
    assert_string_equal(text, "new");
    assert_int_equal(put(store, "k", "again", DW_PUT_CREATE), DW_UNAVAILABLE);
    assert_int_equal(get(inner, "k", text), DW_OK);
    assert_string_equal(text, "new");
    assert_int_equal(get(store, "k", text), DW_UNAVAILABLE);
    assert_int_equal(dw_store_remove(store, "k", &err), DW_UNAVAILABLE);
    assert_int_equal(get(inner, "k", text), DW_NOT_FOUND);
}

TEST_WITH(test_short, set_up, tear_down)
{
    char text[100];
    chosen.kind = STORE_FAULT_SHORT;
    assert_int_equal(put(store, "k", "12345678", DW_PUT_CREATE), DW_UNAVAILABLE);
    assert_int_equal(get(inner, "k", text), DW_NOT_FOUND);
    assert_int_equal(put(inner, "k", "12345678", DW_PUT_CREATE), DW_OK);
    assert_int_equal(get(store, "k", text), DW_OK);
    assert_string_equal(text, "1234");
    uint64_t n_bytes;
    assert_int_equal(dw_store_stat(store, "k", &n_bytes, NULL, &err), DW_OK);
    assert_int_equal(n_bytes, 8); /* as it is */
}

static unsigned bits_apart(const char *a, const char *b, size_t n)
{
    unsigned count = 0;
    for (size_t i = 0; i < n; i++)
        count += (unsigned)__builtin_popcount((unsigned char)(a[i] ^ b[i]));
    return count;
}

TEST_WITH(test_corrupt, set_up, tear_down)
{
    static const char original[] = "what was meant to be there, and a bit more";
    const size_t n = sizeof original - 1;
    char text[100];
    for (int i = 0; i < 50; i++) {
        chosen.kind = STORE_FAULT_CORRUPT;
        assert_int_equal(put(store, "k", original, DW_PUT_REPLACE), DW_OK);
        assert_int_equal(get(inner, "k", text), DW_OK);
        assert_int_equal(strlen(text), n);
        assert_int_equal(bits_apart(text, original, n), 1);
        assert_int_equal(put(inner, "k", original, DW_PUT_REPLACE), DW_OK);
        size_t n_read;
        assert_int_equal(dw_store_get(store, "k", 0, text, 99, &n_read, NULL, &err),
                         DW_OK);
        assert_int_equal(n_read, n);
        assert_int_equal(bits_apart(text, original, n), 1);
    }
    assert_int_equal(put(store, "empty", "", DW_PUT_REPLACE), DW_OK);
    assert_int_equal(get(store, "empty", text), DW_OK);
    assert_string_equal(text, "");
}

TEST_WITH(test_stale, set_up, tear_down)
{
    char text[100];
    assert_int_equal(put(store, "a", "1", DW_PUT_CREATE), DW_OK);
    assert_int_equal(put(store, "b", "2", DW_PUT_CREATE), DW_OK);
    assert_int_equal(list(""), DW_OK);
    assert_string_equal(listed, "a b ");
    assert_int_equal(put(store, "ab", "3", DW_PUT_CREATE), DW_OK);
    chosen.kind = STORE_FAULT_STALE;
    for (int i = 0; i < 2; i++) { /* a stale list makes nothing visible */
        assert_int_equal(list(""), DW_OK);
        assert_string_equal(listed, "a b ");
        assert_int_equal(get(store, "ab", text), DW_NOT_FOUND);
        assert_int_equal(dw_store_stat(store, "ab", NULL, NULL, &err), DW_NOT_FOUND);
    }
    assert_int_equal(get(store, "a", text), DW_OK); /* older than the last list */
    assert_int_equal(put(store, "ab", "4", DW_PUT_CREATE), DW_CONFLICT);
    chosen.kind = STORE_FAULT_NONE;
    assert_int_equal(get(store, "ab", text), DW_OK);
    assert_int_equal(list(""), DW_OK);
    assert_string_equal(listed, "a ab b ");
    chosen.kind = STORE_FAULT_STALE; /* a list has shown it, so it is not new any more */
    assert_int_equal(get(store, "ab", text), DW_OK);
    assert_int_equal(dw_store_stat(store, "ab", NULL, NULL, &err), DW_OK);
}

/* If others put the objects, the list uses their times. */
TEST_WITH(test_stale_to_others, set_up, tear_down)
{
    assert_int_equal(put(inner, "old", "1", DW_PUT_CREATE), DW_OK);
    int64_t old_ms;
    assert_int_equal(dw_store_stat(inner, "old", NULL, &old_ms, &err), DW_OK);
    while (dw_wall_clock_ms() <= old_ms)
        dw_sleep_ms(1);
    assert_int_equal(put(inner, "new", "2", DW_PUT_CREATE), DW_OK);
    chosen.kind = STORE_FAULT_STALE;
    assert_int_equal(list(""), DW_OK);
    assert_string_equal(listed, "old ");
    assert_int_equal(list("none"), DW_OK);
    assert_string_equal(listed, "");
}

TEST_WITH(test_delay, set_up, tear_down)
{
    chosen.kind = STORE_FAULT_DELAY;
    uint64_t before_ms = dw_clock_ms();
    assert_int_equal(put(store, "k", "1", DW_PUT_CREATE), DW_OK);
    assert_true(dw_clock_ms() - before_ms >= 29); /* never less; more is allowed */
}

static dw_status use_memory(dw_error *error)
{
    dw_store *mem, *faulty;
    dw_status status = dw_store_open(&mem, "mem:memory", NULL, error);
    if (status != DW_OK)
        return status;
    status = fault_store_new(&faulty, mem, &(store_fault_plan){0}, error);
    if (status == DW_OK)
        status = dw_store_put_bytes(faulty, "k", "1", 1, DW_PUT_CREATE, error);
    dw_store_close(faulty);
    dw_store_close(mem);
    return status;
}

TEST_WITH(test_making, set_up, tear_down)
{
    dw_store *none;
    assert_int_equal(fault_store_new(&none, NULL, &(store_fault_plan){0}, NULL),
                     DW_INVALID);
    assert_int_equal(fault_store_new(&none, inner, NULL, NULL), DW_INVALID);
    fail_every_allocation(use_memory, NULL);
}

RUN_TESTS(NULL, NULL)
