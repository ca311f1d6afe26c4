/* long_stream URL N: makes a stream of versions 0 to N of a tiny model, with folds and
 * one anchor, of version N / 2. */
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <deltawire/publish.h>
#include <deltawire/store.h>

/* What a test makes need not survive a power cut. */
int fsync(int fd)
{
    (void)fd;
    return 0;
}

static dw_status publish(dw_store *store, unsigned n_versions, dw_error *err)
{
    static const uint64_t dims[] = {64};
    uint16_t weights[64] = {0};
    const dw_tensor tensor = {"w", DW_BF16, 1, dims, sizeof weights, weights, 0, NULL};
    dw_publish_options options;
    dw_publish_options_init(&options);
    options.spool_dir = "/tmp";
    options.anchor_factor = 0;
    options.anchor_every = n_versions / 2 + 1;
    options.n_threads = 1;
    dw_publisher *p;
    dw_status status = dw_publisher_open(&p, store, &tensor, 1, &options, err);
    for (unsigned v = 1; status == DW_OK && v <= n_versions; v++) {
        uint64_t ticket;
        dw_publish_report report;
        weights[v % 64] = (uint16_t)(0x3c00 + v);
        status = dw_publisher_publish(p, &ticket, NULL, err);
        if (status == DW_OK)
            status = dw_publisher_wait(p, ticket, UINT_MAX, NULL, &report, err);
        if (status == DW_OK)
            status = dw_publisher_drain(p, err);
    }
    dw_publisher_close(p);
    return status;
}

int main(int argc, char **argv)
{
    dw_error err = {0};
    dw_store *store = NULL;
    if (argc != 3)
        return 2;
    dw_status status = dw_store_open(&store, argv[1], NULL, &err);
    if (status == DW_OK)
        status = publish(store, (unsigned)atoi(argv[2]), &err);
    if (status != DW_OK)
        fprintf(stderr, "%s: %s\n", err.where, err.text);
    dw_store_close(store);
    return status == DW_OK ? 0 : 1;
}
