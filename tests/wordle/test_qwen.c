/* Inference: caches, batches, threads and sampling; invalid values in config.json. */
/* labels: threads */
#include <math.h>
#include <sys/stat.h>

#include "small_model.h"
#include "unit/temp_dir.h"

enum { N_SEQS = 5, MAX_LENGTH = 90 };

typedef struct texts {
    int32_t tokens[N_SEQS][MAX_LENGTH];
    uint32_t lengths[N_SEQS];
    float *logits[N_SEQS]; /* [length][n_vocab], each token by itself */
} texts;

typedef struct fixture {
    qwen_config config;
    qwen_trainer *trainer;
    qwen_weights *weights;
    texts t;
} fixture;

static qwen_session *new_session(const fixture *f, unsigned n_threads)
{
    qwen_session *s;
    dw_error err;
    assert_ok(qwen_session_new(&s, &f->config, N_SEQS, MAX_LENGTH, n_threads, &err), err);
    return s;
}

static void step(qwen_session *s, const fixture *f, const uint32_t *seqs,
                 const int32_t *tokens, const bool *want, size_t n, float *logits)
{
    dw_error err;
    assert_ok(qwen_session_step(s, f->weights, seqs, tokens, want, n, logits, &err), err);
}

static int make_fixture(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    f->config = small_config(true);
    f->trainer = small_trainer(&f->config, 1);
    size_t n;
    dw_error err;
    const dw_tensor *tensors = qwen_trainer_weights(f->trainer, &n);
    assert_ok(qwen_weights_bind(&f->weights, &f->config, tensors, n, &err), err);
    const uint32_t lengths[N_SEQS] = {1, 90, 7, 33, 64};
    qwen_session *s = new_session(f, 1);
    for (uint32_t q = 0; q < N_SEQS; q++) {
        f->t.lengths[q] = lengths[q];
        f->t.logits[q] = calloc(lengths[q] * f->config.n_vocab, sizeof(float));
        random_tokens(f->t.tokens[q], lengths[q], f->config.n_vocab, q + 1);
        for (uint32_t i = 0; i < lengths[q]; i++)
            step(s, f, &q, &f->t.tokens[q][i], NULL, 1,
                 f->t.logits[q] + i * f->config.n_vocab);
    }
    qwen_session_free(s);
    *state = f;
    return temp_dir_make(state) == 0 && (*state = f) ? 0 : -1;
}

static int free_fixture(void **state)
{
    fixture *f = *state;
    for (size_t q = 0; q < N_SEQS; q++)
        free(f->t.logits[q]);
    qwen_weights_free(f->weights);
    qwen_trainer_free(f->trainer);
    free(f);
    return temp_dir_remove(state);
}

/* ---- steps ----------------------------------------------------------------------------
 */

/* A sequence in one step that is longer than a block of rows. */
static void test_prompt_at_once(void **state)
{
    const fixture *f = *state;
    qwen_session *s = new_session(f, 1);
    float *logits = calloc(MAX_LENGTH * f->config.n_vocab, sizeof *logits);
    for (uint32_t q = 0; q < N_SEQS; q++) {
        uint32_t seqs[MAX_LENGTH], n = f->t.lengths[q];
        for (size_t i = 0; i < n; i++)
            seqs[i] = q;
        step(s, f, seqs, f->t.tokens[q], NULL, n, logits);
        assert_near(logits, f->t.logits[q], n * f->config.n_vocab, 1e-4f);
        assert_int_equal(qwen_session_length(s, q), n);
    }
    free(logits);
    qwen_session_free(s);
}

/* Sequences of any length at once, in steps of random rows; only some outputs are needed.
 */
static void test_ragged_batches(void **state)
{
    const fixture *f = *state;
    size_t n_vocab = f->config.n_vocab;
    for (unsigned n_threads = 1; n_threads <= 3; n_threads++) {
        qwen_session *s = new_session(f, n_threads);
        uint32_t done[N_SEQS] = {0};
        uint64_t rng = n_threads;
        float *logits = calloc(200 * n_vocab, sizeof *logits);
        for (size_t n = 1; n > 0;) {
            uint32_t seqs[200], at[200];
            int32_t tokens[200];
            bool want[200];
            n = 0;
            for (size_t tries = random_below(&rng, 400) + 60; tries > 0 && n < 200;
                 tries--) {
                uint32_t q = random_below(&rng, N_SEQS);
                if (done[q] == f->t.lengths[q])
                    continue;
                at[n] = done[q]++;
                seqs[n] = q;
                tokens[n] = f->t.tokens[q][at[n]];
                want[n++] = random_below(&rng, 3) > 0;
            }
            step(s, f, seqs, tokens, want, n, logits);
            const float *next = logits;
            for (size_t i = 0; i < n; i++)
                if (want[i]) {
                    assert_near(next, f->t.logits[seqs[i]] + at[i] * n_vocab, n_vocab,
                                1e-4f);
                    next += n_vocab;
                }
        }
        for (size_t q = 0; q < N_SEQS; q++)
            assert_int_equal(done[q], f->t.lengths[q]);
        free(logits);
        qwen_session_free(s);
    }
}

/* After a reset the old contents of the cache have no effect. */
static void test_reset(void **state)
{
    const fixture *f = *state;
    qwen_session *s = new_session(f, 1);
    float *logits = calloc(MAX_LENGTH * f->config.n_vocab, sizeof *logits);
    uint32_t zeros[MAX_LENGTH] = {0};
    step(s, f, zeros, f->t.tokens[1], NULL, f->t.lengths[1], logits);
    qwen_session_reset(s, 0);
    assert_int_equal(qwen_session_length(s, 0), 0);
    step(s, f, zeros, f->t.tokens[3], NULL, f->t.lengths[3], logits);
    assert_near(logits, f->t.logits[3], f->t.lengths[3] * f->config.n_vocab, 1e-4f);
    free(logits);
    qwen_session_free(s);
}

static void test_bad_steps(void **state)
{
    const fixture *f = *state;
    qwen_session *s = new_session(f, 1);
    float *logits = calloc(MAX_LENGTH * f->config.n_vocab, sizeof *logits);
    uint32_t seqs[MAX_LENGTH + 1] = {0};
    int32_t tokens[MAX_LENGTH + 1] = {0};
    dw_error err;
    dw_status status = qwen_session_step(s, f->weights, seqs, tokens, NULL,
                                         MAX_LENGTH + 1, logits, &err);
    assert_int_equal(status, DW_INVALID);
    assert_non_null(strstr(err.text, "full"));
    assert_int_equal(qwen_session_length(s, 0), 0);
    const int32_t bad_tokens[] = {-1, (int32_t)f->config.n_vocab, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(
            qwen_session_step(s, f->weights, seqs, &bad_tokens[i], NULL, 1, logits, &err),
            DW_INVALID);
    seqs[0] = N_SEQS;
    assert_int_equal(
        qwen_session_step(s, f->weights, seqs, tokens, NULL, 1, logits, &err),
        DW_INVALID);
    free(logits);
    qwen_session_free(s);
}

/* Weights of other names, types and shapes. */
static void test_bad_weights(void **state)
{
    const fixture *f = *state;
    size_t n;
    const dw_tensor *tensors = qwen_trainer_weights(f->trainer, &n);
    dw_tensor *copy = calloc(n, sizeof *copy);
    qwen_weights *w;
    dw_error err;
    memcpy(copy, tensors, n * sizeof *copy);
    assert_int_equal(qwen_weights_bind(&w, &f->config, copy, n - 1, &err), DW_NOT_FOUND);
    copy[3].dtype = DW_F16;
    assert_int_equal(qwen_weights_bind(&w, &f->config, copy, n, &err), DW_UNSUPPORTED);
    assert_string_equal(err.where, copy[3].name);
    copy[3] = tensors[3];
    copy[4].dims = (const uint64_t[]){7, 7};
    assert_int_equal(qwen_weights_bind(&w, &f->config, copy, n, &err), DW_MISMATCH);
    qwen_config untied = f->config;
    untied.tied = false;
    assert_int_equal(qwen_weights_bind(&w, &untied, tensors, n, &err), DW_NOT_FOUND);
    assert_string_equal(err.where, "lm_head.weight");
    free(copy);
}

/* ---- sampling
 * --------------------------------------------------------------------------- */

static void test_greedy(void **state)
{
    (void)state;
    const float logits[] = {0.5f, 3, -2, 2.999f};
    uint64_t rng = 1;
    float logp, sampled;
    assert_int_equal(qwen_sample(logits, 4, 0, 1, &rng, &logp, &sampled), 1);
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += exp((double)logits[i]);
    assert_true(fabs((double)logp - (3 - log(sum))) < 1e-5);
    assert_true(sampled == 0);
}

/* Frequencies of many samples against the requested distribution. */
static void check_draws(const float *logits, uint32_t n, float temperature, float top_p,
                        const double *expected)
{
    enum { N_DRAWS = 20000 };
    uint32_t counts[8] = {0};
    uint64_t rng = 7;
    for (int i = 0; i < N_DRAWS; i++) {
        float sampled;
        int32_t id = qwen_sample(logits, n, temperature, top_p, &rng, NULL, &sampled);
        assert_true(id >= 0 && (uint32_t)id < n);
        assert_true(fabs(exp((double)sampled) - expected[id]) < 1e-4);
        counts[id]++;
    }
    for (uint32_t i = 0; i < n; i++) {
        double spread = sqrt(N_DRAWS * expected[i] * (1 - expected[i]));
        assert_true(fabs(counts[i] - N_DRAWS * expected[i]) <= 5 * spread);
    }
}

static void test_draws(void **state)
{
    (void)state;
    const float logits[] = {logf(0.5f), logf(0.1f), logf(0.25f), -INFINITY, logf(0.15f)};
    check_draws(logits, 5, 1, 1, (double[]){0.5, 0.1, 0.25, 0, 0.15});
    /* squares: 0.25, 0.01, 0.0625, 0.0225 of 0.345 */
    check_draws(logits, 5, 0.5f, 1,
                (double[]){0.724638, 0.0289855, 0.181159, 0, 0.0652174});
    check_draws(logits, 5, 1, 0.7f, (double[]){2 / 3.0, 0, 1 / 3.0, 0, 0});
    check_draws(logits, 5, 1, 0.76f, (double[]){5 / 9.0, 0, 2.5 / 9, 0, 1.5 / 9});
    check_draws(logits, 5, 1, 0.3f, (double[]){1, 0, 0, 0, 0});
    check_draws(logits, 5, 1, 0, (double[]){1, 0, 0, 0, 0});
}

/* Logits that are no numbers give a token, and a log-probability that shows it. */
static void test_no_numbers(void **state)
{
    (void)state;
    const float cases[][4] = {{NAN, NAN, NAN, NAN},
                              {1, NAN, 2, 3},
                              {NAN, 1, 2, 3},
                              {1, INFINITY, 2, 3},
                              {INFINITY, INFINITY, 0, NAN},
                              {-INFINITY, -INFINITY, -INFINITY, -INFINITY}};
    const float top_ps[] = {0, 0.5f, 0.9f, 1}, temperatures[] = {0, 0.5f, 1, 100};
    for (size_t i = 0; i < 6 * 4 * 4; i++) {
        uint64_t rng = i;
        float logp = 0;
        const int32_t id = qwen_sample(cases[i / 16], 4, temperatures[i / 4 % 4],
                                       top_ps[i % 4], &rng, &logp, NULL);
        assert_true(id >= 0 && id < 4);
        assert_true(isfinite(logp) == 0);
    }
}

/* ---- config.json
 * -------------------------------------------------------------------------- */

static const char good_config[] =
    "{\"model_type\":\"qwen3\",\"vocab_size\":100,\"hidden_size\":8,"
    "\"intermediate_size\":12,\"num_hidden_layers\":2,\"num_attention_heads\":4,"
    "\"num_key_value_heads\":2,\"head_dim\":6,\"rope_theta\":5000,"
    "\"tie_word_embeddings\":true,\"eos_token_id\":[7,8]}";

static dw_status read_text(qwen_config *c, const char *text, dw_error *err)
{
    put_text(temp_path("config.json"), text);
    return qwen_config_read(c, temp_dir, err);
}

static void test_config(void **state)
{
    (void)state;
    qwen_config c, again;
    dw_error err;
    assert_ok(read_text(&c, good_config, &err), err);
    assert_int_equal(c.n_vocab, 100);
    assert_int_equal(c.n_kv_heads, 2);
    assert_int_equal(c.head_dim, 6);
    assert_true(qwen_config_is_eos(&c, 7) && qwen_config_is_eos(&c, 8));
    assert_false(qwen_config_is_eos(&c, 9) || qwen_config_is_eos(&c, -1));
    assert_true(c.tied && c.rope_theta == 5000.0f);
    assert_ok(qwen_config_write(&c, temp_dir, &err), err);
    assert_ok(qwen_config_read(&again, temp_dir, &err), err);
    assert_true(qwen_config_same_shape(&c, &again) && qwen_config_is_eos(&again, 7) &&
                qwen_config_is_eos(&again, 8) && again.rope_theta == c.rope_theta &&
                again.rms_eps == c.rms_eps && again.max_positions == c.max_positions);
}

/* Replaces one member at a time; the error must name it. */
static void test_hostile_config(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *named;
        dw_status code;
    } cases[] = {
        {"\"vocab_size\":100", "\"vocab_size\":0", "vocab_size", DW_CORRUPT},
        {"\"vocab_size\":100", "\"vocab_size\":-5", "vocab_size", DW_CORRUPT},
        {"\"vocab_size\":100", "\"vocab_size\":9223372036854775807", "vocab_size",
         DW_CORRUPT},
        {"\"vocab_size\":100", "\"vocab_size\":\"100\"", "vocab_size", DW_CORRUPT},
        {"\"vocab_size\":100", "\"vocab_size\":1e2", "vocab_size", DW_CORRUPT},
        {"\"vocab_size\":100", "\"x\":1", "vocab_size", DW_CORRUPT},
        {"\"hidden_size\":8", "\"hidden_size\":4294967304", "hidden_size", DW_CORRUPT},
        {"\"num_hidden_layers\":2", "\"num_hidden_layers\":1000000", "num_hidden_layers",
         DW_CORRUPT},
        {"\"num_key_value_heads\":2", "\"num_key_value_heads\":3", "num_key_value_heads",
         DW_CORRUPT},
        {"\"head_dim\":6", "\"head_dim\":7", "head_dim", DW_CORRUPT},
        {"\"rope_theta\":5000", "\"rope_theta\":0", "rope_theta", DW_CORRUPT},
        {"\"rope_theta\":5000", "\"rope_theta\":[]", "rope_theta", DW_CORRUPT},
        {"\"rope_theta\":5000", "\"rope_scaling\":{\"rope_type\":\"yarn\"}", "rope_type",
         DW_UNSUPPORTED},
        {"\"rope_theta\":5000", "\"rope_parameters\":3", "rope_parameters", DW_CORRUPT},
        {"\"rope_theta\":5000", "\"use_sliding_window\":true", "use_sliding_window",
         DW_UNSUPPORTED},
        {"\"rope_theta\":5000", "\"attention_bias\":true", "attention_bias",
         DW_UNSUPPORTED},
        {"\"rope_theta\":5000", "\"quantization_config\":{}", "quantization_config",
         DW_UNSUPPORTED},
        {"\"rope_theta\":5000", "\"hidden_act\":\"gelu\"", "hidden_act", DW_UNSUPPORTED},
        {"\"tie_word_embeddings\":true", "\"tie_word_embeddings\":1",
         "tie_word_embeddings", DW_CORRUPT},
        {"[7,8]", "100", "eos_token_id", DW_CORRUPT},
        {"[7,8]", "[-1]", "eos_token_id", DW_CORRUPT},
        {"[7,8]", "[7,100]", "eos_token_id", DW_CORRUPT},
        {"[7,8]", "[7,null]", "eos_token_id", DW_CORRUPT},
        {"[7,8]", "{}", "eos_token_id", DW_CORRUPT},
        {"[7,8]", "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]", "eos_token_id",
         DW_UNSUPPORTED},
        {"\"qwen3\"", "\"llama\"", "model_type", DW_UNSUPPORTED},
        {"\"qwen3\"", "null", "model_type", DW_CORRUPT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[1024];
        const char *found = strstr(good_config, cases[i].from);
        assert_non_null(found);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(found - good_config), good_config,
                 cases[i].to, found + strlen(cases[i].from));
        qwen_config c;
        dw_error err;
        if (read_text(&c, text, &err) != cases[i].code ||
            strstr(err.text, cases[i].named) == NULL)
            fail_msg("%s: %d, %s", cases[i].to, (int)err.code, err.text);
    }
    static const char *const broken[] = {"", "[]", "{", "null",
                                         "{\"model_type\":\"qwen3\"}"};
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        qwen_config c;
        dw_error err;
        assert_int_equal(read_text(&c, broken[i], &err), DW_CORRUPT);
    }
    qwen_config c;
    dw_error err;
    assert_int_equal(qwen_config_read(&c, "/nowhere", &err), DW_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompt_at_once), cmocka_unit_test(test_ragged_batches),
        cmocka_unit_test(test_reset),          cmocka_unit_test(test_bad_steps),
        cmocka_unit_test(test_bad_weights),    cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_draws),          cmocka_unit_test(test_no_numbers),
        cmocka_unit_test(test_config),         cmocka_unit_test(test_hostile_config),
    };
    return cmocka_run_group_tests(tests, make_fixture, free_fixture);
}
