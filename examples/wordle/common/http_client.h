/* Small JSON requests to the environment and the rollout servers.
 *
 * A client keeps its connections and belongs to one thread. Every request ends: with an
 * answer, at its deadline, or soon after the flag is set.
 */
#ifndef WORDLE_HTTP_CLIENT_H
#define WORDLE_HTTP_CLIENT_H

#include <jansson.h>
#include <stdatomic.h>

#include <deltawire/deltawire.h>

typedef struct http_client http_client;

/* STOP, if not NULL, becomes true when the current request must be cancelled. */
dw_status http_client_new(http_client **out, const atomic_bool *stop, dw_error *err);
void http_client_free(http_client *client);

/* POST with BODY, which is borrowed; GET if it is NULL. *ANSWER takes the answered
 * object, which the caller releases. DW_UNAVAILABLE if nobody answered in time,
 * DW_INVALID if the answer is no JSON object, DW_CONFLICT for any status outside 200 to
 * 299, with the server's message. */
dw_status http_client_ask(http_client *client, const char *url, const json_t *body,
                          unsigned timeout_ms, json_t **answer, dw_error *err);

#endif
