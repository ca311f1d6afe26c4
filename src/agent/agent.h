/* The agent: health, status, metrics and a page of a follower or a stream, by HTTP.
 *
 *     GET  /          the page
 *     GET  /healthz   200 while the process works
 *     GET  /readyz    200 while a version is served without errors; else 503
 *     GET  /status    JSON; ?since=N leaves out the history up to version N
 *     GET  /metrics   Prometheus' text format
 *     POST /pin       {"version": N}: hold that version; no body: the current one
 *     POST /unpin     follow the newest again
 *
 * docs/OPERATIONS.md describes each. The server has a thread of its own. It shows what
 * was reported to it. The report functions copy their arguments, never wait for the
 * network, and may be called from any thread. If AGENT is NULL, they do nothing, and the
 * functions that ask return false.
 */
#ifndef DW_AGENT_AGENT_H
#define DW_AGENT_AGENT_H

#include <string.h>

#include "engine/rollout.h"

typedef struct dw_agent dw_agent;

typedef struct dw_agent_options {
    const char *listen;   /* HOST:PORT or [IPV6]:PORT; port 0: a free one. Default
                             127.0.0.1:0 */
    const char *token;    /* clients must send it as `Authorization: Bearer`, except for
                             /healthz and /readyz. NULL: none */
    const char *tls_cert; /* PEM files; both or neither */
    const char *tls_key;
    bool plain;       /* an address other than loopback needs a token and TLS. This allows
                         it without TLS, for networks that have their own */
    bool stream_only; /* there is no follower: no pin, and readiness is the stream's */
} dw_agent_options;

/* Binds and starts to answer. DW_INVALID for a wrong address or token, or if the token is
 * missing; DW_CONFLICT if the port is taken; DW_MISMATCH if the key does not belong to
 * the certificate. */
dw_status dw_agent_start(dw_agent **out, const dw_agent_options *options, dw_error *err);
/* Stops and frees. No other thread may be using the agent. */
void dw_agent_stop(dw_agent *agent);

/* The agent's address: "http://127.0.0.1:9470/". Lives as long as the agent. */
const char *dw_agent_url(const dw_agent *agent);

/* ---- reporting to it --------------------------------------------------------- */

typedef struct dw_agent_identity {
    const char *url;    /* of the stream */
    const char *stream; /* its id */
    const char *id;     /* of the follower; NULL: none */
    const char *dir;    /* of the weights; NULL: none */
    uint64_t n_tensors;
    uint64_t n_elems;
    uint64_t n_bytes; /* of the model */
} dw_agent_identity;

void dw_agent_report_identity(dw_agent *agent, const dw_agent_identity *identity);

/* The newest version of the stream, with CREATED and STEP as in dw_version_info. */
void dw_agent_report_head(dw_agent *agent, uint64_t version, const char *created,
                          const char *step);

/* The version of the weights, and the time at which the first version above it was
 * committed (RFC 3339; NULL: there is none). The lag in seconds counts from that time. */
void dw_agent_report_version(dw_agent *agent, uint64_t version, const char *next_created);

void dw_agent_report_phase(dw_agent *agent, dw_phase phase, uint64_t version);
void dw_agent_report_step(dw_agent *agent, const dw_rollout_step *step);
void dw_agent_report_engine(dw_agent *agent, size_t i, const dw_engine_status *status);

/* A version of the stream that this process did not apply, for the charts. */
void dw_agent_report_commit(dw_agent *agent, const dw_version_info *version);

/* An error; NULL: it is over. */
void dw_agent_report_error(dw_agent *agent, const dw_error *err);

/* The result of a check of the weights or of the stream's objects. */
void dw_agent_report_verified(dw_agent *agent, bool good);

/* The result of the host's command for a version. Until it succeeds, the agent is not
 * ready. */
void dw_agent_report_command(dw_agent *agent, bool good);

void dw_agent_report_counts(dw_agent *agent, const dw_store_counts *counts);

/* Whether a follower that did not say that it stopped sent no report for three minutes at
 * NOW_MS: it was killed, or cannot reach the store. Followers report each minute. */
#define DW_SILENT_MS 180000
bool dw_follower_is_silent(const dw_follower_info *follower, int64_t now_ms);

/* All followers that report to the stream. */
void dw_agent_report_followers(dw_agent *agent, const dw_follower_info *followers,
                               size_t n_followers);

/* ---- asking it -------------------------------------------------------------- */

/* Returns true if a client has pinned a version, and which. */
bool dw_agent_pinned(dw_agent *agent, uint64_t *version);

/* Waits at most TIMEOUT_MS for /pin or /unpin. Returns true if one was called since the
 * last such wait. For one thread at a time. */
bool dw_agent_wait_pin(dw_agent *agent, unsigned timeout_ms);

/* Returns true if a client asked for the page or the status in the last 30 seconds. If
 * not, reports that cost requests to the store can be left out. */
bool dw_agent_watched(dw_agent *agent);

#endif
