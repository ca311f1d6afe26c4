/* `deltawire --version`. */
#ifndef CLI_VERSION_REPORT_H
#define CLI_VERSION_REPORT_H

#include <stdbool.h>

/* Prints the version, the kernels in use, and what there is of CUDA. */
void cli_print_version(bool json);

#endif
