/* Finds the access token of Google Cloud as its libraries do. The first of these that is
 * configured is used, and no other: if it fails, the error says so.
 *
 *     1  GOOGLE_OAUTH_ACCESS_TOKEN, which nobody renews
 *     2  the file GOOGLE_APPLICATION_CREDENTIALS: a service account's, or a user's
 *     3  gcloud's application default credentials, if the file exists: in CLOUDSDK_CONFIG
 *        or ~/.config/gcloud
 *     4  the metadata server. Until it has answered, silence means that there is none,
 *        and nobody waits for it
 *
 * Tokens are renewed from the same source; files are read again.
 */
#ifndef DW_STORE_GOOGLE_CHAIN_H
#define DW_STORE_GOOGLE_CHAIN_H

#include "store/key_ring.h"

/* Chooses the source, and opens a ring over it. Sends nothing. */
dw_status dw_google_chain_open(dw_key_ring **out, dw_error *err);

#endif
