#include <sys/stat.h>

#include "unit/suite.h"

#include "failing_allocator.h"
#include "scripted_server.h"
#include "store/aws_chain.h"
#include "store/aws_fetch.h"
#include "temp_dir.h"

/* Hides the machine's own settings: no variables, and an empty home. */
static int clean_environment(void **state)
{
    (void)state;
    const char *names[] = {"AWS_ENDPOINT_URL_S3",
                           "AWS_ENDPOINT_URL",
                           "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS",
                           "AWS_REGION",
                           "AWS_DEFAULT_REGION",
                           "AWS_PROFILE",
                           "AWS_ACCESS_KEY_ID",
                           "AWS_SECRET_ACCESS_KEY",
                           "AWS_SESSION_TOKEN",
                           "AWS_SHARED_CREDENTIALS_FILE",
                           "AWS_CONFIG_FILE",
                           "AWS_WEB_IDENTITY_TOKEN_FILE",
                           "AWS_ROLE_ARN",
                           "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                           "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                           "AWS_EC2_METADATA_SERVICE_ENDPOINT"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
    unlink(temp_path(".aws/config"));
    unlink(temp_path(".aws/credentials"));
    mkdir(temp_path(".aws"), 0700);
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    return setenv("HOME", temp_dir, 1);
}

static void put_config(const char *text)
{
    put_text(temp_path(".aws/config"), text);
}

static void put_credentials(const char *text)
{
    put_text(temp_path(".aws/credentials"), text);
}

/* What is set, and the keys as the first request gets them: `status` is that of the keys,
 * with the text in `fault`, if the rest is good. */
typedef struct settings {
    dw_aws_config config;
    char *endpoint, *region, *addressing; /* borrowed from it */
    dw_status status;
    dw_error fault;
    dw_keys *keys; /* NULL after a failure */
} settings;

static dw_status read_settings(settings *out, const dw_store_options *options,
                               dw_error *err)
{
    const char *named = options ? options->profile : NULL;
    dw_aws_files files;
    dw_aws_profile profile;
    dw_key_ring *ring = NULL;
    *out = (settings){0};
    dw_status status = dw_aws_files_read(&files, err);
    if (status == DW_OK)
        status = dw_aws_profile_choose(&profile, &files, named, err);
    if (status == DW_OK)
        status = dw_aws_config_load(&out->config, &profile, options, err);
    if (status == DW_OK) {
        out->status =
            dw_aws_chain_open(&ring, &files, &profile, named, &out->config, &out->fault);
        if (out->status == DW_OK)
            out->status = dw_key_ring_take(ring, &out->keys, &out->fault);
        dw_key_ring_close(ring);
    }
    out->endpoint = out->config.endpoint;
    out->region = out->config.region;
    out->addressing = out->config.addressing;
    dw_aws_files_release(&files);
    return status;
}

static void release(settings *s)
{
    dw_aws_config_release(&s->config);
    dw_keys_release(s->keys);
    s->keys = NULL;
}

static settings load(const dw_store_options *options)
{
    settings s;
    dw_error err = {0};
    if (read_settings(&s, options, &err) != DW_OK)
        fail_msg("%s: %s", err.where, err.text);
    return s;
}

static void assert_load_fails(const dw_store_options *options, dw_status code,
                              const char *word)
{
    settings s;
    dw_error err = {0};
    dw_status status = read_settings(&s, options, &err);
    if (status == DW_OK) {
        status = s.status;
        err = s.fault;
    }
    assert_int_equal(status, code);
    if (!strstr(err.text, word))
        fail_msg("no '%s' in '%s'", word, err.text);
    assert_null(strstr(err.text, "hush"));
    assert_null(s.keys);
    release(&s);
}

static void assert_keys(const settings *s, const char *access, const char *secret,
                        const char *token)
{
    if (s->status != DW_OK)
        fail_msg("%s: %s", s->fault.where, s->fault.text);
    assert_string_equal(s->keys->access_key, access);
    assert_string_equal(s->keys->secret_key, secret);
    if (token)
        assert_string_equal(s->keys->session_token, token);
    else
        assert_null(s->keys->session_token);
}

TEST_WITH(test_nothing, clean_environment, NULL)
{
    settings c = load(NULL);
    assert_null(c.endpoint);
    assert_string_equal(c.region, "us-east-1");
    assert_null(c.addressing);
    assert_int_equal(c.status, DW_DENIED); /* never unsigned by accident */
    assert_non_null(strstr(c.fault.text, "AWS_ACCESS_KEY_ID"));
    release(&c);
    release(&c); /* twice does no harm */

    unsetenv("HOME");
    assert_load_fails(NULL, DW_DENIED, "no credentials were found");
}

TEST_WITH(test_variables, clean_environment, NULL)
{
    setenv("AWS_ENDPOINT_URL", "http://general", 1);
    setenv("AWS_DEFAULT_REGION", "r-default", 1);
    setenv("AWS_ACCESS_KEY_ID", "id", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    settings c = load(NULL);
    assert_string_equal(c.endpoint, "http://general");
    assert_string_equal(c.region, "r-default");
    assert_keys(&c, "id", "secret", NULL);
    release(&c);

    setenv("AWS_ENDPOINT_URL_S3", "http://special", 1);
    setenv("AWS_REGION", "r", 1);
    setenv("AWS_SESSION_TOKEN", "token", 1);
    c = load(NULL);
    assert_string_equal(c.endpoint, "http://special");
    assert_string_equal(c.region, "r");
    assert_keys(&c, "id", "secret", "token");
    release(&c);

    setenv("AWS_ENDPOINT_URL_S3", "", 1); /* as if not set */
    setenv("AWS_REGION", "", 1);
    c = load(NULL);
    assert_string_equal(c.endpoint, "http://general");
    assert_string_equal(c.region, "r-default");
    release(&c);

    setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "True", 1);
    c = load(NULL);
    assert_null(c.endpoint);
    release(&c);
}

TEST_WITH(test_options_come_first, clean_environment, NULL)
{
    setenv("AWS_ENDPOINT_URL_S3", "http://special", 1);
    setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true", 1);
    setenv("AWS_REGION", "r", 1);
    put_config("[default]\ns3 =\n  addressing_style = virtual\n");
    settings c = load(&(dw_store_options){.struct_bytes = sizeof(dw_store_options),
                                          .endpoint = "http://mine",
                                          .region = "here",
                                          .addressing = "path"});
    assert_string_equal(c.endpoint, "http://mine");
    assert_string_equal(c.region, "here");
    assert_string_equal(c.addressing, "path");
    release(&c);
}

TEST_WITH(test_default_profile, clean_environment, NULL)
{
    put_config("# ours\n"
               "aws_access_key_id = before any section\n"
               "[profile other]\r\n"
               "region = elsewhere\r\n"
               "\r\n"
               "[default]\r\n"
               "  ; indented comment\r\n"
               "region=eu-central-1   # a comment\r\n"
               "aws_access_key_id = from-config\r\n"
               "aws_session_token = config-token\r\n"
               "s3 =\r\n"
               "\taddressing_style = virtual\r\n"
               "    region = not this one\r\n"
               "endpoint_url = https://s3.example:9000/x;y#z\r\n"
               "no sign in this line\r\n"
               "= no key\r\n");
    put_credentials("[default]\n"
                    "aws_access_key_id = AKID\n"
                    "aws_secret_access_key = a/b+c=#;d\n");
    settings c = load(NULL);
    assert_string_equal(c.region, "eu-central-1");
    assert_string_equal(c.endpoint, "https://s3.example:9000/x;y#z");
    assert_string_equal(c.addressing, "host");
    assert_keys(&c, "AKID", "a/b+c=#;d", "config-token");
    release(&c);

    setenv("AWS_ACCESS_KEY_ID", "id", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    setenv("AWS_REGION", "r", 1);
    c = load(NULL);
    assert_string_equal(c.region, "r");
    assert_keys(&c, "id", "secret", NULL); /* no token of another pair */
    release(&c);
}

TEST_WITH(test_named_profiles, clean_environment, NULL)
{
    put_config("[profile a]\nregion = r-a\n[ profile  \"b c\" ]\nregion = r-b\n"
               "[a]\nregion = no section of a config file\n"
               "[profile default]\nregion = r-default\n[ab]\n[profile ab]\n");
    put_credentials("[a]\naws_access_key_id = id-a\naws_secret_access_key = secret-a\n"
                    "[profile a]\naws_access_key_id = no section of this file\n");
    settings c = load(NULL);
    assert_string_equal(c.region, "r-default");
    release(&c);

    setenv("AWS_PROFILE", "a", 1);
    setenv("AWS_ACCESS_KEY_ID", "id", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    c = load(NULL);
    assert_string_equal(c.region, "r-a");
    assert_keys(&c, "id", "secret", NULL);
    release(&c);
    /* a profile that the caller named has priority over the variables */
    c = load(
        &(dw_store_options){.struct_bytes = sizeof(dw_store_options), .profile = "a"});
    assert_keys(&c, "id-a", "secret-a", NULL);
    release(&c);
    c = load(
        &(dw_store_options){.struct_bytes = sizeof(dw_store_options), .profile = "b c"});
    assert_string_equal(c.region, "r-b");
    assert_int_equal(c.status, DW_DENIED);
    release(&c);
    c = load(&(dw_store_options){.struct_bytes = sizeof(dw_store_options),
                                 .profile = "ab"}); /* empty, but it exists */
    assert_string_equal(c.region, "us-east-1");
    release(&c);

    assert_load_fails(
        &(dw_store_options){.struct_bytes = sizeof(dw_store_options), .profile = "lab"},
        DW_INVALID, "no AWS profile 'lab' (chosen by option)");
    setenv("AWS_PROFILE", "nowhere", 1);
    assert_load_fails(NULL, DW_INVALID, "no AWS profile 'nowhere' (AWS_PROFILE)");
    assert_load_fails(NULL, DW_INVALID, temp_path(".aws/credentials"));
}

TEST_WITH(test_services, clean_environment, NULL)
{
    put_config("[services lab]\n"
               "ec2 =\n  endpoint_url = http://ec2\n"
               "s3 =\n  endpoint_url = http://s3-of-lab\n"
               "dynamodb =\n  endpoint_url = http://dynamodb\n"
               "[services other]\ns3 =\n  endpoint_url = http://other\n"
               "[default]\nservices = lab\nendpoint_url = http://general\n");
    settings c = load(NULL);
    assert_string_equal(c.endpoint, "http://s3-of-lab");
    release(&c);
    setenv("AWS_ENDPOINT_URL", "http://variable", 1);
    c = load(NULL);
    assert_string_equal(c.endpoint, "http://variable");
    release(&c);
}

TEST_WITH(test_other_paths, clean_environment, NULL)
{
    put_config("[default]\nregion = hidden\n");
    put_text(temp_path("my-config"), "[default]\nregion = mine\n");
    setenv("AWS_CONFIG_FILE", temp_path("my-config"), 1);
    setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null", 1);
    settings c = load(NULL);
    assert_string_equal(c.region, "mine");
    release(&c);
    setenv("AWS_CONFIG_FILE", temp_path("not-there"), 1);
    c = load(NULL);
    assert_string_equal(c.region, "us-east-1");
    release(&c);
    setenv("AWS_CONFIG_FILE", temp_dir, 1);
    assert_load_fails(NULL, DW_IO, "cannot read the profiles");
}

TEST_WITH(test_half_a_pair, clean_environment, NULL)
{
    setenv("AWS_ACCESS_KEY_ID", "hush", 1);
    assert_load_fails(NULL, DW_INVALID, "the environment has an access key id");
    unsetenv("AWS_ACCESS_KEY_ID");
    setenv("AWS_SECRET_ACCESS_KEY", "hush", 1);
    assert_load_fails(NULL, DW_INVALID, "the environment has a secret access key");
    unsetenv("AWS_SECRET_ACCESS_KEY");
    put_credentials("[default]\naws_secret_access_key = hush\n");
    assert_load_fails(NULL, DW_INVALID,
                      "the AWS profile 'default' has a secret access key");
    put_credentials("[default]\naws_session_token = hush\n");
    assert_load_fails(NULL, DW_DENIED, "no credentials were found");
}

TEST_WITH(test_keys_that_need_a_person, clean_environment, NULL)
{
    const char *settings_of_people[] = {"sso_session", "sso_start_url", "login_session"};
    for (size_t i = 0; i < 3; i++) {
        char text[128];
        snprintf(text, sizeof text, "[default]\n%s = hush\n", settings_of_people[i]);
        put_config(text);
        assert_load_fails(NULL, DW_UNSUPPORTED, settings_of_people[i]);
        assert_load_fails(NULL, DW_UNSUPPORTED, "aws configure export-credentials");
    }
    put_config("[default]\nrole_arn = r\nsource_profile = x\nmfa_serial = m\n");
    assert_load_fails(NULL, DW_UNSUPPORTED, "mfa_serial");
    /* if keys are exported, the profile does not matter */
    setenv("AWS_ACCESS_KEY_ID", "id", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    settings c = load(NULL);
    assert_keys(&c, "id", "secret", NULL);
    release(&c);
}

TEST_WITH(test_roles_without_a_source, clean_environment, NULL)
{
    put_config("[default]\nrole_arn = r\n");
    assert_load_fails(NULL, DW_INVALID, "no source_profile");
    put_config("[default]\nrole_arn = r\nsource_profile = lab\n");
    assert_load_fails(NULL, DW_INVALID, "source_profile 'lab'");
    put_config("[default]\nrole_arn = r\ncredential_source = Moon\n");
    assert_load_fails(NULL, DW_INVALID, "credential_source 'Moon'");
    put_config("[default]\nrole_arn = r\nsource_profile = a\n"
               "[profile a]\nrole_arn = r\nsource_profile = default\n");
    assert_load_fails(NULL, DW_INVALID, "on and on");
    setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/nowhere/token", 1);
    assert_load_fails(NULL, DW_INVALID, "AWS_ROLE_ARN");
    setenv("AWS_ROLE_ARN", "r", 1);
    assert_load_fails(NULL, DW_UNAVAILABLE, "web identity, role r");
}

TEST_WITH(test_process, clean_environment, NULL)
{
    put_config("[default]\ncredential_process = echo '{\"Version\": 1, "
               "\"AccessKeyId\": \"i\", \"SecretAccessKey\": \"s\", \"SessionToken\": "
               "\"t\", \"Expiration\": \"2100-01-01T01:00:00+01:00\"}'\n");
    settings c = load(NULL);
    assert_keys(&c, "i", "s", "t");
    assert_int_equal(c.keys->expires_ms, 4102444800000);
    release(&c);
    put_config("[default]\ncredential_process = echo no such vault >&2; exit 3\n");
    assert_load_fails(NULL, DW_DENIED, "no such vault");
    put_config("[default]\ncredential_process = echo '{}'\n");
    assert_load_fails(NULL, DW_DENIED, "no AccessKeyId");
    put_config("[default]\ncredential_process = head -c 70000 /dev/zero\n");
    assert_load_fails(NULL, DW_DENIED, "");
    /* keys in the same section as a process are used, as AWS does */
    put_credentials("[default]\naws_access_key_id = i\naws_secret_access_key = s\n");
    c = load(NULL);
    assert_keys(&c, "i", "s", NULL);
    release(&c);
}

TEST_WITH(test_container_hosts, clean_environment, NULL)
{
    const char *good[] = {"https://anywhere/x",     "http://127.0.0.1:80/x",
                          "http://127.9.9.9/x",     "http://localhost/x",
                          "http://169.254.170.2/x", "http://169.254.170.23:1/x",
                          "http://[::1]:80/x",      "http://[fd00:ec2::23]/x"};
    const char *bad[] = {"http://10.0.0.1/x",
                         "http://127.evil.example/x",
                         "http://localhost.example/x",
                         "http://169.254.170.234/x",
                         "http://localhost@evil/x",
                         "ftp://localhost/x",
                         ""};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        assert_true(dw_aws_container_url_allowed(good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(dw_aws_container_url_allowed(bad[i]));
    setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://10.0.0.1/x", 1);
    assert_load_fails(NULL, DW_INVALID, "AWS_CONTAINER_CREDENTIALS_FULL_URI must be");
    setenv("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "http://10.0.0.1/x", 1);
    assert_load_fails(NULL, DW_INVALID, "RELATIVE_URI must be a path");
}

#define REPLY(status, n, text)                                                           \
    "HTTP/1.1 " status "\r\nContent-Length: " n "\r\nConnection: close\r\n\r\n" text

/* Silence means that there is no instance metadata; the next request finds out anew. */
TEST_WITH(test_instance_that_was_silent, clean_environment, NULL)
{
    static const char *const replies[] = {
        "",
        REPLY("503 Service Unavailable", "0", ""),
        REPLY("200 OK", "5", "token"),
        REPLY("200 OK", "4", "role"),
        REPLY("200 OK", "49",
              "{\"AccessKeyId\": \"access\", \"SecretAccessKey\": \"s\"}"),
    };
    scripted_server server;
    dw_aws_files files;
    dw_aws_profile profile;
    dw_aws_config config;
    dw_key_ring *ring;
    dw_keys *keys;
    dw_error err = {0};
    script_start(&server, replies, 5);
    unsetenv("AWS_EC2_METADATA_DISABLED");
    setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", server.endpoint, 1);
    assert_int_equal(dw_aws_files_read(&files, NULL), DW_OK);
    assert_int_equal(dw_aws_profile_choose(&profile, &files, NULL, NULL), DW_OK);
    assert_int_equal(dw_aws_config_load(&config, &profile, NULL, NULL), DW_OK);
    assert_int_equal(dw_aws_chain_open(&ring, &files, &profile, NULL, &config, NULL),
                     DW_OK);

    assert_int_equal(dw_key_ring_take(ring, &keys, &err), DW_DENIED);
    assert_non_null(strstr(err.text, "no credentials were found"));
    assert_non_null(strstr(err.text, server.endpoint));
    assert_int_equal(dw_key_ring_take(ring, &keys, &err), DW_UNAVAILABLE);
    assert_non_null(strstr(err.text, "503"));
    assert_int_equal(dw_key_ring_take(ring, &keys, &err), DW_OK);
    assert_string_equal(keys->access_key, "access");
    assert_non_null(strstr(keys->origin, "role"));

    dw_keys_release(keys);
    dw_key_ring_close(ring);
    dw_aws_config_release(&config);
    dw_aws_files_release(&files);
    script_end(&server);
}

TEST_WITH(test_addressing, clean_environment, NULL)
{
    settings c = load(&(dw_store_options){.struct_bytes = sizeof(dw_store_options),
                                          .addressing = "auto"});
    assert_null(c.addressing);
    release(&c);
    c = load(&(dw_store_options){.struct_bytes = sizeof(dw_store_options),
                                 .addressing = "host"});
    assert_string_equal(c.addressing, "host");
    release(&c);
    assert_load_fails(&(dw_store_options){.struct_bytes = sizeof(dw_store_options),
                                          .addressing = "virtual"},
                      DW_INVALID, "host, path or auto");
    put_config("[default]\ns3 =\n addressing_style = host\n");
    assert_load_fails(NULL, DW_INVALID, "virtual, path or auto");
    put_config("[default]\ns3 =\n addressing_style = path\n");
    c = load(NULL);
    assert_string_equal(c.addressing, "path");
    release(&c);
}

TEST_WITH(test_large_files, clean_environment, NULL)
{
    size_t n = 1 << 20;
    char *text = malloc(n + 1);
    assert_non_null(text);
    memset(text, '#', n + 1);
    static const char end[] = "\n[default]\nregion = last";
    memcpy(text + n - strlen(end), end, strlen(end));
    put_file(temp_path(".aws/config"), text, n);
    settings c = load(NULL);
    assert_string_equal(c.region, "last");
    release(&c);
    put_file(temp_path(".aws/config"), text, n + 1);
    assert_load_fails(NULL, DW_INVALID, "1 MiB");
    free(text);
}

static dw_status load_once(dw_error *err)
{
    settings s;
    dw_status status = read_settings(&s, NULL, err);
    if (status == DW_OK && s.status != DW_OK) {
        status = s.status;
        *err = s.fault;
    }
    release(&s);
    return status;
}

TEST_WITH(test_no_memory, clean_environment, NULL)
{
    put_config("[default]\nregion = r\nendpoint_url = e\ns3 =\n addressing_style=path\n");
    put_credentials("[default]\naws_access_key_id = i\naws_secret_access_key = s\n"
                    "aws_session_token = t\n");
    fail_every_allocation(load_once, NULL);
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
