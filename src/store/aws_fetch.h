/* Keys from the services of AWS: STS, the container endpoint, instance metadata, and a
 * user's command. Each asks once; the caller tries again after DW_UNAVAILABLE. Every
 * error names the source, its address and the cause. */
#ifndef DW_STORE_AWS_FETCH_H
#define DW_STORE_AWS_FETCH_H

#include <stdbool.h>

#include "store/key_ring.h"

/* A role and the STS that gives its keys. NULL for what is not set. */
typedef struct dw_aws_role {
    const char *endpoint; /* NULL: Amazon's, in REGION */
    const char *region;
    const char *arn;
    const char *session_name, *external_id, *duration;
} dw_aws_role;

/* AssumeRoleWithWebIdentity with the token in the file TOKEN_PATH. */
dw_status dw_aws_fetch_web_identity(dw_keys *out, const dw_aws_role *role,
                                    const char *token_path, dw_error *err);

/* AssumeRole, signed with BY. */
dw_status dw_aws_fetch_role(dw_keys *out, const dw_aws_role *role, const dw_keys *by,
                            dw_error *err);

/* AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI. */
dw_status dw_aws_fetch_container(dw_keys *out, dw_error *err);

/* Whether a container's keys may come from URL: over https from anywhere, over http only
 * from this machine and from the addresses of ECS and EKS. */
bool dw_aws_container_url_allowed(const char *url);

/* Instance metadata, version 2: with a session token; waits a second for each answer.
 * Sets *ANSWERED if there was one, also if it has no keys. */
dw_status dw_aws_fetch_instance(dw_keys *out, bool *answered, dw_error *err);

/* The address of instance metadata; "" if AWS_EC2_METADATA_DISABLED. */
const char *dw_aws_instance_address(void);

/* A profile's credential_process. */
dw_status dw_aws_fetch_process(dw_keys *out, const char *profile, const char *command,
                               dw_error *err);

#endif
