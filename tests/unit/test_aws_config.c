#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "failing_allocator.h"
#include "store/aws_config.h"
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
                           "AWS_CONFIG_FILE"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
    unlink(temp_path(".aws/config"));
    unlink(temp_path(".aws/credentials"));
    mkdir(temp_path(".aws"), 0700);
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

static dw_aws_config load(const dw_store_options *options)
{
    dw_aws_config config;
    dw_error err = {0};
    if (dw_aws_config_load(&config, options, &err) != DW_OK)
        fail_msg("%s: %s", err.where, err.text);
    return config;
}

static void assert_load_fails(const dw_store_options *options, dw_status code,
                              const char *word)
{
    dw_aws_config config;
    dw_error err = {0};
    assert_int_equal(dw_aws_config_load(&config, options, &err), code);
    if (!strstr(err.text, word))
        fail_msg("no '%s' in '%s'", word, err.text);
    assert_null(strstr(err.text, "hush"));
    assert_null(config.region);
    assert_null(config.secret_key);
}

static void assert_keys(const dw_aws_config *c, const char *access, const char *secret,
                        const char *token)
{
    assert_string_equal(c->access_key, access);
    assert_string_equal(c->secret_key, secret);
    if (token)
        assert_string_equal(c->session_token, token);
    else
        assert_null(c->session_token);
}

static void test_nothing(void **state)
{
    (void)state;
    dw_aws_config c = load(NULL);
    assert_null(c.endpoint);
    assert_string_equal(c.region, "us-east-1");
    assert_null(c.addressing);
    assert_null(c.access_key);
    assert_null(c.secret_key);
    assert_null(c.session_token);
    dw_aws_config_release(&c);
    dw_aws_config_release(&c); /* twice does no harm */

    unsetenv("HOME");
    c = load(NULL);
    assert_null(c.access_key);
    dw_aws_config_release(&c);
}

static void test_variables(void **state)
{
    (void)state;
    setenv("AWS_ENDPOINT_URL", "http://general", 1);
    setenv("AWS_DEFAULT_REGION", "r-default", 1);
    setenv("AWS_ACCESS_KEY_ID", "id", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    dw_aws_config c = load(NULL);
    assert_string_equal(c.endpoint, "http://general");
    assert_string_equal(c.region, "r-default");
    assert_keys(&c, "id", "secret", NULL);
    dw_aws_config_release(&c);

    setenv("AWS_ENDPOINT_URL_S3", "http://special", 1);
    setenv("AWS_REGION", "r", 1);
    setenv("AWS_SESSION_TOKEN", "token", 1);
    c = load(NULL);
    assert_string_equal(c.endpoint, "http://special");
    assert_string_equal(c.region, "r");
    assert_keys(&c, "id", "secret", "token");
    dw_aws_config_release(&c);

    setenv("AWS_ENDPOINT_URL_S3", "", 1); /* as if not set */
    setenv("AWS_REGION", "", 1);
    c = load(NULL);
    assert_string_equal(c.endpoint, "http://general");
    assert_string_equal(c.region, "r-default");
    dw_aws_config_release(&c);

    setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "True", 1);
    c = load(NULL);
    assert_null(c.endpoint);
    dw_aws_config_release(&c);
}

static void test_options_come_first(void **state)
{
    (void)state;
    setenv("AWS_ENDPOINT_URL_S3", "http://special", 1);
    setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true", 1);
    setenv("AWS_REGION", "r", 1);
    put_config("[default]\ns3 =\n  addressing_style = virtual\n");
    dw_aws_config c = load(&(dw_store_options){.struct_bytes = sizeof(dw_store_options),
                                               .endpoint = "http://mine",
                                               .region = "here",
                                               .addressing = "path"});
    assert_string_equal(c.endpoint, "http://mine");
    assert_string_equal(c.region, "here");
    assert_string_equal(c.addressing, "path");
    dw_aws_config_release(&c);
}

static void test_default_profile(void **state)
{
    (void)state;
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
    dw_aws_config c = load(NULL);
    assert_string_equal(c.region, "eu-central-1");
    assert_string_equal(c.endpoint, "https://s3.example:9000/x;y#z");
    assert_string_equal(c.addressing, "host");
    assert_keys(&c, "AKID", "a/b+c=#;d", "config-token");
    dw_aws_config_release(&c);

    setenv("AWS_ACCESS_KEY_ID", "id", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    setenv("AWS_REGION", "r", 1);
    c = load(NULL);
    assert_string_equal(c.region, "r");
    assert_keys(&c, "id", "secret", NULL); /* no token of another pair */
    dw_aws_config_release(&c);
}

static void test_named_profiles(void **state)
{
    (void)state;
    put_config("[profile a]\nregion = r-a\n[ profile  \"b c\" ]\nregion = r-b\n"
               "[a]\nregion = no section of a config file\n"
               "[profile default]\nregion = r-default\n[ab]\n[profile ab]\n");
    put_credentials("[a]\naws_access_key_id = id-a\naws_secret_access_key = secret-a\n"
                    "[profile a]\naws_access_key_id = no section of this file\n");
    dw_aws_config c = load(NULL);
    assert_string_equal(c.region, "r-default");
    dw_aws_config_release(&c);

    setenv("AWS_PROFILE", "a", 1);
    setenv("AWS_ACCESS_KEY_ID", "id", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    c = load(NULL);
    assert_string_equal(c.region, "r-a");
    assert_keys(&c, "id", "secret", NULL);
    dw_aws_config_release(&c);
    /* a profile that the caller named has priority over the variables */
    c = load(
        &(dw_store_options){.struct_bytes = sizeof(dw_store_options), .profile = "a"});
    assert_keys(&c, "id-a", "secret-a", NULL);
    dw_aws_config_release(&c);
    c = load(
        &(dw_store_options){.struct_bytes = sizeof(dw_store_options), .profile = "b c"});
    assert_string_equal(c.region, "r-b");
    assert_null(c.access_key);
    dw_aws_config_release(&c);
    c = load(&(dw_store_options){.struct_bytes = sizeof(dw_store_options),
                                 .profile = "ab"}); /* empty, but it exists */
    assert_string_equal(c.region, "us-east-1");
    dw_aws_config_release(&c);

    assert_load_fails(
        &(dw_store_options){.struct_bytes = sizeof(dw_store_options), .profile = "lab"},
        DW_INVALID, "no AWS profile 'lab' (chosen by option)");
    setenv("AWS_PROFILE", "nowhere", 1);
    assert_load_fails(NULL, DW_INVALID, "no AWS profile 'nowhere' (AWS_PROFILE)");
    assert_load_fails(NULL, DW_INVALID, temp_path(".aws/credentials"));
}

static void test_services(void **state)
{
    (void)state;
    put_config("[services lab]\n"
               "ec2 =\n  endpoint_url = http://ec2\n"
               "s3 =\n  endpoint_url = http://s3-of-lab\n"
               "dynamodb =\n  endpoint_url = http://dynamodb\n"
               "[services other]\ns3 =\n  endpoint_url = http://other\n"
               "[default]\nservices = lab\nendpoint_url = http://general\n");
    dw_aws_config c = load(NULL);
    assert_string_equal(c.endpoint, "http://s3-of-lab");
    dw_aws_config_release(&c);
    setenv("AWS_ENDPOINT_URL", "http://variable", 1);
    c = load(NULL);
    assert_string_equal(c.endpoint, "http://variable");
    dw_aws_config_release(&c);
}

static void test_other_paths(void **state)
{
    (void)state;
    put_config("[default]\nregion = hidden\n");
    put_text(temp_path("my-config"), "[default]\nregion = mine\n");
    setenv("AWS_CONFIG_FILE", temp_path("my-config"), 1);
    setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null", 1);
    dw_aws_config c = load(NULL);
    assert_string_equal(c.region, "mine");
    dw_aws_config_release(&c);
    setenv("AWS_CONFIG_FILE", temp_path("not-there"), 1);
    c = load(NULL);
    assert_string_equal(c.region, "us-east-1");
    dw_aws_config_release(&c);
    setenv("AWS_CONFIG_FILE", temp_dir, 1);
    assert_load_fails(NULL, DW_IO, "cannot read the profiles");
}

static void test_half_a_pair(void **state)
{
    (void)state;
    setenv("AWS_ACCESS_KEY_ID", "hush", 1);
    assert_load_fails(NULL, DW_INVALID, "the environment has an access key id");
    unsetenv("AWS_ACCESS_KEY_ID");
    setenv("AWS_SECRET_ACCESS_KEY", "hush", 1);
    assert_load_fails(NULL, DW_INVALID, "the environment has a secret access key");
    unsetenv("AWS_SECRET_ACCESS_KEY");
    put_credentials("[default]\naws_secret_access_key = hush\n");
    assert_load_fails(NULL, DW_INVALID, "the AWS profile has a secret access key");
    put_credentials("[default]\naws_session_token = hush\n");
    dw_aws_config c = load(NULL);
    assert_null(c.session_token);
    dw_aws_config_release(&c);
}

static void test_keys_to_be_fetched(void **state)
{
    (void)state;
    const char *settings[] = {"sso_session", "sso_start_url", "role_arn", "login_session",
                              "credential_process"};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        char text[128];
        snprintf(text, sizeof text, "[default]\n%s = hush\n", settings[i]);
        put_config(text);
        assert_load_fails(NULL, DW_UNSUPPORTED, settings[i]);
        assert_load_fails(NULL, DW_UNSUPPORTED, "aws configure export-credentials");
    }
    /* keys in the same section as a process are used, as AWS does */
    put_credentials("[default]\naws_access_key_id = i\naws_secret_access_key = s\n");
    dw_aws_config c = load(NULL);
    assert_keys(&c, "i", "s", NULL);
    dw_aws_config_release(&c);
    put_config("[default]\nrole_arn = x\n");
    assert_load_fails(NULL, DW_UNSUPPORTED, "role_arn");
    /* if keys are exported, the profile does not matter */
    setenv("AWS_ACCESS_KEY_ID", "id", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
    c = load(NULL);
    assert_keys(&c, "id", "secret", NULL);
    dw_aws_config_release(&c);
}

static void test_addressing(void **state)
{
    (void)state;
    dw_aws_config c = load(&(dw_store_options){.struct_bytes = sizeof(dw_store_options),
                                               .addressing = "auto"});
    assert_null(c.addressing);
    dw_aws_config_release(&c);
    c = load(&(dw_store_options){.struct_bytes = sizeof(dw_store_options),
                                 .addressing = "host"});
    assert_string_equal(c.addressing, "host");
    dw_aws_config_release(&c);
    assert_load_fails(&(dw_store_options){.struct_bytes = sizeof(dw_store_options),
                                          .addressing = "virtual"},
                      DW_INVALID, "host, path or auto");
    put_config("[default]\ns3 =\n addressing_style = host\n");
    assert_load_fails(NULL, DW_INVALID, "virtual, path or auto");
    put_config("[default]\ns3 =\n addressing_style = path\n");
    c = load(NULL);
    assert_string_equal(c.addressing, "path");
    dw_aws_config_release(&c);
}

static void test_large_files(void **state)
{
    (void)state;
    size_t n = 1 << 20;
    char *text = malloc(n + 1);
    assert_non_null(text);
    memset(text, '#', n + 1);
    static const char end[] = "\n[default]\nregion = last";
    memcpy(text + n - strlen(end), end, strlen(end));
    put_file(temp_path(".aws/config"), text, n);
    dw_aws_config c = load(NULL);
    assert_string_equal(c.region, "last");
    dw_aws_config_release(&c);
    put_file(temp_path(".aws/config"), text, n + 1);
    assert_load_fails(NULL, DW_INVALID, "1 MiB");
    free(text);
}

static dw_status load_once(dw_error *err)
{
    dw_aws_config config;
    dw_status status = dw_aws_config_load(&config, NULL, err);
    dw_aws_config_release(&config);
    return status;
}

static void test_no_memory(void **state)
{
    (void)state;
    put_config("[default]\nregion = r\nendpoint_url = e\ns3 =\n addressing_style=path\n");
    put_credentials("[default]\naws_access_key_id = i\naws_secret_access_key = s\n"
                    "aws_session_token = t\n");
    fail_every_allocation(load_once, NULL);
}

#define test(function) cmocka_unit_test_setup(function, clean_environment)

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(test_nothing),
        test(test_variables),
        test(test_options_come_first),
        test(test_default_profile),
        test(test_named_profiles),
        test(test_services),
        test(test_other_paths),
        test(test_half_a_pair),
        test(test_keys_to_be_fetched),
        test(test_addressing),
        test(test_large_files),
        test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, temp_dir_make, temp_dir_remove);
}
