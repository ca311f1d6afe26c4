/* Packed tensors: those of slime unpack, and hostile frames are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "unit/peer_kit.h"

static uint8_t into[160];

static int make_kit(void **state)
{
    (void)state;
    peer_kit_make();
    return 0;
}

static dw_payload payload_of(const peer_frame *f, dw_packing packing,
                             dw_checksum checksum)
{
    return (dw_payload){f->bytes,    (size_t)f->n, packing, checksum,
                        f->checksum, "frame",      NULL};
}

static void refuses(const peer_frame *f, dw_packing packing, const char *text)
{
    dw_error err = {0};
    const dw_payload p = payload_of(f, packing, DW_CHECKSUM_XXH3_128);
    assert_fails(dw_payload_decode(into, &peer_model[1][0], &p, &err), DW_CORRUPT, &err);
    if (!strstr(err.text, text))
        print_error("not '%s': %s\n", text, err.text);
    assert_non_null(strstr(err.text, text));
    assert_non_null(strstr(err.text, "a.weight"));
}

static void test_round_trip(void **state)
{
    (void)state;
    for (dw_packing packing = DW_PACKING_XOR; packing <= DW_PACKING_OVERWRITE; packing++)
        for (dw_checksum sum = DW_CHECKSUM_NONE; sum <= DW_CHECKSUM_ADLER32; sum++) {
            peer_frame f;
            dw_error err = {0};
            const dw_tensor *old = &peer_model[1][0], *next = &peer_model[2][0];
            peer_make_frame(&f, old, next, packing, sum);
            const dw_payload p = payload_of(&f, packing, sum);
            assert_ok(dw_payload_decode(into, old, &p, &err), &err);
            assert_memory_equal(into, next->data, (size_t)next->n_bytes);
        }
}

static void test_checksums(void **state)
{
    (void)state;
    char text[DW_CHECKSUM_TEXT];
    dw_checksum kind;
    /* as printed by their own command-line tools and zlib */
    dw_checksum_of(text, DW_CHECKSUM_XXH3_128, "abc", 3);
    assert_string_equal(text, "06b05ab6733a618578af5f94892f3950");
    dw_checksum_of(text, DW_CHECKSUM_ADLER32, "abc", 3);
    assert_string_equal(text, "024d0127");
    dw_checksum_of(text, DW_CHECKSUM_ADLER32, NULL, 0);
    assert_string_equal(text, "00000001");
    assert_true(dw_checksum_from_name(&kind, "adler32") && kind == DW_CHECKSUM_ADLER32);
    assert_false(dw_checksum_from_name(&kind, "blake3"));
}

static void test_wrong_weights(void **state)
{
    (void)state;
    peer_frame f;
    peer_make_frame(&f, &peer_model[1][0], &peer_model[2][0], DW_PACKING_XOR,
                    DW_CHECKSUM_XXH3_128);
    f.checksum[5] = f.checksum[5] == '0' ? '1' : '0';
    refuses(&f, DW_PACKING_XOR, "checksum");
    peer_make_frame(&f, &peer_model[0][0], &peer_model[2][0], DW_PACKING_XOR,
                    DW_CHECKSUM_XXH3_128);
    refuses(&f, DW_PACKING_XOR, "not the version it starts from");
    dw_payload p = payload_of(&f, DW_PACKING_XOR, DW_CHECKSUM_XXH3_128);
    dw_error err = {0};
    p.checksum_text = NULL;
    assert_fails(dw_payload_decode(into, &peer_model[1][0], &p, &err), DW_CORRUPT, &err);
}

static void test_frames_of_another_size(void **state)
{
    (void)state;
    static const uint8_t zeros[4000];
    peer_frame f = {.checksum = "0"};
    peer_pack(&f, zeros, 159);
    refuses(&f, DW_PACKING_XOR, "159 bytes, the tensor has 160");
    peer_pack(&f, zeros, 161);
    refuses(&f, DW_PACKING_XOR, "does not unpack");
    peer_pack(&f, zeros, sizeof zeros); /* a decompression bomb */
    refuses(&f, DW_PACKING_XOR, "does not unpack");
    refuses(&f, DW_PACKING_OVERWRITE, "does not unpack");
    peer_pack(&f, zeros, 160);
    f.n--;
    refuses(&f, DW_PACKING_XOR, "not one zstd frame");
    f.n += 2;
    refuses(&f, DW_PACKING_XOR, "not one zstd frame");
    f.n = 0;
    refuses(&f, DW_PACKING_XOR, "not one zstd frame");
}

static void test_lists(void **state)
{
    (void)state;
    peer_frame f = {.checksum = "0"};
    uint8_t list[4 + 5 * 161] = {1, 0, 0, 0, 160, 0, 0, 0, 7};
    peer_pack(&f, list, 9);
    refuses(&f, DW_PACKING_OVERWRITE, "position 160 is beyond its 160 bytes");
    dw_store32(list + 4, UINT32_MAX);
    peer_pack(&f, list, 9);
    refuses(&f, DW_PACKING_OVERWRITE, "beyond");
    peer_pack(&f, list, 8);
    refuses(&f, DW_PACKING_OVERWRITE, "does not have 8 bytes");
    peer_pack(&f, list, 3);
    refuses(&f, DW_PACKING_OVERWRITE, "does not have 3 bytes");
    dw_store32(list, UINT32_MAX);
    peer_pack(&f, list, 9);
    refuses(&f, DW_PACKING_OVERWRITE, "does not have 9 bytes");
    dw_store32(list, 161); /* more positions than bytes */
    peer_pack(&f, list, sizeof list);
    refuses(&f, DW_PACKING_OVERWRITE, "does not unpack");
}

/* A frame need not declare its size. */
static void test_frame_of_unknown_size(void **state)
{
    (void)state;
    peer_frame f;
    uint8_t plain[160];
    const uint8_t *a = peer_model[1][0].data, *b = peer_model[2][0].data;
    for (size_t i = 0; i < sizeof plain; i++)
        plain[i] = a[i] ^ b[i];
    ZSTD_CCtx *context = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);
    f.n = ZSTD_compress2(context, f.bytes, sizeof f.bytes, plain, sizeof plain);
    ZSTD_freeCCtx(context);
    dw_checksum_of(f.checksum, DW_CHECKSUM_XXH3_128, b, 160);
    const dw_payload p = payload_of(&f, DW_PACKING_XOR, DW_CHECKSUM_XXH3_128);
    dw_error err = {0};
    assert_ok(dw_payload_decode(into, &peer_model[1][0], &p, &err), &err);
    assert_memory_equal(into, b, 160);
}

static void test_empty_tensor(void **state)
{
    (void)state;
    static const uint64_t dims[] = {0};
    const dw_tensor none = {.name = "none", .dtype = DW_BF16, .n_dims = 1, .dims = dims};
    for (dw_packing packing = DW_PACKING_XOR; packing <= DW_PACKING_OVERWRITE;
         packing++) {
        peer_frame f;
        dw_error err = {0};
        peer_make_frame(&f, &none, &none, packing, DW_CHECKSUM_XXH3_128);
        const dw_payload p = payload_of(&f, packing, DW_CHECKSUM_XXH3_128);
        assert_ok(dw_payload_decode(into, &none, &p, &err), &err);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_checksums),
        cmocka_unit_test(test_wrong_weights),
        cmocka_unit_test(test_frames_of_another_size),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_frame_of_unknown_size),
        cmocka_unit_test(test_empty_tensor),
    };
    return cmocka_run_group_tests(tests, make_kit, NULL);
}
