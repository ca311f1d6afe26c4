/* The HTTP face of a follower, or of a whole stream: health, status, metrics, a page.
 *
 *     GET  /          the page
 *     GET  /healthz   200 while the process works
 *     GET  /readyz    200 while a version is served and nothing is wrong; else 503, why
 *     GET  /status    JSON; ?since=N leaves out the history up to version N
 *     GET  /metrics   Prometheus' text format; OpenMetrics where it is asked for
 *     POST /pin       {"version": N}: hold that version; no body: the one it is at
 *     POST /unpin     follow the newest again
 *
 * docs/OPERATIONS.md describes each. The server has a thread of its own, which sleeps
 * until somebody asks; what it shows is what it was told. The tell functions copy what
 * they are given, never wait for the network, and may be called from any thread. They,
 * and those that ask, take NULL for an agent that nobody wanted: nothing is told, nothing
 * is pinned, nobody watches.
 */
#ifndef DELTAWIRE_AGENT_H
#define DELTAWIRE_AGENT_H

#include "deltawire/rollout.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dw_agent dw_agent;

typedef struct dw_agent_options {
    const char *listen;   /* HOST:PORT, [IPV6]:PORT; port 0: any that is free. Default
                             127.0.0.1:0 */
    const char *token;    /* asked for as `Authorization: Bearer`; /healthz and /readyz
                             need none. NULL: none */
    const char *tls_cert; /* PEM files; both or neither */
    const char *tls_key;
    bool plain;       /* bound elsewhere than to loopback, a token and TLS must be there;
                         this does without TLS, for networks that bring their own */
    bool stream_only; /* there is no follower: no pin, and readiness is the stream's */
    unsigned n_history; /* versions to remember; default 512 */
} dw_agent_options;

DW_API void dw_agent_options_init(dw_agent_options *options);

/* Binds and starts to answer. DW_INVALID for an address, a token or a lack of one that
 * cannot be, DW_CONFLICT where the port is taken, DW_MISMATCH where the key is not that
 * of the certificate. */
DW_API dw_status dw_agent_start(dw_agent **out, const dw_agent_options *options,
                                dw_error *err);
DW_API void dw_agent_stop(dw_agent *agent); /* nobody may be using it */

/* "http://127.0.0.1:9470/": where it listens. Lives as long as the agent. */
DW_API const char *dw_agent_url(const dw_agent *agent);

/* ---- telling it ------------------------------------------------------------- */

typedef struct dw_agent_identity {
    const char *url;    /* of the stream */
    const char *stream; /* its id */
    const char *id;     /* of the follower; NULL: none */
    const char *dir;    /* where the weights are; NULL: nowhere */
    uint64_t n_tensors;
    uint64_t n_elems;
    uint64_t n_bytes; /* of the model */
} dw_agent_identity;

DW_API void dw_agent_tell_identity(dw_agent *agent, const dw_agent_identity *identity);

/* The newest version of the stream; CREATED and STEP as in dw_version_info. */
DW_API void dw_agent_tell_head(dw_agent *agent, uint64_t version, const char *created,
                               const char *step);

/* The version the weights are at, and the time at which the first version above it was
 * committed (RFC 3339; NULL: there is none): that is what the lag in seconds counts
 * from. */
DW_API void dw_agent_tell_version(dw_agent *agent, uint64_t version,
                                  const char *next_created);

DW_API void dw_agent_tell_phase(dw_agent *agent, dw_phase phase, uint64_t version);
DW_API void dw_agent_tell_hop(dw_agent *agent, const dw_rollout_hop *hop);
DW_API void dw_agent_tell_engine(dw_agent *agent, size_t i,
                                 const dw_engine_status *status);

/* A version of the stream that this process did not apply itself: for the charts. */
DW_API void dw_agent_tell_commit(dw_agent *agent, const dw_version_info *version);

/* Something failed; NULL: it is over. */
DW_API void dw_agent_tell_error(dw_agent *agent, const dw_error *err);

/* A check of the weights or of the stream's bytes was made. */
DW_API void dw_agent_tell_verified(dw_agent *agent, bool good);

/* The host's own command for a version was run. Until it ends well, the agent is not
 * ready. */
DW_API void dw_agent_tell_command(dw_agent *agent, bool good);

DW_API void dw_agent_tell_counts(dw_agent *agent, const dw_store_counts *counts);

/* The followers that report to the stream, all of them. */
DW_API void dw_agent_tell_followers(dw_agent *agent, const dw_follower_info *followers,
                                    size_t n_followers);

/* ---- asking it -------------------------------------------------------------- */

/* Whether a version is to be held, and which. */
DW_API bool dw_agent_pinned(dw_agent *agent, uint64_t *version);

/* Waits until /pin or /unpin was called since the last such wait (true), or TIMEOUT_MS
 * have passed. For one thread at a time. */
DW_API bool dw_agent_wait_pin(dw_agent *agent, unsigned timeout_ms);

/* Whether somebody looked at the page or the status in the last half minute: what costs
 * requests to the store need not be told otherwise. */
DW_API bool dw_agent_watched(dw_agent *agent);

#ifdef __cplusplus
}
#endif

#endif
