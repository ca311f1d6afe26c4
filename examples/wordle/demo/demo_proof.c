#include "demo_proof.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "http_client.h"
#include "program.h"

enum { ASK_MS = 5000, BREATH_MS = 200 };

typedef struct held {
    char version[24];
    char state[24];
} held;

static void copy(char out[24], const json_t *from, const char *key)
{
    const json_t *value = json_object_get(from, key);
    if (json_is_integer(value))
        snprintf(out, 24, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else
        snprintf(out, 24, "%.23s",
                 json_is_string(value) ? json_string_value(value) : "-");
}

static held ask_server(http_client *client, const char *server)
{
    held h = {"-", "-"};
    char url[DEMO_URL_BYTES + 16];
    json_t *answer = NULL;
    snprintf(url, sizeof url, "%s/digest", server);
    if (http_client_ask(client, "GET", url, NULL, ASK_MS, &answer, NULL) == DW_OK) {
        copy(h.version, answer, "weight_version");
        copy(h.state, answer, "digest");
    }
    json_decref(answer);
    return h;
}

/* The output of `deltawire verify WHAT --json`, or NULL. */
static json_t *verify(demo_cast *c, const char *prefix, const char *name,
                      const char *what, dw_error *err)
{
    char log[DEMO_PATH_BYTES];
    char *argv[] = {c->deltawire, "verify", (char *)(uintptr_t)what, "--json", NULL};
    snprintf(log, sizeof log, "%s/%s.log", c->dir, name);
    unlink(log); /* of an earlier verification */
    if (demo_run(c->dir, name, prefix, argv, err) != DW_OK)
        return NULL;
    return json_load_file(log, 0, NULL);
}

static bool same(const held *a, const held *b)
{
    return strcmp(a->version, b->version) == 0 && strcmp(a->state, b->state) == 0;
}

static void tell(FILE *out, const char *who, const held *h, bool good)
{
    fprintf(out, "  %-28s version %-6s %s  %s\n", who, h->version, h->state,
            good ? "equal" : "DIFFERS");
}

static bool prove_server(FILE *out, demo_cast *c, size_t i, const held *wanted,
                         http_client *client, uint64_t until_ms)
{
    char who[64], weights[DEMO_PATH_BYTES], name[32];
    held memory, files = {"-", "-"};
    for (;;) {
        memory = ask_server(client, c->rollout_urls[i]);
        if (same(&memory, wanted) || program_clock_ms() >= until_ms)
            break;
        if (program_is_to_end())
            return false;
        http_client_pause(client, BREATH_MS);
    }
    snprintf(who, sizeof who, "rollout-%zu, as it computes", i);
    tell(out, who, &memory, same(&memory, wanted));
    demo_cast_weights(c, i, weights);
    snprintf(name, sizeof name, "verify-%zu", i);
    json_t *found = verify(c, c->options->on_rollouts, name, weights, NULL);
    if (!found && program_is_to_end())
        return false;
    if (found) {
        copy(files.version, found, "version");
        copy(files.state, found, "state");
    }
    json_decref(found);
    snprintf(who, sizeof who, "rollout-%zu, its files", i);
    tell(out, who, &files, same(&files, wanted));
    return same(&memory, wanted) && same(&files, wanted);
}

static bool prove_stream(FILE *out, demo_cast *c)
{
    dw_error err = {0};
    json_t *found = verify(c, c->options->on_trainer, "verify-stream", c->store, &err);
    if (found)
        fprintf(out,
                "  the stream: all %" JSON_INTEGER_FORMAT
                " objects were read and checked\n",
                json_integer_value(json_object_get(found, "objects")));
    else
        fprintf(out, "  the stream: %s\n", err.text);
    json_decref(found);
    return found != NULL;
}

bool demo_proof(FILE *out, demo_cast *c, const demo_facts *f, unsigned timeout_ms)
{
    http_client *client = NULL;
    held wanted;
    const uint64_t until_ms = program_clock_ms() + timeout_ms;
    if (http_client_new(&client, NULL, NULL) != DW_OK)
        return false;
    snprintf(wanted.version, sizeof wanted.version, "%" PRIu64, f->final_version);
    snprintf(wanted.state, sizeof wanted.state, "%s", f->final_state);
    fprintf(out, "\n  %-28s version %-6s %s\n", "trainer, its own weights",
            wanted.version, wanted.state);
    bool good = f->ended;
    for (size_t i = 0; i < c->options->n_servers && !program_is_to_end(); i++)
        good = prove_server(out, c, i, &wanted, client, until_ms) && good;
    good = !program_is_to_end() && prove_stream(out, c) && good;
    http_client_free(client);
    return good;
}
