/* The profile files of AWS's tools, read into a list of settings.
 *
 *     [profile lab]                  section "profile lab"
 *     region = eu-central-1          key "region"
 *     s3 =                           key "s3", an empty value: what is indented below it
 *         addressing_style = path    block "s3", key "addressing_style"
 *
 * A line that begins with '#' or ';' is a comment. A blank followed by one of them begins
 * a comment after a value. Invalid lines are ignored, as AWS's tools do.
 */
#ifndef DW_STORE_AWS_INI_H
#define DW_STORE_AWS_INI_H

#include <stddef.h>

#include "deltawire/base.h"

#define DW_AWS_INI_BYTES (1u << 20)

/* The strings point into the file's text. */
typedef struct dw_aws_setting {
    const char *section; /* without blanks at its ends and runs of blanks inside */
    const char *block;   /* "" if there is none */
    const char *key;     /* "" for the line that opens the section */
    const char *value;
} dw_aws_setting;

typedef struct dw_aws_ini {
    dw_aws_setting *settings;
    size_t n_settings;
    char *text;
    size_t n_text;
} dw_aws_ini;

/* A missing file counts as empty. */
dw_status dw_aws_ini_read(dw_aws_ini *out, const char *path, dw_error *err);

/* Wipes it. */
void dw_aws_ini_release(dw_aws_ini *ini);

#endif
