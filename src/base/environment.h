/* The environment of a command that is started. */
#ifndef DW_BASE_ENVIRONMENT_H
#define DW_BASE_ENVIRONMENT_H

/* NAME=VALUE on the heap; NULL without memory. The caller frees it with dw_free. */
char *dw_environment_variable(const char *name, const char *value);

/* This process's environment with the strings of EXTRA, which ends with NULL, added or in
 * the place of those with the same names. The strings are borrowed; the caller frees the
 * array with dw_free. NULL without memory. */
char **dw_environment_extend(char *const *extra);

#endif
