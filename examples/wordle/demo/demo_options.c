#include "demo_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "demo_facts.h"
#include "options.h"
#include "program.h"

static const char help[] =
    "usage: wordle-demo [--store URL] [--steps N] [option ...]\n"
    "\n"
    "Starts a trainer, an environment and rollout servers with their agents, which "
    "share\n"
    "nothing but a bucket for weights and HTTP for text; shows how the trainer learns "
    "and\n"
    "the servers follow; proves in the end that they hold the same weights. Ctrl-C ends\n"
    "all of it and leaves nothing behind.\n"
    "\n"
    "  --store URL       of the stream (a temporary directory); what is put there is\n"
    "                    removed in the end\n"
    "  --servers N       rollout servers (2)\n"
    "  --steps N         of reinforcement learning (400)\n"
    "  --warmup N        supervised steps before (300)\n"
    "  --answers N       words that can be the answer (8)\n"
    "  --lr X            learning rate\n"
    "  --seed N          (1)\n"
    "  --no-sync         publish nothing after the warm-up\n"
    "  --kill NAME@STEP  kill -9 and start again the trainer, env, rollout-N or agent-N\n"
    "                    after that step; may be given again\n"
    "  --record DIR      leave metrics and events there\n"
    "  --keep            remove nothing at the end, and print the directory\n"
    "  --deltawire PATH  the command (that of the same build)\n"
    "  --on-trainer, --on-rollouts, --on-env WORDS\n"
    "                    put before their commands, as 'ip netns exec host'\n"
    "  --env-host, --rollout-host HOST\n"
    "                    that they listen on (127.0.0.1)\n"
    "\n"
    "Exit status: 0 if every server ended with the trainer's weights, bit for bit.\n"
    "\n"
    "Examples:\n"
    "  wordle-demo\n"
    "  wordle-demo --store s3://bucket/demo --kill rollout-0@30 --kill trainer@60\n";

enum {
    STORE = 1,
    DELTAWIRE,
    RECORD,
    ON_TRAINER,
    ON_ROLLOUTS,
    ON_ENV,
    ENV_HOST,
    ROLLOUT_HOST,
    LR,
    SERVERS,
    STEPS,
    WARMUP,
    ANSWERS,
    SEED,
    KILL,
    NO_SYNC,
    KEEP,
};

static const struct option table[] = {
    {"store", required_argument, NULL, STORE},
    {"deltawire", required_argument, NULL, DELTAWIRE},
    {"record", required_argument, NULL, RECORD},
    {"on-trainer", required_argument, NULL, ON_TRAINER},
    {"on-rollouts", required_argument, NULL, ON_ROLLOUTS},
    {"on-env", required_argument, NULL, ON_ENV},
    {"env-host", required_argument, NULL, ENV_HOST},
    {"rollout-host", required_argument, NULL, ROLLOUT_HOST},
    {"lr", required_argument, NULL, LR},
    {"servers", required_argument, NULL, SERVERS},
    {"steps", required_argument, NULL, STEPS},
    {"warmup", required_argument, NULL, WARMUP},
    {"answers", required_argument, NULL, ANSWERS},
    {"seed", required_argument, NULL, SEED},
    {"kill", required_argument, NULL, KILL},
    {"no-sync", no_argument, NULL, NO_SYNC},
    {"keep", no_argument, NULL, KEEP},
    OPTIONS_END,
};

static void add_kill(demo_options *o, const command_line *line)
{
    const char *at = strchr(optarg, '@');
    if (!at || o->n_kills == DEMO_MAX_KILLS)
        options_wrong(line, "--kill takes NAME@STEP");
    o->kills[o->n_kills++] = (demo_kill){
        .name = optarg,
        .n_name = (size_t)(at - optarg),
        .step = program_number("kill", at + 1, 0, DEMO_MAX_STEPS),
    };
}

/* They are carried out in this order. */
static int by_step(const void *a, const void *b)
{
    const demo_kill *x = a, *y = b;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    return (x->name > y->name) - (x->name < y->name); /* as on the command line */
}

static void take_text(demo_options *o, const command_line *line, int option)
{
    switch (option) {
    case STORE:
        o->store = optarg;
        break;
    case DELTAWIRE:
        o->deltawire = optarg;
        break;
    case RECORD:
        o->record = optarg;
        break;
    case ON_TRAINER:
        o->on_trainer = optarg;
        break;
    case ON_ROLLOUTS:
        o->on_rollouts = optarg;
        break;
    case ON_ENV:
        o->on_env = optarg;
        break;
    case ENV_HOST:
        o->env_host = optarg;
        break;
    case ROLLOUT_HOST:
        o->rollout_host = optarg;
        break;
    case LR:
        o->lr = optarg;
        break;
    case KILL:
        add_kill(o, line);
        break;
    default:
        break;
    }
}

static void take_number(demo_options *o, int option)
{
    const char *name = table[option - 1].name;
    switch (option) {
    case SERVERS:
        o->n_servers = program_number(name, optarg, 1, DEMO_MAX_SERVERS);
        break;
    case STEPS:
        o->n_steps = program_number(name, optarg, 1, DEMO_MAX_STEPS);
        break;
    case WARMUP:
        o->n_warmup = program_number(name, optarg, 0, DEMO_MAX_STEPS);
        break;
    case ANSWERS:
        o->n_answers = program_number(name, optarg, 1, 20000);
        break;
    case SEED:
        o->seed = program_number(name, optarg, 0, UINT32_MAX);
        break;
    default:
        break;
    }
}

demo_options demo_options_read(int argc, char **argv)
{
    demo_options o = {
        .on_trainer = "",
        .on_rollouts = "",
        .on_env = "",
        .env_host = "127.0.0.1",
        .rollout_host = "127.0.0.1",
        .n_servers = 2,
        .n_warmup = 300,
        .n_steps = 400,
        .n_answers = 8,
        .seed = 1,
    };
    const command_line line = {"wordle-demo", help, table, argc, argv};
    int option;
    while ((option = options_next(&line)) != -1) {
        o.no_sync = o.no_sync || option == NO_SYNC;
        o.keep = o.keep || option == KEEP;
        take_text(&o, &line, option);
        take_number(&o, option);
    }
    qsort(o.kills, o.n_kills, sizeof o.kills[0], by_step);
    return o;
}
