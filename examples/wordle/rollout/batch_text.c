#include "batch_text.h"

#include <stdlib.h>
#include <string.h>

bool batch_text_add(batch_sample *s, const tokenizer *tok, int32_t id)
{
    const bool special = tokenizer_is_special(tok, id);
    size_t n = special ? 0 : tokenizer_decode(tok, &id, 1, NULL, 0);
    if (s->n_text + n + 1 > s->n_text_room) {
        const size_t room = 2 * (s->n_text + n + 1);
        char *more = realloc(s->text, room);
        if (!more)
            return false;
        s->text = more;
        s->n_text_room = room;
    }
    if (n > 0)
        s->n_text += tokenizer_decode(tok, &id, 1, s->text + s->n_text, n);
    s->text[s->n_text] = '\0';
    return true;
}

bool batch_text_cut(batch_sample *s, size_t from)
{
    const batch_params *p = &s->job->params;
    const size_t start = from > BATCH_MAX_STOP_BYTES ? from - BATCH_MAX_STOP_BYTES : 0;
    size_t cut = s->n_text;
    bool found = false;
    for (size_t i = 0; i < p->n_stops; i++) {
        const size_t n = strlen(p->stops[i]);
        for (size_t at = start; at + n <= s->n_text; at++)
            if (at <= cut && memcmp(s->text + at, p->stops[i], n) == 0) {
                cut = at;
                found = true;
                break;
            }
    }
    if (found)
        s->text[s->n_text = cut] = '\0';
    return found;
}
