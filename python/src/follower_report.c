/* The automatic reports of a follower, as `deltawire follow` makes them. */
#include "follower_type.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    HEARTBEAT_MS = 60000, /* between reports while nothing is new, or while they fail */
    REPORT_MS = 5000,     /* between reports on average */
    BURST_MS = 4 * REPORT_MS,
    MAX_SLOTS = 4096
};

/* ---- the name ---- */

/* Reserves a name for followers in memory until this process ends. Returns its
 * descriptor, -1 if another process has it, or -2 for other errors. */
static int take_name(const char *id)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    const int n =
        snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "deltawire-%s", id);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -2;
    const socklen_t n_bytes =
        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    if (bind(fd, (struct sockaddr *)&name, n_bytes) == 0)
        return fd;
    close(fd);
    return -1;
}

/* Weights in memory get the lowest number that no other follower on the machine has, so
 * that a restarted process reports under the same name. */
void dwpy_follower_name(follower_object *self, char out[DW_FOLLOWER_ID_SIZE],
                        const char *into)
{
    self->name_fd = -1;
    dw_follower_id(out, into, 0);
    if (into)
        return;
    for (unsigned n = 0; self->name_fd == -1 && n < MAX_SLOTS; n++) {
        dw_follower_id(out, NULL, n);
        self->name_fd = take_name(out);
    }
    if (self->name_fd < 0)
        dw_follower_id(out, NULL, (unsigned)getpid());
}

/* ---- reports ---- */

void dwpy_report_begin(dwpy_report *report)
{
    *report = (dwpy_report){.is_on = true, .reported_version = DW_NO_VERSION};
}

/* A few reports may follow each other quickly, so that the last one is not late. On
 * average there is one every REPORT_MS. */
static bool is_due(const follower_object *self, bool is_error)
{
    const dwpy_report *r = &self->report;
    const uint64_t now = dwpy_now_ms();
    const bool has_news = is_error != r->reported_error ||
                          r->reported_version != dw_follower_version(self->follower);
    if (!r->is_on || r->by_caller)
        return false;
    if (r->t_sent_ms == 0 || now - r->t_sent_ms >= HEARTBEAT_MS)
        return true;
    return has_news && !r->has_failed && r->t_paid_ms < now + BURST_MS;
}

/* Without the GIL. */
static void send_report(follower_object *self, const char *word, const char *message)
{
    dwpy_report *r = &self->report;
    const uint64_t now = dwpy_now_ms();
    r->t_sent_ms = now;
    r->t_paid_ms = (r->t_paid_ms > now ? r->t_paid_ms : now) + REPORT_MS;
    r->reported_version = dw_follower_version(self->follower);
    r->reported_error = strcmp(word, "error") == 0;
    r->has_failed = dw_follower_report(self->follower, word, message, &r->error) != DW_OK;
}

/* Logs once that reports fail, and once that they work again. */
static void log_change(follower_object *self)
{
    dwpy_report *r = &self->report;
    char text[DW_ERROR_TEXT_SIZE + 128];
    if (r->has_failed == r->was_failing)
        return;
    r->was_failing = r->has_failed;
    if (r->has_failed) {
        snprintf(
            text, sizeof text,
            "%s: `deltawire status` does not show this follower's version. It follows "
            "on. report=False turns reports off",
            r->error.text);
        dwpy_log(r->error.where, text);
    } else {
        dwpy_log(r->error.where, "`deltawire status` shows this follower again");
    }
}

void dwpy_follower_report_result(follower_object *self, dw_status status,
                                 const dw_error *err)
{
    dwpy_report *r = &self->report;
    if (status == DW_CANCELLED || status == DW_INVALID || status == DW_NO_MEMORY)
        return; /* these are not about the stream or the weights */
    r->is_away = status == DW_UNAVAILABLE;
    if (r->is_away)
        return; /* a store that is away takes no reports, and the attempt would take long
                 */
    const bool is_error = status != DW_OK;
    if (!is_due(self, is_error))
        return;
    Py_BEGIN_ALLOW_THREADS send_report(self, is_error ? "error" : "following",
                                       is_error ? err->text : NULL);
    Py_END_ALLOW_THREADS log_change(self);
}

int dwpy_follower_beat(void *context, uint64_t n_done, uint64_t n_total)
{
    dwpy_waiting *w = context;
    const int stop = w->hook->progress.report(w->hook->progress.context, n_done, n_total);
    if (stop || !is_due(w->self, false))
        return stop;
    send_report(w->self, "following", NULL);
    PyEval_RestoreThread(w->hook->thread);
    log_change(w->self);
    w->hook->thread = PyEval_SaveThread();
    return 0;
}

void dwpy_follower_stop(follower_object *self)
{
    char message[64] = "";
    dwpy_report *r = &self->report;
    const uint64_t version = dw_follower_version(self->follower);
    if (!r->is_on || r->has_failed || r->is_away)
        return;
    if (version != DW_NO_VERSION && !dw_follower_dir(self->follower))
        snprintf(message, sizeof message, "its memory was at version %" PRIu64, version);
    Py_BEGIN_ALLOW_THREADS send_report(self, "stopped", message);
    Py_END_ALLOW_THREADS
}
