/* Which tensors are quantised, the table of the quantised model, and its config.json. */
#include "unit/suite.h"

#include "base/json_tree.h"
#include "quant/quant.h"
#include "unit/failing_allocator.h"
#include "inner.h"

static const uint64_t matrix[] = {200, 300};
static const uint64_t stack[] = {4, 200, 300};
static const uint64_t kernel[] = {8, 1, 4};
static const uint64_t vector[] = {300};

static dw_tensor tensor(const char *name, dw_dtype dtype, uint32_t n_dims,
                        const uint64_t *dims)
{
    dw_tensor t = {.name = name, .dtype = dtype, .n_dims = n_dims, .dims = dims};
    dw_shape_size(dtype, n_dims, dims, NULL, &t.n_bytes);
    return t;
}

static dw_quant_options options_of(dw_quant_scheme scheme)
{
    dw_quant_options o;
    dw_quant_options_init(&o);
    o.scheme = scheme;
    return o;
}

static const dw_quant_entry *find(const dw_quant_plan *plan, const char *name)
{
    for (size_t i = 0; i < plan->n_entries; i++)
        if (strcmp(plan->entries[i].tensor.name, name) == 0)
            return &plan->entries[i];
    return NULL;
}

TEST(test_defaults)
{
    static const struct {
        const char *name;
        bool is_quantised;
    } cases[] = {
        {"model.layers.0.self_attn.q_proj.weight", true},
        {"model.layers.0.mlp.gate_proj.weight", true},
        {"model.layers.0.mlp.experts.3.up_proj.weight", true},
        {"transformer.h.0.attn.c_attn.weight", true},
        {"model.embed_tokens.weight", false},
        {"transformer.wte.weight", false},
        {"transformer.wpe.weight", false},
        {"bert.embeddings.word_embeddings.weight", false},
        {"visual.patch_embed.proj.weight", false},
        {"lm_head.weight", false},
        {"model.norm.weight", false},
        {"model.layers.0.self_attn.q_norm.weight", false},
        {"model.layers.0.mlp.gate.weight", false},
        {"model.layers.0.mlp.shared_expert_gate.weight", false},
        {"model.layers.0.block_sparse_moe.gate.weight", false},
        {"model.layers.0.feed_forward.router.weight", false},
        {"model.layers.0.self_attn.q_proj.bias", false},
        {"model.layers.0.A_log", false},
        {"weight", false},
        {"", false},
    };
    enum { N = sizeof cases / sizeof cases[0] };
    for (size_t i = 0; i < N; i++) {
        dw_tensor tensors[] = {tensor(cases[i].name, DW_BF16, 2, matrix),
                               tensor("other.weight", DW_BF16, 2, matrix)};
        const dw_quant_options o = options_of(DW_QUANT_FP8_BLOCK);
        dw_quant_plan *plan;
        dw_error err = {0};
        if (!*cases[i].name)
            tensors[0].name = "x";
        assert_int_equal(dw_quant_plan_make(&plan, tensors, 2, NULL, &o, &err), DW_OK);
        const bool is_quantised = find(plan, tensors[0].name)->role == DW_QUANT_WEIGHT;
        if (is_quantised != cases[i].is_quantised)
            fail_msg("%s", cases[i].name);
        dw_quant_plan_free(plan);
    }
}

TEST(test_table)
{
    const dw_tensor tensors[] = {
        tensor("z.weight", DW_F16, 2, matrix),
        tensor("layers.0.mlp.experts.gate_up_proj", DW_BF16, 3, stack),
        tensor("layers.0.conv1d.weight", DW_BF16, 3, kernel),
        tensor("norm.weight", DW_F32, 1, vector),
        tensor("a.weight", DW_F32, 2, matrix),
        tensor("mask", DW_I8, 2, matrix),
        tensor("step", DW_I64, 0, NULL),
    };
    const bool as_bf16[7] = {[3] = true, [4] = true};
    static const struct {
        const char *name;
        dw_dtype dtype;
        uint32_t n_dims;
        uint64_t dims[3];
        dw_quant_role role;
        size_t source;
    } expected[] = {
        {"a.weight", DW_F8_E4M3, 2, {200, 300}, DW_QUANT_WEIGHT, 4},
        {"a.weight_scale_inv", DW_F32, 2, {2, 3}, DW_QUANT_SCALE, 4},
        {"layers.0.conv1d.weight", DW_BF16, 3, {8, 1, 4}, DW_QUANT_COPY, 2},
        {"layers.0.mlp.experts.gate_up_proj",
         DW_F8_E4M3,
         3,
         {4, 200, 300},
         DW_QUANT_WEIGHT,
         1},
        {"layers.0.mlp.experts.gate_up_proj_scale_inv",
         DW_F32,
         3,
         {4, 2, 3},
         DW_QUANT_SCALE,
         1},
        {"mask", DW_I8, 2, {200, 300}, DW_QUANT_COPY, 5},
        {"norm.weight", DW_BF16, 1, {300}, DW_QUANT_COPY, 3},
        {"step", DW_I64, 0, {0}, DW_QUANT_COPY, 6},
        {"z.weight", DW_F8_E4M3, 2, {200, 300}, DW_QUANT_WEIGHT, 0},
        {"z.weight_scale_inv", DW_F32, 2, {2, 3}, DW_QUANT_SCALE, 0},
    };
    enum { N = sizeof expected / sizeof expected[0] };
    dw_quant_options o = options_of(DW_QUANT_FP8_BLOCK);
    dw_quant_plan *plan;
    dw_error err = {0};
    assert_int_equal(dw_quant_plan_make(&plan, tensors, 7, as_bf16, &o, &err), DW_OK);
    assert_int_equal(plan->n_entries, N);
    assert_int_equal(plan->n_weights, 3);
    for (size_t i = 0; i < N; i++) {
        const dw_quant_entry *e = &plan->entries[i];
        uint64_t n_bytes;
        assert_string_equal(e->tensor.name, expected[i].name);
        assert_int_equal(e->tensor.dtype, expected[i].dtype);
        assert_int_equal(e->tensor.n_dims, expected[i].n_dims);
        assert_memory_equal(e->tensor.dims, expected[i].dims, 8 * e->tensor.n_dims);
        assert_true(dw_shape_size(e->tensor.dtype, e->tensor.n_dims, e->tensor.dims, NULL,
                                  &n_bytes));
        assert_int_equal(e->tensor.n_bytes, n_bytes);
        assert_int_equal(e->role, expected[i].role);
        assert_int_equal(e->source, expected[i].source);
        if (e->role != DW_QUANT_COPY)
            assert_int_equal(plan->entries[e->partner].partner, i);
    }
    dw_quant_plan_free(plan);

    o.scheme = DW_QUANT_INT8_ROW;
    assert_int_equal(dw_quant_plan_make(&plan, tensors, 7, NULL, &o, &err), DW_OK);
    assert_int_equal(find(plan, "a.weight")->tensor.dtype, DW_I8);
    assert_int_equal(find(plan, "norm.weight")->tensor.dtype, DW_F32);
    const dw_quant_entry *scale = find(plan, "a.weight_scale");
    assert_int_equal(scale->tensor.dims[0], 200);
    assert_int_equal(scale->tensor.dims[1], 1);
    scale = find(plan, "layers.0.mlp.experts.gate_up_proj_scale");
    assert_int_equal(scale->tensor.n_bytes, 4 * 200 * 4);
    dw_quant_plan_free(plan);
}

TEST(test_patterns)
{
    const dw_tensor tensors[] = {
        tensor("embed_tokens.weight", DW_BF16, 2, matrix),
        tensor("layers.0.q.weight", DW_BF16, 2, matrix),
        tensor("layers.1.q.weight", DW_BF16, 2, matrix),
        tensor("layers.1.q.bias", DW_BF16, 1, vector),
        tensor("other", DW_BF16, 2, matrix),
    };
    const char *keep[] = {"layers.0.*"};
    const char *convert[] = {"embed_*", "*.q.*", "oth?r"};
    dw_quant_options o = options_of(DW_QUANT_FP8_ROW);
    dw_quant_plan *plan;
    dw_error err = {0};
    o.keep = keep;
    o.n_keep = 1;
    o.convert = convert;
    o.n_convert = 3;
    assert_int_equal(dw_quant_plan_make(&plan, tensors, 5, NULL, &o, &err), DW_OK);
    assert_int_equal(find(plan, "embed_tokens.weight")->role, DW_QUANT_WEIGHT);
    assert_int_equal(find(plan, "layers.0.q.weight")->role, DW_QUANT_COPY);
    assert_int_equal(find(plan, "layers.1.q.weight")->role, DW_QUANT_WEIGHT);
    assert_int_equal(find(plan, "layers.1.q.bias")->role, DW_QUANT_COPY);
    assert_int_equal(find(plan, "other_scale")->role, DW_QUANT_SCALE);
    dw_quant_plan_free(plan);

    keep[0] = "layers.9.*";
    assert_int_equal(dw_quant_plan_make(&plan, tensors, 5, NULL, &o, &err), DW_INVALID);
    assert_null(plan);
    assert_non_null(strstr(err.text, "'layers.9.*' of tensors to keep"));
    keep[0] = "layers.0.*";
    convert[1] = "*.bias";
    assert_int_equal(dw_quant_plan_make(&plan, tensors, 5, NULL, &o, &err), DW_INVALID);
    assert_non_null(strstr(err.text, "'*.bias' of tensors to quantise"));
    o.convert = NULL;
    assert_int_equal(dw_quant_plan_make(&plan, tensors, 5, NULL, &o, &err), DW_INVALID);
}

static void refuse(const dw_tensor *tensors, size_t n, const bool *as_bf16,
                   const dw_quant_options *o, const char *text)
{
    dw_quant_plan *plan;
    dw_error err = {0};
    assert_int_equal(dw_quant_plan_make(&plan, tensors, n, as_bf16, o, &err), DW_INVALID);
    assert_null(plan);
    if (!strstr(err.text, text))
        fail_msg("'%s' lacks '%s'", err.text, text);
}

TEST(test_refused)
{
    const uint64_t none[] = {0, 300};
    dw_quant_options o = options_of(DW_QUANT_FP8_BLOCK);
    const dw_tensor taken[] = {tensor("a.weight", DW_BF16, 2, matrix),
                               tensor("a.weight_scale_inv", DW_F32, 2, matrix)};
    refuse(taken, 2, NULL, &o,
           "tensor 'a.weight_scale_inv': it has the name of the scales");
    o.scheme = DW_QUANT_FP8_ROW; /* whose scales have another name */
    dw_quant_plan *plan;
    assert_int_equal(dw_quant_plan_make(&plan, taken, 2, NULL, &o, NULL), DW_OK);
    dw_quant_plan_free(plan);

    const dw_tensor done[] = {tensor("a.weight", DW_BF16, 2, matrix),
                              tensor("b.weight", DW_F8_E4M3, 2, matrix)};
    refuse(done, 2, NULL, &o,
           "tensor 'b.weight': it is F8_E4M3, so the model is quantised");
    const dw_tensor done_int[] = {tensor("a.weight", DW_I8, 2, matrix),
                                  tensor("a.weight_scale", DW_F32, 2, matrix),
                                  tensor("b.weight", DW_BF16, 2, matrix)};
    refuse(done_int, 3, NULL, &o, "tensor 'a.weight': it is I8 and has scales");

    const dw_tensor small[] = {tensor("norm.weight", DW_BF16, 1, vector),
                               tensor("a.weight", DW_BF16, 2, none)};
    refuse(small, 2, NULL, &o, "none of 2 tensors is quantised: there is no matrix");
    refuse(small, 0, NULL, &o, "none of 0 tensors");
    const dw_tensor bare[] = {tensor("weight", DW_BF16, 2, matrix)};
    refuse(bare, 1, NULL, &o, "add a pattern of tensors to quantise, such as 'weight'");
    const dw_tensor wide[] = {tensor("a.weight", DW_F64, 2, matrix)};
    refuse(wide, 1, NULL, &o, "there is no matrix of BF16, F16 or F32");
    static const char *const all[] = {"*"};
    dw_quant_options keeps = o;
    keeps.keep = all;
    keeps.n_keep = 1;
    refuse(done, 1, NULL, &keeps, "patterns of tensors to keep match all that would be");
    const dw_tensor twice[] = {taken[0], taken[0]};
    refuse(twice, 2, NULL, &o, "a.weight");
    const bool as_bf16[2] = {true, false};
    refuse(taken, 2, as_bf16, &o, "only F32 can be published as BF16");
    o.scheme = DW_QUANT_NONE;
    refuse(taken, 2, NULL, &o, "no scheme");
    o.scheme = (dw_quant_scheme)9;
    refuse(taken, 2, NULL, &o, "9 is no scheme");
    refuse(taken, 2, NULL, NULL, "no scheme");
}

TEST(test_scheme_names)
{
    dw_quant_scheme scheme;
    for (int i = 0; i < 4; i++) {
        assert_true(
            dw_quant_scheme_from_name(&scheme, dw_quant_scheme_name((dw_quant_scheme)i)));
        assert_int_equal(scheme, i);
    }
    assert_false(dw_quant_scheme_from_name(&scheme, "fp4"));
    assert_string_equal(dw_quant_scheme_name((dw_quant_scheme)77), "?");
}

/* ---- config.json ---- */

static dw_quant_plan *small_plan(const dw_quant_options *o)
{
    const dw_tensor tensors[] = {
        tensor("model.embed_tokens.weight", DW_BF16, 2, matrix),
        tensor("model.layers.0.mlp.gate.weight", DW_BF16, 2, matrix),
        tensor("model.layers.0.q_proj.weight", DW_BF16, 2, matrix),
        tensor("model.layers.0.q_proj.bias", DW_BF16, 1, vector),
        tensor("model.norm.weight", DW_BF16, 1, vector),
        tensor("lm_head.weight", DW_BF16, 2, matrix),
    };
    dw_quant_plan *plan;
    assert_int_equal(dw_quant_plan_make(&plan, tensors, 6, NULL, o, NULL), DW_OK);
    return plan;
}

static dw_json *config_with(const dw_quant_options *o, const char *text, dw_writer *w)
{
    dw_quant_plan *plan = small_plan(o);
    dw_error err = {0};
    *w = (dw_writer){0};
    if (dw_quant_config(w, text, strlen(text), plan, "config.json", &err) != DW_OK)
        fail_msg("%s", err.text);
    dw_json *root;
    assert_int_equal(dw_json_read(&root, w->bytes, w->n_bytes, "config", NULL, &err),
                     DW_OK);
    dw_quant_plan_free(plan);
    return root;
}

static dw_json *config_of(dw_quant_scheme scheme, const char *text, dw_writer *w)
{
    const dw_quant_options o = options_of(scheme);
    return config_with(&o, text, w);
}

TEST(test_config)
{
    static const char text[] = "{\n  \"rms_norm_eps\": 1e-06,\n  \"n\": [1]\n}\n";
    static const char *const kept[] = {"lm_head", "model.embed_tokens",
                                       "model.layers.0.mlp.gate"};
    dw_writer w;
    dw_json *root = config_of(DW_QUANT_FP8_BLOCK, text, &w);
    assert_memory_equal(w.bytes, text, strlen(text) - 3);
    const dw_json *q = dw_json_get(root, "quantization_config");
    assert_string_equal(dw_json_string(dw_json_get(q, "quant_method")), "fp8");
    const dw_json *list = dw_json_get(q, "modules_to_not_convert");
    size_t n = 0;
    for (const dw_json *it = dw_json_first(list); it; it = dw_json_next(list, it), n++) {
        assert_true(n < 3);
        assert_string_equal(dw_json_string(it), kept[n]);
    }
    assert_int_equal(n, 3);
    dw_json_free(root);
    dw_writer_release(&w);

    root = config_of(DW_QUANT_INT8_ROW, " { } ", &w);
    assert_int_equal(dw_json_size(root), 1);
    q = dw_json_get(root, "quantization_config");
    assert_string_equal(dw_json_string(dw_json_get(q, "format")), "int-quantized");
    assert_int_equal(dw_json_size(dw_json_get(q, "ignore")), 3);
    dw_json_free(root);
    dw_writer_release(&w);
}

/* The text is the user's: white space everywhere, and the numbers that Python writes. */
TEST(test_config_keeps_every_byte)
{
    static const struct {
        const char *before, *after;
    } cases[] = {
        {"{\n  \"a\": 1", "\n}"},
        {"{\n  \"a\": 1", "\n}\n\n \t"},
        {"\n{\"a\": 1", "}"},
        {"{\"a\": 1", " \r\n}\r\n"},
        {"{", "  }  "},
        {"{\"a\": [NaN, Infinity, -Infinity]", "}"},
        {"{\"a\": 123456789012345678901234567890", "}\n"},
        {"{\"a\": \"}\"", "\n}"},
    };
    const dw_quant_options o = options_of(DW_QUANT_FP8_BLOCK);
    dw_quant_plan *plan = small_plan(&o);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[100];
        const size_t n_before = strlen(cases[i].before), n_after = strlen(cases[i].after);
        snprintf(text, sizeof text, "%s%s", cases[i].before, cases[i].after);
        dw_writer w = {0};
        dw_error err = {0};
        if (dw_quant_config(&w, text, strlen(text), plan, "c", &err) != DW_OK)
            fail_msg("%s: %s", text, err.text);
        assert_memory_equal(w.bytes, cases[i].before, n_before);
        assert_memory_equal(w.bytes + w.n_bytes - n_after, cases[i].after, n_after);
        const size_t n_member = w.n_bytes - n_before - n_after;
        assert_int_equal(w.bytes[n_before + n_member - 1], '}');
        dw_json *root;
        assert_int_equal(
            dw_json_read_python(&root, w.bytes, w.n_bytes, "config", NULL, &err), DW_OK);
        assert_true(dw_json_is_object(dw_json_get(root, "quantization_config")));
        dw_json_free(root);
        dw_writer_release(&w);
    }
    dw_quant_plan_free(plan);
}

/* There is nothing to quantise in it: it stays as it is, without scales, and the config
 * lists it. */
TEST(test_empty_matrix)
{
    static const uint64_t empty[] = {0, 300};
    static const char *const names[] = {"empty.weight"};
    const dw_tensor tensors[] = {tensor("a.weight", DW_BF16, 2, matrix),
                                 tensor("empty.weight", DW_BF16, 2, empty)};
    dw_quant_options o = options_of(DW_QUANT_FP8_BLOCK);
    dw_quant_plan *plan;
    dw_error err = {0};
    assert_int_equal(dw_quant_plan_make(&plan, tensors, 2, NULL, &o, &err), DW_OK);
    assert_int_equal(find(plan, "empty.weight")->role, DW_QUANT_COPY);
    assert_null(find(plan, "empty.weight_scale_inv"));
    dw_writer w = {0};
    assert_int_equal(dw_quant_config(&w, "{}", 2, plan, "config.json", &err), DW_OK);
    dw_write_u8(&w, '\0');
    assert_non_null(strstr((const char *)w.bytes, "[\"empty\", \"lm_head\"]"));
    dw_writer_release(&w);
    dw_quant_plan_free(plan);
    o.convert = names;
    o.n_convert = 1;
    assert_int_equal(dw_quant_plan_make(&plan, tensors, 2, NULL, &o, &err), DW_INVALID);
}

/* An engine would read quantised elements of a listed module as if they were weights. */
TEST(test_config_of_quantised_head)
{
    static const char *const head[] = {"lm_head.weight"};
    static const struct {
        dw_quant_scheme scheme;
        const char *list;
    } cases[] = {{DW_QUANT_FP8_BLOCK, "modules_to_not_convert"},
                 {DW_QUANT_FP8_ROW, "ignore"},
                 {DW_QUANT_INT8_ROW, "ignore"}};
    for (size_t i = 0; i < 3; i++) {
        dw_quant_options o = options_of(cases[i].scheme);
        o.convert = head;
        o.n_convert = 1;
        dw_writer w;
        dw_json *root = config_with(&o, "{}", &w);
        const dw_json *q = dw_json_get(root, "quantization_config");
        const dw_json *list = dw_json_get(q, cases[i].list);
        const dw_json *first = dw_json_first(list);
        assert_int_equal(dw_json_size(list), 2);
        assert_string_equal(dw_json_string(first), "model.embed_tokens");
        assert_string_equal(dw_json_string(dw_json_next(list, first)),
                            "model.layers.0.mlp.gate");
        dw_json_free(root);
        dw_writer_release(&w);
    }
}

TEST(test_model_bytes)
{
    static const uint64_t large[] = {300, 200};
    const dw_tensor tensors[] = {
        tensor("embed.weight", DW_BF16, 2, large),
        tensor("a.weight", DW_F32, 2, large),
    };
    dw_error err = {0};
    uint64_t n = 0;
    dw_quant_options o = options_of(DW_QUANT_FP8_BLOCK);
    assert_int_equal(dw_quant_model_bytes(&n, tensors, 2, &o, &err), DW_OK);
    assert_int_equal(n, 2 * 60000 + 60000 + 3 * 2 * 4);
    o = options_of(DW_QUANT_INT8_ROW);
    assert_int_equal(dw_quant_model_bytes(&n, tensors, 2, &o, &err), DW_OK);
    assert_int_equal(n, 2 * 60000 + 60000 + 300 * 4);
    assert_int_equal(dw_quant_model_bytes(&n, tensors, 1, &o, &err), DW_INVALID);
}

TEST(test_bad_config)
{
    static const struct {
        const char *text, *fault;
    } cases[] = {
        {"", "config"},
        {"[]", "config"},
        {"{\"a\": nan}", "config"},
        {"{\"a\": 1", "config"},
        {"{\"a\": 1} x", "config"},
        {"{\"a\": 1, \"a\": 2}", "config"},
        {"{\"quantization_config\": {\"quant_method\": \"awq\"}}",
         "a 'quantization_config' already"},
        {"{\"quantization_config\": null}", "a 'quantization_config' already"},
        {"{\"compression_config\": {}}", "a 'compression_config' already"},
    };
    const dw_quant_options o = options_of(DW_QUANT_FP8_BLOCK);
    dw_quant_plan *plan = small_plan(&o);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dw_writer w = {0};
        dw_error err = {0};
        assert_int_equal(dw_quant_config(&w, cases[i].text, strlen(cases[i].text), plan,
                                         "dir/config.json", &err),
                         DW_INVALID);
        assert_string_equal(err.where, "dir/config.json");
        if (!strstr(err.text, cases[i].fault))
            fail_msg("'%s' lacks '%s'", err.text, cases[i].fault);
        assert_int_equal(w.n_bytes, 0);
        dw_writer_release(&w);
    }
    dw_quant_plan_free(plan);
}

static dw_status plan_and_config(dw_error *err)
{
    const dw_tensor tensors[] = {tensor("a.weight", DW_BF16, 2, matrix),
                                 tensor("embed.weight", DW_BF16, 2, matrix)};
    const dw_quant_options o = options_of(DW_QUANT_FP8_ROW);
    dw_quant_plan *plan;
    dw_writer w = {0};
    dw_status status = dw_quant_plan_make(&plan, tensors, 2, NULL, &o, err);
    if (status != DW_OK)
        return status;
    status = dw_quant_config(&w, "{}", 2, plan, "config.json", err);
    dw_writer_release(&w);
    dw_quant_plan_free(plan);
    return status;
}

TEST(test_no_memory)
{
    fail_every_allocation(plan_and_config, NULL);
}

RUN_TESTS(NULL, NULL)
