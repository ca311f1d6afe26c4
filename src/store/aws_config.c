#include "store/aws_config.h"

#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "base/mem.h"
#include "net/credentials.h"

static const char *either(const char *first, const char *second)
{
    return first ? first : second;
}

/* VARIABLE and OF_SERVICE are those of one service. */
static const char *choose_endpoint(const char *option, const char *variable,
                                   const char *of_service, const dw_aws_profile *p)
{
    const char *ignore = dw_environment("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS");
    if (option || (ignore && strcasecmp(ignore, "true") == 0))
        return option;
    const char *set =
        either(dw_environment(variable), dw_environment("AWS_ENDPOINT_URL"));
    return either(set, either(of_service, p->endpoint));
}

/* AWS's files call it "virtual", the options "host". */
static dw_status choose_addressing(const char **out, const dw_aws_profile *p,
                                   const char *option, dw_error *err)
{
    const char *style = either(option, p->addressing);
    if (!style || strcmp(style, "auto") == 0)
        *out = NULL;
    else if (strcmp(style, "path") == 0)
        *out = "path";
    else if (strcmp(style, option ? "host" : "virtual") == 0)
        *out = "host";
    else
        return dw_fail(err, DW_INVALID, NULL,
                       "there is no addressing '%s' of S3: %s, path or auto", style,
                       option ? "host" : "virtual");
    return DW_OK;
}

static bool copy(char **out, const char *text)
{
    *out = text ? dw_copy_string(text) : NULL;
    return *out || !text;
}

dw_status dw_aws_config_load(dw_aws_config *out, const dw_aws_profile *p,
                             const dw_store_options *options, dw_error *err)
{
    static const dw_store_options defaults = {.struct_bytes = sizeof defaults};
    const dw_store_options *o = options ? options : &defaults;
    *out = (dw_aws_config){0};
    const char *addressing = NULL;
    dw_status status = choose_addressing(&addressing, p, o->addressing, err);
    if (status != DW_OK)
        return status;
    const char *s3 =
        choose_endpoint(o->endpoint, "AWS_ENDPOINT_URL_S3", p->s3_endpoint, p);
    const char *sts = choose_endpoint(NULL, "AWS_ENDPOINT_URL_STS", p->sts_endpoint, p);
    const char *region = either(o->region, dw_environment("AWS_REGION"));
    region = either(region, dw_environment("AWS_DEFAULT_REGION"));
    region = either(region, either(p->region, "us-east-1"));
    if (copy(&out->endpoint, s3) && copy(&out->sts_endpoint, sts) &&
        copy(&out->region, region) && copy(&out->addressing, addressing))
        return DW_OK;
    dw_aws_config_release(out);
    return dw_fail_memory(err, NULL);
}

void dw_aws_config_release(dw_aws_config *config)
{
    dw_free(config->endpoint);
    dw_free(config->sts_endpoint);
    dw_free(config->region);
    dw_free(config->addressing);
    *config = (dw_aws_config){0};
}
