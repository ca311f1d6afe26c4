#include "core.h"

static dwpy_live *first;
static _Atomic bool is_ending;

bool dwpy_is_ending(void)
{
    return is_ending;
}

void dwpy_live_add(dwpy_live *live, void (*end)(dwpy_live *))
{
    *live = (dwpy_live){.next = first, .end = end};
    if (first)
        first->before = live;
    first = live;
}

void dwpy_live_remove(dwpy_live *live)
{
    if (live->before)
        live->before->next = live->next;
    else if (first == live)
        first = live->next;
    if (live->next)
        live->next->before = live->before;
    live->next = live->before = NULL;
}

PyObject *dwpy_live_end(PyObject *self, PyObject *unused)
{
    (void)self;
    (void)unused;
    is_ending = true;
    while (first) {
        dwpy_live *live = first;
        dwpy_live_remove(live);
        live->end(live);
    }
    Py_RETURN_NONE;
}
