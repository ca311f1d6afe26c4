/* The arguments of deltawire.Follower. */
#include "follower_type.h"

#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "inner.h"

enum { FIRST_PAUSE_MS = 100, MAX_PAUSE_MS = 2000, SLICE_MS = 50, LEAST_TRY_MS = 500 };

typedef struct arguments {
    PyObject *store, *tensors, *trust;
    PyObject *into, *base, *spool_dir; /* new */
    const char *stream;
    unsigned long long max_ahead_bytes;
    int empty, widen, report, files;
    unsigned open_timeout_ms;
    dw_follow_options options;
    dwpy_trust keys;
} arguments;

static bool parse(arguments *a, PyObject *args, PyObject *keywords)
{
    static char *names[] = {
        "store",        "into",        "tensors",         "at",     "base",
        "spool_dir",    "reader_wait", "trust",           "stream", "id",
        "sweep_every",  "threads",     "max_ahead_bytes", "empty",  "report",
        "open_timeout", "widen",       "files",           NULL};
    dw_follow_options *o = &a->options;
    return PyArg_ParseTupleAndKeywords(
               args, keywords, "O|$O&OO&O&O&O&OzzIIKppO&pp:Follower", names, &a->store,
               dwpy_path_arg, &a->into, &a->tensors, dwpy_number_arg, &o->at,
               dwpy_path_arg, &a->base, dwpy_path_arg, &a->spool_dir, dwpy_timeout_arg,
               &o->reader_wait_ms, &a->trust, &a->stream, &o->id, &o->sweep_every,
               &o->n_threads, &a->max_ahead_bytes, &a->empty, &a->report,
               dwpy_timeout_arg, &a->open_timeout_ms, &a->widen, &a->files) != 0;
}

/* DW_NOT_FOUND if there is no stream yet, or if its first publish still runs. */
static dw_status find_first_version(dw_store *store, const dw_trust *trust, dw_error *err)
{
    dw_stream *stream = NULL;
    uint64_t head;
    dw_status status = dw_stream_open(&stream, store, trust, err);
    if (status == DW_OK)
        status = dw_stream_head(stream, &head, err);
    dw_stream_close(stream);
    return status;
}

/* Whether a killed run left an update of the directory half done. To finish it needs no
 * store, and readers of the directory wait for that. */
static bool is_interrupted(const dw_follow_options *options)
{
    bool pending = false;
    return options->into && dw_follower_pending(options->into, &pending, NULL) == DW_OK &&
           pending;
}

/* Opens the follower if its stream has a version, or if it has one itself. Only the first
 * try looks for the latter, because that reads all weights. */
static dw_status open_with_version(follower_object *self,
                                   const dw_follow_options *options, dw_store *store,
                                   unsigned limit_ms, bool is_first, bool *is_missing,
                                   dw_error *err)
{
    dw_error missing = {0};
    dw_store_limit_thread(limit_ms);
    dw_status status = find_first_version(store, &options->trust, &missing);
    dw_store_limit_thread(0);
    *is_missing = status == DW_NOT_FOUND;
    const bool opens = status == DW_UNAVAILABLE ? is_first && is_interrupted(options)
                                                : is_first || !*is_missing;
    if (opens) {
        status = dw_follower_open(&self->follower, store, options, err);
        if (status != DW_OK || !*is_missing ||
            dw_follower_version(self->follower) != DW_NO_VERSION)
            return status;
        dw_follower_close(self->follower);
        self->follower = NULL;
        status = DW_NOT_FOUND;
    }
    *err = missing;
    return status;
}

/* Sets *MAY_COME if waiting can help: the stream, its first version or the store is not
 * there. A file that was named wrongly does not come. */
static dw_status try_open(follower_object *self, const dw_follow_options *options,
                          dw_store *store, unsigned limit_ms, bool is_first,
                          bool *may_come, dw_error *err)
{
    dw_status status;
    bool is_missing;
    Py_BEGIN_ALLOW_THREADS status =
        open_with_version(self, options, store, limit_ms, is_first, &is_missing, err);
    Py_END_ALLOW_THREADS *may_come =
        status == DW_UNAVAILABLE || (status == DW_NOT_FOUND && is_missing);
    return status;
}

/* False if a signal or the end of the interpreter stops it. */
static bool sleep_ms(uint64_t n)
{
    const uint64_t end = dwpy_now_ms() + n;
    for (uint64_t now; (now = dwpy_now_ms()) < end;) {
        const uint64_t slice = end - now < SLICE_MS ? end - now : SLICE_MS;
        Py_BEGIN_ALLOW_THREADS usleep((useconds_t)slice * 1000);
        Py_END_ALLOW_THREADS if (PyErr_CheckSignals() != 0 ||
                                 dwpy_is_ending()) return false;
    }
    return true;
}

static void log_waiting(const dw_error *err, const char *url)
{
    char text[DW_ERROR_TEXT_SIZE + 64];
    snprintf(text, sizeof text, "%s. Waiting for it; open_timeout= limits that",
             err->text);
    dwpy_log(err->where[0] ? err->where : url, text);
}

/* How long a try may take. `open_timeout=0` means one try, as long as the store allows.
 */
static unsigned limit_of(const arguments *a, uint64_t start)
{
    if (a->open_timeout_ms == 0 || a->open_timeout_ms == UINT_MAX)
        return 0;
    const uint64_t past = dwpy_now_ms() - start;
    const unsigned left =
        past < a->open_timeout_ms ? a->open_timeout_ms - (unsigned)past : 0;
    return left > LEAST_TRY_MS ? left : LEAST_TRY_MS;
}

/* Waits for a stream or a first version that is not there yet, and for a store that is
 * away. */
static dw_status open_waiting(follower_object *self, const arguments *a, dw_store *store,
                              dw_error *err)
{
    const uint64_t start = dwpy_now_ms();
    uint64_t pause = FIRST_PAUSE_MS;
    dw_status logged = DW_OK;
    for (bool is_first = true;;) {
        bool may_come;
        const dw_status status = try_open(self, &a->options, store, limit_of(a, start),
                                          is_first, &may_come, err);
        const uint64_t past = dwpy_now_ms() - start;
        const bool is_over = a->open_timeout_ms != UINT_MAX && past >= a->open_timeout_ms;
        if (!may_come || is_over)
            return status;
        if (status != logged)
            log_waiting(err, dw_store_url(store));
        logged = status;
        if (a->open_timeout_ms != UINT_MAX && pause > a->open_timeout_ms - past)
            pause = a->open_timeout_ms - past;
        if (!sleep_ms(pause))
            return DW_CANCELLED;
        is_first = is_first && status == DW_UNAVAILABLE;
        pause = 2 * pause < MAX_PAUSE_MS ? 2 * pause : MAX_PAUSE_MS;
    }
}

static bool open_now(follower_object *self, arguments *a)
{
    dw_follow_options *o = &a->options;
    if (a->tensors == Py_None)
        a->tensors = NULL;
    if (!a->into == !a->tensors) {
        PyErr_SetString(PyExc_TypeError, "a follower has either into= or tensors=");
        return false;
    }
    if (a->empty && !a->tensors) {
        PyErr_SetString(PyExc_TypeError, "empty= goes with tensors=");
        return false;
    }
    if (a->widen && !a->tensors) {
        PyErr_SetString(PyExc_TypeError, "widen= goes with tensors=");
        return false;
    }
    dw_store *store = dwpy_store_use(a->store, &self->store);
    if (!store || !dwpy_trust_read(&a->keys, a->trust) ||
        (a->tensors && !dwpy_tensors_take(&self->tensors, a->tensors, DWPY_WRITE)))
        return false;
    o->into = dwpy_path_text(a->into);
    o->tensors = self->tensors.tensors;
    o->n_tensors = self->tensors.n;
    o->tensors_empty = a->empty != 0;
    o->widen = a->widen != 0;
    o->no_files = a->files == 0;
    o->base = dwpy_path_text(a->base);
    o->spool_dir = dwpy_path_text(a->spool_dir);
    o->trust = (dw_trust){(const uint8_t(*)[DW_PUBLIC_KEY_BYTES])a->keys.keys, a->keys.n,
                          a->stream};
    if (a->max_ahead_bytes)
        o->max_ahead_bytes = a->max_ahead_bytes;
    char id[DW_FOLLOWER_ID_SIZE];
    if (a->report && !o->id) {
        dwpy_follower_name(self, id, o->into);
        o->id = id;
    }
    dw_error err = {0};
    const dw_status status = open_waiting(self, a, store, &err);
    if (status != DW_OK && !PyErr_Occurred())
        dwpy_raise(status, &err);
    return status == DW_OK;
}

PyObject *dwpy_follower_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
    arguments a = {.report = true, .files = true, .open_timeout_ms = UINT_MAX};
    dw_follow_options_init(&a.options);
    if (!parse(&a, args, keywords))
        return NULL;
    follower_object *self = (follower_object *)PyType_GenericAlloc(type, 0);
    if (self) {
        dwpy_guard_init(&self->guard);
        self->name_fd = -1;
        if (open_now(self, &a)) {
            dwpy_follower_note(self);
            dwpy_live_add(&self->live, dwpy_follower_end);
            if (a.report) {
                dwpy_report_begin(&self->report);
                dwpy_follower_report_result(self, DW_OK, NULL);
            }
        } else {
            Py_CLEAR(self);
        }
    }
    dwpy_trust_release(&a.keys);
    Py_XDECREF(a.into);
    Py_XDECREF(a.base);
    Py_XDECREF(a.spool_dir);
    return (PyObject *)self;
}
