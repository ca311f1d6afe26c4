/* wordle-demo: the whole loop on one machine, in processes that could run on several.
 *
 *      trainer ---- weights ---> bucket ---- weights ---> agents, rollout servers
 *         |                                                          ^
 *         +---- text: prompts, guesses, feedback ---- env -----------+
 */
#include <curl/curl.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "demo_cast.h"
#include "demo_proof.h"
#include "demo_view.h"
#include "fail.h"
#include "program.h"

enum { PROOF_MS = 180000, TICK_MS = 200 };

typedef struct demo {
    demo_options options;
    demo_cast cast;
    demo_facts facts;
    demo_view view;
    uint64_t began_ms;
    size_t n_killed;
} demo;

/* ---- watching ---- */

static dw_status kill_those_due(demo *d, dw_error *err)
{
    dw_status status = DW_OK;
    const demo_facts *f = &d->facts;
    const uint64_t step = demo_facts_step(f);
    for (; status == DW_OK && d->n_killed < d->options.n_kills; d->n_killed++) {
        const demo_kill *k = &d->options.kills[d->n_killed];
        if (step < k->step || f->n_steps == 0)
            break;
        demo_view_leave(&d->view);
        fprintf(d->view.out, "%s%.*s gets SIGKILL after step %zu, and is started anew\n",
                d->view.terminal ? "\n" : "", (int)k->n_name, k->name, (size_t)step);
        status = demo_cast_kill(&d->cast, k->name, k->n_name, err);
    }
    return status;
}

static dw_status trainer_ended(demo *d, dw_error *err)
{
    const demo_process *p = &d->cast.trainer;
    char why[512];
    if (WIFEXITED(p->status) && WEXITSTATUS(p->status) == 0)
        return DW_OK;
    demo_last_words(p, why, sizeof why);
    return wordle_fail(err, DW_CONFLICT, "trainer", "failed: %s", why);
}

static dw_status watch(demo *d, dw_error *err)
{
    for (;;) {
        demo_facts_update(&d->facts);
        demo_view_show(&d->view, &d->facts,
                       (double)(program_clock_ms() - d->began_ms) / 1000);
        if (!demo_runs(&d->cast.trainer)) {
            demo_facts_update(&d->facts); /* its last output */
            return trainer_ended(d, err);
        }
        dw_status status = kill_those_due(d, err);
        if (status != DW_OK)
            return status;
        const demo_process *missing = demo_cast_missing(&d->cast);
        if (missing) {
            char why[512];
            demo_last_words(missing, why, sizeof why);
            return wordle_fail(err, DW_CONFLICT, missing->name, "has ended: %s", why);
        }
        if (program_take_end(TICK_MS))
            return wordle_fail(err, DW_CANCELLED, "wordle-demo", "interrupted");
    }
}

/* ---- keeping and removing files ---- */

static dw_status make_record_dir(const demo_options *o, dw_error *err)
{
    if (!o->record || mkdir(o->record, 0777) == 0 || errno == EEXIST)
        return DW_OK;
    return wordle_fail(err, DW_IO, o->record, "cannot be made: %s", strerror(errno));
}

/* A missing file was not written yet. */
static dw_status record_file(const char *from_dir, const char *to_dir, const char *name,
                             dw_error *err)
{
    char from[DEMO_PATH_BYTES], to[DEMO_PATH_BYTES], bytes[65536];
    size_t n;
    snprintf(from, sizeof from, "%s/%s", from_dir, name);
    if (snprintf(to, sizeof to, "%s/%s", to_dir, name) >= (int)sizeof to)
        return wordle_fail(err, DW_INVALID, to_dir, "is too long a path");
    FILE *in = fopen(from, "r"), *out = in ? fopen(to, "w") : NULL;
    bool good = !in || out;
    while (out && (n = fread(bytes, 1, sizeof bytes, in)) > 0)
        good = fwrite(bytes, 1, n, out) == n && good;
    if (in)
        fclose(in);
    if (out)
        good = fclose(out) == 0 && good;
    return good ? DW_OK : wordle_fail(err, DW_IO, to, "cannot be written");
}

static dw_status record(const demo *d, dw_error *err)
{
    const char *to = d->options.record;
    if (!to)
        return DW_OK;
    dw_status status = record_file(d->cast.dir, to, "train.jsonl", err);
    for (size_t i = 0; status == DW_OK && i < d->options.n_servers; i++) {
        char name[32];
        snprintf(name, sizeof name, "agent-%zu.log", i);
        status = record_file(d->cast.dir, to, name, err);
    }
    return status;
}

static dw_status remove_entry(void *context, const dw_store_entry *entry, dw_error *err)
{
    return dw_store_remove(context, entry->key, err);
}

/* Removes the objects of a store that is not in the directory. */
static void empty_store(const demo *d)
{
    dw_store *store = NULL;
    dw_error err = {0};
    if (!d->options.store || d->options.keep || !d->cast.store[0])
        return;
    dw_status status = dw_store_open(&store, d->cast.store, NULL, &err);
    if (status == DW_OK)
        status = dw_store_list(store, "", NULL, remove_entry, store, &err);
    if (status != DW_OK)
        fprintf(stderr, "wordle-demo: objects are left at %s: %s\n", d->cast.store,
                err.text);
    dw_store_close(store);
}

/* ---- all of it ---- */

static dw_status play(demo *d, const char *dir, dw_error *err)
{
    dw_status status = demo_cast_prepare(&d->cast, &d->options, dir, err);
    if (status == DW_OK) {
        demo_facts *f = &d->facts;
        f->n_asked = d->options.n_steps;
        f->n_servers = d->options.n_servers;
        snprintf(f->metrics.path, sizeof f->metrics.path, "%s/train.jsonl", dir);
        for (size_t i = 0; i < f->n_servers; i++) {
            f->servers[i].version = UINT64_MAX;
            snprintf(f->servers[i].events.path, sizeof f->servers[i].events.path,
                     "%s/agent-%zu.log", dir, i);
        }
        status = demo_cast_start(&d->cast, err);
    }
    if (status == DW_OK)
        status = watch(d, err);
    demo_view_leave(&d->view);
    if (status == DW_OK) {
        demo_view_summary(&d->view, &d->facts);
        if (!demo_proof(d->view.out, &d->cast, &d->facts, PROOF_MS))
            status = program_is_to_end()
                         ? wordle_fail(err, DW_CANCELLED, "wordle-demo", "interrupted")
                         : wordle_fail(err, DW_MISMATCH, "the servers",
                                       "do not hold what the trainer holds");
    }
    dw_error why;
    if (record(d, &why) != DW_OK && status == DW_OK) {
        status = why.code;
        *err = why;
    }
    if (d->cast.options)
        demo_cast_end(&d->cast);
    empty_store(d);
    return status;
}

int main(int argc, char **argv)
{
    static demo d; /* large */
    dw_error err = {0};
    d.options = demo_options_read(argc, argv);
    program_block_signals();
    curl_global_init(CURL_GLOBAL_ALL);
    const char *root = getenv("TMPDIR");
    char dir[DEMO_PATH_BYTES / 4];
    int janitor = -1;
    if (make_record_dir(&d.options, &err) != DW_OK)
        return program_fail("wordle-demo", &err);
    if (snprintf(dir, sizeof dir, "%s/wordle-demo-XXXXXX",
                 root && *root ? root : "/tmp") >= (int)sizeof dir) {
        wordle_fail(&err, DW_INVALID, "TMPDIR", "is too long a path");
        return program_fail("wordle-demo", &err);
    }
    if (!mkdtemp(dir)) {
        wordle_fail(&err, DW_IO, dir, "cannot be made: %s", strerror(errno));
        return program_fail("wordle-demo", &err);
    }
    d.began_ms = program_clock_ms();
    demo_view_open(&d.view, stdout);
    dw_status status = d.options.keep ? DW_OK : demo_janitor(dir, &janitor, &err);
    if (status == DW_OK)
        status = play(&d, dir, &err);
    demo_facts_release(&d.facts);
    curl_global_cleanup();
    if (d.options.keep)
        printf("everything is in %s\n", dir);
    if (janitor >= 0) {
        close(janitor);
        while (wait(NULL) > 0)
            ;
    }
    if (status == DW_CANCELLED)
        return 130;
    return status == DW_OK ? 0 : program_fail("wordle-demo", &err);
}
