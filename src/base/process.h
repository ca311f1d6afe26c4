/* Which process this is, so that another one on the same machine can see if it has ended.
 */
#ifndef DW_BASE_PROCESS_H
#define DW_BASE_PROCESS_H

#include <stdbool.h>
#include <stdint.h>

#define DW_BOOT_TEXT    37 /* with its NUL */
#define DW_MACHINE_TEXT 17 /* 16 hexadecimal digits and a NUL */

/* The id of the running kernel. Empty if /proc is missing. */
void dw_boot_id(char out[DW_BOOT_TEXT]);

typedef struct dw_process {
    uint64_t pid;                  /* 0: not known */
    uint64_t begun;                /* ticks since the kernel started: numbers repeat */
    char machine[DW_MACHINE_TEXT]; /* names the running kernel and its namespace of
                                      processes */
} dw_process;

void dw_process_self(dw_process *out);
bool dw_process_equal(const dw_process *a, const dw_process *b);
/* Whether it is certain that PROCESS has ended; only its own machine knows. */
bool dw_process_has_ended(const dw_process *process);

#endif
