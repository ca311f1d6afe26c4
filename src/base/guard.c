#define _GNU_SOURCE
#include "deltawire/guard.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>

#include "base/error.h"
#include "base/map.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct sigaction before; /* written only while `installed` is false */
static atomic_bool installed;
static atomic_int loss; /* 0: none; 1: being noted; 2: noted */
static char lost_path[DW_ERROR_WHERE_SIZE];

static void note_loss(const dw_mapped *entry)
{
    int none = 0;
    if (!atomic_compare_exchange_strong(&loss, &none, 1))
        return;
    const char *path = dw_mapped_path(entry);
    size_t n = 0;
    for (; path[n] && n + 1 < sizeof lost_path; n++)
        lost_path[n] = path[n];
    lost_path[n] = '\0';
    atomic_store(&loss, 2);
}

/* Restores the handler that was there before. On return the signal is raised again. */
static void pass_on(int number, siginfo_t *info, void *context)
{
    if (before.sa_flags & SA_SIGINFO)
        before.sa_sigaction(number, info, context);
    else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
        before.sa_handler(number);
    else
        signal(number, SIG_DFL);
}

/* Calls only what is safe in a signal handler: mmap is a plain system call on Linux. */
static void on_lost_page(int number, siginfo_t *info, void *context)
{
    const int saved = errno;
    dw_mapped *entry = info->si_code > 0 ? dw_mapped_find(info->si_addr) : NULL;
    const uintptr_t n_bytes = entry ? dw_mapped_page(entry) : 1;
    void *page = (void *)((uintptr_t)info->si_addr & ~(n_bytes - 1));
    if (entry && mmap(page, n_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page) {
        dw_mapped_lose(entry);
        note_loss(entry);
    } else {
        pass_on(number, info, context);
    }
    errno = saved;
}

static bool is_ours(const struct sigaction *action)
{
    return (action->sa_flags & SA_SIGINFO) && action->sa_sigaction == on_lost_page;
}

bool dw_guard_is_active(void)
{
    struct sigaction now;
    return atomic_load_explicit(&installed, memory_order_relaxed) &&
           sigaction(SIGBUS, NULL, &now) == 0 && is_ours(&now);
}

dw_status dw_guard_install(dw_error *err)
{
    dw_status status = DW_OK;
    struct sigaction ours = {.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    struct sigaction now;
    ours.sa_sigaction = on_lost_page;
    sigemptyset(&ours.sa_mask);
    pthread_mutex_lock(&lock);
    if (sigaction(SIGBUS, NULL, &now) != 0) {
        status = dw_fail_errno(err, "SIGBUS", "look at the handler of");
    } else if (atomic_load(&installed) && !is_ours(&now)) {
        status = dw_fail(err, DW_CONFLICT, "SIGBUS",
                         "another handler replaced the guard's. Remove that one first");
    } else if (!atomic_load(&installed)) {
        before = now;
        if (sigaction(SIGBUS, &ours, NULL) != 0)
            status = dw_fail_errno(err, "SIGBUS", "handle");
        else
            atomic_store(&installed, true);
    }
    pthread_mutex_unlock(&lock);
    return status;
}

dw_status dw_guard_check(dw_error *err)
{
    if (atomic_load(&loss) != 2)
        return DW_OK;
    dw_status status = dw_fail(err, DW_IO, lost_path,
                               "the file shrank while it was in use, or its disk failed");
    atomic_store(&loss, 0);
    return status;
}

void dw_guard_remove(void)
{
    pthread_mutex_lock(&lock);
    if (dw_guard_is_active() && sigaction(SIGBUS, &before, NULL) == 0)
        atomic_store(&installed, false);
    pthread_mutex_unlock(&lock);
}
