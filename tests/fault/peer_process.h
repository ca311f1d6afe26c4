/* A process that keeps a directory at other systems' versions. The tests run it
 * repeatedly. */
#ifndef DW_TEST_PEER_PROCESS_H
#define DW_TEST_PEER_PROCESS_H

#include "unit/peer_kit.h"
#include "unit/temp_dir.h"

static char into[128], base[128];

static int make_world(void **state)
{
    temp_dir_make(state);
    peer_kit_make();
    snprintf(into, sizeof into, "%s/into", temp_dir);
    snprintf(base, sizeof base, "%s/base.safetensors", temp_dir);
    peer_put_base(base);
    return 0;
}

static void run_command(const char *format)
{
    char command[600];
    snprintf(command, sizeof command, format, temp_dir, temp_dir, temp_dir);
    assert_int_equal(system(command), 0);
}

static dw_status go(dw_store *store, const uint64_t *goals, size_t n_goals,
                    uint64_t *version, dw_error *err)
{
    dw_peer *peer;
    dw_peer_replica *r = NULL;
    dw_peer_replica_options options;
    dw_peer_replica_options_init(&options);
    options.into = into;
    options.base = base;
    options.n_threads = 1;
    dw_status status = dw_peer_open(&peer, store, err);
    if (status == DW_OK)
        status = dw_peer_replica_open(&r, peer, &options, err);
    if (status == DW_OK && version) {
        *version = dw_peer_replica_version(r);
        peer_check_replica(r, into);
    }
    for (size_t i = 0; status == DW_OK && i < n_goals; i++) {
        status = dw_peer_replica_sync(r, goals[i], NULL, NULL, err);
        if (version)
            peer_check_replica(r, into);
    }
    dw_peer_replica_close(r);
    dw_peer_close(peer);
    return status;
}

#endif
