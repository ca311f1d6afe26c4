/* wordle-rollout: an inference server over the weights that `deltawire follow` keeps in a
 * directory. They are mapped: a new version is served without a copy or a reload. */
#include "rollout.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>


#include "fail.h"
#include "program.h"

static const char help[] =
    "wordle-rollout serves a small Qwen3 from the directory that a follower updates.\n"
    "\n"
    "    wordle-rollout --weights DIR [--model DIR] [--listen HOST:PORT] [--threads N]\n"
    "                   [--max-seqs N] [--max-len N] [--served-model-name NAME]\n"
    "                   [--control HOST:PORT]\n"
    "\n"
    "  --weights DIR       the directory of `deltawire follow --into`; may be missing "
    "yet\n"
    "  --model DIR         has config.json and tokenizer.json (default: --weights)\n"
    "  --listen HOST:PORT  the address; port 0: any free one (127.0.0.1:8000)\n"
    "  --control HOST:PORT the address of the control interface, which asks for no key.\n"
    "                      It is then not at the other address, which may be public\n"
    "  --threads N         for a step of the model (1; 0: all cores)\n"
    "  --max-seqs N        samples that are computed side by side (128)\n"
    "  --max-len N         tokens of a sample with its prompt (1024)\n"
    "  --served-model-name NAME\n"
    "\n"
    "POST /v1/completions as in OpenAI's API, with the version of the weights of each\n"
    "sample; vLLM's control interface for the follower; GET /health, "
    "/digest,\n"
    "/v1/models. It prints its address, and ends on SIGTERM or SIGINT.\n"
    "Exit status: 0, 1 after a failure, 2 for wrong use.\n"
    "\n"
    "Example:\n"
    "    wordle-rollout --weights /dev/shm/policy --model model &\n"
    "    deltawire follow s3://bucket/run --into /dev/shm/policy \\\n"
    "        --engine vllm=http://127.0.0.1:8000 &\n"
    "    curl -d "
    "'{\"prompt\":\"WORDLE\\n\",\"max_tokens\":6,\"stop\":\"\\n\",\"logprobs\":0}' \\\n"
    "        http://127.0.0.1:8000/v1/completions\n";

typedef struct arguments {
    const char *weights, *model, *listen, *control, *name;
    unsigned n_threads;
    uint32_t max_seqs, max_len;
} arguments;

static arguments args = {.listen = "127.0.0.1:8000",
                         .name = "policy",
                         .n_threads = 1,
                         .max_seqs = 128,
                         .max_len = 1024};

/* ---- loading ---- */

static size_t longest_token(const tokenizer *tok)
{
    size_t longest = 0;
    for (int32_t id = 0; (uint32_t)id < tokenizer_size(tok); id++) {
        const size_t n = tokenizer_decode(tok, &id, 1, NULL, 0);
        longest = n > longest ? n : longest;
    }
    return longest;
}

static dw_status load(rollout *r, dw_error *err)
{
    dw_status status = qwen_config_read(&r->config, args.model, err);
    if (status == DW_OK)
        status = tokenizer_open(&r->tok, args.model, err);
    if (status != DW_OK)
        return status;
    r->max_len =
        args.max_len < r->config.max_positions ? args.max_len : r->config.max_positions;
    r->n_longest = longest_token(r->tok);
    if (tokenizer_size(r->tok) > r->config.n_vocab)
        status = wordle_fail(err, DW_MISMATCH, args.model,
                             "the tokenizer has %u tokens, the model %u",
                             tokenizer_size(r->tok), r->config.n_vocab);
    if (status == DW_OK)
        status = batch_start(&r->batch, r->serving, &r->config, r->tok, args.max_seqs,
                             r->max_len, args.n_threads, err);
    if (status != DW_OK) {
        tokenizer_close(r->tok);
        r->tok = NULL;
    }
    return status;
}

dw_status rollout_load(rollout *r, dw_error *err)
{
    pthread_mutex_lock(&r->lock);
    dw_status status = DW_OK;
    if (r->ending)
        status = wordle_fail(err, DW_CANCELLED, "request", "the server ends");
    else if (!r->batch)
        status = load(r, err);
    pthread_mutex_unlock(&r->lock);
    return status == DW_OK ? serving_check(r->serving, err) : status;
}

/* ---- answers ---- */

void rollout_refuse(web_call *call, const dw_error *err)
{
    unsigned status = 503;
    if (err->code == DW_INVALID)
        status = 400;
    else if (err->code == DW_NO_MEMORY)
        status = 500;
    web_refuse(call, status, "%s: %s", err->where, err->text);
}

static void answer_health(rollout *r, web_call *call)
{
    dw_error err;
    if (rollout_load(r, &err) == DW_OK)
        web_reply(call, 200,
                  json_pack("{s:s,s:b,s:i}", "status", "ok", "paused",
                            serving_is_paused(r->serving), "requests",
                            (int)batch_n_jobs(r->batch)));
    else
        web_refuse(call, 503, "%s: %s", err.where, err.text);
}

static void answer_digest(rollout *r, web_call *call)
{
    dw_error err;
    serving_proof proof;
    char told[24], computed[24], version[24];
    if (serving_prove(r->serving, &proof, &err) != DW_OK) {
        rollout_refuse(call, &err);
        return;
    }
    snprintf(told, sizeof told, "%016" PRIx64, proof.told);
    snprintf(computed, sizeof computed, "%016" PRIx64, proof.computed);
    snprintf(version, sizeof version, "%" PRIu64, proof.version);
    web_reply(call, 200,
              json_pack("{s:s,s:s,s:s,s:s,s:b}", "weight_version", version,
                        "weight_stream", proof.stream, "digest", computed, "expected",
                        told, "equal", proof.told == proof.computed));
}

static void answer_models(rollout *r, web_call *call)
{
    json_t *model = json_pack("{s:s,s:s,s:s,s:s}", "id", r->model_name, "object", "model",
                              "owned_by", "deltawire", "root", args.model);
    if (r->batch)
        json_object_set_new(model, "max_model_len", json_integer(r->max_len));
    web_reply(call, 200, json_pack("{s:s,s:[o]}", "object", "list", "data", model));
}

static void answer(void *context, web_call *call)
{
    rollout *r = context;
    if (web_is(call, "POST", "/v1/completions"))
        completions_answer(r, call);
    else if (web_is(call, "GET", "/v1/models"))
        answer_models(r, call);
    else if (web_is(call, "GET", "/health"))
        answer_health(r, call);
    else if (web_is(call, "GET", "/digest"))
        answer_digest(r, call);
    else if (!args.control)
        control_answer(r, call);
}

static void answer_control(void *context, web_call *call)
{
    control_answer(context, call);
}

/* ---- the process ---- */

static void parse(int argc, char **argv)
{
    static const struct option options[] = {
        {"weights", required_argument, NULL, 'w'},
        {"model", required_argument, NULL, 'm'},
        {"listen", required_argument, NULL, 'l'},
        {"control", required_argument, NULL, 'c'},
        {"threads", required_argument, NULL, 't'},
        {"max-seqs", required_argument, NULL, 's'},
        {"max-len", required_argument, NULL, 'n'},
        {"served-model-name", required_argument, NULL, 'N'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;)
        switch (option) {
        case 'w':
            args.weights = optarg;
            break;
        case 'm':
            args.model = optarg;
            break;
        case 'l':
            args.listen = optarg;
            break;
        case 'c':
            args.control = optarg;
            break;
        case 't':
            args.n_threads = (unsigned)program_number("--threads", optarg, 0, 256);
            break;
        case 's':
            args.max_seqs = (uint32_t)program_number("--max-seqs", optarg, 1, 512);
            break;
        case 'n':
            args.max_len = (uint32_t)program_number("--max-len", optarg, 2, 1 << 20);
            break;
        case 'N':
            args.name = optarg;
            break;
        case 'h':
            fputs(help, stdout);
            exit(0);
        default:
            exit(2);
        }
    if (!args.weights || optind < argc) {
        fputs("usage: wordle-rollout --weights DIR ...; --help\n", stderr);
        exit(2);
    }
    if (!args.model)
        args.model = args.weights;
}

static dw_status serve(rollout *r, dw_error *err)
{
    web *server, *control = NULL;
    dw_status status = web_start(&server, args.listen, ROLLOUT_MAX_BODY, answer, r, err);
    if (status != DW_OK)
        return status;
    if (args.control)
        status =
            web_start(&control, args.control, CONTROL_MAX_BODY, answer_control, r, err);
    if (status == DW_OK) {
        printf("listening on %s\n", web_url(server));
        if (control)
            printf("controlled on %s\n", web_url(control));
        fflush(stdout);
        program_wait();
    }
    pthread_mutex_lock(&r->lock);
    r->ending = true;
    pthread_mutex_unlock(&r->lock);
    web_stop(control);
    batch_stop(r->batch); /* refuses waiting requests */
    web_stop(server);
    return status;
}

int main(int argc, char **argv)
{
    dw_error err;
    parse(argc, argv);
    program_block_signals();
    rollout r = {.model_name = args.name,
                 .version = DW_NO_VERSION,
                 .lock = PTHREAD_MUTEX_INITIALIZER};
    dw_status status = serving_new(&r.serving, args.weights, &err);
    if (status != DW_OK)
        return program_fail("wordle-rollout", &err);
    status = serve(&r, &err);
    batch_free(r.batch);
    serving_free(r.serving);
    tokenizer_close(r.tok);
    return status == DW_OK ? 0 : program_fail("wordle-rollout", &err);
}
