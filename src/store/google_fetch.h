/* Access tokens from the services of Google. Each asks once; the caller tries again after
 * DW_UNAVAILABLE. A token is a dw_keys that has only a session_token. */
#ifndef DW_STORE_GOOGLE_FETCH_H
#define DW_STORE_GOOGLE_FETCH_H

#include <stdbool.h>

#include "store/key_ring.h"

/* With the file PATH, of a service account or of a user, at the token_uri that it names.
 * CHECK_ONLY: only reads the file, asks nobody. */
dw_status dw_google_fetch_by_file(dw_keys *out, const char *path, bool check_only,
                                  dw_error *err);

/* GCE_METADATA_HOST, or that of Google's machines. */
const char *dw_google_metadata_host(void);

/* The metadata server; waits a second. Sets *ANSWERED if it is Google's. */
dw_status dw_google_fetch_metadata(dw_keys *out, bool *answered, dw_error *err);

#endif
