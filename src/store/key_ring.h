/* The keys of a store, with one owner: where they come from, until when they are good,
 * and who renews them.
 *
 *     source ──fetch──► dw_keys ──take──► requests, on any thread
 *        ▲                  │
 *        └── before they expire, and after a server refused them
 *
 * One renewal serves all threads. While the old keys are still good, only the thread that
 * renews them waits; afterwards all do, and all get the same error if it fails.
 */
#ifndef DW_STORE_KEY_RING_H
#define DW_STORE_KEY_RING_H

#include <stdatomic.h>
#include <stdint.h>

#include "deltawire/store.h"

#define DW_KEYS_ORIGIN 256

/* One set; it does not change once it is in a ring. An access token is a session_token
 * alone. */
typedef struct dw_keys {
    char *access_key, *secret_key, *session_token /* or NULL */;
    int64_t expires_ms;          /* of the wall clock; 0: not known */
    char origin[DW_KEYS_ORIGIN]; /* where they come from, for people */
    char place[DW_KEYS_ORIGIN];  /* the file or address, if ORIGIN does not name it */
    atomic_uint n_users;
} dw_keys;

/* Wipes what a failed fetch has filled. */
void dw_keys_wipe(dw_keys *keys);

/* Fills OUT with copies; TOKEN may be NULL. */
dw_status dw_keys_copy(dw_keys *out, const char *access_key, const char *secret_key,
                       const char *token, dw_error *err);

typedef struct dw_key_source {
    /* Fills OUT, which is zeroed. DW_UNAVAILABLE: another try may help. Calls do not
     * overlap. */
    dw_status (*fetch)(void *self, dw_keys *out, dw_error *err);
    void (*close)(void *self); /* may be NULL */
    void *self;
} dw_key_source;

typedef struct dw_key_ring dw_key_ring;

/* Takes SOURCE, also if this fails. Fetches nothing yet. */
dw_status dw_key_ring_open(dw_key_ring **out, const dw_key_source *source, dw_error *err);

/* Keys that never change; ORIGIN says whose they are. TOKEN may be NULL. */
dw_status dw_key_ring_fixed(dw_key_ring **out, const char *access_key,
                            const char *secret_key, const char *token, const char *origin,
                            dw_error *err);

/* The keys that the caller's function gives, by OPTIONS; TOKEN_ONLY: an access token. */
dw_status dw_key_ring_called(dw_key_ring **out, const dw_store_options *options,
                             bool token_only, dw_error *err);

/* Accepts NULL. */
void dw_key_ring_close(dw_key_ring *ring);

/* The keys for a request that is sent now; dw_keys_release them. */
dw_status dw_key_ring_take(dw_key_ring *ring, dw_keys **out, dw_error *err);

/* After a server refused KEYS: renews them, unless another thread did, and returns the
 * new ones. *CHANGED: they differ. If they do not, the source is asked again at the next
 * take, because a person may have put new ones there. */
dw_status dw_key_ring_renew(dw_key_ring *ring, const dw_keys *keys, dw_keys **out,
                            bool *changed, dw_error *err);

/* Accepts NULL. */
void dw_keys_release(dw_keys *keys);

/* The last characters of the key's id: enough to recognise it, but useless to others. */
const char *dw_keys_end(const dw_keys *keys);

/* Tells of the keys that it has. RING may be NULL: requests are not signed. */
void dw_key_ring_facts(dw_key_ring *ring, dw_store_facts *out);

#endif
