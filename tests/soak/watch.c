#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "store/fault_store.h"
#include "role.h"
#include "truth.h"

static struct {
    enum { NEVER, CALL, AT, AFTER, STOP } when;
    char what[64];
    unsigned long n;
    long delay_us;
    atomic_ulong n_seen; /* calls, or matches of WHAT */
    atomic_bool reached; /* AFTER: die at the next call or event */
} doom;

static struct {
    uint64_t luck, percent, most_us;
} slow;

void soak_slow(uint64_t luck, uint64_t percent, uint64_t most_us)
{
    slow.luck = luck;
    slow.percent = percent;
    slow.most_us = most_us;
}

bool soak_doom(const char *plan)
{
    doom.when = NEVER;
    if (strcmp(plan, "never") == 0)
        return true;
    if (sscanf(plan, "call:%lu", &doom.n) == 1)
        doom.when = CALL;
    else if (sscanf(plan, "at:%63[^:]:%lu:%ld", doom.what, &doom.n, &doom.delay_us) == 3)
        doom.when = AT;
    else if (sscanf(plan, "after:%63[^:]:%lu", doom.what, &doom.n) == 2)
        doom.when = AFTER;
    else if (sscanf(plan, "stop:%63[^:]:%lu", doom.what, &doom.n) == 2)
        doom.when = STOP;
    return doom.when != NEVER;
}

static void *die_later(void *unused)
{
    (void)unused;
    const struct timespec delay = {0, doom.delay_us * 1000};
    nanosleep(&delay, NULL);
    kill(getpid(), SIGKILL);
    return NULL;
}

static void die(void)
{
    pthread_t thread;
    if (doom.delay_us == 0 || pthread_create(&thread, NULL, die_later, NULL) != 0)
        kill(getpid(), SIGKILL);
}

static void look(const char *what)
{
    if (doom.when == AFTER && atomic_load(&doom.reached))
        die();
    if (doom.when < AT || !what || strncmp(what, doom.what, strlen(doom.what)) != 0)
        return;
    if (atomic_fetch_add(&doom.n_seen, 1) + 1 != doom.n)
        return;
    if (doom.when == AT)
        die();
    else if (doom.when == STOP)
        kill(getpid(), SIGSTOP);
    else
        atomic_store(&doom.reached, true);
}

void soak_event(const char *name)
{
    look(name);
}

/* Delays some calls, which makes races more likely. */
static void dawdle(const char *operation, const char *key)
{
    static atomic_ullong n_calls;
    uint64_t luck = slow.luck + atomic_fetch_add(&n_calls, 1);
    bool decides = strcmp(operation, "put") == 0 &&
                   (strncmp(key, "commits/", 8) == 0 || strncmp(key, "floor", 5) == 0);
    uint64_t percent = decides ? 10 * slow.percent : slow.percent;
    if (soak_below(&luck, 100) >= percent)
        return;
    const struct timespec t = {0, (long)soak_below(&luck, slow.most_us + 1) * 1000};
    nanosleep(&t, NULL);
}

static store_fault watch(void *context, uint64_t n, const char *operation,
                         const char *key)
{
    (void)context;
    (void)n;
    dawdle(operation, key);
    if (doom.when == CALL && atomic_fetch_add(&doom.n_seen, 1) + 1 == doom.n)
        die();
    bool writes = strcmp(operation, "put") == 0 || strcmp(operation, "remove") == 0;
    look(writes ? key : NULL);
    return STORE_FAULT_NONE;
}

dw_status soak_doom_store(dw_store **out, dw_store *inner, dw_error *err)
{
    const store_fault_plan plan = {.choose = watch};
    return fault_store_new(out, inner, &plan, err);
}
