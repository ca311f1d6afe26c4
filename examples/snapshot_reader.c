/* An engine that serves from the page cache: it maps the weights that `deltawire follow
 * --into DIR` keeps, and sees each new version without a copy or a reload.
 *
 *     snapshot_reader DIR [PASSES]
 *
 * Each forward pass holds the weights, so that all layers use the same version.
 */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <deltawire/deltawire.h>

/* The engine's computation: here a sum over all bytes. */
static uint64_t forward_pass(const dw_snapshot_view *view)
{
    uint64_t sum = 0;
    for (size_t t = 0; t < view->n_tensors; t++) {
        const uint8_t *bytes = view->tensors[t].data;
        for (uint64_t i = 0; i < view->tensors[t].n_bytes; i++)
            sum += bytes[i];
    }
    return sum;
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc > 3 || argv[1][0] == '-') {
        const bool is_help = argc == 2 && strcmp(argv[1], "--help") == 0;
        fprintf(is_help ? stdout : stderr, "usage: %s DIR [PASSES]\n", argv[0]);
        return is_help ? 0 : 2;
    }
    dw_error err;
    dw_snapshot *snapshot;
    dw_snapshot_view view;
    unsigned long passes = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
    uint64_t served = UINT64_MAX;
    dw_status status = dw_snapshot_open(&snapshot, argv[1], &err);
    for (unsigned long n = 0; status == DW_OK && (passes == 0 || n < passes); n++) {
        /* between two passes a new version may be written */
        status = dw_snapshot_hold(snapshot, 10000, &view, &err);
        if (status != DW_OK)
            break;
        uint64_t sum = forward_pass(&view);
        dw_snapshot_release(snapshot);
        if (view.version != served)
            printf("pass %lu: version %" PRIu64 ", state %016" PRIx64 ", sum %" PRIu64
                   "\n",
                   n, view.version, view.state, sum);
        fflush(stdout);
        served = view.version;
        nanosleep(&(struct timespec){.tv_nsec = 5000000},
                  NULL); /* until the next request */
    }
    if (status != DW_OK)
        fprintf(stderr, "%s: %s\n", err.where, err.text);
    dw_snapshot_close(snapshot);
    return status == DW_OK ? 0 : 1;
}
