/* The profiles of AWS's tools: AWS_SHARED_CREDENTIALS_FILE or ~/.aws/credentials, whose
 * settings win, and AWS_CONFIG_FILE or ~/.aws/config. */
#ifndef DW_STORE_AWS_PROFILE_H
#define DW_STORE_AWS_PROFILE_H

#include <stdbool.h>

#include "store/aws_ini.h"

typedef struct dw_aws_files {
    char *config_path, *credentials_path; /* "" if there is no home */
    dw_aws_ini config, credentials;
} dw_aws_files;

/* A missing file counts as empty. Release it also after a failure. */
dw_status dw_aws_files_read(dw_aws_files *out, dw_error *err);
void dw_aws_files_release(dw_aws_files *files);

/* One profile; NULL for what it does not set. Borrowed from the files. */
typedef struct dw_aws_profile {
    const char *name;
    bool found;
    const char *access_key, *secret_key, *session_token;
    const char *keys_path; /* the file that has the access key */
    const char *role_arn, *source_profile, *credential_source;
    const char *token_file; /* web_identity_token_file */
    const char *session_name, *external_id, *duration, *mfa_serial;
    const char *process;
    const char *sign_on; /* the setting that needs a person: sso_* or login_session */
    const char *region, *endpoint, *addressing, *services;
    const char *s3_endpoint, *sts_endpoint; /* of its services section */
} dw_aws_profile;

/* The profile NAME, with `found` false if there is none. */
dw_aws_profile dw_aws_profile_find(const dw_aws_files *files, const char *name);

/* Whether it says where credentials come from. */
bool dw_aws_profile_has_keys(const dw_aws_profile *profile);

/* The profile that NAMED (may be NULL), AWS_PROFILE or "default" names. DW_INVALID if it
 * was named and there is none. */
dw_status dw_aws_profile_choose(dw_aws_profile *out, const dw_aws_files *files,
                                const char *named, dw_error *err);

#endif
