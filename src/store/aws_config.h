/* Finds the endpoint and the region of S3 in the variables and files that AWS's own tools
 * read, in the same order. aws_chain.h finds the credentials.
 *
 *     endpoint      options, AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's
 *                   services section, the profile; else Amazon. Not from variables or
 *                   files if AWS_IGNORE_CONFIGURED_ENDPOINT_URLS is true
 *     of STS        the same with AWS_ENDPOINT_URL_STS, without options
 *     region        options, AWS_REGION, AWS_DEFAULT_REGION, the profile; else us-east-1
 *     addressing    options, the profile's `s3 =` block; else auto
 *     profile       options, AWS_PROFILE, "default"
 */
#ifndef DW_STORE_AWS_CONFIG_H
#define DW_STORE_AWS_CONFIG_H

#include "deltawire/store.h"
#include "store/aws_profile.h"

/* All strings are owned. */
typedef struct dw_aws_config {
    char *endpoint;     /* NULL: Amazon */
    char *sts_endpoint; /* NULL: Amazon */
    char *region;
    char *addressing; /* NULL: auto */
} dw_aws_config;

/* OPTIONS may be NULL. */
dw_status dw_aws_config_load(dw_aws_config *out, const dw_aws_profile *profile,
                             const dw_store_options *options, dw_error *err);

void dw_aws_config_release(dw_aws_config *config);

#endif
