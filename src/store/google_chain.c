#include "store/google_chain.h"

#include <stdio.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "net/credentials.h"
#include "store/google_fetch.h"

#define TOKEN_VARIABLE "GOOGLE_OAUTH_ACCESS_TOKEN"

typedef struct chain {
    char *path;    /* of a file; NULL: the metadata server */
    bool answered; /* the metadata server: it is there */
} chain;

static dw_status fetch_variable(void *self, dw_keys *out, dw_error *err)
{
    (void)self;
    const char *token = dw_environment(TOKEN_VARIABLE);
    snprintf(out->origin, sizeof out->origin, "%s", TOKEN_VARIABLE);
    out->session_token = dw_copy_string(token ? token : "");
    return out->session_token ? DW_OK : dw_fail_memory(err, NULL);
}

static dw_status fetch(void *self, dw_keys *out, dw_error *err)
{
    chain *c = self;
    dw_error fault = {0};
    if (c->path)
        return dw_google_fetch_by_file(out, c->path, false, err);
    dw_status status = dw_google_fetch_metadata(out, &c->answered, &fault);
    if (status != DW_OK && !c->answered && status != DW_NO_MEMORY)
        return dw_fail(err, DW_DENIED, NULL,
                       "no Google credentials were found in the environment and in "
                       "gcloud's files, and %s: %.300s. Set "
                       "GOOGLE_APPLICATION_CREDENTIALS, run 'gcloud auth "
                       "application-default login', or ask for --anonymous",
                       fault.where, fault.text);
    if (status != DW_OK && err)
        *err = fault;
    return status;
}

static void close_chain(void *self)
{
    chain *c = self;
    dw_free(c->path);
    dw_free(c);
}

/* gcloud's file; NULL in OUT if there is none. */
static dw_status find_default(char **out, dw_error *err)
{
    const char *gcloud = dw_environment("CLOUDSDK_CONFIG"),
               *home = dw_environment("HOME");
    bool exists = false;
    *out = NULL;
    if (!gcloud && !home)
        return DW_OK;
    char *path =
        gcloud
            ? dw_join_path(gcloud, "application_default_credentials.json")
            : dw_join_path(home, ".config/gcloud/application_default_credentials.json");
    dw_status status =
        path ? dw_file_exists(path, &exists, err) : dw_fail_memory(err, NULL);
    if (exists)
        *out = path;
    else
        dw_free(path);
    return status;
}

dw_status dw_google_chain_open(dw_key_ring **out, dw_error *err)
{
    *out = NULL;
    if (dw_environment(TOKEN_VARIABLE))
        return dw_key_ring_open(out, &(dw_key_source){.fetch = fetch_variable}, err);
    const char *given = dw_environment("GOOGLE_APPLICATION_CREDENTIALS");
    dw_keys unused = {0};
    chain *c = dw_alloc_zeroed(1, sizeof *c);
    dw_status status = c ? DW_OK : dw_fail_memory(err, NULL);
    if (status == DW_OK && given) {
        c->path = dw_copy_string(given);
        status = c->path ? DW_OK : dw_fail_memory(err, NULL);
    } else if (status == DW_OK) {
        status = find_default(&c->path, err);
    }
    if (status == DW_OK && c->path) /* what the file lacks is said at once */
        status = dw_google_fetch_by_file(&unused, c->path, true, err);
    if (status != DW_OK) {
        if (c)
            close_chain(c);
        return status;
    }
    const dw_key_source source = {fetch, close_chain, c};
    return dw_key_ring_open(out, &source, err);
}
