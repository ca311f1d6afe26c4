#include "core.h"

#include <errno.h>
#include <time.h>
#include <unistd.h>

enum { SLICE_MS = 100 }; /* between two checks for signals */

void dwpy_guard_init(dwpy_guard *guard)
{
    *guard = (dwpy_guard){.pid = getpid()};
    pthread_mutex_init(&guard->lock, NULL);
}

bool dwpy_guard_is_ours(const dwpy_guard *guard)
{
    return guard->pid == getpid();
}

bool dwpy_guard_check(const dwpy_guard *guard)
{
    if (!dwpy_guard_is_ours(guard))
        dwpy_raise_text(DW_INVALID, NULL,
                        "it was opened before a fork, by another process: open it again "
                        "in this one");
    else if (guard->is_closed)
        dwpy_raise_text(DW_INVALID, NULL, "it is closed");
    else
        return true;
    return false;
}

static bool lock_for(dwpy_guard *guard, unsigned timeout_ms)
{
    if (pthread_mutex_trylock(&guard->lock) == 0)
        return true;
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    const long ns = end.tv_nsec + (long)(timeout_ms % 1000) * 1000000;
    end.tv_sec += (time_t)(timeout_ms / 1000 + (ns >= 1000000000));
    end.tv_nsec = ns % 1000000000;
    int result;
    Py_BEGIN_ALLOW_THREADS result = pthread_mutex_timedlock(&guard->lock, &end);
    Py_END_ALLOW_THREADS return result == 0;
}

static void take(dwpy_guard *guard)
{
    guard->owner = pthread_self();
    guard->is_held = true;
}

static bool is_mine(const dwpy_guard *guard)
{
    return guard->is_held && pthread_equal(guard->owner, pthread_self());
}

bool dwpy_guard_enter(dwpy_guard *guard)
{
    if (!dwpy_guard_check(guard))
        return false;
    if (is_mine(guard)) {
        dwpy_raise_text(DW_INVALID, NULL, "it is called from its own callback");
        return false;
    }
    while (!lock_for(guard, SLICE_MS))
        if (PyErr_CheckSignals() != 0)
            return false;
    take(guard);
    if (dwpy_guard_check(guard)) /* another thread may have closed it meanwhile */
        return true;
    dwpy_guard_leave(guard);
    return false;
}

bool dwpy_guard_try(dwpy_guard *guard, unsigned timeout_ms)
{
    if (is_mine(guard) || !lock_for(guard, timeout_ms))
        return false;
    take(guard);
    return true;
}

void dwpy_guard_leave(dwpy_guard *guard)
{
    guard->is_held = false;
    pthread_mutex_unlock(&guard->lock);
}
