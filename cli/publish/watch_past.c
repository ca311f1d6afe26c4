#include "watch_past.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "stream_info.h"

/* Whether a version's training step is a number, and which. */
static bool parse_number(const char *text, uint64_t *step)
{
    char *end;
    errno = 0;
    *step = strtoull(text, &end, 10);
    return text[0] >= '0' && text[0] <= '9' && !*end && errno == 0;
}

/* The parts of a version that matter here. */
typedef struct mark {
    uint64_t version;
    bool has_step;
    uint64_t step;
    time_t created;
    dw_digest state;
} mark;

static dw_status read_mark(mark *out, dw_stream *stream, uint64_t version, dw_error *err)
{
    dw_version_info info;
    dw_status status = dw_stream_version(stream, version, &info, err);
    if (status != DW_OK)
        return status;
    *out = (mark){
        .version = version, .created = cli_time(info.created), .state = info.state};
    out->has_step = parse_number(info.step, &out->step);
    return DW_OK;
}

/* Whether it is an existing checkpoint of which nothing is known yet. */
static bool is_open(const cli_watched *item)
{
    return item->has_step && item->print != 0 && item->done != item->print &&
           item->version == DW_NO_VERSION;
}

/* Whether the checkpoint may have been published as AT or a version below it. If the
 * files are younger than the head, they were written again or copied: then the search
 * ends below their step. */
static bool may_find(const cli_watched *item, const mark *at, const mark *head)
{
    if (!is_open(item))
        return false;
    return item->written <= at->created ||
           (item->written >= head->created && at->has_step && item->step <= at->step);
}

static bool is_any_left(const cli_watch *watch, const mark *at, const mark *head)
{
    for (size_t i = 0; i < watch->n_items; i++)
        if (may_find(&watch->items[i], at, head))
            return true;
    return false;
}

/* Files that are older than a version of their step were published as that version. */
static void match(cli_watch *watch, const mark *at)
{
    for (size_t i = 0; i < watch->n_items; i++) {
        cli_watched *item = &watch->items[i];
        if (!at->has_step || !is_open(item) || item->step != at->step)
            continue;
        if (item->written < at->created) {
            cli_watch_done(item);
        } else {
            item->version = at->version;
            item->state = at->state;
        }
    }
}

/* Goes back from the head as long as a checkpoint may have a version there. */
static dw_status search(cli_watch *watch, dw_stream *stream, const mark *head,
                        dw_error *err)
{
    mark at = *head;
    for (;;) {
        match(watch, &at);
        if (at.version == 0 || !is_any_left(watch, &at, head))
            return DW_OK;
        dw_status status = read_mark(&at, stream, at.version - 1, err);
        if (status != DW_OK) /* below the floor there are no records */
            return status == DW_NOT_FOUND ? DW_OK : status;
    }
}

/* The checkpoint that was published as the head, or NULL. */
static const cli_watched *find_head(const cli_watch *watch, const mark *head)
{
    for (size_t i = 0; head->has_step && i < watch->n_items; i++)
        if (watch->items[i].has_step && watch->items[i].step == head->step)
            return &watch->items[i];
    return NULL;
}

/* Whether a checkpoint has no version and gets none: the head is of a later step and
 * younger, or the head is of an earlier step, which the trainer wrote after this one. */
static bool is_passed(const cli_watched *item, const mark *head, const cli_watched *of)
{
    if (!is_open(item) || !head->has_step)
        return false;
    return item->step <= head->step ? item->written < head->created
                                    : of && item->written < of->written;
}

/* Skips DIR itself too, if it has newer checkpoints in it. */
static void pass_old(cli_watch *watch, const mark *head)
{
    const cli_watched *of = find_head(watch, head);
    bool has_checkpoints = false;
    for (size_t i = 0; i < watch->n_items; i++)
        has_checkpoints |= watch->items[i].has_step && watch->items[i].print != 0;
    for (size_t i = 0; i < watch->n_items; i++) {
        cli_watched *item = &watch->items[i];
        if (item->has_step ? is_passed(item, head, of)
                           : has_checkpoints && item->written < head->created)
            cli_watch_done(item);
    }
}

/* If the newest checkpoint is older than the head, later ones were removed, and the
 * trainer goes on from this one. */
static void take_back(cli_watch *watch, const mark *head)
{
    cli_watched *newest = NULL;
    for (size_t i = 0; i < watch->n_items; i++) {
        cli_watched *item = &watch->items[i];
        if (!item->has_step || item->print == 0)
            continue;
        if (item->done != item->print)
            return; /* it will be published or compared anyway */
        if (!newest || item->step > newest->step)
            newest = item;
    }
    if (newest && head->has_step && newest->step < head->step)
        newest->done = 0;
}

dw_status cli_watch_past(cli_watch *watch, dw_stream *stream, uint64_t head,
                         dw_error *err)
{
    mark newest = {0};
    dw_status status = read_mark(&newest, stream, head, err);
    if (status == DW_OK)
        status = search(watch, stream, &newest, err);
    if (status != DW_OK)
        return status;
    pass_old(watch, &newest);
    take_back(watch, &newest);
    watch->has_step = newest.has_step;
    watch->step = newest.step;
    return DW_OK;
}
