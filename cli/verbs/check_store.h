/* Tries what a publisher and a follower do in a store, below its `probe/`. */
#ifndef CLI_CHECK_STORE_H
#define CLI_CHECK_STORE_H

#include <stdbool.h>
#include <stdint.h>

#include <deltawire/store.h>

typedef enum check_step {
    CHECK_LIST,
    CHECK_READ,
    CHECK_RANGE,
    CHECK_WRITE,
    CHECK_DELETE,
    CHECK_CREATE, /* of two writers at once, one */
    CHECK_UPLOAD,
    CHECK_DOWNLOAD,
    CHECK_STEPS
} check_step;

typedef struct check_result {
    bool tried;
    dw_error err; /* DW_OK: it works */
    uint64_t n_bytes;
    double seconds;
} check_result;

typedef struct check_findings {
    check_result steps[CHECK_STEPS];
    dw_store_facts facts;
    double round_trip; /* of a small read, seconds; NAN: not known */
    const char *left;  /* an object that could not be removed, or NULL */
    char key[64];      /* its room */
} check_findings;

/* Moves at most N_BYTES, and fewer if that would take longer than about 5 seconds. What
 * does not work is a finding. Returns an error only if it could not look: stopped, or out
 * of memory. */
dw_status check_store(check_findings *out, dw_store *store, uint64_t n_bytes,
                      dw_error *err);

#endif
