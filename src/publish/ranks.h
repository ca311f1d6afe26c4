/* Sharded publish: each rank uploads its part and says so in its receipt, and rank 0
 * makes one commit of all receipts (docs/PROTOCOL.md, section 6).
 *
 * A turn is what ranks do together: they meet, make version 0, or publish a step. A rank
 * has one receipt, which it replaces; it says how far the rank is in which turn. Turns,
 * and attempts at one turn, only go up, so a rank that finds another one ahead of it
 * gives its own turn up at once.
 *
 * Owner of dw_ranks: the owner of the baseline.
 */
#ifndef DW_PUBLISH_RANKS_H
#define DW_PUBLISH_RANKS_H

#include "deltawire/publish.h"
#include "stream/record.h"
#include "weights/position.h"

#define DW_TURN_MEET  0
#define DW_TURN_FIRST 1 /* version 0; the turn of step N is N + 2 */

typedef struct dw_ranks {
    char process[DW_ID_TEXT]; /* of this publisher */
    uint64_t turn;
    uint64_t attempt;        /* how often this rank has begun the turn */
    uint64_t committed;      /* the turn of this job's newest version; 0: none */
    bool has_left;           /* said that it takes no turn any more */
    bool is_heard;           /* another rank ended this turn */
    char reason[400];        /* ... and why; or "" */
    bool is_unheard;         /* it failed, and could not tell the others yet */
    char (*met)[DW_ID_TEXT]; /* [n_ranks] rank 0: their processes */
} dw_ranks;

dw_status dw_ranks_open(dw_publisher *p, dw_error *err);
void dw_ranks_close(dw_ranks *ranks);

/* The turn of a step, which must be a number; false if it is none. */
bool dw_turn_of_step(uint64_t *turn, const char *step);

/* All ranks meet, once, after they opened the stream. Fails on all of them if one has
 * left, or if an element of the model does not belong to exactly one of them. */
dw_status dw_ranks_meet(dw_publisher *p, dw_error *err);
void dw_ranks_begin(dw_publisher *p, uint64_t turn);
/* Rank 0 tells the others in which turn it is. */
dw_status dw_ranks_say_begun(dw_publisher *p, dw_error *err);
/* Tells the others that this rank failed in its turn, as ERROR says. */
void dw_ranks_say_failed(dw_publisher *p, const dw_error *error);
/* The same again, if the store did not take it. Ends early if there is other work. */
void dw_ranks_say_again(dw_publisher *p);
/* Tells the others that this rank takes no turn any more: ERROR kept it from opening the
 * stream or, if that is NULL, it is closed. A single process tells the next writer so.
 * Takes at most a few seconds. */
void dw_ranks_leave(dw_publisher *p, const dw_error *error);
/* DW_UNAVAILABLE if RANK of this job left before it took part in an epoch. */
dw_status dw_rank_check_left(dw_publisher *p, uint32_t rank, dw_error *err);

/* Draws an id for the objects of a rank. In one turn the ids of all ranks begin with the
 * same digits, which shows that the objects belong together. */
dw_status dw_rank_write_id(char out[DW_ID_TEXT], const dw_publisher *p, dw_error *err);

/* Version 0 of a sharded stream. */
dw_status dw_first_version_sharded(dw_publisher *p, dw_error *err);
/* PART was uploaded. Rank 0 waits for the others and commits; they wait for the commit,
 * which must name the objects of PART. */
dw_status dw_receipts_exchange(dw_publisher *p, const dw_uploaded *part,
                               dw_position *position, dw_publish_report *report,
                               dw_error *err);

/* How long ranks wait for each other. */
uint64_t dw_rank_limit_ms(const dw_publisher *p);

/* ---- ranks_cover.c ---- */

/* DW_INVALID if an element of the model does not belong to exactly one of the ranks:
 * names the tensor and the ranks. */
dw_status dw_ranks_check_cover(const dw_publisher *p, const dw_receipt_record *receipts,
                               dw_error *err);

#endif
