/* A second writer opens a stream: when it waits for the first one, and when not. */
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/process.h"
#include "publish/publisher.h"
#include "unit/stream_fixture.h"
#include "unit/temp_dir.h"

#define FOREVER_MS 3600000u /* the tests would hang */

/* What the first writer does while the second one waits. */
typedef struct script {
    fixture *first;
    unsigned n_publishes;
    bool closes, has_waited;
    char notices[8][1024];
    unsigned n_notices;
} script;

static void note(void *context, const char *line)
{
    script *s = context;
    assert_true(s->n_notices < 8);
    snprintf(s->notices[s->n_notices++], sizeof s->notices[0], "%s", line);
}

static int act(void *context, uint64_t n_done, uint64_t n_total)
{
    script *s = context;
    (void)n_done, (void)n_total;
    if (s->n_notices == 0 || !strstr(s->notices[0], "Waiting"))
        return 0;
    s->has_waited = true;
    if (s->n_publishes > 0) {
        s->n_publishes--;
        fixture_publish(s->first);
    } else if (s->closes) {
        s->closes = false;
        dw_publisher_close(s->first->publisher);
        s->first->publisher = NULL;
    }
    return 0;
}

static dw_publish_options options_of(script *s, const char *job)
{
    dw_publish_options o;
    dw_publish_options_init(&o);
    o.fold_every = 0;
    o.anchor_factor = 0;
    o.no_provenance = true; /* the process is not recorded: it may be elsewhere */
    o.job = job;
    o.quiet_ms = FOREVER_MS;
    o.notice = note;
    o.notice_context = s;
    o.progress = (dw_progress){act, s};
    return o;
}

/* Opens a second writer, and closes it. */
static dw_status open_second(script *s, const dw_publish_options *options)
{
    fixture *x = s->first;
    dw_publisher *second;
    dw_status status = dw_publisher_open(&second, x->store, x->live.tensors, x->live.n,
                                         options, &x->err);
    dw_publisher_close(second);
    return status;
}

static void begin(fixture *x, script *s, const char *url, const char *job)
{
    *s = (script){.first = x};
    const dw_publish_options o = options_of(s, job);
    fixture_open(x, url, &o);
    fixture_publish(x);
}

static void test_one_that_goes_on_is_left_alone(void **state)
{
    (void)state;
    fixture x;
    script s;
    begin(&x, &s, "mem:takeover-alive", "first job");
    s.n_publishes = 2;
    const dw_publish_options o = options_of(&s, "second job");
    assert_int_equal(open_second(&s, &o), DW_CONFLICT);
    assert_non_null(strstr(x.err.text, "first job"));
    assert_non_null(strstr(x.err.text, "version 3"));
    assert_non_null(strstr(x.err.text, "--take-over"));
    assert_int_equal(s.n_notices, 1);
    assert_non_null(strstr(s.notices[0], "version 1 was committed 20"));
    fixture_publish(&x); /* it was not fenced */
    fixture_close(&x);
}

/* A commit that was under way when the writer ended arrives late. */
static void test_one_late_commit(void **state)
{
    (void)state;
    fixture x;
    script s;
    begin(&x, &s, "mem:takeover-late", NULL);
    s.n_publishes = 1;
    s.closes = true;
    const dw_publish_options o = options_of(&s, NULL);
    assert_fine(&x, open_second(&s, &o));
    assert_true(s.has_waited && s.n_publishes == 0 && !s.closes);
    assert_int_equal(s.n_notices, 2);
    assert_non_null(strstr(s.notices[1], "version 2 was committed"));
    fixture_close(&x);
}

static void test_silence(void **state)
{
    (void)state;
    fixture x;
    script s;
    begin(&x, &s, "mem:takeover-silent", NULL);
    dw_publish_options o = options_of(&s, NULL);
    o.quiet_ms = 1;
    assert_fine(&x, open_second(&s, &o));
    assert_int_equal(s.n_notices >= 1, true);
    const dw_publish_note plain = {.struct_bytes = sizeof plain};
    uint64_t ticket;
    dw_status status = dw_publisher_publish(x.publisher, &ticket, &plain, &x.err);
    if (status == DW_OK)
        status = dw_publisher_wait(x.publisher, ticket, UINT_MAX, NULL, NULL, &x.err);
    assert_int_equal(status, DW_CONFLICT);
    fixture_close(&x);
}

/* None of these waits: it would wait forever. */
static void test_no_wait(void **state)
{
    (void)state;
    enum { CLOSED, SAME_JOB, AS_ASKED, SAME_PROCESS, N };
    static const char *const says[] = {NULL, "same job", "takes over", "this process"};
    for (int c = 0; c < N; c++) {
        fixture x;
        script s = {.first = &x};
        char url[40];
        snprintf(url, sizeof url, "mem:takeover-now-%d", c);
        dw_publish_options o = options_of(&s, c == SAME_JOB ? "slurm 7" : NULL);
        o.no_provenance = c != SAME_PROCESS;
        fixture_open(&x, url, &o);
        fixture_publish(&x);
        if (c == CLOSED) {
            dw_publisher_close(x.publisher);
            x.publisher = NULL;
        }
        o.take_over = c == AS_ASKED;
        assert_fine(&x, open_second(&s, &o));
        assert_false(s.has_waited);
        assert_int_equal(s.n_notices, c != CLOSED);
        if (says[c])
            assert_non_null(strstr(s.notices[0], says[c]));
        fixture_close(&x);
    }
}

/* The job of the environment; torchrun's "none" is no name. */
static void test_job_of_environment(void **state)
{
    (void)state;
    for (int c = 0; c < 2; c++) {
        fixture x;
        script s;
        setenv("TORCHELASTIC_RUN_ID", c == 0 ? "elastic" : "none", 1);
        setenv("SLURM_JOB_ID", "4711", 1);
        begin(&x, &s, c == 0 ? "mem:takeover-elastic" : "mem:takeover-slurm", NULL);
        unsetenv("TORCHELASTIC_RUN_ID");
        const dw_publish_options o = options_of(&s, c == 0 ? "elastic" : NULL);
        assert_fine(&x, open_second(&s, &o));
        assert_non_null(strstr(s.notices[0], "same job"));
        unsetenv("SLURM_JOB_ID");
        fixture_close(&x);
    }
}

/* Somebody else took the stream while this one waited. */
static int steal(void *context, uint64_t n_done, uint64_t n_total)
{
    script *s = context;
    (void)n_done, (void)n_total;
    if (s->n_notices == 1 && !s->has_waited) {
        s->has_waited = true;
        dw_publish_options o = options_of(s, NULL);
        o.notice = NULL;
        o.take_over = true;
        dw_error kept = s->first->err;
        assert_fine(s->first, open_second(s, &o));
        s->first->err = kept;
    }
    return 0;
}

static void test_two_newcomers(void **state)
{
    (void)state;
    fixture x;
    script s;
    begin(&x, &s, "mem:takeover-two", NULL);
    dw_publish_options o = options_of(&s, NULL);
    o.progress = (dw_progress){steal, &s};
    assert_int_equal(open_second(&s, &o), DW_CONFLICT);
    assert_non_null(strstr(x.err.text, "another writer took the stream over"));
    fixture_close(&x);
}

/* ---- processes of this machine ---- */

static void hold_until_killed(const char *url, int told)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    fixture x;
    dw_publish_options o;
    dw_publish_options_init(&o);
    fixture_open(&x, url, &o);
    if (write(told, "x", 1) != 1)
        _exit(1);
    for (;;)
        pause();
}

static int kill_it(void *context, uint64_t n_done, uint64_t n_total)
{
    script *s = context;
    (void)n_done, (void)n_total;
    if (s->n_notices == 1) {
        assert_non_null(strstr(s->notices[0], "process "));
        s->has_waited = true;
        kill((pid_t)s->n_publishes, SIGKILL); /* nobody asks for its status: a zombie */
    }
    return 0;
}

static void test_a_process_that_was_killed(void **state)
{
    (void)state;
    for (int while_waiting = 0; while_waiting < 2; while_waiting++) {
        char url[4200], byte;
        int told[2];
        snprintf(url, sizeof url, "file://%s/killed-%d", temp_dir, while_waiting);
        assert_int_equal(pipe(told), 0);
        const pid_t pid = fork();
        if (pid == 0)
            hold_until_killed(url, told[1]);
        assert_int_equal(read(told[0], &byte, 1), 1);
        fixture x = {.live = fixture_model()};
        script s = {.first = &x, .n_publishes = (unsigned)pid};
        dw_publish_options o = options_of(&s, NULL);
        o.progress = (dw_progress){kill_it, &s};
        if (!while_waiting) {
            kill(pid, SIGKILL);
            waitpid(pid, NULL, 0);
        }
        assert_fine(&x, dw_store_open(&x.store, url, NULL, &x.err));
        assert_fine(&x, open_second(&s, &o));
        assert_int_equal(s.has_waited, while_waiting);
        assert_non_null(strstr(s.notices[0], while_waiting ? "Waiting" : "it has ended"));
        if (while_waiting)
            waitpid(pid, NULL, 0);
        close(told[0]);
        close(told[1]);
        fixture_close(&x);
    }
}

static void test_processes(void **state)
{
    (void)state;
    dw_process self, other;
    dw_process_self(&self);
    assert_true(self.pid == (uint64_t)getpid() && self.begun > 0);
    assert_true(dw_process_equal(&self, &self));
    assert_false(dw_process_has_ended(&self));
    other = self;
    other.begun++; /* the number was used before */
    assert_true(dw_process_has_ended(&other));
    other.machine[0] ^= 1; /* nobody here knows */
    assert_false(dw_process_has_ended(&other));
    assert_false(dw_process_has_ended(&(dw_process){0}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_that_goes_on_is_left_alone),
        cmocka_unit_test(test_one_late_commit),
        cmocka_unit_test(test_silence),
        cmocka_unit_test(test_no_wait),
        cmocka_unit_test(test_job_of_environment),
        cmocka_unit_test(test_two_newcomers),
        cmocka_unit_test(test_a_process_that_was_killed),
        cmocka_unit_test(test_processes),
    };
    return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}
