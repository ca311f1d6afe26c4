#include "store/aws_config.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/file.h"
#include "base/mem.h"
#include "store/aws_ini.h"
#include "net/credentials.h"

/* ---- files ---- */

static const char *either(const char *first, const char *second)
{
    return first ? first : second;
}

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

typedef struct files {
    char *config_path, *credentials_path;
    dw_aws_ini config, credentials;
} files;

static void release_files(files *f)
{
    dw_free(f->config_path);
    dw_free(f->credentials_path);
    dw_aws_ini_release(&f->config);
    dw_aws_ini_release(&f->credentials);
}

static dw_status read_files(files *f, dw_error *err)
{
    dw_status status = profile_path(&f->config_path, "AWS_CONFIG_FILE", "config", err);
    if (status == DW_OK)
        status = profile_path(&f->credentials_path, "AWS_SHARED_CREDENTIALS_FILE",
                              "credentials", err);
    if (status == DW_OK)
        status = dw_aws_ini_read(&f->config, f->config_path, err);
    if (status == DW_OK)
        status = dw_aws_ini_read(&f->credentials, f->credentials_path, err);
    return status;
}

/* ---- one profile ---- */

/* Borrowed from the files. */
typedef struct profile {
    bool found;
    const char *access_key, *secret_key, *session_token;
    const char *region, *endpoint, *addressing, *services;
    const char *services_endpoint;
    const char *fetched_keys;    /* the setting that requires fetched keys, or NULL */
    const char *process_setting; /* the same, but AWS prefers keys in the same section */
} profile;

static bool starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

static const char *not_empty(const char *value)
{
    return *value ? value : NULL;
}

static void take_setting(profile *p, const dw_aws_setting *s)
{
    const struct {
        const char *block, *key;
        const char **slot;
    } known[] = {
        {"", "aws_access_key_id", &p->access_key},
        {"", "aws_secret_access_key", &p->secret_key},
        {"", "aws_session_token", &p->session_token},
        {"", "region", &p->region},
        {"", "endpoint_url", &p->endpoint},
        {"", "services", &p->services},
        {"s3", "addressing_style", &p->addressing},
    };
    p->found = true;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(s->block, known[i].block) == 0 && strcmp(s->key, known[i].key) == 0)
            *known[i].slot = not_empty(s->value);
    if (*s->block)
        return;
    if (starts_with(s->key, "sso_") || strcmp(s->key, "role_arn") == 0 ||
        strcmp(s->key, "login_session") == 0)
        p->fetched_keys = s->key;
    if (strcmp(s->key, "credential_process") == 0)
        p->process_setting = s->key;
}

/* In the config file a profile's section is "profile NAME"; only [default] may omit the
 * word. In the credentials file it is the bare name. */
static bool is_profile(const char *section, const char *name, bool is_config)
{
    if (!is_config || (strcmp(name, "default") == 0 && strcmp(section, name) == 0))
        return strcmp(section, name) == 0;
    return starts_with(section, "profile ") && strcmp(section + 8, name) == 0;
}

static void take_file(profile *p, const dw_aws_ini *ini, const char *name, bool is_config)
{
    for (size_t i = 0; i < ini->n_settings; i++)
        if (is_profile(ini->settings[i].section, name, is_config))
            take_setting(p, &ini->settings[i]);
}

static void take_services(profile *p, const dw_aws_ini *config)
{
    for (size_t i = 0; p->services && i < config->n_settings; i++) {
        const dw_aws_setting *s = &config->settings[i];
        if (starts_with(s->section, "services ") &&
            strcmp(s->section + 9, p->services) == 0 && strcmp(s->block, "s3") == 0 &&
            strcmp(s->key, "endpoint_url") == 0)
            p->services_endpoint = not_empty(s->value);
    }
}

static dw_status find_profile(profile *out, const files *f,
                              const dw_store_options *options, dw_error *err)
{
    *out = (profile){0};
    const char *named = either(options->profile, dw_environment("AWS_PROFILE"));
    const char *name = either(named, "default");
    take_file(out, &f->config, name, true);
    take_file(out, &f->credentials, name, false); /* the later one wins */
    take_services(out, &f->config);
    if (named && !out->found)
        return dw_fail(err, DW_INVALID, NULL,
                       "there is no AWS profile '%s' (%s), neither in '%s' nor in '%s'",
                       named, options->profile ? "chosen by option" : "AWS_PROFILE",
                       f->config_path, f->credentials_path);
    return DW_OK;
}

/* ---- choosing ---- */

typedef struct choice {
    const char *endpoint, *region, *addressing;
    const char *access_key, *secret_key, *session_token;
} choice;

static dw_status choose_credentials(choice *c, const profile *p,
                                    const dw_store_options *options, dw_error *err)
{
    const char *from = "the environment has";
    if (!options->profile) {
        c->access_key = dw_environment("AWS_ACCESS_KEY_ID");
        c->secret_key = dw_environment("AWS_SECRET_ACCESS_KEY");
        c->session_token = dw_environment("AWS_SESSION_TOKEN");
    }
    if (!c->access_key && !c->secret_key) {
        const char *setting = p->fetched_keys;
        if (!setting && !p->access_key)
            setting = p->process_setting;
        if (setting)
            return dw_fail(err, DW_UNSUPPORTED, NULL,
                           "the AWS profile has '%s', whose keys must be fetched first; "
                           "export them: eval \"$(aws configure export-credentials "
                           "--format env)\"",
                           setting);
        from = "the AWS profile has";
        c->access_key = p->access_key;
        c->secret_key = p->secret_key;
        c->session_token = p->session_token;
    }
    if (!c->access_key && !c->secret_key)
        c->session_token = NULL;
    else if (!c->access_key || !c->secret_key)
        return dw_fail(err, DW_INVALID, NULL, "%s %s, but not the other half of the pair",
                       from, c->access_key ? "an access key id" : "a secret access key");
    return DW_OK;
}

static void choose_endpoint(choice *c, const profile *p, const dw_store_options *options)
{
    const char *ignore = dw_environment("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS");
    c->endpoint = options->endpoint;
    if (ignore && strcasecmp(ignore, "true") == 0)
        return;
    c->endpoint = either(c->endpoint, dw_environment("AWS_ENDPOINT_URL_S3"));
    c->endpoint = either(c->endpoint, dw_environment("AWS_ENDPOINT_URL"));
    c->endpoint = either(c->endpoint, p->services_endpoint);
    c->endpoint = either(c->endpoint, p->endpoint);
}

/* AWS's files call it "virtual", the options "host". */
static dw_status choose_addressing(choice *c, const profile *p,
                                   const dw_store_options *options, dw_error *err)
{
    const char *style = either(options->addressing, p->addressing);
    if (!style || strcmp(style, "auto") == 0)
        c->addressing = NULL;
    else if (strcmp(style, "path") == 0)
        c->addressing = "path";
    else if (strcmp(style, options->addressing ? "host" : "virtual") == 0)
        c->addressing = "host";
    else
        return dw_fail(err, DW_INVALID, NULL,
                       "there is no addressing '%s' of S3: %s, path or auto", style,
                       options->addressing ? "host" : "virtual");
    return DW_OK;
}

static bool copy(char **out, const char *text)
{
    *out = text ? dw_copy_string(text) : NULL;
    return *out || !text;
}

static dw_status copy_choice(dw_aws_config *out, const choice *c, dw_error *err)
{
    if (copy(&out->endpoint, c->endpoint) && copy(&out->region, c->region) &&
        copy(&out->addressing, c->addressing) && copy(&out->access_key, c->access_key) &&
        copy(&out->secret_key, c->secret_key) &&
        copy(&out->session_token, c->session_token))
        return DW_OK;
    return dw_fail_memory(err, NULL);
}

static dw_status choose(dw_aws_config *out, const files *f,
                        const dw_store_options *options, dw_error *err)
{
    choice c = {0};
    profile p;
    dw_status status = find_profile(&p, f, options, err);
    if (status == DW_OK)
        status = choose_credentials(&c, &p, options, err);
    if (status == DW_OK)
        status = choose_addressing(&c, &p, options, err);
    if (status != DW_OK)
        return status;
    choose_endpoint(&c, &p, options);
    c.region = either(options->region, dw_environment("AWS_REGION"));
    c.region = either(c.region, dw_environment("AWS_DEFAULT_REGION"));
    c.region = either(c.region, either(p.region, "us-east-1"));
    return copy_choice(out, &c, err);
}

dw_status dw_aws_config_load(dw_aws_config *out, const dw_store_options *options,
                             dw_error *err)
{
    static const dw_store_options defaults = {.struct_bytes = sizeof defaults};
    *out = (dw_aws_config){0};
    files f = {0};
    dw_status status = read_files(&f, err);
    if (status == DW_OK)
        status = choose(out, &f, options ? options : &defaults, err);
    release_files(&f);
    if (status != DW_OK)
        dw_aws_config_release(out);
    return status;
}

void dw_aws_config_release(dw_aws_config *config)
{
    dw_free(config->endpoint);
    dw_free(config->region);
    dw_free(config->addressing);
    dw_secret_free(config->access_key);
    dw_secret_free(config->secret_key);
    dw_secret_free(config->session_token);
    *config = (dw_aws_config){0};
}
