/* Ends a publisher. In all functions the guard is held, or no other thread knows the
 * object. */
#include "publisher_type.h"

#include <stddef.h>

enum {
    GIVE_UP_MS = 10000,  /* for a version that was cancelled */
    OTHERS_END_MS = 5000 /* for calls of other threads */
};

void dwpy_publisher_drop(publisher_object *self)
{
    dwpy_tensors_release(&self->tensors);
    dwpy_tensors_release(&self->shards);
    Py_CLEAR(self->numbers);
}

void dwpy_publisher_close_handle(publisher_object *self)
{
    dwpy_live_remove(&self->live);
    self->guard.is_closed = true;
    dw_publisher *publisher = self->publisher;
    Py_BEGIN_ALLOW_THREADS pthread_rwlock_wrlock(
        &self->alive); /* threads that wait leave within a slice */
    self->publisher = NULL;
    pthread_rwlock_unlock(&self->alive);
    dw_publisher_close(publisher);
    dw_sign_key_close(self->sign_key);
    Py_END_ALLOW_THREADS self->sign_key = NULL;
    dwpy_publisher_drop(self);
    dwpy_store_leave(self->fork_store);
    dwpy_store_leave(self->store);
    self->fork_store = self->store = NULL;
}

/* If its thread does not end in time, or belongs to another process, everything that it
 * may use is leaked. */
static void abandon(publisher_object *self)
{
    dwpy_live_remove(&self->live);
    self->guard.is_closed = true;
    self->publisher = NULL;
    self->sign_key = NULL;
    self->tensors = self->shards = (dwpy_tensors){0};
    self->fork_store = self->store = NULL;
}

/* Whether the last version is done, within TIMEOUT_MS. *STATUS and *ERR take its result,
 * if that is known. */
static bool wait_for_last(publisher_object *self, unsigned timeout_ms, dw_status *status,
                          dw_error *err)
{
    bool done = self->ticket == 0;
    *status = DW_OK;
    Py_BEGIN_ALLOW_THREADS if (!done) *status =
        dw_publisher_wait(self->publisher, self->ticket, timeout_ms, &done, NULL, err);
    Py_END_ALLOW_THREADS return done;
}

/* deltawire.PublishWarning, or UserWarning if the package is already gone. */
static PyObject *warning_class(void)
{
    PyObject *found = NULL, *name = PyUnicode_FromString("deltawire");
    PyObject *package = name ? PyImport_GetModule(name) : NULL;
    if (package)
        found = PyObject_GetAttrString(package, "PublishWarning");
    Py_XDECREF(package);
    Py_XDECREF(name);
    if (found)
        return found;
    PyErr_Clear();
    return Py_NewRef(PyExc_UserWarning);
}

/* Warns if the last version failed and nobody waited for it: the end of the program must
 * not hide that. */
static void warn_lost(publisher_object *self, const dw_error *err)
{
    if (self->ticket <= self->reported_ticket)
        return;
    self->reported_ticket = self->ticket;
    PyObject *category = warning_class();
    if (PyErr_WarnFormat(category, 1, "the last version was not published: %s: %s",
                         err->where, err->text) != 0)
        PyErr_WriteUnraisable(NULL);
    Py_DECREF(category);
}

void dwpy_publisher_end_bounded(publisher_object *self)
{
    if (!dwpy_guard_is_ours(&self->guard)) {
        abandon(self);
        return;
    }
    dw_status status;
    dw_error err = {0};
    bool done = wait_for_last(self, self->exit_ms, &status, &err);
    if (!done) {
        dw_publisher_cancel(self->publisher);
        done = wait_for_last(self, GIVE_UP_MS, &status, &err);
    }
    if (status != DW_OK)
        warn_lost(self, &err);
    if (done)
        dwpy_publisher_close_handle(self);
    else
        abandon(self);
}

void dwpy_publisher_end(dwpy_live *live)
{
    publisher_object *self =
        (publisher_object *)(void *)((char *)live - offsetof(publisher_object, live));
    Py_INCREF((PyObject *)self);
    self->guard.is_closing = true;
    if (!dwpy_guard_is_ours(&self->guard)) {
        abandon(self);
    } else if (dwpy_guard_try(&self->guard, OTHERS_END_MS)) {
        if (self->publisher)
            dwpy_publisher_end_bounded(self);
        dwpy_guard_leave(&self->guard);
    } else {
        return; /* a call does not end: the publisher stays, with everything it uses */
    }
    Py_DECREF((PyObject *)self);
}
