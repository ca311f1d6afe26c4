/* Finds the credentials of AWS as its SDKs do. The first of these that is configured is
 * used, and no other: if it fails, the error says so.
 *
 *     1  a profile named in options
 *     2  AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN)
 *     3  web identity: AWS_WEB_IDENTITY_TOKEN_FILE with AWS_ROLE_ARN, at STS
 *     4  the profile AWS_PROFILE or "default": role_arn (with web_identity_token_file,
 *        source_profile or credential_source), keys, credential_process
 *     5  the container endpoint: AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI
 *     6  instance metadata, unless AWS_EC2_METADATA_DISABLED. Until it has answered,
 *        silence means that there is none, and nobody waits for it
 *
 * Keys are renewed from the same source; files are read again.
 */
#ifndef DW_STORE_AWS_CHAIN_H
#define DW_STORE_AWS_CHAIN_H

#include "store/aws_config.h"
#include "store/key_ring.h"

/* Chooses the source, and opens a ring over it. Sends nothing. DW_DENIED if there is
 * none. NAMED, the profile of options, may be NULL. */
dw_status dw_aws_chain_open(dw_key_ring **out, const dw_aws_files *files,
                            const dw_aws_profile *profile, const char *named,
                            const dw_aws_config *config, dw_error *err);

#endif
