#include "net/link.h"

enum { N_FIRST = 4, STRETCH_MS = 250 };

void dw_link_init(dw_link *link, unsigned n_max, uint64_t fixed_part)
{
    *link = (dw_link){
        .n_now = n_max < N_FIRST ? n_max : N_FIRST,
        .n_max = n_max,
        .fixed_part = fixed_part,
    };
    link->n_best = link->n_now;
}

void dw_link_begin(dw_link *link, uint64_t now_ms)
{
    if (link->n_users++ == 0) {
        link->stretch_ms = now_ms;
        link->stretch_bytes = 0;
    }
}

void dw_link_end(dw_link *link)
{
    link->n_users--;
}

/* Notes the current rate as the best so far, and tries more connections. */
static void try_more(dw_link *link)
{
    link->best_rate = link->rate;
    link->n_best = link->n_now;
    link->n_now += (link->n_now + 1) / 2;
    if (link->n_now > link->n_max)
        link->n_now = link->n_max;
    link->is_steady = link->n_now == link->n_best;
}

static void step(dw_link *link)
{
    if (link->is_steady) {
        if (link->rate < link->best_rate / 2) /* the link seems to have changed */
            try_more(link);
    } else if (link->rate > link->best_rate + link->best_rate / 10) {
        try_more(link);
    } else {
        link->n_now = link->n_best;
        link->is_steady = true;
    }
}

void dw_link_observe(dw_link *link, uint64_t n_bytes, uint64_t now_ms)
{
    link->stretch_bytes += n_bytes;
    uint64_t ms = now_ms - link->stretch_ms;
    /* Parts arrive in bursts, so a measurement covers two parts of each connection. */
    if (ms < STRETCH_MS ||
        link->stretch_bytes < 2 * link->n_now * dw_link_part_bytes(link, UINT64_MAX))
        return;
    link->rate = link->stretch_bytes * 1000 / ms;
    step(link);
    link->stretch_ms = now_ms;
    link->stretch_bytes = 0;
}

void dw_link_slow_down(dw_link *link)
{
    link->n_now = link->n_now > 1 ? link->n_now / 2 : 1;
    link->n_best = link->n_now;
    link->best_rate = 0; /* grow again step by step */
    link->is_steady = false;
}

uint64_t dw_link_part_bytes(const dw_link *link, uint64_t n_bytes)
{
    if (link->fixed_part)
        return link->fixed_part;
    uint64_t part = link->rate / 2 / link->n_now;
    uint64_t share = n_bytes / link->n_now + (n_bytes % link->n_now != 0);
    if (part > share)
        part = share;
    if (part > DW_LINK_MOST_PART)
        part = DW_LINK_MOST_PART;
    if (part < DW_LINK_LEAST_PART)
        part = DW_LINK_LEAST_PART;
    return part & ~(uint64_t)0xfffff; /* whole MiB */
}
