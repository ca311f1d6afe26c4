#include "progress_bar.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "print.h"

#define BAR_WIDTH  24
#define T_PATIENCE 0.3 /* work shorter than this shows no bar */
#define T_FRAME    0.1

static volatile sig_atomic_t caught;

/* A sleep waits for this pipe. Otherwise it would miss a signal that arrives just before
 * the sleep or in another thread. */
static int wake_pipe[2] = {-1, -1};

static void on_signal(int number)
{
    const int before = errno;
    caught = number;
    if (wake_pipe[1] >= 0) {
        ssize_t n = write(wake_pipe[1], "", 1);
        (void)n; /* if the pipe is full, the sleep ends anyway */
    }
    errno = before;
}

static void make_wake_pipe(void)
{
    int fds[2];
    if (pipe(fds) != 0)
        return;
    for (size_t i = 0; i < 2; i++) {
        fcntl(fds[i], F_SETFD, FD_CLOEXEC);
        fcntl(fds[i], F_SETFL, O_NONBLOCK);
        wake_pipe[i] = fds[i];
    }
}

void cli_catch_signals(void)
{
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP};
    /* a write past `ulimit -f` must fail like one to a full disk */
    signal(SIGXFSZ, SIG_IGN);
    /* if the parent ignored it, waitpid would not work */
    signal(SIGCHLD, SIG_DFL);
    make_wake_pipe();
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        struct sigaction action = {.sa_handler = on_signal,
                                   .sa_flags = (int)(SA_RESETHAND | SA_RESTART)};
        struct sigaction before;
        /* a signal that the parent ignored, as nohup does, stays ignored */
        if (sigaction(signals[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(signals[i], &action, NULL);
    }
}

int cli_signal(void)
{
    return caught;
}

dw_status cli_check_signal(dw_error *err)
{
    return caught ? dw_fail(err, DW_CANCELLED, "", "stopped") : DW_OK;
}

double cli_now(void)
{
    return 1e-6 * (double)dw_clock_us();
}

cli_progress cli_progress_start(const cli_session *s, const char *label)
{
    return (cli_progress){.label = label,
                          .shown = !s->quiet && !s->json && isatty(STDERR_FILENO),
                          .t_start = cli_now()};
}

/* Bytes and rate, for an unknown total. */
static void draw_open(const cli_progress *p, double speed, uint64_t done)
{
    char done_text[CLI_NUMBER_SIZE], rate[CLI_NUMBER_SIZE];
    fprintf(stderr, "\r\033[K%s  %s  %s/s", p->label, cli_format_size(done_text, done),
            cli_format_size(rate, (uint64_t)speed));
}

static void draw(const cli_progress *p, double t, uint64_t done, uint64_t total)
{
    char done_text[CLI_NUMBER_SIZE], total_text[CLI_NUMBER_SIZE], rate[CLI_NUMBER_SIZE];
    char bar[BAR_WIDTH + 1];
    double speed = cli_ratio((double)done, t - p->t_start);
    if (total == 0) {
        draw_open(p, speed, done);
        return;
    }
    if (done > total)
        done = total;
    double share = cli_ratio((double)done, (double)total);
    int n_full = (int)(share * BAR_WIDTH);
    memset(bar, '-', BAR_WIDTH);
    memset(bar, '#', (size_t)n_full);
    bar[BAR_WIDTH] = '\0';
    fprintf(stderr, "\r\033[K%s [%s] %3.0f%%  %s of %s  %s/s  %.0f s left", p->label, bar,
            100 * share, cli_format_size(done_text, done),
            cli_format_size(total_text, total), cli_format_size(rate, (uint64_t)speed),
            cli_ratio((double)(total - done), speed));
}

int cli_progress_report(void *progress, uint64_t bytes_done, uint64_t bytes_total)
{
    cli_progress *p = progress;
    if (p->shown) {
        double t = cli_now();
        if (t - p->t_start > T_PATIENCE && t - p->t_drawn > T_FRAME) {
            draw(p, t, bytes_done, bytes_total);
            fflush(stderr);
            p->t_drawn = t;
        }
    }
    return caught;
}

dw_progress cli_progress_hook(cli_progress *progress)
{
    return (dw_progress){cli_progress_report, progress};
}

void cli_progress_end(cli_progress *progress)
{
    if (progress->t_drawn > 0) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
}

static int report_signal(void *context, uint64_t bytes_done, uint64_t bytes_total)
{
    (void)context, (void)bytes_done, (void)bytes_total;
    return caught;
}

dw_progress cli_signal_hook(void)
{
    return (dw_progress){report_signal, NULL};
}

void cli_sleep(double seconds)
{
    double t_end = cli_now() + seconds;
    for (double left; !caught && (left = t_end - cli_now()) > 0;) {
        struct pollfd wake = {.fd = wake_pipe[0], .events = POLLIN};
        /* without a pipe, sleeps in slices */
        const double most = wake_pipe[0] < 0 ? T_FRAME : 60;
        poll(&wake, 1, (int)(1000 * (left < most ? left : most)) + 1);
    }
}

bool cli_wait_child_for(pid_t pid, double seconds, int *status)
{
    bool passed_on = false;
    const double end = cli_now() + seconds;
    const struct timespec slice = {.tv_nsec = 10000000};
    *status = 0;
    while (waitpid(pid, status, WNOHANG) == 0) {
        if (caught && !passed_on) {
            kill(-pid, caught);
            kill(-pid, SIGCONT); /* a stopped process would not get the signal */
            passed_on = true;
        }
        if (cli_now() >= end)
            return false;
        nanosleep(&slice, NULL);
    }
    return true;
}
