#include "store/aws_profile.h"

#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "net/credentials.h"

/* ---- files ---- */

/* The file that VARIABLE names, or ~/.aws/NAME; empty if there is no home. */
static dw_status profile_path(char **out, const char *variable_name, const char *name,
                              dw_error *err)
{
    const char *given = dw_environment(variable_name);
    const char *home = dw_environment("HOME");
    char *dir = NULL;
    if (!given && home)
        dir = dw_join_path(home, ".aws");
    *out = given   ? dw_copy_string(given)
           : !home ? dw_copy_string("")
           : dir   ? dw_join_path(dir, name)
                   : NULL;
    dw_free(dir);
    return *out ? DW_OK : dw_fail_memory(err, NULL);
}

dw_status dw_aws_files_read(dw_aws_files *out, dw_error *err)
{
    *out = (dw_aws_files){0};
    dw_status status = profile_path(&out->config_path, "AWS_CONFIG_FILE", "config", err);
    if (status == DW_OK)
        status = profile_path(&out->credentials_path, "AWS_SHARED_CREDENTIALS_FILE",
                              "credentials", err);
    if (status == DW_OK)
        status = dw_aws_ini_read(&out->config, out->config_path, err);
    if (status == DW_OK)
        status = dw_aws_ini_read(&out->credentials, out->credentials_path, err);
    return status;
}

void dw_aws_files_release(dw_aws_files *files)
{
    dw_free(files->config_path);
    dw_free(files->credentials_path);
    dw_aws_ini_release(&files->config);
    dw_aws_ini_release(&files->credentials);
    *files = (dw_aws_files){0};
}

/* ---- one profile ---- */

static bool starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

static const char *not_empty(const char *value)
{
    return *value ? value : NULL;
}

static void take_setting(dw_aws_profile *p, const dw_aws_setting *s)
{
    const struct {
        const char *block, *key;
        const char **slot;
    } known[] = {
        {"", "aws_access_key_id", &p->access_key},
        {"", "aws_secret_access_key", &p->secret_key},
        {"", "aws_session_token", &p->session_token},
        {"", "role_arn", &p->role_arn},
        {"", "source_profile", &p->source_profile},
        {"", "credential_source", &p->credential_source},
        {"", "web_identity_token_file", &p->token_file},
        {"", "role_session_name", &p->session_name},
        {"", "external_id", &p->external_id},
        {"", "duration_seconds", &p->duration},
        {"", "mfa_serial", &p->mfa_serial},
        {"", "credential_process", &p->process},
        {"", "region", &p->region},
        {"", "endpoint_url", &p->endpoint},
        {"", "services", &p->services},
        {"s3", "addressing_style", &p->addressing},
    };
    p->found = true;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(s->block, known[i].block) == 0 && strcmp(s->key, known[i].key) == 0)
            *known[i].slot = not_empty(s->value);
    if (!*s->block &&
        (starts_with(s->key, "sso_") || strcmp(s->key, "login_session") == 0))
        p->sign_on = s->key;
}

/* In the config file a profile's section is "profile NAME"; only [default] may omit the
 * word. In the credentials file it is the bare name. */
static bool is_profile(const char *section, const char *name, bool is_config)
{
    if (!is_config || (strcmp(name, "default") == 0 && strcmp(section, name) == 0))
        return strcmp(section, name) == 0;
    return starts_with(section, "profile ") && strcmp(section + 8, name) == 0;
}

static void take_file(dw_aws_profile *p, const dw_aws_ini *ini, bool is_config)
{
    for (size_t i = 0; i < ini->n_settings; i++)
        if (is_profile(ini->settings[i].section, p->name, is_config))
            take_setting(p, &ini->settings[i]);
}

static void take_services(dw_aws_profile *p, const dw_aws_ini *config)
{
    for (size_t i = 0; p->services && i < config->n_settings; i++) {
        const dw_aws_setting *s = &config->settings[i];
        if (!starts_with(s->section, "services ") ||
            strcmp(s->section + 9, p->services) != 0 ||
            strcmp(s->key, "endpoint_url") != 0)
            continue;
        if (strcmp(s->block, "s3") == 0)
            p->s3_endpoint = not_empty(s->value);
        if (strcmp(s->block, "sts") == 0)
            p->sts_endpoint = not_empty(s->value);
    }
}

dw_aws_profile dw_aws_profile_find(const dw_aws_files *files, const char *name)
{
    dw_aws_profile p = {.name = name};
    take_file(&p, &files->config, true);
    const char *in_config = p.access_key;
    take_file(&p, &files->credentials, false); /* the later one wins */
    p.keys_path =
        p.access_key == in_config ? files->config_path : files->credentials_path;
    take_services(&p, &files->config);
    return p;
}

bool dw_aws_profile_has_keys(const dw_aws_profile *p)
{
    return p->access_key || p->secret_key || p->role_arn || p->process || p->sign_on;
}

dw_status dw_aws_profile_choose(dw_aws_profile *out, const dw_aws_files *files,
                                const char *named, dw_error *err)
{
    const char *variable = dw_environment("AWS_PROFILE");
    const char *wanted = named ? named : variable;
    *out = dw_aws_profile_find(files, wanted ? wanted : "default");
    if (wanted && !out->found)
        return dw_fail(err, DW_INVALID, NULL,
                       "there is no AWS profile '%s' (%s), neither in '%s' nor in '%s'",
                       wanted, named ? "chosen by option" : "AWS_PROFILE",
                       files->config_path, files->credentials_path);
    return DW_OK;
}
