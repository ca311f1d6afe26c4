/* The truth about versions: a file of lines `VERSION DIGEST`, each written before its
 * version is published. */
#ifndef DW_ENGINE_PUBLISHED_H
#define DW_ENGINE_PUBLISHED_H

#include "deltawire/tensor.h"

enum { ENGINE_FINE = 0, ENGINE_FAULT = 2 };

void truth_open(const char *path);

/* The digest of a version. It is a fault if the file does not have it. Thread-safe. */
dw_digest truth_of(uint64_t version);

/* Prints the fault, and ends the process with ENGINE_FAULT. */
void engine_fault(const char *format, ...)
    __attribute__((format(printf, 1, 2), noreturn));

#endif
