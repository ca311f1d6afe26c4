#include "agent_followers.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "stream_info.h"

typedef struct follower_list {
    dw_follower_info *items;
    size_t n_items;
    size_t n_room;
    bool no_memory;
} follower_list;

static void release_followers(follower_list *list)
{
    for (size_t i = 0; i < list->n_items; i++) {
        const dw_follower_info *f = &list->items[i];
        const char *texts[] = {f->id, f->host, f->status, f->message, f->time};
        for (size_t k = 0; k < sizeof texts / sizeof *texts; k++)
            free((char *)texts[k]);
    }
    free(list->items);
}

static void add_follower(void *context, const dw_follower_info *f)
{
    follower_list *list = context;
    if (list->n_items == list->n_room) {
        size_t n_room = 2 * list->n_room + 16;
        dw_follower_info *grown = realloc(list->items, n_room * sizeof *grown);
        if (!grown) {
            list->no_memory = true;
            return;
        }
        list->items = grown;
        list->n_room = n_room;
    }
    dw_follower_info copy = {strdup(f->id),     f->version,         strdup(f->host),
                             strdup(f->status), strdup(f->message), strdup(f->time),
                             f->times};
    list->no_memory |=
        !copy.id || !copy.host || !copy.status || !copy.message || !copy.time;
    list->items[list->n_items++] = copy;
}

dw_status cli_agent_show_followers(dw_agent *agent, dw_stream *stream, uint64_t head,
                                   dw_error *err)
{
    follower_list list = {0};
    dw_status status = dw_stream_followers(stream, add_follower, &list, err);
    if (status == DW_OK && list.no_memory)
        status = dw_fail_memory(err, "followers");
    if (status == DW_OK)
        dw_agent_report_followers(agent, list.items, list.n_items);
    for (size_t i = 0; status == DW_OK && i < list.n_items; i++)
        status = cli_check_next(stream, list.items[i].version, head, err);
    release_followers(&list);
    return status;
}
