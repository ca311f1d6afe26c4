/* Weights of a directory that turn out to be damaged are fetched again: from an anchor,
 * the base or the fork, by the same route as into an empty directory. */
#include <inttypes.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "follow/follower.h"

#define T_CALM_MS    3600000 /* after which damage is no repetition */
#define T_FIRST_MS   5000    /* the wait after the second damage; doubles ... */
#define T_LONGEST_MS 3600000 /* ... up to this */

/* The first time they are fetched at once. If they are damaged again, each further time
 * waits for twice as long as the one before, counted from the damage before. */
static void note_time(dw_follower *f)
{
    const uint64_t now = dw_clock_ms(), before = f->damaged_ms;
    f->damaged_ms = now;
    if (before == 0 || now - before > T_CALM_MS + f->heal_wait_ms) {
        f->heal_wait_ms = f->heal_after_ms = 0;
        return;
    }
    f->heal_wait_ms = f->heal_wait_ms == 0 ? T_FIRST_MS : 2 * f->heal_wait_ms;
    if (f->heal_wait_ms > T_LONGEST_MS)
        f->heal_wait_ms = T_LONGEST_MS;
    f->heal_after_ms = before + f->heal_wait_ms;
}

dw_status dw_follower_note_damage(dw_follower *f, const dw_position *was, dw_error *err)
{
    dw_status status = dw_follower_keep_used(f, was, err);
    if (status != DW_OK)
        return status;
    note_time(f);
    f->tally.n_healed++;
    return DW_OK;
}

bool dw_follower_is_damaged(dw_follower *f)
{
    const dw_position was = *dw_target_at(f->weights);
    if (!dw_target_dir(f->weights) || was.version == DW_NO_VERSION ||
        dw_target_sweep(f->weights, 1, NULL) != DW_CORRUPT)
        return false;
    /* if the version cannot be kept on the disk, this process knows it */
    if (dw_follower_note_damage(f, &was, NULL) != DW_OK)
        f->highest = was;
    return true;
}

dw_status dw_follower_may_heal(dw_follower *f, dw_error *err)
{
    const uint64_t now = dw_clock_ms();
    if (dw_follower_version(f) != DW_NO_VERSION || now >= f->heal_after_ms)
        return DW_OK;
    return dw_fail(err, DW_CORRUPT, dw_target_dir(f->weights),
                   "the weights were damaged again soon after they were fetched again: "
                   "another program writes to them, or the disk or the memory fails. "
                   "The next try is in %" PRIu64 " s",
                   (f->heal_after_ms - now + 999) / 1000);
}

bool dw_follower_heals(const dw_follower *f, dw_status status, dw_heal_tries *tries)
{
    const bool is_new =
        f->tally.n_healed > tries->n_healed || (f->lost && !tries->was_lost);
    tries->n_healed = f->tally.n_healed;
    tries->was_lost = tries->was_lost || f->lost;
    return (status == DW_CORRUPT || status == DW_STALE) && is_new && f->depth == 0;
}
