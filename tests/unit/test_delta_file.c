#include <inttypes.h>

#include "unit/suite.h"

#include "deltawire/deltawire.h"
#include "golden/delta_model.h"
#include "temp_dir.h"

static const char *golden_path(const char *name)
{
    static char path[4096];
    const char *dir = getenv("DW_TEST_DIR");
    snprintf(path, sizeof path, "%s/golden/deltas/%s", dir ? dir : DW_TEST_DIR, name);
    return path;
}

/* Opens the file and applies it to the golden model. On success *STATE takes the new
 * state. A failure must not change the weights. */
static dw_status use(const uint8_t *bytes, size_t n_bytes, const char *label,
                     dw_digest *state, dw_error *err)
{
    static golden_model m, untouched;
    golden_base(&m);
    golden_base(&untouched);
    dw_delta *delta;
    dw_status status = dw_delta_open_bytes(&delta, bytes, n_bytes, label, err);
    assert_int_equal(status == DW_OK, delta != NULL);
    if (status == DW_OK)
        status = dw_delta_apply(delta, m.tensors, GOLDEN_TENSORS, NULL, err);
    dw_delta_close(delta);
    if (status != DW_OK) {
        assert_memory_equal(&m, &untouched, offsetof(golden_model, tensors));
        return status;
    }
    dw_digest digests[GOLDEN_TENSORS];
    assert_int_equal(
        dw_digest_tensors(digests, state, m.tensors, GOLDEN_TENSORS, 1, NULL, NULL),
        DW_OK);
    return DW_OK;
}

TEST(test_golden_files)
{
    FILE *f = fopen(golden_path("expected.txt"), "r");
    assert_non_null(f);
    char line[1024];
    size_t n_good = 0, n_bad = 0;
    while (fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        char *status_name = strchr(line, '\t');
        assert_non_null(status_name);
        *status_name++ = '\0';
        char *text = strchr(status_name, '\t');
        assert_non_null(text);
        *text++ = '\0';

        size_t n_bytes;
        uint8_t *file = get_file(golden_path(line), &n_bytes), *bytes = malloc(n_bytes);
        memcpy(bytes, file, n_bytes); /* without the NUL that get_file adds */
        dw_digest reached = 0;
        dw_error err = {0};
        dw_status status = use(bytes, n_bytes, line, &reached, &err);
        char found[32];
        snprintf(found, sizeof found, "%016" PRIx64, reached);
        const char *answer = status == DW_OK ? found : err.text;
        if (strcmp(answer, text) != 0)
            print_error("%s\n", line);
        assert_string_equal(answer, text);
        assert_string_equal(dw_status_name(status), status_name);
        if (status != DW_OK) {
            assert_int_equal(err.code, status);
            assert_string_equal(err.where, line);
        }
        *(status == DW_OK ? &n_good : &n_bad) += 1;
        free(file);
        free(bytes);
    }
    fclose(f);
    assert_true(n_good >= 9 && n_bad >= 60);
}

/* The good files lead to the states that the model's own formulas give. */
TEST(test_golden_states)
{
    static const struct {
        const char *name;
        void (*change)(golden_model *m);
    } cases[] = {
        {"good_class.safetensors", golden_change_few},
        {"good_packed_and_stored.safetensors", golden_change_all},
        {"good_small.safetensors", golden_change_small},
        {"good_gap.safetensors", golden_change_few},
        {"good_gap_dense.safetensors", golden_change_all},
        {"good_raw_v1.safetensors", golden_change_few},
        {"good_raw_v3.safetensors", golden_change_few},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        static golden_model m, wanted;
        golden_base(&m);
        golden_base(&wanted);
        cases[i].change(&wanted);
        dw_delta *delta;
        assert_int_equal(dw_delta_open(&delta, golden_path(cases[i].name), NULL), DW_OK);
        assert_int_equal(dw_delta_apply(delta, m.tensors, GOLDEN_TENSORS, NULL, NULL),
                         DW_OK);
        assert_memory_equal(&m, &wanted, offsetof(golden_model, tensors));
        dw_delta_close(delta);
    }
}

/* The files contain the block modes that they should. */
TEST(test_golden_modes)
{
    dw_delta *delta;
    assert_int_equal(
        dw_delta_open(&delta, golden_path("good_packed_and_stored.safetensors"), NULL),
        DW_OK);
    uint64_t n_class = 0, n_packed = 0, n_stored = 0;
    dw_delta_info info;
    dw_delta_get_info(delta, &info);
    for (size_t i = 0; i < info.n_tensors; i++) {
        dw_delta_tensor_info t;
        dw_delta_tensor(delta, i, &t);
        n_class += t.n_class_blocks;
        n_packed += t.n_packed_blocks;
        n_stored += t.n_stored_blocks;
    }
    assert_true(n_class > 0 && n_packed > 0 && n_stored > 0);
    dw_delta_close(delta);
}

/* Every byte of the file is protected against flipped bits and truncation. */
TEST(test_every_alteration_is_refused)
{
    static const char *const names[] = {"good_class.safetensors",
                                        "good_packed_and_stored.safetensors"};
    for (size_t k = 0; k < 2; k++) {
        size_t n_bytes;
        uint8_t *bytes = get_file(golden_path(names[k]), &n_bytes);
        dw_digest reached;
        dw_error err;
        assert_int_equal(use(bytes, n_bytes, "f", &reached, &err), DW_OK);
        for (size_t bit = 0; bit < 8 * n_bytes; bit += k ? 7 : 1) {
            dw_delta *delta;
            bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
            assert_int_not_equal(dw_delta_open_bytes(&delta, bytes, n_bytes, "f", &err),
                                 DW_OK);
            bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        for (size_t n = 0; n < n_bytes; n += 1 + k) {
            dw_delta *delta;
            uint8_t *cut = malloc(n + !n);
            memcpy(cut, bytes, n);
            assert_int_not_equal(dw_delta_open_bytes(&delta, cut, n, "f", &err), DW_OK);
            free(cut);
        }
        free(bytes);
    }
}

RUN_TESTS(temp_dir_make, temp_dir_remove)
