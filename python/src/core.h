/* Shared by the files of the extension: errors, arguments, rows, progress, guards.
 *
 * Uses only the limited API of CPython 3.11, so one build works with every later version.
 * Unless a comment says otherwise, functions are called with the GIL held, and a function
 * that fails has set a Python exception.
 */
#ifndef DWPY_CORE_H
#define DWPY_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <deltawire/deltawire.h>

/* ---- errors.c ---- */
bool dwpy_errors_add(PyObject *module);
/* Raises the exception of STATUS; returns NULL. */
PyObject *dwpy_raise(dw_status status, const dw_error *err);
/* The same with another text. WHERE may be NULL. */
PyObject *dwpy_raise_text(dw_status status, const char *where, const char *text);

/* Adds the tensor's name to a Python exception about a bad tensor. */
void dwpy_name_error(const char *name);

/* ---- log.c ---- */
/* Logs a warning to the logger "deltawire". Raises nothing. */
void dwpy_log(const char *where, const char *text);

/* ---- args.c: converters for "O&", and small values ---- */

/* None or a path -> NULL or bytes in the file system's encoding, a new reference. */
int dwpy_path_arg(PyObject *object, void *bytes);
/* None or a number. None leaves *NUMBER as it is: the caller sets the default first. */
int dwpy_number_arg(PyObject *object, void *number);
/* Seconds, None: no limit -> milliseconds, UINT_MAX. */
int dwpy_timeout_arg(PyObject *object, void *timeout_ms);
/* None, a string or a number -> NULL or a string, a new reference. */
int dwpy_step_arg(PyObject *object, void *text);
/* The text of a converter's result, or NULL. */
const char *dwpy_path_text(PyObject *bytes);
const char *dwpy_text(PyObject *string);
/* The index of TEXT in NAMES, which ends with NULL; -1 with an exception. */
int dwpy_choice(const char *text, const char *const *names, const char *argument);

PyObject *dwpy_version(uint64_t version); /* None for DW_NO_VERSION */
PyObject *dwpy_digest(dw_digest digest);
/* A dict: the milliseconds of the moments that are known, by name. */
PyObject *dwpy_times(const dw_times *times, const char *(*name)(unsigned moment));
PyObject *
dwpy_string(const char *text); /* None for NULL; bytes that are no UTF-8 survive */
PyObject *dwpy_shape(uint32_t n_dims, const uint64_t *dims);

/* Public keys, given as texts or files. */
typedef struct dwpy_trust {
    uint8_t (*keys)[DW_PUBLIC_KEY_BYTES];
    size_t n;
} dwpy_trust;
bool dwpy_trust_read(dwpy_trust *out, PyObject *iterable); /* NULL: none */
void dwpy_trust_release(dwpy_trust *trust);

/* ---- rows.c: results with names for their fields ---- */
typedef struct dwpy_row_type {
    const char *name;
    const char *doc;
    const char *fields; /* separated by blanks */
    PyObject *type;     /* a named tuple */
} dwpy_row_type;
bool dwpy_row_type_add(PyObject *module, dwpy_row_type *type);
/* Makes a row. Owns VALUES: a tuple, or NULL after a failure. */
PyObject *dwpy_row(const dwpy_row_type *type, PyObject *values);

/* ---- long_call.c: calls without the GIL that signals and callbacks can stop ---- */
typedef struct dwpy_hook {
    dw_progress progress; /* for the library's call */
    PyObject *callable;
    PyThreadState *thread;
    PyObject *error[3]; /* the exception of the callback or a signal */
    uint64_t t_asked_ms;
    const struct dwpy_guard *guard; /* the handle's: another thread may close it */
} dwpy_hook;
/* CALLABLE and GUARD may be NULL, CALLABLE None. From here to the end the GIL is
 * released. */
bool dwpy_hook_begin(dwpy_hook *hook, PyObject *callable, const struct dwpy_guard *guard);
/* Returns false, with an exception, if the callback raised or STATUS is not DW_OK. */
bool dwpy_hook_end(dwpy_hook *hook, dw_status status, const dw_error *err);
uint64_t dwpy_now_ms(void);

/* ---- handle_guard.c: a handle for several threads, but not across a fork ---- */
typedef struct dwpy_guard {
    pthread_mutex_t lock;
    pthread_t owner;
    bool is_held;
    _Atomic bool is_closing; /* long calls must end */
    bool is_closed;
    pid_t pid;
} dwpy_guard;
void dwpy_guard_init(dwpy_guard *guard);
/* Returns false, with an exception, if the handle is closed or belongs to another
 * process. */
bool dwpy_guard_check(const dwpy_guard *guard);
/* Waits for the calls of other threads, without the GIL. */
bool dwpy_guard_enter(dwpy_guard *guard);
/* The same with a time limit, and also if the handle is closed. Raises nothing. */
bool dwpy_guard_try(dwpy_guard *guard, unsigned timeout_ms);
void dwpy_guard_leave(dwpy_guard *guard);
/* Whether this process opened it: only then may it be freed. */
bool dwpy_guard_is_ours(const dwpy_guard *guard);

/* ---- live.c: handles with threads, which must end before the interpreter ---- */
typedef struct dwpy_live {
    struct dwpy_live *next, *before;
    void (*end)(struct dwpy_live *live); /* takes bounded time */
} dwpy_live;
void dwpy_live_add(dwpy_live *live, void (*end)(dwpy_live *));
void dwpy_live_remove(dwpy_live *live); /* does nothing if it is not listed */
/* Ends all handles. Cancels calls of other threads. */
PyObject *dwpy_live_end(PyObject *self, PyObject *unused);
bool dwpy_is_ending(void);

/* ---- types.c ---- */

PyObject *dwpy_enter(PyObject *self, PyObject *unused); /* __enter__ */
PyObject *dwpy_exit(PyObject *self, PyObject *args);    /* __exit__: close() */
/* The end of every dealloc. */
void dwpy_object_free(PyObject *self);
/* Makes the type and adds it to the module; NULL after an error. */
PyTypeObject *dwpy_type_add(PyObject *module, PyType_Spec *spec);

#define DWPY_KEYWORDS(function) ((PyCFunction)(void (*)(void))(function))
#define DWPY_CONTEXT                                                                     \
    {"__enter__", dwpy_enter, METH_NOARGS, NULL},                                        \
    {                                                                                    \
        "__exit__", dwpy_exit, METH_VARARGS, NULL                                        \
    }

/* ---- the types and functions of each file ---- */
bool dwpy_tensor_add(PyObject *module);
bool dwpy_checkpoint_add(PyObject *module);
bool dwpy_sets_add(PyObject *module);
bool dwpy_delta_add(PyObject *module);
bool dwpy_store_add(PyObject *module);
bool dwpy_stream_add(PyObject *module);
bool dwpy_publisher_add(PyObject *module);
bool dwpy_follower_add(PyObject *module);
bool dwpy_snapshot_add(PyObject *module);
bool dwpy_layout_add(PyObject *module);

PyObject *dwpy_digest_tensors(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *dwpy_cast(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *dwpy_diff(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *dwpy_write_checkpoint(PyObject *self, PyObject *args, PyObject *keywords);
PyObject *dwpy_keygen(PyObject *self, PyObject *args);
PyObject *dwpy_device_fault(PyObject *self, PyObject *args);

#endif
