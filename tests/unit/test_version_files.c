/* The companion files of versions: which objects are stored, what commits name, and that
 * no failure loses any. */
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "deltawire/files.h"
#include "failing_allocator.h"
#include "stream/record.h"
#include "stream_kit.h"
#include "temp_dir.h"
#include "inner.h"

static const dw_file first_files[] = {{"tokenizer.json", "[0, 1]", 6},
                                      {"config.json", "{\"a\":1}", 7},
                                      {"added_tokens", NULL, 0}};
static const dw_file next_files[] = {{"config.json", "{\"a\":2}", 7},
                                     {"tokenizer.json", "[0, 1]", 6}};

static dw_publish_note note_of(const dw_file *files, size_t n_files)
{
    return (dw_publish_note){.struct_bytes = sizeof(dw_publish_note),
                             .files = files,
                             .n_files = n_files,
                             .has_files = true};
}

/* Publishes the weights with NOTE, which may be NULL. */
static dw_status publish(kit *k, dw_publisher *p, const dw_publish_note *note,
                         dw_publish_report *report, dw_error *err)
{
    uint64_t ticket;
    kit_step(k, 10);
    dw_status status = dw_publisher_publish(p, &ticket, note, err);
    return status == DW_OK ? dw_publisher_wait(p, ticket, UINT_MAX, NULL, report, err)
                           : status;
}

/* VERSION has exactly these files, in the order of their names; N is SIZE_MAX if it must
 * say nothing. */
static void assert_files(dw_store *store, uint64_t version, const dw_file *wanted,
                         size_t n)
{
    dw_error err = {0};
    dw_stream *s;
    const dw_file_info *files;
    size_t n_files;
    bool is_given;
    assert_ok(dw_stream_open(&s, store, NULL, &err), &err);
    assert_ok(dw_stream_files(s, version, &files, &n_files, &is_given, &err), &err);
    assert_int_equal(is_given, n != SIZE_MAX);
    assert_int_equal(n_files, n == SIZE_MAX ? 0 : n);
    for (size_t i = 1; i < n_files; i++)
        assert_true(strcmp(files[i - 1].name, files[i].name) < 0);
    for (size_t i = 0; i < n_files; i++) {
        const void *bytes;
        uint64_t n_bytes;
        assert_ok(dw_stream_read_file(s, version, wanted[i].name, &bytes, &n_bytes, &err),
                  &err);
        assert_int_equal(n_bytes, wanted[i].n_bytes);
        if (n_bytes > 0)
            assert_memory_equal(bytes, wanted[i].bytes, n_bytes);
    }
    dw_version_info info;
    assert_ok(dw_stream_version(s, version, &info, &err), &err);
    assert_int_equal(info.n_files, n == SIZE_MAX ? 0 : n);
    dw_stream_close(s);
}

static size_t n_stored(dw_store *store)
{
    return kit_find(store, "files/", "", NULL);
}

/* The version that stored the file NAME of VERSION. */
static uint64_t stored_by(dw_store *store, uint64_t version, const char *name)
{
    dw_error err = {0};
    dw_stream *s;
    const dw_file_info *files;
    size_t n;
    uint64_t found = DW_NO_VERSION;
    assert_ok(dw_stream_open(&s, store, NULL, &err), &err);
    assert_ok(dw_stream_files(s, version, &files, &n, NULL, &err), &err);
    for (size_t i = 0; i < n; i++)
        if (strcmp(files[i].name, name) == 0)
            found = files[i].version;
    dw_stream_close(s);
    return found;
}

static void test_only_changes_are_stored(void **state)
{
    (void)state;
    kit k;
    kit_make(&k);
    dw_store *store = kit_mem_store();
    dw_error err = {0};
    dw_publish_report report;
    dw_publish_options options = kit_plain_options(temp_dir);
    options.files = first_files;
    options.n_files = 3;
    options.has_files = true;
    dw_publisher *p = kit_open(&k, store, &options);
    assert_int_equal(n_stored(store), 3); /* an empty file has an object too */
    assert_files(store, 0, first_files, 3);
    assert_ok(publish(&k, p, NULL, &report, &err), &err); /* 1: as before */
    assert_int_equal(report.n_file_bytes, 0);
    assert_files(store, 1, first_files, 3);
    dw_publish_note note = note_of(first_files, 3);
    assert_ok(publish(&k, p, &note, &report, &err), &err); /* 2: the same again */
    assert_int_equal(n_stored(store), 3);
    note = note_of(next_files, 2);
    assert_ok(publish(&k, p, &note, &report, &err), &err); /* 3: one changed */
    assert_int_equal(report.n_file_bytes, 7);
    assert_int_equal(n_stored(store), 4);
    assert_files(store, 3, next_files, 2);
    assert_int_equal(stored_by(store, 3, "config.json"), 3);
    assert_int_equal(stored_by(store, 3, "tokenizer.json"), 0);
    note = note_of(NULL, 0);
    assert_ok(publish(&k, p, &note, &report, &err), &err); /* 4: none */
    assert_files(store, 4, NULL, 0);
    /* 5: a version between lacks it, so an object that is there is not named again */
    note = note_of(next_files, 2);
    assert_ok(publish(&k, p, &note, &report, &err), &err);
    assert_int_equal(stored_by(store, 5, "tokenizer.json"), 5);
    assert_files(store, 5, next_files, 2);
    dw_publisher_close(p);
    /* a writer that resumes goes on with them */
    options = kit_plain_options(temp_dir);
    p = kit_open(&k, store, &options);
    assert_ok(publish(&k, p, NULL, &report, &err), &err);
    assert_files(store, 6, next_files, 2);
    assert_int_equal(stored_by(store, 6, "config.json"), 5);
    dw_publisher_close(p);
    /* files that are given to open are those of the next version */
    options.files = first_files;
    options.n_files = 3;
    options.has_files = true;
    p = kit_open(&k, store, &options);
    assert_ok(publish(&k, p, NULL, &report, &err), &err);
    assert_files(store, 7, first_files, 3);
    assert_int_equal(stored_by(store, 7, "tokenizer.json"), 5);
    dw_publisher_close(p);
    dw_store_close(store);
    kit_free(&k);
}

static void test_never_given(void **state)
{
    (void)state;
    kit k;
    kit_make(&k);
    dw_store *store = kit_mem_store();
    dw_error err = {0};
    dw_publish_report report;
    dw_publish_options options = kit_plain_options(temp_dir);
    dw_publisher *p = kit_open(&k, store, &options);
    assert_ok(publish(&k, p, NULL, &report, &err), &err);
    assert_files(store, 0, NULL, SIZE_MAX);
    assert_files(store, 1, NULL, SIZE_MAX);
    /* what cannot be published changes nothing */
    const dw_file bad[] = {{"../config.json", "x", 1}};
    dw_publish_note note = note_of(bad, 1);
    assert_fails(publish(&k, p, &note, &report, &err), DW_INVALID, &err);
    static const char *const no_json[] = {"", "not json", "{\"a\": "};
    for (size_t i = 0; i < sizeof no_json / sizeof *no_json; i++) {
        const dw_file file = {"config.json", no_json[i], strlen(no_json[i])};
        note = note_of(&file, 1);
        assert_fails(publish(&k, p, &note, &report, &err), DW_INVALID, &err);
        assert_string_equal(err.where, "config.json");
        assert_non_null(strstr(err.text, "not JSON"));
    }
    dw_file *many = calloc(10000, sizeof *many);
    for (size_t i = 0; i < 10000; i++)
        many[i] = (dw_file){"a", "x", 1};
    note = note_of(many, 10000);
    assert_fails(publish(&k, p, &note, &report, &err), DW_INVALID, &err);
    assert_non_null(strstr(err.text, "10000 companion files"));
    free(many);
    assert_int_equal(n_stored(store), 0);
    assert_ok(publish(&k, p, NULL, &report, &err), &err);
    assert_int_equal(report.version, 2);
    assert_files(store, 2, NULL, SIZE_MAX);
    dw_publisher_close(p);
    /* nor does it make a stream */
    dw_store *other = kit_mem_store();
    options.files = bad;
    options.n_files = 1;
    options.has_files = true;
    assert_fails(dw_publisher_open(&p, other, k.tensors, KIT_TENSORS, &options, &err),
                 DW_INVALID, &err);
    assert_int_equal(kit_find(other, "", "", NULL), 0);
    dw_store_close(other);
    dw_store_close(store);
    kit_free(&k);
}

/* ---- failures ---- */

typedef struct trouble {
    _Atomic bool on;
    store_fault kind;
    const char *part; /* puts of keys with it */
    _Atomic unsigned n_left;
} trouble;

static store_fault choose(void *context, uint64_t n, const char *operation,
                          const char *key)
{
    (void)n;
    trouble *t = context;
    if (!t->on || strcmp(operation, "put") != 0 || !strstr(key, t->part) ||
        t->n_left == 0)
        return STORE_FAULT_NONE;
    t->n_left--;
    return t->kind;
}

static dw_store *troubled(dw_store *inner, trouble *t)
{
    dw_error err = {0};
    dw_store *store;
    assert_ok(fault_store_new(&store, inner, &(store_fault_plan){choose, t, 0}, &err),
              &err);
    return store;
}

/* The next version has the files of one that failed, also if it is given none. */
static void test_a_failure_loses_nothing(void **state)
{
    (void)state;
    static const struct {
        store_fault kind;
        const char *part;
    } cases[] = {
        {STORE_FAULT_FAIL, "files/"},   {STORE_FAULT_DENY, "files/"},
        {STORE_FAULT_LOST, "files/"},   {STORE_FAULT_FAIL, "objects/"},
        {STORE_FAULT_FAIL, "commits/"}, {STORE_FAULT_LOST, "commits/"},
        {STORE_FAULT_DENY, "commits/"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kit k;
        kit_make(&k);
        dw_store *inner = kit_mem_store();
        trouble t = {.kind = cases[i].kind, .part = cases[i].part, .n_left = 100};
        dw_store *store = troubled(inner, &t);
        dw_error err = {0};
        dw_publish_report report = {0};
        dw_publish_options options = kit_plain_options(temp_dir);
        dw_publisher *p = kit_open(&k, store, &options);
        dw_publish_note note = note_of(next_files, 2);
        t.on = true;
        dw_status status = publish(&k, p, &note, &report, &err);
        t.on = false;
        if (status != DW_OK) {
            assert_true(status == DW_UNAVAILABLE || status == DW_DENIED);
            assert_ok(publish(&k, p, NULL, &report, &err), &err);
        }
        assert_files(inner, report.version, next_files, 2);
        dw_publisher_close(p);
        /* nothing but whole versions is there */
        dw_stream *s;
        uint64_t head;
        assert_ok(dw_stream_open(&s, inner, NULL, &err), &err);
        assert_ok(dw_stream_head(s, &head, &err), &err);
        assert_int_equal(head, report.version);
        assert_ok(dw_stream_verify(s, NULL, NULL, NULL, NULL, &err), &err);
        dw_stream_close(s);
        dw_store_close(store);
        dw_store_close(inner);
        kit_free(&k);
    }
}

/* The first try of a commit arrives, but its reply is lost, and so is that of the
 * question: the version exists, and the next one goes on from its files. */
static void test_a_commit_in_doubt(void **state)
{
    (void)state;
    kit k;
    kit_make(&k);
    dw_store *inner = kit_mem_store();
    trouble t = {.kind = STORE_FAULT_LOST, .part = "commits/", .n_left = 100};
    dw_store *store = troubled(inner, &t);
    dw_error err = {0};
    dw_publish_report report = {0};
    dw_publish_options options = kit_plain_options(temp_dir);
    options.files = first_files;
    options.n_files = 3;
    options.has_files = true;
    dw_publisher *p = kit_open(&k, store, &options);
    dw_publish_note note = note_of(next_files, 2);
    t.on = true;
    (void)publish(&k, p, &note, &report, &err);
    t.on = false;
    note = note_of(first_files, 3);
    assert_ok(publish(&k, p, &note, &report, &err), &err);
    assert_files(inner, report.version, first_files, 3);
    assert_files(inner, report.version - 1, next_files, 2);
    dw_publisher_close(p);
    dw_store_close(store);
    dw_store_close(inner);
    kit_free(&k);
}

typedef struct gate {
    _Atomic bool is_shut;
    sem_t reached, open;
} gate;

static store_fault pass_gate(void *context, uint64_t n, const char *operation,
                             const char *key)
{
    (void)n;
    (void)key;
    gate *g = context;
    if (strcmp(operation, "put") == 0 && g->is_shut) {
        g->is_shut = false;
        sem_post(&g->reached);
        sem_wait(&g->open);
    }
    return STORE_FAULT_NONE;
}

/* A publish that is skipped leaves its files to the next. */
static void test_skipped(void **state)
{
    (void)state;
    kit k;
    kit_make(&k);
    gate g = {0};
    sem_init(&g.reached, 0, 0);
    sem_init(&g.open, 0, 0);
    dw_store *inner = kit_mem_store(), *store;
    dw_error err = {0};
    dw_publish_report report;
    assert_ok(fault_store_new(&store, inner, &(store_fault_plan){pass_gate, &g, 0}, &err),
              &err);
    dw_publish_options options = kit_plain_options(temp_dir);
    options.when_busy = DW_BUSY_SKIP;
    dw_publisher *p = kit_open(&k, store, &options);
    uint64_t ticket, skipped;
    dw_publish_note note = note_of(first_files, 3);
    kit_step(&k, 10);
    g.is_shut = true;
    assert_ok(dw_publisher_publish(p, &ticket, &note, &err), &err);
    sem_wait(&g.reached);
    note = note_of(next_files, 2);
    assert_ok(dw_publisher_publish(p, &skipped, &note, &err), &err);
    assert_int_equal(skipped, DW_TICKET_SKIPPED);
    sem_post(&g.open);
    assert_ok(dw_publisher_wait(p, ticket, UINT_MAX, NULL, &report, &err), &err);
    assert_files(inner, 1, first_files, 3);
    assert_true(dw_publisher_drained(p, UINT_MAX));
    assert_ok(publish(&k, p, NULL, &report, &err), &err);
    assert_files(inner, 2, next_files, 2);
    dw_publisher_close(p);
    dw_store_close(store);
    dw_store_close(inner);
    sem_destroy(&g.reached);
    sem_destroy(&g.open);
    kit_free(&k);
}

/* A writer that lost the stream commits nothing, and the next one has the right parent.
 */
static void test_second_writer(void **state)
{
    (void)state;
    kit k;
    kit_make(&k);
    dw_store *store = kit_mem_store();
    dw_error err = {0};
    dw_publish_report report;
    dw_publish_options options = kit_plain_options(temp_dir);
    options.files = first_files;
    options.n_files = 3;
    options.has_files = true;
    dw_publisher *first = kit_open(&k, store, &options);
    options = kit_plain_options(temp_dir);
    dw_publisher *second = kit_open(&k, store, &options);
    dw_publish_note note = note_of(next_files, 2);
    assert_ok(publish(&k, second, &note, &report, &err), &err);
    note = note_of(NULL, 0);
    assert_fails(publish(&k, first, &note, &report, &err), DW_CONFLICT, &err);
    assert_ok(publish(&k, second, NULL, &report, &err), &err);
    assert_files(store, 2, next_files, 2);
    dw_publisher_close(first);
    dw_publisher_close(second);
    dw_store_close(store);
    kit_free(&k);
}

/* ---- other ways to make versions ---- */

/* A fork has its source's files, in its own store. */
static void test_fork(void **state)
{
    (void)state;
    kit k;
    kit_make(&k);
    dw_store *source = kit_mem_store(), *fork = kit_mem_store();
    dw_error err = {0};
    dw_publish_report report;
    dw_publish_options options = kit_plain_options(temp_dir);
    options.files = first_files;
    options.n_files = 3;
    options.has_files = true;
    dw_publisher_close(kit_open(&k, source, &options));
    options = kit_plain_options(temp_dir);
    options.first = DW_FIRST_FORK;
    options.fork_store = source;
    dw_publisher *p = kit_open(&k, fork, &options);
    assert_int_equal(n_stored(fork), 3);
    assert_files(fork, 0, first_files, 3);
    assert_ok(publish(&k, p, NULL, &report, &err), &err);
    assert_files(fork, 1, first_files, 3);
    assert_int_equal(n_stored(fork), 3);
    dw_publisher_close(p);
    /* its own files come first */
    dw_store *other = kit_mem_store();
    options.files = next_files;
    options.n_files = 2;
    options.has_files = true;
    p = kit_open(&k, other, &options);
    assert_files(other, 0, next_files, 2);
    dw_publisher_close(p);
    dw_store_close(other);
    dw_store_close(fork);
    dw_store_close(source);
    kit_free(&k);
}

/* A repair keeps the files of the head; those that are given are stored again, as their
 * objects may be what was lost. */
static void test_repair(void **state)
{
    (void)state;
    kit k;
    kit_make(&k);
    dw_store *store = kit_mem_store();
    dw_error err = {0};
    dw_repair_report report;
    dw_publish_options options = kit_plain_options(temp_dir);
    options.files = next_files;
    options.n_files = 2;
    options.has_files = true;
    dw_publisher_close(kit_open(&k, store, &options));
    options = kit_plain_options(temp_dir);
    assert_ok(dw_stream_repair(store, k.tensors, KIT_TENSORS, &options, &report, &err),
              &err);
    assert_int_equal(report.version, 1);
    assert_files(store, 1, next_files, 2);
    assert_int_equal(n_stored(store), 2);
    kit_remove_all(store, "files/");
    options.files = next_files;
    options.n_files = 2;
    options.has_files = true;
    assert_ok(dw_stream_repair(store, k.tensors, KIT_TENSORS, &options, &report, &err),
              &err);
    assert_int_equal(report.version, 2);
    assert_files(store, 2, next_files, 2);
    dw_store_close(store);
    kit_free(&k);
}

/* ---- memory ---- */

static kit *memory_kit;

static dw_status publish_files(dw_error *err)
{
    dw_store *store = NULL;
    dw_publisher *p = NULL;
    static unsigned n;
    char url[40];
    snprintf(url, sizeof url, "mem:memory-%u", n++);
    dw_publish_options options = kit_plain_options(temp_dir);
    options.files = first_files;
    options.n_files = 3;
    options.has_files = true;
    dw_status status = dw_store_open(&store, url, NULL, err);
    if (status == DW_OK)
        status =
            dw_publisher_open(&p, store, memory_kit->tensors, KIT_TENSORS, &options, err);
    dw_publisher_close(p);
    dw_store_close(store);
    return status;
}

static void test_no_memory(void **state)
{
    (void)state;
    kit k;
    kit_make(&k);
    memory_kit = &k;
    fail_every_allocation(publish_files, NULL);
    kit_free(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_changes_are_stored),
        cmocka_unit_test(test_never_given),
        cmocka_unit_test(test_a_failure_loses_nothing),
        cmocka_unit_test(test_a_commit_in_doubt),
        cmocka_unit_test(test_skipped),
        cmocka_unit_test(test_second_writer),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_repair),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}
