/* The companion files of versions: which objects are stored, what commits name, and that
 * no failure loses any. */
#include <semaphore.h>

#include "unit/suite.h"

#include "deltawire/stream.h"
#include "failing_allocator.h"
#include "publish/publisher.h"
#include "stream/record.h"
#include "stream_kit.h"
#include "temp_dir.h"
#include "inner.h"

static const dw_file first_files[] = {{"tokenizer.json", "[0, 1]", 6},
                                      {"config.json", "{\"a\":1}", 7},
                                      {"added_tokens", NULL, 0}};
static const dw_file next_files[] = {{"config.json", "{\"a\":2}", 7},
                                     {"tokenizer.json", "[0, 1]", 6}};

static const dw_file bad_name[] = {{"../config.json", "x", 1}};

/* ---- one stream ---- */

static kit k;
static dw_store *store; /* that the test looks into */
static dw_error err;
static dw_publish_report report;

static int make(void **state)
{
    (void)state;
    kit_make(&k);
    store = kit_mem_store();
    err = (dw_error){0};
    report = (dw_publish_report){0};
    return 0;
}

static int end(void **state)
{
    (void)state;
    dw_store_close(store);
    kit_free(&k);
    return 0;
}

/* FILES may be NULL: none are given. */
static dw_publish_options options_with(const dw_file *files, size_t n_files)
{
    dw_publish_options options = kit_plain_options(temp_dir);
    options.files = files;
    options.n_files = n_files;
    options.has_files = files != NULL;
    return options;
}

static dw_publisher *open_with(dw_store *in, const dw_file *files, size_t n_files)
{
    const dw_publish_options options = options_with(files, n_files);
    return kit_open(&k, in, &options);
}

static dw_publish_note note_of(const dw_file *files, size_t n_files)
{
    return (dw_publish_note){.struct_bytes = sizeof(dw_publish_note),
                             .files = files,
                             .n_files = n_files,
                             .has_files = true};
}

/* Publishes the weights with NOTE, which may be NULL. */
static dw_status publish_note(dw_publisher *p, const dw_publish_note *note)
{
    uint64_t ticket;
    kit_step(&k, 10);
    dw_status status = dw_publisher_publish(p, &ticket, note, &err);
    return status == DW_OK ? dw_publisher_wait(p, ticket, UINT_MAX, NULL, &report, &err)
                           : status;
}

static dw_status publish_with(dw_publisher *p, const dw_file *files, size_t n_files)
{
    const dw_publish_note note = note_of(files, n_files);
    return publish_note(p, &note);
}

#define PUBLISH(p)            assert_ok(publish_note(p, NULL), &err)
#define PUBLISH_WITH(p, f, n) assert_ok(publish_with(p, f, n), &err)

/* VERSION has exactly these files, in the order of their names; N is SIZE_MAX if it must
 * say nothing. */
static void assert_files(dw_store *in, uint64_t version, const dw_file *wanted, size_t n)
{
    dw_stream *s;
    const dw_file_info *files;
    size_t n_files;
    bool is_given;
    assert_ok(dw_stream_open(&s, in, NULL, &err), &err);
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

static size_t n_stored(dw_store *in)
{
    return kit_find(in, "files/", "", NULL);
}

/* The version that stored the file NAME of VERSION. */
static uint64_t stored_by(uint64_t version, const char *name)
{
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

TEST_WITH(test_only_changes_are_stored, make, end)
{
    dw_publisher *p = open_with(store, first_files, 3);
    assert_int_equal(n_stored(store), 3); /* an empty file has an object too */
    assert_files(store, 0, first_files, 3);
    PUBLISH(p); /* 1: as before */
    assert_int_equal(report.n_file_bytes, 0);
    assert_files(store, 1, first_files, 3);
    PUBLISH_WITH(p, first_files, 3); /* 2: the same again */
    assert_int_equal(n_stored(store), 3);
    PUBLISH_WITH(p, next_files, 2); /* 3: one changed */
    assert_int_equal(report.n_file_bytes, 7);
    assert_int_equal(n_stored(store), 4);
    assert_files(store, 3, next_files, 2);
    assert_int_equal(stored_by(3, "config.json"), 3);
    assert_int_equal(stored_by(3, "tokenizer.json"), 0);
    PUBLISH_WITH(p, NULL, 0); /* 4: none */
    assert_files(store, 4, NULL, 0);
    /* 5: a version between lacks it, so an object that is there is not named again */
    PUBLISH_WITH(p, next_files, 2);
    assert_int_equal(stored_by(5, "tokenizer.json"), 5);
    assert_files(store, 5, next_files, 2);
    dw_publisher_close(p);
    p = open_with(store, NULL, 0); /* a writer that resumes goes on with them */
    PUBLISH(p);
    assert_files(store, 6, next_files, 2);
    assert_int_equal(stored_by(6, "config.json"), 5);
    dw_publisher_close(p);
    /* files that are given to open are those of the next version */
    p = open_with(store, first_files, 3);
    PUBLISH(p);
    assert_files(store, 7, first_files, 3);
    assert_int_equal(stored_by(7, "tokenizer.json"), 5);
    dw_publisher_close(p);
}

TEST_WITH(test_never_given, make, end)
{
    dw_publisher *p = open_with(store, NULL, 0);
    PUBLISH(p);
    assert_files(store, 0, NULL, SIZE_MAX);
    assert_files(store, 1, NULL, SIZE_MAX);
    /* what cannot be published changes nothing */
    assert_fails(publish_with(p, bad_name, 1), DW_INVALID, &err);
    static const char *const no_json[] = {"", "not json", "{\"a\": "};
    for (size_t i = 0; i < sizeof no_json / sizeof *no_json; i++) {
        const dw_file file = {"config.json", no_json[i], strlen(no_json[i])};
        assert_fails(publish_with(p, &file, 1), DW_INVALID, &err);
        assert_string_equal(err.where, "config.json");
        assert_non_null(strstr(err.text, "not JSON"));
    }
    dw_file *many = calloc(10000, sizeof *many);
    for (size_t i = 0; i < 10000; i++)
        many[i] = (dw_file){"a", "x", 1};
    assert_fails(publish_with(p, many, 10000), DW_INVALID, &err);
    assert_non_null(strstr(err.text, "10000 companion files"));
    free(many);
    assert_int_equal(n_stored(store), 0);
    PUBLISH(p);
    assert_int_equal(report.version, 2);
    assert_files(store, 2, NULL, SIZE_MAX);
    dw_publisher_close(p);
    /* nor does it make a stream */
    dw_store *other = kit_mem_store();
    const dw_publish_options options = options_with(bad_name, 1);
    assert_fails(dw_publisher_open(&p, other, k.tensors, KIT_TENSORS, &options, &err),
                 DW_INVALID, &err);
    assert_int_equal(kit_find(other, "", "", NULL), 0);
    dw_store_close(other);
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

/* STORE, with faults. */
static dw_store *troubled(store_fault (*fn)(void *, uint64_t, const char *, const char *),
                          void *context)
{
    dw_store *out;
    assert_ok(fault_store_new(&out, store, &(store_fault_plan){fn, context, 0}, &err),
              &err);
    return out;
}

/* The next version has the files of one that failed, also if it is given none. */
TEST_WITH(test_a_failure_loses_nothing, make, end)
{
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
        trouble t = {.kind = cases[i].kind, .part = cases[i].part, .n_left = 100};
        dw_store *bad = troubled(choose, &t);
        dw_publisher *p = open_with(bad, NULL, 0);
        t.on = true;
        dw_status status = publish_with(p, next_files, 2);
        t.on = false;
        if (status != DW_OK) {
            assert_true(status == DW_UNAVAILABLE || status == DW_DENIED);
            PUBLISH(p);
        }
        assert_files(store, report.version, next_files, 2);
        dw_publisher_close(p);
        /* nothing but whole versions is there */
        dw_stream *s;
        uint64_t head;
        assert_ok(dw_stream_open(&s, store, NULL, &err), &err);
        assert_ok(dw_stream_head(s, &head, &err), &err);
        assert_int_equal(head, report.version);
        assert_ok(dw_stream_verify(s, NULL, NULL, NULL, NULL, &err), &err);
        dw_stream_close(s);
        dw_store_close(bad);
        end(state);
        make(state);
    }
}

/* The first try of a commit arrives, but its reply is lost, and so is that of the
 * question: the version exists, and the next one goes on from its files. */
TEST_WITH(test_a_commit_in_doubt, make, end)
{
    trouble t = {.kind = STORE_FAULT_LOST, .part = "commits/", .n_left = 100};
    dw_store *bad = troubled(choose, &t);
    dw_publisher *p = open_with(bad, first_files, 3);
    t.on = true;
    (void)publish_with(p, next_files, 2);
    t.on = false;
    PUBLISH_WITH(p, first_files, 3);
    assert_files(store, report.version, first_files, 3);
    assert_files(store, report.version - 1, next_files, 2);
    dw_publisher_close(p);
    dw_store_close(bad);
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
TEST_WITH(test_skipped, make, end)
{
    gate g = {0};
    sem_init(&g.reached, 0, 0);
    sem_init(&g.open, 0, 0);
    dw_store *slow = troubled(pass_gate, &g);
    dw_publish_options options = options_with(NULL, 0);
    options.max_wait_ms = 0;
    dw_publisher *p = kit_open(&k, slow, &options);
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
    assert_files(store, 1, first_files, 3);
    assert_true(dw_publisher_drained(p, UINT_MAX));
    PUBLISH(p);
    assert_files(store, 2, next_files, 2);
    dw_publisher_close(p);
    dw_store_close(slow);
    sem_destroy(&g.reached);
    sem_destroy(&g.open);
}

/* A writer that lost the stream commits nothing, and the next one has the right parent.
 */
TEST_WITH(test_second_writer, make, end)
{
    dw_publisher *first = open_with(store, first_files, 3);
    dw_publisher *second = open_with(store, NULL, 0);
    PUBLISH_WITH(second, next_files, 2);
    assert_fails(publish_with(first, NULL, 0), DW_CONFLICT, &err);
    PUBLISH(second);
    assert_files(store, 2, next_files, 2);
    dw_publisher_close(first);
    dw_publisher_close(second);
}

/* ---- other ways to make versions ---- */

/* A fork has its source's files, in its own store. */
TEST_WITH(test_fork, make, end)
{
    dw_store *forks[] = {kit_mem_store(), kit_mem_store()};
    dw_publisher_close(open_with(store, first_files, 3));
    for (int own = 0; own < 2; own++) { /* its own files come first */
        const dw_file *files = own ? next_files : first_files;
        const size_t n = own ? 2 : 3;
        dw_publish_options options = options_with(own ? files : NULL, own ? n : 0);
        options.first = DW_FIRST_FORK;
        options.fork_store = store;
        dw_publisher *p = kit_open(&k, forks[own], &options);
        assert_files(forks[own], 0, files, n);
        PUBLISH(p);
        assert_files(forks[own], 1, files, n);
        assert_int_equal(n_stored(forks[own]), n);
        dw_publisher_close(p);
        dw_store_close(forks[own]);
    }
}

/* A repair keeps the files of the head; those that are given are stored again, as their
 * objects may be what was lost. */
TEST_WITH(test_repair, make, end)
{
    dw_publisher_close(open_with(store, next_files, 2));
    for (uint64_t given = 0; given < 2; given++) {
        dw_repair_report repaired;
        const dw_publish_options options = options_with(given ? next_files : NULL, 2);
        if (given)
            kit_remove_all(store, "files/");
        assert_ok(
            dw_stream_repair(store, k.tensors, KIT_TENSORS, &options, &repaired, &err),
            &err);
        assert_int_equal(repaired.version, 1 + given);
        assert_files(store, 1 + given, next_files, 2);
        assert_int_equal(n_stored(store), 2);
    }
}

/* ---- memory ---- */

static dw_status publish_files(dw_error *fault)
{
    dw_store *other = NULL;
    dw_publisher *p = NULL;
    static unsigned n;
    char url[40];
    snprintf(url, sizeof url, "mem:memory-%u", n++);
    const dw_publish_options options = options_with(first_files, 3);
    dw_status status = dw_store_open(&other, url, NULL, fault);
    if (status == DW_OK)
        status = dw_publisher_open(&p, other, k.tensors, KIT_TENSORS, &options, fault);
    if (p)
        p->ranks.has_left = true; /* else close tells it, and reports no failure */
    dw_publisher_close(p);
    dw_store_close(other);
    return status;
}

TEST_WITH(test_no_memory, make, end)
{
    fail_every_allocation(publish_files, NULL);
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
