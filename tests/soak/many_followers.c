/* A hundred followers of one stream: some are late, some stop for a while, some are
 * killed and start again, and half of them have directories. All reach the newest
 * version, bit for bit, and are listed with it.
 *
 *     FOLLOWERS=n       how many (100)
 *     SEED=n            repeats the choices of a run
 *     DW_TEST_STORE     URL below which the stream is made; default: a directory
 */
/* labels: slow */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "process.h"
#include "role.h"
#include "truth.h"

#define VERSIONS    20
#define DEADLINE_MS 500000 /* for the whole test; a few seconds are usual */
#define MOST        1000

typedef struct follower {
    pid_t pid;
    bool arrived;
    uint64_t start_at, stop_at, go_on_at, kill_at; /* UINT64_MAX: not (any more) */
} follower;

static struct {
    uint64_t seed, n, end;
    bool local, good;
    char url[SOAK_PATH], spool[SOAK_PATH];
    follower followers[MOST];
    pid_t publisher, collector;
} test;

static bool has_dir(size_t i)
{
    return i % 2 == 0;
}

static void dir_of(char out[SOAK_PATH], size_t i)
{
    char name[32];
    snprintf(name, sizeof name, "into-%zu", i);
    soak_subdir(out, name);
}

static void choose(uint64_t luck)
{
    const uint64_t now = soak_now_ms();
    for (size_t i = 0; i < test.n; i++) {
        follower *f = &test.followers[i];
        *f = (follower){.start_at = now + soak_below(&luck, i % 4 == 3 ? 5000 : 300),
                        .stop_at = UINT64_MAX,
                        .go_on_at = UINT64_MAX,
                        .kill_at = UINT64_MAX};
        if (i % 5 == 0) {
            f->stop_at = f->start_at + soak_below(&luck, 3000);
            f->go_on_at = f->stop_at + 300 + soak_below(&luck, 2000);
        }
        if (i % 7 == 0)
            f->kill_at = f->start_at + soak_below(&luck, 4000);
    }
}

static pid_t start_role(const char *role, const char *const more[], size_t n_more)
{
    char seed[24], spool[SOAK_PATH + 8];
    snprintf(seed, sizeof seed, "%" PRIu64, test.seed);
    snprintf(spool, sizeof spool, "spool=%s", test.spool);
    const char *argv[16] = {role, test.url, seed, spool};
    for (size_t i = 0; i < n_more; i++)
        argv[4 + i] = more[i];
    return soak_start(argv, 4 + n_more);
}

static void start_follower(size_t i)
{
    char id[32], until[32], pace[32], dir[SOAK_PATH], into[SOAK_PATH + 8];
    snprintf(id, sizeof id, "id=follower-%03zu", i);
    snprintf(until, sizeof until, "until=%d", VERSIONS);
    snprintf(pace, sizeof pace, "pace=%zu", (test.local ? 20 : 200) + i % 10 * 20);
    const char *more[5] = {id, until, pace};
    size_t n = 3;
    if (i % 3 == 0)
        more[n++] = "steps=1";
    if (has_dir(i)) {
        dir_of(dir, i);
        snprintf(into, sizeof into, "into=%s", dir);
        more[n++] = into;
    }
    test.followers[i].pid = start_role("follow", more, n);
}

static void start_others(void)
{
    char baseline[SOAK_PATH], keep[SOAK_PATH + 16], acked[SOAK_PATH + 16], n[16];
    soak_subdir(baseline, "baseline");
    snprintf(keep, sizeof keep, "baseline=%s", baseline);
    snprintf(acked, sizeof acked, "acked=%s/acked", soak_dir);
    snprintf(n, sizeof n, "n=%d", VERSIONS);
    const char *publish[] = {n, "pace=250", keep, acked};
    test.publisher = start_role("publish", publish, 4);
    const char *collect[] = {"keep=5", "pace=300"};
    test.collector = start_role("collect", collect, 2);
}

/* Does what is due for follower I. */
static void tend(size_t i)
{
    follower *f = &test.followers[i];
    const uint64_t now = soak_now_ms();
    if (f->pid == 0) {
        if (now >= f->start_at)
            start_follower(i);
        return;
    }
    if (now >= f->stop_at) {
        kill(f->pid, SIGSTOP);
        f->stop_at = UINT64_MAX;
    }
    if (now >= f->go_on_at) {
        kill(f->pid, SIGCONT);
        f->go_on_at = UINT64_MAX;
    }
    const bool kills = now >= f->kill_at;
    if (kills)
        kill(f->pid, SIGKILL);
    /* a killed one may have arrived just before: it starts again anyway */
    if (!soak_has_ended(f->pid, &test.good))
        return;
    f->pid = 0;
    f->arrived = !kills;
    f->start_at = now + 100;
    if (kills)
        f->kill_at = UINT64_MAX;
}

static bool follow_all(void)
{
    size_t n_arrived = 0;
    bool published = false;
    while (test.good && (n_arrived < test.n || !published)) {
        n_arrived = 0;
        for (size_t i = 0; i < test.n; i++) {
            if (!test.followers[i].arrived)
                tend(i);
            n_arrived += test.followers[i].arrived;
        }
        if (!published && soak_has_ended(test.publisher, &test.good)) {
            published = true;
            test.publisher = 0;
        }
        if (soak_now_ms() > test.end) {
            printf("only %zu followers have arrived\n", n_arrived);
            return false;
        }
        soak_sleep_ms(5);
    }
    return test.good;
}

/* ---- checks ---- */

static void count_follower(void *context, const dw_follower_info *info)
{
    uint64_t *n = context;
    if (info->version == VERSIONS && strcmp(info->status, "following") == 0)
        ++*n;
    else
        printf("%s is listed as '%s' at version %" PRId64 "\n", info->id, info->status,
               (int64_t)info->version);
}

static bool are_listed(dw_store *store)
{
    dw_stream *stream;
    dw_error err = {0};
    uint64_t n = 0;
    dw_status status = dw_stream_open(&stream, store, NULL, &err);
    if (status == DW_OK) {
        status = dw_stream_followers(stream, count_follower, &n, &err);
        dw_stream_close(stream);
    }
    if (status != DW_OK || n != test.n)
        printf("%" PRIu64 " of %" PRIu64 " followers are listed as arrived %s\n", n,
               test.n, err.text);
    return status == DW_OK && n == test.n;
}

static bool check(void)
{
    dw_store *store;
    dw_error err = {0};
    soak_history history = {.seed = test.seed};
    if (soak_store_open(&store, test.url, &err) != DW_OK) {
        printf("%s\n", err.text);
        return false;
    }
    bool good = soak_check_log(&history, store) && history.n == VERSIONS + 1 &&
                are_listed(store) && soak_check_verify(store) &&
                soak_check_fresh(&history, store);
    for (size_t i = 0; good && i < test.n; i++) {
        char dir[SOAK_PATH];
        dir_of(dir, i);
        good = !has_dir(i) || soak_check_dir(&history, store, dir, NULL, false);
    }
    soak_history_forget(&history);
    dw_store_close(store);
    return good;
}

/* Ends the remaining processes. */
static void end_all(void)
{
    pid_t left[MOST + 2] = {test.publisher, test.collector};
    for (size_t i = 0; i < test.n; i++)
        left[2 + i] = test.followers[i].pid;
    for (size_t i = 0; i < test.n + 2; i++)
        if (left[i] > 0 && kill(left[i], i == 1 && test.good ? SIGTERM : SIGKILL) == 0)
            while (!soak_has_ended(left[i], &test.good) && soak_now_ms() < test.end)
                soak_sleep_ms(2);
}

int main(void)
{
    const char *url = getenv("DW_TEST_STORE");
    const uint64_t begun = soak_now_ms();
    test.local = !url || !*url || strncmp(url, "file:", 5) == 0;
    test.seed = soak_env("SEED", (uint64_t)time(NULL) ^ (uint64_t)getpid() << 32);
    test.n = soak_env("FOLLOWERS", 100);
    test.n = test.n < MOST ? test.n : MOST;
    test.end = begun + DEADLINE_MS;
    test.good = true;
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("SEED=%" PRIu64 "\n", test.seed);
    soak_begin();
    soak_store_url(test.url, "many");
    soak_subdir(test.spool, "spool");
    choose(test.seed);
    start_others();
    test.good = follow_all();
    const uint64_t arrived = soak_now_ms();
    end_all();
    test.good = test.good && check();
    test.good = soak_store_empty(test.url) && test.good;
    printf("%" PRIu64 " followers arrived in %" PRIu64 " ms, checked in %" PRIu64 " ms\n",
           test.n, arrived - begun, soak_now_ms() - arrived);
    return soak_end(test.good);
}
