#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "role.h"

static struct {
    enum { NEVER, CALL, AT, AFTER } when;
    char what[64];
    unsigned long n;
    long delay_us;
    atomic_ulong n_seen; /* calls, or things that WHAT names */
    atomic_bool reached; /* AFTER: die at whatever comes next */
} doom;

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
    else
        atomic_store(&doom.reached, true);
}

void soak_event(const char *name)
{
    look(name);
}

static dw_fault_kind watch(void *context, uint64_t n, const char *operation,
                           const char *key)
{
    (void)context;
    (void)n;
    if (doom.when == CALL && atomic_fetch_add(&doom.n_seen, 1) + 1 == doom.n)
        die();
    bool writes = strcmp(operation, "put") == 0 || strcmp(operation, "remove") == 0;
    look(writes ? key : NULL);
    return DW_FAULT_NONE;
}

dw_status soak_doom_store(dw_store **out, dw_store *inner, dw_error *err)
{
    const dw_fault_plan plan = {.choose = watch};
    return dw_store_new_fault(out, inner, &plan, err);
}
