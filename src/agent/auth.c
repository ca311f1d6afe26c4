#include "agent/auth.h"

#include <openssl/crypto.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"

#define MAX_TOKEN 4096

/* As in RFC 6750: no other characters are allowed in the header. */
static bool is_token(const char *text)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/=";
    const size_t n = strlen(text);
    return n > 0 && n <= MAX_TOKEN && strspn(text, letters) == n;
}

dw_status dw_guard_init(dw_guard *guard, const dw_agent_options *options,
                        const dw_listener *listener, dw_error *err)
{
    const bool has_tls = options->tls_cert && options->tls_key;
    *guard = (dw_guard){.has_token = options->token != NULL,
                        .is_loopback = listener->is_loopback};
    snprintf(guard->host, sizeof guard->host, "%s", listener->name.host);
    if (!options->tls_cert != !options->tls_key)
        return dw_fail(err, DW_INVALID, options->listen,
                       "a certificate and its key go together: give both or neither");
    if (!listener->is_loopback && !options->token)
        return dw_fail(err, DW_INVALID, options->listen,
                       "others can reach this address: it needs a token; or listen at "
                       "127.0.0.1");
    if (!listener->is_loopback && !has_tls && !options->plain)
        return dw_fail(err, DW_INVALID, options->listen,
                       "others can reach this address: it needs TLS, a certificate and "
                       "its key; or declare the network safe (plain)");
    if (!options->token)
        return DW_OK;
    if (!is_token(options->token))
        return dw_fail(err, DW_INVALID, options->listen,
                       "a token is 1 to %d letters, digits and -._~+/= such as "
                       "`openssl rand -hex 32` gives",
                       MAX_TOKEN);
    return dw_sha256_of(guard->token, options->token, strlen(options->token), err);
}

static const char *header(struct MHD_Connection *connection, const char *name)
{
    return MHD_lookup_connection_value(connection, MHD_HEADER_KIND, name);
}

bool dw_guard_knows(const dw_guard *guard, struct MHD_Connection *connection)
{
    static const char scheme[] = "Bearer ";
    const size_t n_scheme = sizeof scheme - 1;
    const char *value = header(connection, MHD_HTTP_HEADER_AUTHORIZATION);
    uint8_t given[DW_SHA256_BYTES];
    if (!guard->has_token)
        return true;
    if (!value || strncasecmp(value, scheme, n_scheme) != 0)
        return false;
    value += n_scheme;
    value += strspn(value, " ");
    /* hashes of equal length in constant time reveal nothing of the token */
    return dw_sha256_of(given, value, strlen(value), NULL) == DW_OK &&
           CRYPTO_memcmp(given, guard->token, sizeof given) == 0;
}

bool dw_guard_is_host(const dw_guard *guard, struct MHD_Connection *connection)
{
    const char *host = header(connection, MHD_HTTP_HEADER_HOST);
    /* without a Host it is HTTP/1.0, which no browser speaks */
    return !guard->is_loopback || !host || dw_host_is_loopback(host) ||
           dw_host_is(host, guard->host);
}

bool dw_guard_is_own_origin(struct MHD_Connection *connection)
{
    const char *origin = header(connection, MHD_HTTP_HEADER_ORIGIN);
    const char *host = header(connection, MHD_HTTP_HEADER_HOST);
    if (!origin)
        return true;
    const char *own = strstr(origin, "://");
    return own && host && strcasecmp(own + 3, host) == 0;
}
