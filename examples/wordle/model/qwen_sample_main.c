/* Continues a text with a Qwen3 on the processor, from any checkpoint directory:
 *
 *     qwen-sample MODELDIR "Once upon a time" [--tokens 100] [--temperature 0.8]
 *                 [--top-p 0.95] [--seed 1] [--threads 0] [--ignore-eos]
 *
 * The weights are mapped and used in place. The text goes to stdout as it is generated,
 * the speed to stderr. Temperature 0 always takes the likeliest token.
 */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fail.h"
#include "qwen.h"
#include "tokenizer.h"

typedef struct request {
    const char *dir, *prompt;
    uint32_t n_tokens; /* to add */
    float temperature, top_p;
    uint64_t seed;
    unsigned n_threads;
    bool ignore_eos;
} request;

typedef struct model {
    qwen_config config;
    tokenizer *tok;
    dw_checkpoint *checkpoint;
    qwen_weights *weights;
    qwen_session *session;
    int32_t *prompt;
    size_t n_prompt;
    float *logits; /* [n_vocab] */
} model;

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal)
{
    (void)signal;
    interrupted = 1;
}

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- the command line -----------------------------------------------------------------
 */

static void usage(FILE *to)
{
    fputs(
        "usage: qwen-sample MODELDIR PROMPT [--tokens N] [--temperature T] [--top-p P]\n"
        "                   [--seed N] [--threads N] [--ignore-eos]\n"
        "example: qwen-sample Qwen3-0.6B-Base 'The capital of France is' --tokens 20\n",
        to);
}

static bool parse_number(const char *text, double least, double most, double *out)
{
    char *end;
    *out = strtod(text, &end);
    return end != text && *end == '\0' && *out >= least && *out <= most;
}

static bool parse_options(request *r, int argc, char **argv)
{
    static const struct option options[] = {{"tokens", required_argument, NULL, 'n'},
                                            {"temperature", required_argument, NULL, 't'},
                                            {"top-p", required_argument, NULL, 'p'},
                                            {"seed", required_argument, NULL, 's'},
                                            {"threads", required_argument, NULL, 'j'},
                                            {"ignore-eos", no_argument, NULL, 'i'},
                                            {"help", no_argument, NULL, 'h'},
                                            {0}};
    int option;
    double x = 0;
    bool valid = true;
    while (valid && (option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'n' && (valid = parse_number(optarg, 1, 1e6, &x)))
            r->n_tokens = (uint32_t)x;
        else if (option == 't' && (valid = parse_number(optarg, 0, 100, &x)))
            r->temperature = (float)x;
        else if (option == 'p' && (valid = parse_number(optarg, 0, 1, &x)))
            r->top_p = (float)x;
        else if (option == 's' && (valid = parse_number(optarg, 0, 9e15, &x)))
            r->seed = (uint64_t)x;
        else if (option == 'j' && (valid = parse_number(optarg, 0, 256, &x)))
            r->n_threads = (unsigned)x;
        else if (option == 'i')
            r->ignore_eos = true;
        else if (option == 'h') {
            usage(stdout);
            exit(0);
        } else
            valid = false;
    }
    if (!valid || argc - optind != 2)
        return false;
    r->dir = argv[optind];
    r->prompt = argv[optind + 1];
    return true;
}

/* ---- the model
 * -------------------------------------------------------------------------- */

static dw_status encode_prompt(model *m, const char *text, dw_error *err)
{
    size_t n_bytes = strlen(text);
    size_t room = n_bytes + 1; /* a token has at least one byte */
    m->prompt = malloc(room * sizeof *m->prompt);
    m->n_prompt = m->prompt == NULL
                      ? SIZE_MAX
                      : tokenizer_encode(m->tok, text, n_bytes, m->prompt, room);
    if (m->n_prompt == SIZE_MAX)
        return wordle_fail(err, DW_NO_MEMORY, "prompt", "out of memory");
    if (m->n_prompt == 0)
        return wordle_fail(err, DW_INVALID, "prompt", "has no tokens: give some text");
    return DW_OK;
}

static dw_status open_model(model *m, const request *r, dw_error *err)
{
    dw_status status = qwen_config_read(&m->config, r->dir, err);
    if (status == DW_OK)
        status = tokenizer_open(&m->tok, r->dir, err);
    if (status == DW_OK)
        status = encode_prompt(m, r->prompt, err);
    if (status == DW_OK)
        status = dw_checkpoint_open(&m->checkpoint, r->dir, DW_CHECKPOINT_READ, err);
    if (status != DW_OK)
        return status;
    size_t n;
    const dw_tensor *tensors = dw_checkpoint_tensors(m->checkpoint, &n);
    status = qwen_weights_bind(&m->weights, &m->config, tensors, n, err);
    if (status == DW_OK)
        status = qwen_session_new(&m->session, &m->config, 1,
                                  (uint32_t)m->n_prompt + r->n_tokens, r->n_threads, err);
    m->logits = malloc(m->config.n_vocab * sizeof *m->logits);
    if (status == DW_OK && m->logits == NULL)
        status = wordle_fail(err, DW_NO_MEMORY, "logits", "out of memory");
    return status;
}

static void close_model(model *m)
{
    free(m->logits);
    free(m->prompt);
    qwen_session_free(m->session);
    qwen_weights_free(m->weights);
    dw_checkpoint_close(m->checkpoint);
    tokenizer_close(m->tok);
}

/* ---- sampling
 * --------------------------------------------------------------------------- */

static dw_status read_prompt(model *m, dw_error *err)
{
    uint32_t *seqs = calloc(m->n_prompt, sizeof *seqs);
    bool *want = calloc(m->n_prompt, sizeof *want);
    dw_status status = DW_NO_MEMORY;
    if (seqs == NULL || want == NULL) {
        wordle_fail(err, status, "prompt", "out of memory");
    } else {
        want[m->n_prompt - 1] = true;
        status = qwen_session_step(m->session, m->weights, seqs, m->prompt, want,
                                   m->n_prompt, m->logits, err);
    }
    free(seqs);
    free(want);
    return status;
}

static void print_token(const model *m, int32_t id)
{
    char text[256];
    size_t n = tokenizer_decode(m->tok, &id, 1, text, sizeof text);
    fwrite(text, 1, n < sizeof text ? n : sizeof text, stdout);
    fflush(stdout);
}

static dw_status sample(model *m, const request *r, dw_error *err)
{
    double start = now_s();
    dw_status status = read_prompt(m, err);
    double prompt_s = now_s() - start;
    uint64_t rng = r->seed;
    uint32_t n = 0;
    start = now_s();
    while (status == DW_OK && n < r->n_tokens && !interrupted) {
        int32_t id = qwen_sample(m->logits, m->config.n_vocab, r->temperature, r->top_p,
                                 &rng, NULL, NULL);
        if (qwen_config_is_eos(&m->config, id) && !r->ignore_eos)
            break;
        print_token(m, id);
        n++;
        if (n < r->n_tokens)
            status = qwen_session_step(m->session, m->weights, &(uint32_t){0}, &id, NULL,
                                       1, m->logits, err);
    }
    double sample_s = now_s() - start;
    putchar('\n');
    fprintf(stderr, "prompt: %zu tokens, %.1f a second; text: %u tokens, %.1f a second\n",
            m->n_prompt, (double)m->n_prompt / prompt_s, n, n / sample_s);
    return status;
}

int main(int argc, char **argv)
{
    request r = {.n_tokens = 100, .temperature = 0, .top_p = 1, .seed = 1};
    if (!parse_options(&r, argc, argv)) {
        usage(stderr);
        return 2;
    }
    signal(SIGINT, on_interrupt);
    model m = {0};
    dw_error err;
    dw_status status = open_model(&m, &r, &err);
    if (status == DW_OK) {
        fputs(r.prompt, stdout);
        status = sample(&m, &r, &err);
    }
    if (status != DW_OK)
        fprintf(stderr, "qwen-sample: %s: %s\n", err.where, err.text);
    close_model(&m);
    return status == DW_OK ? 0 : 1;
}
