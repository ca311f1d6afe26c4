/* One process follows a stream into a directory. Others read the weights all the time,
 * with hold and with look, and compute their digest. All are killed at random and
 * restarted. Each read must get exactly the reported version.
 *
 *     VERSIONS=n        to be written (100; 30 with a sanitizer)
 *     SEED=n            repeats the choices of a run; the instants are the machine's own
 *     SOAK_KEEP=1       leaves logs and directories where they are
 */
/* labels: threads */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "deltawire/follow.h"
#include "deltawire/publish.h"
#include "process.h"
#include "role.h"
#include "truth.h"

#define HEAD 24 /* of the stream; the writer goes up and down */
#define ELEMS                                                                            \
    1000003 /* of the large tensor, so that a digest takes longer than a flip            \
             */
#define READERS 3
#define HANG_MS 300000

/* Memory that the processes share. */
static struct shared {
    uint64_t states[HEAD + 1]; /* the digest that each version has */
    uint64_t seed;
    _Atomic bool filled;
    _Atomic uint64_t n_versions, n_holds, n_looks, n_torn, n_waits, n_faults;
} * shared;

static char url[SOAK_PATH], into[SOAK_PATH], spool[SOAK_PATH];

static void fault(const char *what, uint64_t a, uint64_t b)
{
    shared->n_faults++;
    printf("%s: %" PRIu64 ", %" PRIx64 "\n", what, a, b);
    fflush(stdout);
}

/* ---- the stream ---- */

static bool publish(void)
{
    static const uint64_t dims[][1] = {{ELEMS}, {777}, {1001}};
    dw_tensor tensors[] = {{"big.weight", DW_BF16, 1, dims[0], 0, NULL, 0, NULL},
                           {"norm", DW_F32, 1, dims[1], 0, NULL, 0, NULL},
                           {"odd", DW_U8, 1, dims[2], 0, NULL, 0, NULL}};
    uint64_t luck = shared->seed;
    for (size_t i = 0; i < 3; i++) {
        dw_tensor *t = &tensors[i];
        if (!dw_shape_size(t->dtype, 1, t->dims, NULL, &t->n_bytes))
            return false;
        t->data = malloc((size_t)t->n_bytes);
        for (size_t k = 0; k < t->n_bytes; k++)
            ((uint8_t *)t->data)[k] = (uint8_t)soak_random(&luck);
    }
    dw_store *store;
    dw_error err = {0};
    dw_publisher *p = NULL;
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.spool_dir = spool;
    options.anchor_every = 8;
    dw_status status = soak_store_open(&store, url, &err);
    if (status == DW_OK)
        status = dw_publisher_open(&p, store, tensors, 3, &options, &err);
    for (uint64_t v = 0; status == DW_OK && v <= HEAD; v++) {
        uint64_t ticket;
        dw_publish_report report;
        dw_digest digests[3];
        for (unsigned i = 0; v > 0 && i < ELEMS / 40; i++) {
            dw_tensor *t = &tensors[i % 20 == 0 ? 1 + i % 2 : 0];
            ((uint8_t *)t->data)[soak_below(&luck, t->n_bytes)] ^=
                (uint8_t)(1 + soak_below(&luck, 255));
        }
        status =
            dw_digest_tensors(digests, &shared->states[v], tensors, 3, 1, NULL, &err);
        if (status == DW_OK && v > 0)
            status = dw_publisher_publish(p, &ticket, NULL, &err);
        if (status == DW_OK && v > 0)
            status = dw_publisher_wait(p, ticket, HANG_MS, NULL, &report, &err);
    }
    dw_publisher_close(p);
    dw_store_close(store);
    if (status != DW_OK)
        soak_say("publishing", status, &err);
    return status == DW_OK;
}

/* ---- the writer ---- */

static void maybe_die(uint64_t *luck, uint64_t one_in)
{
    if (soak_below(luck, one_in) == 0)
        raise(SIGKILL);
}

static dw_status step(dw_follower *f, uint64_t goal, uint64_t *luck, dw_error *err)
{
    uint64_t staged;
    dw_status status = dw_follower_stage(f, goal, &staged, NULL, err);
    maybe_die(luck, 100);
    if (status == DW_OK)
        status = dw_follower_prepare(f, err);
    maybe_die(luck, 60);
    if (status == DW_OK)
        status = dw_follower_apply(f, err);
    maybe_die(luck, 60);
    if (status == DW_OK)
        status = dw_follower_finish(f, err);
    return status;
}

static int write_on(uint64_t luck)
{
    dw_store *store;
    dw_follower *f = NULL;
    dw_error err = {0};
    dw_follow_options options;
    dw_follow_options_init(&options);
    options.into = into;
    options.n_threads = 2;
    options.reader_wait_ms = 300000;
    options.sweep_every = 7;
    dw_status status = soak_store_open(&store, url, &err);
    if (status == DW_OK)
        status = dw_follower_open(&f, store, &options, &err);
    while (status == DW_OK) {
        uint64_t at = dw_follower_version(f);
        uint64_t goal = at == DW_NO_VERSION || at == HEAD ? soak_below(&luck, HEAD / 2)
                                                          : at + 1 + soak_below(&luck, 2);
        goal = goal > HEAD ? HEAD : goal;
        if (goal == at)
            continue;
        status = step(f, goal, &luck, &err);
        if (status == DW_OK) {
            shared->n_versions++;
            shared->filled = true;
        }
    }
    soak_say("the writer", status, &err);
    shared->n_faults++;
    return SOAK_FAULT;
}

/* ---- a reader ---- */

static bool is_right(const dw_snapshot_view *view)
{
    dw_digest digests[8], state = 0;
    return view->n_tensors == 3 && view->version <= HEAD &&
           view->state == shared->states[view->version] &&
           dw_digest_tensors(digests, &state, view->tensors, view->n_tensors, 1, NULL,
                             NULL) == DW_OK &&
           state == view->state;
}

/* Checks a failed hold. */
static void was_refused(dw_status status, const dw_error *err)
{
    shared->n_waits++;
    if (status != DW_UNAVAILABLE) {
        soak_say("a reader", status, err);
        shared->n_faults++;
    }
}

static void read_once(dw_snapshot *s, uint64_t *luck)
{
    dw_snapshot_view view;
    dw_error err = {0};
    const unsigned patience = 20;
    const bool hold = soak_below(luck, 2) == 0;
    dw_status status = hold ? dw_snapshot_hold(s, patience, &view, &err)
                            : dw_snapshot_look(s, patience, &view, &err);
    if (status != DW_OK) {
        was_refused(status, &err);
        return;
    }
    const bool right = is_right(&view);
    if (!hold && !dw_snapshot_unchanged(s, &view)) {
        shared->n_torn++; /* the data is discarded */
        return;
    }
    if (!right)
        fault(hold ? "what was held is not the version"
                   : "what was seen is not the version",
              view.version, view.mark.sequence);
    if (!hold) {
        shared->n_looks++;
        return;
    }
    shared->n_holds++;
    maybe_die(luck, 150); /* while it holds the weights */
    if (soak_below(luck, 4) == 0 && !is_right(&view))
        fault("what is held has changed", view.version, view.mark.sequence);
    dw_snapshot_release(s);
}

static void read_on(uint64_t luck)
{
    for (;;) {
        dw_snapshot *s;
        dw_error err = {0};
        dw_status status = dw_snapshot_open(&s, into, &err);
        if (status != DW_OK) {
            /* the writer is gone or has not started */
            if (status != DW_UNAVAILABLE && (status != DW_NOT_FOUND || shared->filled))
                was_refused(status, &err);
            soak_sleep_ms(1);
            continue;
        }
        for (uint64_t n = 1 + soak_below(&luck, 100); n > 0; n--) {
            read_once(s, &luck);
            soak_sleep_ms(soak_below(&luck, 4)); /* cores are few */
        }
        dw_snapshot_close(s);
    }
}

/* ---- all of them ---- */

static pid_t start(unsigned i, uint64_t luck)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (i == 0)
            _exit(write_on(luck));
        read_on(luck);
    }
    return pid;
}

static bool run(uint64_t n_versions)
{
    pid_t pids[1 + READERS] = {0};
    uint64_t luck = shared->seed, n_ends[2] = {0};
    uint64_t hangs_at = soak_now_ms() + HANG_MS, n_before = 0;
    uint64_t pause_ms = 30; /* longer if writers are killed before they make progress */
    for (unsigned i = 0; i <= READERS; i++)
        pids[i] = start(i, soak_random(&luck));
    while (shared->n_faults == 0 &&
           (shared->n_versions < n_versions || shared->n_holds < n_versions ||
            shared->n_looks < n_versions || n_ends[0] < 5 || n_ends[1] < 5)) {
        if (soak_now_ms() > hangs_at) {
            printf("it hangs\n");
            shared->n_faults++;
        }
        soak_sleep_ms(1 + soak_below(&luck, pause_ms));
        unsigned i = (unsigned)soak_below(&luck, 1 + READERS);
        if (soak_below(&luck, 8) == 0) {
            kill(pids[i], SIGKILL);
            if (i == 0 && shared->n_versions > n_before) {
                hangs_at = soak_now_ms() + HANG_MS;
                n_before = shared->n_versions;
                pause_ms = 30;
            } else if (i == 0 && pause_ms < 1000) {
                pause_ms *= 2;
            }
        }
        for (i = 0; i <= READERS; i++)
            if (waitpid(pids[i], NULL, WNOHANG) == pids[i]) {
                n_ends[i > 0]++;
                pids[i] = start(i, soak_random(&luck));
            }
    }
    for (unsigned i = 0; i <= READERS; i++) {
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
    }
    printf("%" PRIu64 " versions, %" PRIu64 " held, %" PRIu64 " looked at, %" PRIu64
           " changed meanwhile, %" PRIu64 " waited in vain, %" PRIu64
           " writers and %" PRIu64 " readers ended\n",
           shared->n_versions, shared->n_holds, shared->n_looks, shared->n_torn,
           shared->n_waits, n_ends[0], n_ends[1]);
    return shared->n_faults == 0;
}

/* In memory if there is such a directory: the disk is not tested. */
static void choose_into(void)
{
    const char *root = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(into, sizeof into, "%s/%s", root, strrchr(soak_dir, '/') + 1);
}

int main(void)
{
    const char *sanitize = getenv("DW_SANITIZE");
    const uint64_t n_versions = soak_env("VERSIONS", sanitize && *sanitize ? 30 : 100);
    setvbuf(stdout, NULL, _IOLBF, 0);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 2;
    shared->seed = soak_env("SEED", soak_now_ms() * (uint64_t)getpid());
    printf("SEED=%" PRIu64 "\n", shared->seed);
    soak_begin();
    soak_subdir(spool, "spool");
    soak_store_url(url, "snapshot");
    int status = 1;
    pid_t publisher = fork(); /* so that this process has no threads */
    if (publisher == 0)
        _exit(publish() ? 0 : 1);
    waitpid(publisher, &status, 0);
    choose_into();
    const bool good = status == 0 && run(n_versions);
    if (!getenv("SOAK_KEEP"))
        soak_remove_tree(into);
    return soak_end(good);
}
