/* Finds the credentials and the endpoint of S3 in the variables and files that AWS's own
 * tools read, in the same order.
 *
 *     endpoint      options, AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's
 *                   services section, the profile; else Amazon. Not from variables or
 *                   files if AWS_IGNORE_CONFIGURED_ENDPOINT_URLS is true
 *     region        options, AWS_REGION, AWS_DEFAULT_REGION, the profile; else us-east-1
 *     addressing    options, the profile's `s3 =` block; else auto
 *     credentials   if a profile was named in options: its own. Otherwise
 *                   AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY, then the profile
 *     profile       options, AWS_PROFILE, "default"
 *     its files     AWS_SHARED_CREDENTIALS_FILE or ~/.aws/credentials, whose keys win,
 *                   and AWS_CONFIG_FILE or ~/.aws/config
 *
 * Keys that must be fetched first are not supported: no single sign-on, no assumed roles,
 * no credential_process (a profile with one is DW_UNSUPPORTED), and no metadata service
 * of a cloud's machine (IMDS) or container.
 */
#ifndef DW_STORE_AWS_CONFIG_H
#define DW_STORE_AWS_CONFIG_H

#include "deltawire/store.h"

/* All strings are owned. */
typedef struct dw_aws_config {
    char *endpoint; /* NULL: Amazon */
    char *region;
    char *addressing; /* NULL: auto */
    char *access_key, *secret_key, *session_token;
} dw_aws_config; /* access_key NULL = none found */

/* OPTIONS may be NULL. */
dw_status dw_aws_config_load(dw_aws_config *out, const dw_store_options *options,
                             dw_error *err);

/* Wipes the secrets. */
void dw_aws_config_release(dw_aws_config *config);

#endif
