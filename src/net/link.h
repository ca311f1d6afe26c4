/* Learns from the throughput of a link how many requests to send at once, and how large.
 *
 * It starts with 4 connections and adds more while each step gains more than a tenth. The
 * first step that gains less is undone, and the number stays. If a server asks for less,
 * the number is halved. It has no lock: the caller locks. */
#ifndef DW_NET_LINK_H
#define DW_NET_LINK_H

#include <stdbool.h>
#include <stdint.h>

#define DW_LINK_LEAST_PART (8ull << 20)
#define DW_LINK_MOST_PART  (64ull << 20)

typedef struct dw_link {
    unsigned n_now; /* requests at once */
    unsigned n_max;
    uint64_t fixed_part; /* 0: adapts */

    bool is_steady; /* no more connections are tried, until the rate falls */
    unsigned n_best;
    uint64_t best_rate; /* bytes a second, with n_best */
    uint64_t rate;      /* the last one seen */

    unsigned n_users;
    uint64_t stretch_ms; /* when the current measurement began */
    uint64_t stretch_bytes;
} dw_link;

void dw_link_init(dw_link *link, unsigned n_max, uint64_t fixed_part);

/* Note that a transfer begins or ends. Time between two transfers is not measured. */
void dw_link_begin(dw_link *link, uint64_t now_ms);
void dw_link_end(dw_link *link);

/* Notes that N_BYTES more were transferred. */
void dw_link_observe(dw_link *link, uint64_t n_bytes, uint64_t now_ms);

void dw_link_slow_down(dw_link *link);

/* The part size for a transfer of N_BYTES: what one connection moves in half a second,
 * within 8..64 MiB, and small enough that every connection gets a part. */
uint64_t dw_link_part_bytes(const dw_link *link, uint64_t n_bytes);

#endif
