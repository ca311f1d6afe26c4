/* The internals of deltawire.Follower. */
#ifndef DWPY_FOLLOWER_TYPE_H
#define DWPY_FOLLOWER_TYPE_H

#include "store_type.h"
#include "tensors.h"

/* The state of automatic reports. */
typedef struct dwpy_report {
    bool is_on;
    bool by_caller;   /* the caller reports by itself until close() */
    bool has_failed;  /* the last report */
    bool was_failing; /* the failure was logged */
    bool reported_error;
    bool is_away; /* the last call could not reach the store */
    uint64_t reported_version;
    uint64_t t_sent_ms; /* 0: never */
    uint64_t t_paid_ms; /* for the limit of reports on average */
    dw_error error;
} dwpy_report;

typedef struct follower_object {
    PyObject_HEAD dw_follower *follower;
    PyObject *store;
    dwpy_tensors tensors;
    dwpy_guard guard;
    dwpy_live live;
    /* after the last call, so that they can be read without waiting for a call: */
    uint64_t version;
    dw_update update;
    dwpy_report report;
    int name_fd; /* reserves the name of a follower in memory; -1: none */
} follower_object;

/* ---- follower_open.c ---- */
PyObject *dwpy_follower_new(PyTypeObject *type, PyObject *args, PyObject *keywords);

/* ---- follower_type.c ---- */

/* Notes the version and the update. */
void dwpy_follower_note(follower_object *self);
void dwpy_follower_end(dwpy_live *live);

/* ---- follower_report.c; the guard is held ---- */

/* The id to report under if the caller gave none. INTO is NULL for memory. */
void dwpy_follower_name(follower_object *self, char out[DW_FOLLOWER_ID_SIZE],
                        const char *into);
/* Turns the reports on. */
void dwpy_report_begin(dwpy_report *report);
/* After each call: reports the version if a report is due. */
void dwpy_follower_report_result(follower_object *self, dw_status status,
                                 const dw_error *err);
/* The last report. */
void dwpy_follower_stop(follower_object *self);

typedef struct dwpy_waiting {
    follower_object *self;
    dwpy_hook *hook;
} dwpy_waiting;
/* The progress of a long wait, in which reports go on. CONTEXT is a dwpy_waiting. */
int dwpy_follower_beat(void *context, uint64_t n_done, uint64_t n_total);

#endif
