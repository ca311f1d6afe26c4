#include "store/aws_chain.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "net/credentials.h"
#include "store/aws_fetch.h"

enum { MAX_PROFILES = 8 }; /* in a chain of source_profile */

typedef enum source_kind {
    ENVIRONMENT = 1,
    WEB_IDENTITY,
    PROFILE,
    CONTAINER,
    INSTANCE,
} source_kind;

typedef struct chain {
    source_kind kind;
    char *profile;               /* its name */
    char *sts_endpoint, *region; /* of STS; the endpoint may be NULL */
    bool answered;               /* instance metadata: it is there */
} chain;

/* ---- keys that are there ---- */

static dw_status copy_keys(dw_keys *out, const char *access_key, const char *secret_key,
                           const char *token, dw_error *err)
{
    if (!access_key || !secret_key)
        return dw_fail(err, DW_INVALID, NULL,
                       "%s has %s, but not the other half of the pair", out->origin,
                       access_key ? "an access key id" : "a secret access key");
    return dw_keys_copy(out, access_key, secret_key, token, err);
}

static dw_status from_environment(dw_keys *out, dw_error *err)
{
    snprintf(out->origin, sizeof out->origin, "the environment");
    return copy_keys(out, dw_environment("AWS_ACCESS_KEY_ID"),
                     dw_environment("AWS_SECRET_ACCESS_KEY"),
                     dw_environment("AWS_SESSION_TOKEN"), err);
}

static dw_status from_web_identity(const chain *c, dw_keys *out, dw_error *err)
{
    const dw_aws_role role = {.endpoint = c->sts_endpoint,
                              .region = c->region,
                              .arn = dw_environment("AWS_ROLE_ARN"),
                              .session_name = dw_environment("AWS_ROLE_SESSION_NAME")};
    const char *path = dw_environment("AWS_WEB_IDENTITY_TOKEN_FILE");
    if (!role.arn || !path)
        return dw_fail(err, DW_INVALID, NULL,
                       "web identity: AWS_WEB_IDENTITY_TOKEN_FILE is set, but not "
                       "AWS_ROLE_ARN");
    return dw_aws_fetch_web_identity(out, &role, path, err);
}

/* ---- profiles ---- */

static dw_status from_profile(const chain *c, const dw_aws_files *files,
                              const dw_aws_profile *p, unsigned depth, dw_keys *out,
                              dw_error *err);

static dw_status from_keys(const dw_aws_profile *p, dw_keys *out, dw_error *err)
{
    snprintf(out->origin, sizeof out->origin, "the AWS profile '%.80s'", p->name);
    snprintf(out->place, sizeof out->place, "%s", p->keys_path);
    return copy_keys(out, p->access_key, p->secret_key, p->session_token, err);
}

static dw_status from_credential_source(const dw_aws_profile *p, dw_keys *out,
                                        dw_error *err)
{
    bool answered = false;
    if (strcmp(p->credential_source, "Environment") == 0)
        return from_environment(out, err);
    if (strcmp(p->credential_source, "EcsContainer") == 0)
        return dw_aws_fetch_container(out, err);
    if (strcmp(p->credential_source, "Ec2InstanceMetadata") == 0 &&
        *dw_aws_instance_address())
        return dw_aws_fetch_instance(out, &answered, err);
    return dw_fail(err, DW_INVALID, NULL,
                   "the AWS profile '%s' has the credential_source '%s': Environment, "
                   "Ec2InstanceMetadata (if it is not disabled) or EcsContainer",
                   p->name, p->credential_source);
}

/* The keys that a role is assumed with. */
static dw_status from_source_profile(const chain *c, const dw_aws_files *files,
                                     const dw_aws_profile *p, unsigned depth,
                                     dw_keys *out, dw_error *err)
{
    /* a profile may be its own source: then its keys are meant */
    if (strcmp(p->source_profile, p->name) == 0)
        return from_keys(p, out, err);
    const dw_aws_profile source = dw_aws_profile_find(files, p->source_profile);
    if (!source.found)
        return dw_fail(err, DW_INVALID, NULL,
                       "the AWS profile '%s' has the source_profile '%s', which is "
                       "neither in '%s' nor in '%s'",
                       p->name, p->source_profile, files->config_path,
                       files->credentials_path);
    if (depth == MAX_PROFILES)
        return dw_fail(err, DW_INVALID, NULL,
                       "the source_profile of the AWS profile '%s' leads on and on: at "
                       "most %d profiles",
                       p->name, MAX_PROFILES);
    return from_profile(c, files, &source, depth + 1, out, err);
}

static dw_status from_role(const chain *c, const dw_aws_files *files,
                           const dw_aws_profile *p, unsigned depth, dw_keys *out,
                           dw_error *err)
{
    const dw_aws_role role = {.endpoint = c->sts_endpoint,
                              .region = c->region,
                              .arn = p->role_arn,
                              .session_name = p->session_name,
                              .external_id = p->external_id,
                              .duration = p->duration};
    if (p->mfa_serial)
        return dw_fail(err, DW_UNSUPPORTED, NULL,
                       "the AWS profile '%s' has 'mfa_serial', which needs a person; "
                       "export its keys: eval \"$(aws configure export-credentials "
                       "--profile %s --format env)\"",
                       p->name, p->name);
    if (p->token_file)
        return dw_aws_fetch_web_identity(out, &role, p->token_file, err);
    if (!p->source_profile && !p->credential_source)
        return dw_fail(err, DW_INVALID, NULL,
                       "the AWS profile '%s' has 'role_arn', but no source_profile, "
                       "credential_source or web_identity_token_file",
                       p->name);
    dw_keys by = {0};
    dw_status status = p->source_profile
                           ? from_source_profile(c, files, p, depth, &by, err)
                           : from_credential_source(p, &by, err);
    if (status == DW_OK)
        status = dw_aws_fetch_role(out, &role, &by, err);
    dw_keys_wipe(&by);
    return status;
}

static dw_status from_profile(const chain *c, const dw_aws_files *files,
                              const dw_aws_profile *p, unsigned depth, dw_keys *out,
                              dw_error *err)
{
    if (p->role_arn)
        return from_role(c, files, p, depth, out, err);
    if (p->sign_on)
        return dw_fail(err, DW_UNSUPPORTED, NULL,
                       "the AWS profile '%s' has '%s', which needs a person; export its "
                       "keys: eval \"$(aws configure export-credentials --profile %s "
                       "--format env)\"",
                       p->name, p->sign_on, p->name);
    if (p->process && !p->access_key && !p->secret_key)
        return dw_aws_fetch_process(out, p->name, p->process, err);
    if (p->access_key || p->secret_key)
        return from_keys(p, out, err);
    return dw_fail(err, DW_DENIED, NULL,
                   "the AWS profile '%s' has no credentials, neither in '%s' nor in '%s'",
                   p->name, files->config_path, files->credentials_path);
}

static dw_status from_files(const chain *c, dw_keys *out, dw_error *err)
{
    dw_aws_files files;
    dw_status status = dw_aws_files_read(&files, err);
    if (status == DW_OK) {
        const dw_aws_profile p = dw_aws_profile_find(&files, c->profile);
        status = from_profile(c, &files, &p, 1, out, err);
    }
    dw_aws_files_release(&files);
    return status;
}

/* ---- the source ---- */

static dw_status from_instance(chain *c, dw_keys *out, dw_error *err)
{
    dw_error fault = {0};
    dw_status status = dw_aws_fetch_instance(out, &c->answered, &fault);
    if (status == DW_OK || c->answered || status == DW_NO_MEMORY) {
        if (status != DW_OK && err)
            *err = fault;
        return status;
    }
    return dw_fail(err, DW_DENIED, NULL,
                   "no credentials were found in the environment and in profiles, and "
                   "%s: %.300s. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
                   "AWS_PROFILE, or ask for --anonymous",
                   fault.where, fault.text);
}

static dw_status fetch(void *self, dw_keys *out, dw_error *err)
{
    chain *c = self;
    switch (c->kind) {
    case ENVIRONMENT:
        return from_environment(out, err);
    case WEB_IDENTITY:
        return from_web_identity(c, out, err);
    case PROFILE:
        return from_files(c, out, err);
    case CONTAINER:
        return dw_aws_fetch_container(out, err);
    case INSTANCE:
        break;
    }
    return from_instance(c, out, err);
}

static void close_chain(void *self)
{
    chain *c = self;
    dw_free(c->profile);
    dw_free(c->sts_endpoint);
    dw_free(c->region);
    dw_free(c);
}

/* 0: none is configured. */
static source_kind choose(const dw_aws_profile *profile, const char *named)
{
    if (named)
        return PROFILE;
    if (dw_environment("AWS_ACCESS_KEY_ID") || dw_environment("AWS_SECRET_ACCESS_KEY"))
        return ENVIRONMENT;
    if (dw_environment("AWS_WEB_IDENTITY_TOKEN_FILE"))
        return WEB_IDENTITY;
    if (dw_aws_profile_has_keys(profile))
        return PROFILE;
    if (dw_environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") ||
        dw_environment("AWS_CONTAINER_CREDENTIALS_FULL_URI"))
        return CONTAINER;
    return *dw_aws_instance_address() ? INSTANCE : 0;
}

/* What can be seen without asking anybody is said at once. */
static dw_status check(const chain *c, const dw_aws_files *files,
                       const dw_aws_profile *profile, dw_error *err)
{
    dw_keys keys = {0};
    dw_status status = DW_OK;
    if (c->kind == ENVIRONMENT)
        status = from_environment(&keys, err);
    else if (c->kind == WEB_IDENTITY && !dw_environment("AWS_ROLE_ARN"))
        status = from_web_identity(c, &keys, err);
    else if (c->kind == PROFILE && !profile->role_arn &&
             (profile->sign_on || !profile->process || profile->access_key))
        status = from_profile(c, files, profile, 1, &keys, err);
    dw_keys_wipe(&keys);
    return status;
}

dw_status dw_aws_chain_open(dw_key_ring **out, const dw_aws_files *files,
                            const dw_aws_profile *profile, const char *named,
                            const dw_aws_config *config, dw_error *err)
{
    *out = NULL;
    const source_kind kind = choose(profile, named);
    if (!kind)
        return dw_fail(err, DW_DENIED, NULL,
                       "no credentials were found in the environment, in '%s', in '%s' "
                       "and from a container. Set AWS_ACCESS_KEY_ID and "
                       "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or ask for --anonymous",
                       files->config_path, files->credentials_path);
    chain *c = dw_alloc_zeroed(1, sizeof *c);
    if (!c)
        return dw_fail_memory(err, NULL);
    c->kind = kind;
    c->profile = dw_copy_string(profile->name);
    c->region = dw_copy_string(config->region);
    c->sts_endpoint = config->sts_endpoint ? dw_copy_string(config->sts_endpoint) : NULL;
    dw_status status =
        c->profile && c->region && (!config->sts_endpoint || c->sts_endpoint)
            ? check(c, files, profile, err)
            : dw_fail_memory(err, NULL);
    if (status != DW_OK) {
        close_chain(c);
        return status;
    }
    const dw_key_source source = {fetch, close_chain, c};
    return dw_key_ring_open(out, &source, err);
}
