/* What the versions have to be: a file of lines `VERSION DIGEST`, each written before its
 * version is published. And what is done about one that is not. */
#ifndef DW_ENGINE_PUBLISHED_H
#define DW_ENGINE_PUBLISHED_H

#include "deltawire/digest.h"

enum { ENGINE_FINE = 0, ENGINE_FAULT = 2 };

void truth_open(const char *path);

/* The digest of a version; one that is not in the file is a fault. Any thread. */
dw_digest truth_of(uint64_t version);

/* Says so, and ends the process with ENGINE_FAULT. */
void engine_fault(const char *format, ...)
    __attribute__((format(printf, 1, 2), noreturn));

#endif
