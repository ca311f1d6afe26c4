/* How much a link takes: the number of requests side by side and their size, learnt from
 * what goes through.
 *
 * It starts with 4 and adds connections while each step brings more than a tenth; the
 * first step that does not is taken back, and that is kept. A server that asks for less
 * gets half. Not locked: the caller is. */
#ifndef DW_NET_LINK_H
#define DW_NET_LINK_H

#include <stdbool.h>
#include <stdint.h>

#define DW_LINK_LEAST_PART (8ull << 20)
#define DW_LINK_MOST_PART  (64ull << 20)

typedef struct dw_link {
    unsigned n_now; /* requests side by side */
    unsigned n_max;
    uint64_t fixed_part; /* 0: adapts */

    bool settled;
    unsigned n_best;
    uint64_t best_rate; /* bytes a second, with n_best */
    uint64_t rate;      /* the last one seen */

    unsigned n_users;
    uint64_t stretch_ms; /* when the current measurement began */
    uint64_t stretch_bytes;
} dw_link;

void dw_link_init(dw_link *link, unsigned n_max, uint64_t fixed_part);

/* A transfer begins or ends. Time between two transfers is not measured. */
void dw_link_begin(dw_link *link, uint64_t now_ms);
void dw_link_end(dw_link *link);

/* N_BYTES more have gone through. */
void dw_link_observe(dw_link *link, uint64_t n_bytes, uint64_t now_ms);

void dw_link_slow_down(dw_link *link);

/* For a transfer of N_BYTES: about half a second of one connection, within 8..64 MiB, and
 * no larger than gives every connection one. */
uint64_t dw_link_part_bytes(const dw_link *link, uint64_t n_bytes);

#endif
