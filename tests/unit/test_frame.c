/* Packed tensors: those of slime unpack, and hostile frames are refused. */
#include "unit/suite.h"

#include "unit/format_kit.h"

static uint8_t into[160];

static int make_kit(void **state)
{
    (void)state;
    peer_kit_make();
    return 0;
}

#define XOR       false
#define OVERWRITE true

static dw_frame frame_of(const peer_frame *f, bool overwrite, const char *checksum)
{
    return (dw_frame){f->bytes,    (size_t)f->n, overwrite, checksum,
                      f->checksum, "frame",      NULL};
}

/* Applies it to a copy of OLD, in `into`. */
static dw_status decode(const dw_tensor *old, const dw_frame *frame, dw_error *err)
{
    dw_tensor copy = *old;
    copy.data = into;
    if (old->n_bytes > 0)
        memcpy(into, old->data, (size_t)old->n_bytes);
    return dw_frame_apply(&copy, frame, err);
}

static void refuses(const peer_frame *f, bool packing, const char *text)
{
    dw_error err = {0};
    const dw_frame p = frame_of(f, packing, "xxh3-128");
    assert_fails(decode(&peer_model[1][0], &p, &err), DW_CORRUPT, &err);
    if (!strstr(err.text, text))
        print_error("not '%s': %s\n", text, err.text);
    assert_non_null(strstr(err.text, text));
    assert_non_null(strstr(err.text, "a.weight"));
}

TEST(test_round_trip)
{
    static const char *const sums[] = {NULL, "xxh3-128", "adler32"};
    for (unsigned i = 0; i < 6; i++) {
        const bool packing = i % 2 == 1;
        const char *sum = sums[i / 2];
        peer_frame f;
        dw_error err = {0};
        const dw_tensor *old = &peer_model[1][0], *next = &peer_model[2][0];
        peer_make_frame(&f, old, next, packing, sum);
        const dw_frame p = frame_of(&f, packing, sum);
        assert_ok(decode(old, &p, &err), &err);
        assert_memory_equal(into, next->data, (size_t)next->n_bytes);
    }
}

/* Frames that the library writes, over several chunks. */
TEST(test_written_frames)
{
    enum { N = 700001 };
    const uint64_t n = N;
    uint8_t *old = malloc(N), *new = malloc(N);
    for (size_t i = 0; i < N; i++)
        old[i] = new[i] = (uint8_t)(i * 31);
    for (size_t i = 5; i < N; i += 4321)
        new[i] ^= 0x40;
    new[N - 1] ^= 1;
    dw_tensor base = {
        .name = "t", .dtype = DW_U8, .n_dims = 1, .dims = &n, .n_bytes = N, .data = old};
    dw_tensor next = base;
    next.data = new;
    for (unsigned overwrite = 0; overwrite < 2; overwrite++) {
        dw_writer out = {0};
        dw_error err = {0};
        assert_ok(dw_frame_make(&out, &base, &next, overwrite, &err), &err);
        assert_true(out.n_bytes < N / 10);
        const dw_frame f = {.packed = out.bytes,
                            .n_packed = out.n_bytes,
                            .overwrite = overwrite,
                            .where = "frame"};
        uint8_t *copy = memcpy(malloc(N), old, N);
        dw_tensor there = base;
        there.data = copy;
        assert_ok(dw_frame_apply(&there, &f, &err), &err);
        assert_memory_equal(copy, new, N);
        free(copy);
        dw_writer_release(&out);
    }
    free(old);
    free(new);
}

TEST(test_checksums)
{
    char text[DW_CHECKSUM_TEXT];
    /* as printed by their own command-line tools and zlib */
    dw_checksum_of(text, "xxh3-128", "abc", 3);
    assert_string_equal(text, "06b05ab6733a618578af5f94892f3950");
    dw_checksum_of(text, "adler32", "abc", 3);
    assert_string_equal(text, "024d0127");
    dw_checksum_of(text, "adler32", NULL, 0);
    assert_string_equal(text, "00000001");
    assert_false(dw_checksum_of(text, "blake3", "abc", 3));
}

TEST(test_wrong_weights)
{
    peer_frame f;
    peer_make_frame(&f, &peer_model[1][0], &peer_model[2][0], XOR, "xxh3-128");
    f.checksum[5] = f.checksum[5] == '0' ? '1' : '0';
    refuses(&f, XOR, "checksum");
    peer_make_frame(&f, &peer_model[0][0], &peer_model[2][0], XOR, "xxh3-128");
    refuses(&f, XOR, "not the version it starts from");
    dw_frame p = frame_of(&f, XOR, "xxh3-128");
    dw_error err = {0};
    p.checksum_text = NULL;
    assert_fails(decode(&peer_model[1][0], &p, &err), DW_CORRUPT, &err);
}

TEST(test_frames_of_another_size)
{
    static const uint8_t zeros[4000];
    peer_frame f = {.checksum = "0"};
    peer_pack(&f, zeros, 159);
    refuses(&f, XOR, "159 bytes, the tensor has 160");
    peer_pack(&f, zeros, 161);
    refuses(&f, XOR, "does not unpack");
    peer_pack(&f, zeros, sizeof zeros); /* a decompression bomb */
    refuses(&f, XOR, "does not unpack");
    refuses(&f, OVERWRITE, "does not unpack");
    peer_pack(&f, zeros, 160);
    f.n--;
    refuses(&f, XOR, "not one zstd frame");
    f.n += 2;
    refuses(&f, XOR, "not one zstd frame");
    f.n = 0;
    refuses(&f, XOR, "not one zstd frame");
}

TEST(test_lists)
{
    peer_frame f = {.checksum = "0"};
    uint8_t list[4 + 5 * 161] = {1, 0, 0, 0, 160, 0, 0, 0, 7};
    peer_pack(&f, list, 9);
    refuses(&f, OVERWRITE, "position 160 is beyond its 160 bytes");
    dw_store32(list + 4, UINT32_MAX);
    peer_pack(&f, list, 9);
    refuses(&f, OVERWRITE, "beyond");
    peer_pack(&f, list, 8);
    refuses(&f, OVERWRITE, "does not have 8 bytes");
    peer_pack(&f, list, 3);
    refuses(&f, OVERWRITE, "does not have 3 bytes");
    dw_store32(list, UINT32_MAX);
    peer_pack(&f, list, 9);
    refuses(&f, OVERWRITE, "does not have 9 bytes");
    dw_store32(list, 161); /* more positions than bytes */
    peer_pack(&f, list, sizeof list);
    refuses(&f, OVERWRITE, "does not unpack");
}

/* A frame need not declare its size. */
TEST(test_frame_of_unknown_size)
{
    peer_frame f;
    uint8_t plain[160];
    const uint8_t *a = peer_model[1][0].data, *b = peer_model[2][0].data;
    for (size_t i = 0; i < sizeof plain; i++)
        plain[i] = a[i] ^ b[i];
    ZSTD_CCtx *context = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(context, ZSTD_c_contentSizeFlag, 0);
    f.n = ZSTD_compress2(context, f.bytes, sizeof f.bytes, plain, sizeof plain);
    ZSTD_freeCCtx(context);
    dw_checksum_of(f.checksum, "xxh3-128", b, 160);
    const dw_frame p = frame_of(&f, XOR, "xxh3-128");
    dw_error err = {0};
    assert_ok(decode(&peer_model[1][0], &p, &err), &err);
    assert_memory_equal(into, b, 160);
}

TEST(test_empty_tensor)
{
    static const uint64_t dims[] = {0};
    const dw_tensor none = {.name = "none", .dtype = DW_BF16, .n_dims = 1, .dims = dims};
    for (unsigned packing = 0; packing < 2; packing++) {
        peer_frame f;
        dw_error err = {0};
        peer_make_frame(&f, &none, &none, packing, "xxh3-128");
        const dw_frame p = frame_of(&f, packing, "xxh3-128");
        assert_ok(decode(&none, &p, &err), &err);
    }
}

RUN_TESTS(make_kit, NULL)
