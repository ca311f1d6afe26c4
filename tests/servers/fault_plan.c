#include "fault_plan.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

const char *const fault_names[N_FAULTS] = {
    "none", "reset", "cut",       "stall", "delay",    "500",
    "503",  "429",   "307",       "lost",  "truncate", "stall-reply",
    "flip", "stale", "error-200", "204",   "412",      "garbage",
};

enum { MAX_RULES = 256, WORD_BYTES = 128 };

typedef enum when { WHEN_NTH, WHEN_EVERY, WHEN_RANDOM } when;

typedef struct rule {
    when when;
    uint64_t n;         /* NTH, EVERY */
    double probability; /* RANDOM */
    fault fault;        /* N_FAULTS: any */
    char method[WORD_BYTES], part[WORD_BYTES];
    uint64_t n_seen;
} rule;

struct fault_plan {
    pthread_mutex_t lock; /* for what follows */
    uint64_t random;
    size_t n_rules;
    rule rules[MAX_RULES];
};

/* splitmix64 */
static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static double next_fraction(uint64_t *state)
{
    return (double)(next_random(state) >> 11) * 0x1p-53;
}

static bool read_count(const char *word, uint64_t *out)
{
    char *end;
    errno = 0;
    *out = strtoull(word, &end, 10);
    return errno == 0 && *end == '\0' && *word >= '0' && *word <= '9' && *out > 0;
}

static bool read_probability(const char *word, double *out)
{
    char *end;
    *out = strtod(word, &end);
    return end != word && *end == '\0' && *out >= 0 && *out <= 1;
}

static bool read_fault(const char *word, fault *out)
{
    for (int i = 0; i < N_FAULTS; i++) {
        if (strcmp(word, fault_names[i]) == 0) {
            *out = (fault)i;
            return true;
        }
    }
    return false;
}

static bool copy_optional(char *into, const char *word)
{
    if (word == NULL || strcmp(word, "*") == 0)
        return true;
    if (strlen(word) >= WORD_BYTES)
        return false;
    strcpy(into, word);
    return true;
}

/* False if the line is invalid; an empty one adds nothing. */
static bool read_rule(char *line, rule *out, bool *empty)
{
    const char *blanks = " \t\r\n";
    char *rest = NULL;
    line[strcspn(line, "#")] = '\0';
    const char *word = strtok_r(line, blanks, &rest);
    *empty = word == NULL;
    if (*empty)
        return true;
    if (strcmp(word, "random") == 0) {
        word = strtok_r(NULL, blanks, &rest);
        out->when = WHEN_RANDOM;
        if (word == NULL || !read_probability(word, &out->probability))
            return false;
    } else {
        out->when = WHEN_NTH;
        if (strcmp(word, "every") == 0) {
            word = strtok_r(NULL, blanks, &rest);
            out->when = WHEN_EVERY;
        }
        if (word == NULL || !read_count(word, &out->n))
            return false;
    }
    word = strtok_r(NULL, blanks, &rest);
    if (word == NULL || !read_fault(word, &out->fault))
        return false;
    return copy_optional(out->method, strtok_r(NULL, blanks, &rest)) &&
           copy_optional(out->part, strtok_r(NULL, blanks, &rest)) &&
           strtok_r(NULL, blanks, &rest) == NULL;
}

static fault_plan *new_plan(uint64_t seed)
{
    fault_plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL) {
        perror("fault_proxy");
        return NULL;
    }
    pthread_mutex_init(&plan->lock, NULL);
    plan->random = seed;
    return plan;
}

fault_plan *fault_plan_read(FILE *file, const char *path, uint64_t seed)
{
    fault_plan *plan = new_plan(seed);
    char line[1024];
    for (unsigned n = 1; plan != NULL && fgets(line, sizeof line, file) != NULL; n++) {
        bool empty = true;
        if (plan->n_rules == MAX_RULES ||
            !read_rule(line, &plan->rules[plan->n_rules], &empty)) {
            fprintf(stderr, "fault_proxy: %s:%u: not a line of a plan\n", path, n);
            fault_plan_free(plan);
            return NULL;
        }
        plan->n_rules += !empty;
    }
    return plan;
}

fault_plan *fault_plan_random(double rate, uint64_t seed)
{
    fault_plan *plan = new_plan(seed);
    if (plan != NULL) {
        plan->n_rules = 1;
        plan->rules[0] =
            (rule){.when = WHEN_RANDOM, .probability = rate, .fault = N_FAULTS};
    }
    return plan;
}

void fault_plan_free(fault_plan *plan)
{
    if (plan == NULL)
        return;
    pthread_mutex_destroy(&plan->lock);
    free(plan);
}

static bool applies(rule *r, const char *method, const char *target, uint64_t *random)
{
    if (r->method[0] != '\0' && strcmp(r->method, method) != 0)
        return false;
    if (strstr(target, r->part) == NULL)
        return false;
    r->n_seen++;
    switch (r->when) {
    case WHEN_NTH:
        return r->n_seen == r->n;
    case WHEN_EVERY:
        return r->n_seen % r->n == 0;
    default:
        return next_fraction(random) < r->probability;
    }
}

fault fault_plan_choose(fault_plan *plan, const char *method, const char *target,
                        uint64_t *random)
{
    fault chosen = FAULT_NONE;
    pthread_mutex_lock(&plan->lock);
    /* Every line counts the request, also if an earlier line has decided. */
    for (size_t i = 0; i < plan->n_rules; i++) {
        rule *r = &plan->rules[i];
        if (applies(r, method, target, &plan->random) && chosen == FAULT_NONE)
            chosen = r->fault;
    }
    *random = next_random(&plan->random);
    pthread_mutex_unlock(&plan->lock);
    if (chosen == N_FAULTS)
        chosen = (fault)(1 + *random % (N_FAULTS - 1));
    return chosen;
}
