#include "core.h"

#include <time.h>

/* How often a call without a callback checks for signals. */
enum { ASK_EVERY_MS = 50 };

uint64_t dwpy_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* Runs on the thread that made the call, without the GIL. */
static int report(void *context, uint64_t n_done, uint64_t n_total)
{
    dwpy_hook *hook = context;
    if (hook->error[0] || dwpy_is_ending() || (hook->guard && hook->guard->is_closing))
        return 1;
    const uint64_t now = dwpy_now_ms();
    if (!hook->callable && now - hook->t_asked_ms < ASK_EVERY_MS)
        return 0;
    hook->t_asked_ms = now;
    PyEval_RestoreThread(hook->thread);
    bool good = PyErr_CheckSignals() == 0;
    if (good && hook->callable) {
        PyObject *result =
            PyObject_CallFunction(hook->callable, "KK", (unsigned long long)n_done,
                                  (unsigned long long)n_total);
        good = result != NULL;
        Py_XDECREF(result);
    }
    if (!good)
        PyErr_Fetch(&hook->error[0], &hook->error[1], &hook->error[2]);
    hook->thread = PyEval_SaveThread();
    return good ? 0 : 1;
}

bool dwpy_hook_begin(dwpy_hook *hook, PyObject *callable, const dwpy_guard *guard)
{
    if (callable == Py_None)
        callable = NULL;
    if (callable && !PyCallable_Check(callable)) {
        PyErr_SetString(PyExc_TypeError, "progress is not callable");
        return false;
    }
    *hook =
        (dwpy_hook){.callable = callable, .t_asked_ms = dwpy_now_ms(), .guard = guard};
    hook->progress = (dw_progress){report, hook};
    hook->thread = PyEval_SaveThread();
    return true;
}

bool dwpy_hook_end(dwpy_hook *hook, dw_status status, const dw_error *err)
{
    PyEval_RestoreThread(hook->thread);
    if (hook->error[0])
        PyErr_Restore(hook->error[0], hook->error[1], hook->error[2]);
    else if (status != DW_OK)
        dwpy_raise(status, err);
    else
        return true;
    return false;
}
