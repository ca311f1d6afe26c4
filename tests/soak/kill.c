/* Publishers, followers, collectors and compactors are killed at random instants,
 * repeatedly. After each round all guarantees must hold (check.h).
 *
 *     ROUNDS=n          rounds (30; 10 with a sanitizer)
 *     SEED=n ROUND=n    repeats the choices of a run, from a round on; the instants are
 *                       the machine's own
 *     DW_TEST_STORE     URL below which streams are made; default: a directory
 *     CHAOS_MS=n        length of a round; default: by the speed of the store
 *     SOAK_KEEP=1       leaves logs and directories where they are
 */
/* labels: threads */
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

#define GENERATION 25 /* rounds on one stream */
#define HANG_MS                                                                          \
    300000 /* for processes that were asked to end: a sanitizer on a busy machine */

/* ---- actors ---- */

enum {
    PUBLISHER,
    INTO_DIR,
    INTO_MEMORY,
    COLLECTOR,
    COMPACTOR,
    RIVAL,
    COLLECTOR_2,
    ACTORS
};

/* Points to die at, by the beginning of their names: keys that are written or removed,
 * and events of the role. */
static const struct kind {
    const char *role;
    unsigned percent; /* of the rounds that it takes part in */
    const char *moments[8];
} kinds[ACTORS] = {
    [PUBLISHER] = {"publish",
                   100,
                   {"commits/", "objects/", "epochs/", "ways/", "latest", "captured",
                    "committed", "stream.json"}},
    [INTO_DIR] = {"follow",
                  100,
                  {"staged", "applied", "finished", "reported", "followers/", "opened",
                   "applied", "staged"}},
    [INTO_MEMORY] = {"follow",
                     100,
                     {"staged", "applied", "finished", "reported", "followers/", "opened",
                      "reported", "staged"}},
    [COLLECTOR] = {"collect",
                   75,
                   {"floor", "objects/", "ways/", "removed", "collected", "objects/",
                    "removed", "ways/"}},
    [COMPACTOR] = {"compact",
                  30,
                  {"objects/", "ways/", "latest", "compacted", "objects/", "ways/",
                   "followers/", "compacted"}},
    [RIVAL] = {"publish",
               30,
               {"commits/", "objects/", "epochs/", "ways/", "latest", "captured",
                "committed", "opened"}},
    [COLLECTOR_2] = {"collect",
                     40,
                     {"floor", "objects/", "ways/", "removed", "collected", "objects/",
                      "removed", "ways/"}},
};

typedef struct actor {
    uint64_t
        luck; /* its own generator, so that its choices do not depend on the others */
    uint64_t start_at; /* UINT64_MAX: never */
    uint64_t kill_at, go_on_at;
    pid_t pid; /* 0: not running */
} actor;

static struct {
    uint64_t seed, round, chaos_ms;
    char url[SOAK_PATH];
    char baseline[SOAK_PATH], into[SOAK_PATH], late[SOAK_PATH], spool[SOAK_PATH],
        work[SOAK_PATH], acked[SOAK_PATH];
    soak_history history;
    actor actors[ACTORS];
    uint64_t n_kills, n_versions;
    bool good;
} soak;

static void choose_doom(char *out, size_t n_out, const struct kind *kind, actor *a)
{
    const char *moment = kind->moments[soak_below(&a->luck, 8)];
    unsigned n = 1 + (unsigned)soak_below(&a->luck, soak_below(&a->luck, 2) ? 3 : 20);
    unsigned delay = (unsigned)soak_below(&a->luck, 2) *
                     (unsigned)soak_below(&a->luck, soak_below(&a->luck, 2) ? 200 : 3000);
    switch (soak_below(&a->luck, 10)) {
    case 0:
    case 1:
        snprintf(out, n_out, "doom=call:%u", 1 + (unsigned)soak_below(&a->luck, 150));
        break;
    case 2:
    case 3:
        snprintf(out, n_out, "doom=at:%s:%u:%u", moment, n, delay);
        break;
    case 4:
        snprintf(out, n_out, "doom=after:%s:%u", moment, n);
        break;
    case 5:
    case 6: /* by the driver */
        a->kill_at = soak_now_ms() + soak_below(&a->luck, soak.chaos_ms);
        snprintf(out, n_out, "doom=never");
        break;
    case 7: /* it continues after others went on */
        moment = soak_below(&a->luck, 2) ? kind->moments[0] : moment;
        snprintf(out, n_out, "doom=stop:%s:%u", moment, 1 + n % 3);
        a->go_on_at = soak_now_ms() + soak_below(&a->luck, soak.chaos_ms);
        if (a == &soak.actors[PUBLISHER] && soak.actors[RIVAL].pid == 0)
            soak.actors[RIVAL].start_at = soak_now_ms() + soak_below(&a->luck, 60);
        break;
    default:
        snprintf(out, n_out, "doom=never");
    }
}

static void start(size_t i)
{
    actor *a = &soak.actors[i];
    char text[16][SOAK_PATH + 16];
    const char *argv[16];
    size_t n = 0;
    a->kill_at = a->go_on_at = UINT64_MAX;
#define ARG(...) (snprintf(text[n], sizeof text[n], __VA_ARGS__), argv[n] = text[n], n++)
    ARG("%s", kinds[i].role);
    ARG("%s", soak.url);
    ARG("%" PRIu64, soak.history.seed);
    choose_doom(text[n], sizeof text[n], &kinds[i], a);
    argv[n] = text[n];
    n++;
    ARG("spool=%s", soak.spool);
    ARG("luck=%" PRIu64, soak_random(&a->luck));
    ARG("slow=%u", (unsigned)soak_below(&a->luck, 3) * 2);
    ARG("slow_ms=%u", soak_below(&a->luck, 2) ? 20 : 200);
    switch (i) {
    case PUBLISHER:
    case RIVAL:
        ARG("n=%u", 2 + (unsigned)soak_below(&a->luck, 9));
        ARG("pace=%u", (unsigned)soak_below(&a->luck, 20));
        ARG("busy=%u", (unsigned)soak_below(&a->luck, 3));
        ARG("acked=%s", soak.acked);
        ARG("skip=1");
        if (i == PUBLISHER)
            ARG("baseline=%s", soak.baseline);
        else
            ARG("ahead=5"); /* not what the other one publishes */
        break;
    case INTO_DIR:
    case INTO_MEMORY:
        if (i == INTO_DIR)
            ARG("into=%s", soak.into);
        ARG("id=%s", i == INTO_DIR ? "dir" : "memory");
        ARG("pace=%u", (unsigned)soak_below(&a->luck, 15));
        if (soak_below(&a->luck, 2) == 0)
            ARG("steps=1");
        break;
    case COMPACTOR:
        ARG("work=%s", soak.work);
        ARG("pace=%u", (unsigned)soak_below(&a->luck, 40));
        break;
    default:
        ARG("keep=%u", 1 + (unsigned)soak_below(&a->luck, 4));
        ARG("pace=%u", (unsigned)soak_below(&a->luck, 30));
    }
#undef ARG
    a->pid = soak_start(argv, n);
}

/* ---- a round ---- */

static void reap(actor *a)
{
    if (a->pid == 0 || !soak_has_ended(a->pid, &soak.good))
        return;
    a->pid = 0;
    soak.n_kills++; /* or it ended by itself */
    a->start_at = soak_now_ms() + soak_below(&a->luck, 30);
}

/* It may stop itself later, so this is repeated, but not so often that it disturbs a
 * sanitizer, which stops the threads itself. */
static void wake(actor *a, uint64_t now)
{
    if (a->pid == 0 || now < a->go_on_at)
        return;
    kill(a->pid, SIGCONT);
    a->go_on_at = now + 200;
}

static void rage(void)
{
    const uint64_t begun = soak_now_ms();
    for (size_t i = 0; i < ACTORS; i++) {
        actor *a = &soak.actors[i];
        *a = (actor){.luck = soak.seed ^ soak.round << 20 ^ (i + 1) << 50};
        bool in = soak_below(&a->luck, 100) < kinds[i].percent;
        uint64_t delay = i == RIVAL ? soak.chaos_ms / 2 : 20;
        a->start_at = in ? begun + soak_below(&a->luck, delay) : UINT64_MAX;
    }
    while (soak_now_ms() < begun + soak.chaos_ms && soak.good) {
        for (size_t i = 0; i < ACTORS; i++) {
            actor *a = &soak.actors[i];
            reap(a);
            uint64_t now = soak_now_ms();
            if (a->pid == 0 && now >= a->start_at)
                start(i);
            else if (a->pid != 0 && now >= a->kill_at)
                kill(a->pid, SIGKILL);
            else
                wake(a, now);
        }
        soak_sleep_ms(1);
    }
}

/* Some are killed, some may finish. */
static void calm(void)
{
    const uint64_t asked = soak_now_ms();
    bool left = true;
    for (size_t i = 0; i < ACTORS; i++) {
        actor *a = &soak.actors[i];
        if (a->pid != 0)
            kill(a->pid, soak_below(&a->luck, 2) ? SIGKILL : SIGTERM);
        if (a->go_on_at != UINT64_MAX)
            a->go_on_at = asked;
    }
    while (left) {
        left = false;
        for (size_t i = 0; i < ACTORS; i++) {
            actor *a = &soak.actors[i];
            reap(a);
            wake(a, soak_now_ms());
            if (a->pid != 0 && !soak.good)
                kill(a->pid, SIGKILL);
            if (a->pid != 0 && soak_now_ms() > asked + HANG_MS && soak.good) {
                printf("a %s does not end\n", kinds[i].role);
                soak.good = false;
            }
            left = left || a->pid != 0;
        }
        soak_sleep_ms(1);
    }
}

static bool check(void)
{
    dw_store *store;
    dw_error err = {0};
    dw_status status = soak_store_open(&store, soak.url, &err);
    if (status != DW_OK) {
        printf("%s\n", err.text);
        return false;
    }
    const soak_history *history = &soak.history;
    bool good =
        soak_check_log(&soak.history, store) && soak_check_acked(history, soak.acked);
    if (good && history->n > 0) {
        good = soak_check_verify(store) && soak_check_fresh(history, store) &&
               soak_check_dir(history, store, soak.into, "dir", true) &&
               soak_check_verify(store) && soak_check_fresh(history, store);
        if (good && soak.round % 5 == 4) /* without waiting for this one */
            good = soak_check_dir(history, store, soak.late, NULL, false);
    }
    dw_store_close(store);
    return good;
}

/* ---- the run ---- */

static void begin_generation(void)
{
    char name[32];
    snprintf(name, sizeof name, "g%" PRIu64, soak.round / GENERATION);
    soak_store_url(soak.url, name);
    soak_subdir(soak.baseline, "baseline");
    soak_subdir(soak.into, "into");
    soak_subdir(soak.late, "late");
    soak_subdir(soak.spool, "spool");
    soak_subdir(soak.work, "work");
    snprintf(soak.acked, sizeof soak.acked, "%s/acked", soak_dir);
    soak.history.seed = soak.seed + soak.round / GENERATION;
}

static void end_generation(void)
{
    soak.n_versions += soak.history.n;
    soak_history_forget(&soak.history);
    soak.good = soak_store_empty(soak.url) && soak.good;
    const char *dirs[] = {soak.baseline, soak.into, soak.late, soak.spool, soak.work};
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++)
        soak_remove_tree(dirs[i]);
}

/* A round takes as long as publishing a few versions here: servers, sanitizers and busy
 * machines are slower. */
static uint64_t choose_length(void)
{
    char url[SOAK_PATH], acked[SOAK_PATH + 8];
    soak_store_url(url, "trial");
    snprintf(acked, sizeof acked, "acked=%s/trial", soak_dir);
    const char *argv[] = {"publish", url, "1", "n=4", acked};
    const uint64_t begun = soak_now_ms();
    pid_t pid = soak_start(argv, 5);
    while (!soak_has_ended(pid, &soak.good))
        soak_sleep_ms(1);
    uint64_t took = soak_now_ms() - begun;
    soak.good = soak_store_empty(url) && soak.good;
    return took < 100 ? 300 : took > 333 ? 1000 : 3 * took;
}

int main(void)
{
    const char *sanitizer = getenv("DW_SANITIZE");
    const bool plain = !sanitizer || !*sanitizer;
    const uint64_t n_rounds = soak_env("ROUNDS", plain ? 30 : 10), begun = soak_now_ms();
    soak.seed = soak_env("SEED", (uint64_t)time(NULL) ^ (uint64_t)getpid() << 32);
    soak.round = soak_env("ROUND", 0) / GENERATION * GENERATION;
    soak.good = true;
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("SEED=%" PRIu64 "\n", soak.seed);
    soak_begin();
    soak.chaos_ms = soak_env("CHAOS_MS", 0);
    if (soak.chaos_ms == 0)
        soak.chaos_ms = choose_length();
    uint64_t n_done = 0;
    while (n_done < n_rounds && soak.good) {
        if (soak.round % GENERATION == 0)
            begin_generation();
        rage();
        calm();
        soak.good = soak.good && check();
        if (!soak.good)
            break;
        n_done++;
        soak.round++;
        if (soak.round % GENERATION == 0 || n_done == n_rounds)
            end_generation();
    }
    if (!soak.good)
        printf("FAILED in round %" PRIu64 "; to repeat: SEED=%" PRIu64 " ROUND=%" PRIu64
               "\n",
               soak.round, soak.seed, soak.round);
    printf("%" PRIu64 " rounds, %" PRIu64 " processes ended, %" PRIu64
           " versions, %" PRIu64 " s (%" PRIu64 " ms of kills a round)\n",
           n_done, soak.n_kills, soak.n_versions + soak.history.n,
           (soak_now_ms() - begun) / 1000, soak.chaos_ms);
    return soak_end(soak.good);
}
