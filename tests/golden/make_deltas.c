/* Makes golden/deltas: good delta files, files that must be refused, and expected.txt,
 * which has for each the result of opening it and applying it to delta_model.h:
 *
 *     FILE <tab> ok <tab> digest of the state after
 *     FILE <tab> STATUS <tab> the exact error text
 *
 * Good files come from the library's own encoder. Bad ones are changed and reassembled,
 * most with a valid seal and valid checksums, so that the reader gets as far as the
 * fault. Build against the library's objects:
 *
 *     gcc -D_DEFAULT_SOURCE -Iinclude -Isrc -Itests tests/golden/make_deltas.c \
 *         build/libdeltawire.a -lzstd -lxxhash -lpthread -o /tmp/make_deltas
 *     /tmp/make_deltas tests/golden/deltas
 */
#include <inttypes.h>
#include <stdio.h>
#include <xxhash.h>

#include "codec/delta.h"
#include "deltawire/deltawire.h"
#include "golden/delta_model.h"

static const char *folder;
static FILE *expected;

#define MUST(condition)                                                                  \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            fprintf(stderr, "make_deltas.c:%d: %s\n", __LINE__, #condition);             \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)

static void emit(const char *name, const void *bytes, size_t n_bytes, const char *status,
                 const char *text)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s.safetensors", folder, name);
    FILE *f = fopen(path, "wb");
    MUST(f && fwrite(bytes, 1, n_bytes, f) == n_bytes && fclose(f) == 0);
    fprintf(expected, "%s.safetensors\t%s\t%s\n", name, status, text);
}

/* ---- good files -----------------------------------------------------------------------
 */

static dw_status gather(void *context, const void *bytes, size_t n_bytes, dw_error *err)
{
    (void)err;
    dw_write_bytes(context, bytes, n_bytes);
    return DW_OK;
}

static dw_writer encode(void (*change)(golden_model *), dw_codec codec, unsigned layout)
{
    static golden_model base, next;
    dw_diff_options options;
    dw_delta *delta;
    dw_writer w = {0};
    golden_base(&base);
    golden_base(&next);
    if (change)
        change(&next);
    dw_diff_options_init(&options);
    options.codec = codec;
    options.trl_layout = layout;
    options.base_version = 4;
    options.new_version = 5;
    MUST(dw_delta_diff(&delta, base.tensors, next.tensors, GOLDEN_TENSORS, &options,
                       NULL) == DW_OK);
    MUST(dw_delta_write(delta, gather, &w, NULL) == DW_OK);
    dw_delta_close(delta);
    return w;
}

static void good(const char *name, void (*change)(golden_model *), dw_codec codec,
                 unsigned layout)
{
    static golden_model next;
    dw_digest digests[GOLDEN_TENSORS], state;
    char text[32];
    golden_base(&next);
    if (change)
        change(&next);
    MUST(dw_digest_tensors(digests, &state, next.tensors, GOLDEN_TENSORS, 1, NULL,
                           NULL) == DW_OK);
    snprintf(text, sizeof text, "%016" PRIx64, state);
    dw_writer w = encode(change, codec, layout);
    emit(name, w.bytes, w.n_bytes, "ok", text);
    dw_writer_release(&w);
}

/* ---- a file in parts
 * -------------------------------------------------------------------- */

/* The delta of golden_change_small: one entry, one stored block.
 *
 *     index:  0 shared | 1 rest | 2 's' | 3 dtype | 4 n_dims | 5 dim | 6 n_changed |
 *             7 base digest | 15 new digest | 23 checksum | 31 class base | 32 head */
enum {
    DTYPE = 3,
    N_DIMS,
    DIM,
    N_CHANGED,
    BASE_DIGEST,
    NEW_DIGEST = 15,
    CHECKSUM = 23,
    CLASS_BASE = 31,
    HEAD = 32,
    END = 33
};

typedef struct parts {
    dw_pair metadata[16];
    size_t n_metadata;
    uint8_t index[4096];
    size_t n_index;
    uint8_t blocks[64];
    size_t n_blocks;
    dw_tensor extra; /* a third tensor, if it has a name */
    const char *index_name;
    dw_dtype index_dtype;
    bool broken_checksum; /* leave it as it is */
    bool broken_seal;
} parts;

static parts sample(void)
{
    static dw_writer w;
    static dw_safetensors f;
    if (!w.bytes) {
        w = encode(golden_change_small, DW_CODEC_CLASS, 0);
        MUST(dw_safetensors_parse(&f, w.bytes, w.n_bytes, "sample", NULL) == DW_OK);
        MUST(f.n_tensors == 2 && strcmp(f.tensors[0].name, "index") == 0);
        MUST(f.tensors[0].n_bytes == END && f.tensors[1].n_bytes == 8);
    }
    parts p = {
        .n_index = END, .n_blocks = 8, .index_name = "index", .index_dtype = DW_U8};
    for (size_t i = 0; i < f.n_metadata; i++)
        if (strcmp(f.metadata[i].key, "seal") != 0)
            p.metadata[p.n_metadata++] = f.metadata[i];
    memcpy(p.index, f.tensors[0].data, END);
    memcpy(p.blocks, f.tensors[1].data, 8);
    return p;
}

static void set(parts *p, const char *key, const char *value)
{
    for (size_t i = 0; i < p->n_metadata; i++) {
        if (strcmp(p->metadata[i].key, key) != 0)
            continue;
        p->metadata[i].value = value;
        if (!value)
            p->metadata[i] = p->metadata[--p->n_metadata];
        return;
    }
    p->metadata[p->n_metadata++] = (dw_pair){key, value};
}

/* Replaces N_OLD bytes of the index with BYTES. */
static void splice(parts *p, size_t at, size_t n_old, const void *bytes, size_t n_bytes)
{
    memmove(p->index + at + n_bytes, p->index + at + n_old, p->n_index - at - n_old);
    memcpy(p->index + at, bytes, n_bytes);
    p->n_index += n_bytes - n_old;
}

static void splice_number(parts *p, size_t at, uint64_t v)
{
    uint8_t room[10];
    splice(p, at, 1, room, (size_t)(dw_put_varint(room, v) - room));
}

static dw_writer join(parts *p)
{
    if (!p->broken_checksum && p->n_index >= CHECKSUM + 8)
        dw_store64(p->index + CHECKSUM, XXH64(p->blocks, p->n_blocks, 0));
    const uint64_t n_index = p->n_index, n_blocks = p->n_blocks;
    const dw_tensor tensors[3] = {
        {p->index_name, p->index_dtype, 1, &n_index, n_index, NULL},
        {"blocks", DW_U8, 1, &n_blocks, n_blocks, NULL, 0, NULL},
        p->extra,
    };
    dw_pair metadata[17];
    memcpy(metadata, p->metadata, sizeof p->metadata);
    metadata[p->n_metadata] = (dw_pair){"seal", "0000000000000000"};
    dw_writer w = {0};
    MUST(dw_safetensors_header(&w, tensors, p->extra.name ? 3 : 2, metadata,
                               p->n_metadata + 1, "f", NULL) == DW_OK);
    dw_write_bytes(&w, p->index, p->n_index);
    if (!p->broken_seal) {
        char seal[17];
        snprintf(seal, sizeof seal, "%016" PRIx64, XXH64(w.bytes + 8, w.n_bytes - 8, 0));
        for (size_t i = 8; i + 24 < w.n_bytes; i++)
            if (memcmp(w.bytes + i, "\"seal\":\"", 8) == 0)
                memcpy(w.bytes + i + 8, seal, 16);
    }
    dw_write_bytes(&w, p->blocks, p->n_blocks);
    return w;
}

static void bad(const char *name, parts *p, const char *status, const char *text)
{
    dw_writer w = join(p);
    emit(name, w.bytes, w.n_bytes, status, text);
    dw_writer_release(&w);
}

#define ALTERED  "the header or index was altered: its seal does not match"
#define DISAGREE "index, blocks and counts do not agree"
#define PARTS    "a delta holds the byte tensors 'index' and 'blocks', and no other"
#define STALE    "the weights are not version 4, which this delta starts from: "

/* ---- bad files ------------------------------------------------------------------------
 */

static void damaged_files(void)
{
    parts p = sample();
    dw_writer w = join(&p);
    char text[128];
    const size_t n_header = (size_t)dw_load64(w.bytes);

    snprintf(text, sizeof text, "a header of %zu bytes does not fit a file of 100",
             n_header);
    emit("bad_truncated_header", w.bytes, 100, "corrupt", text);
    emit("bad_truncated_index", w.bytes, 8 + n_header + 20, "corrupt",
         "tensor 'index': data_offsets end at 33 but the file holds 20 bytes of data");
    emit("bad_truncated_blocks", w.bytes, w.n_bytes - 1, "corrupt",
         "tensor 'blocks': data_offsets end at 41 but the file holds 40 bytes of data");
    dw_write_u8(&w, 0);
    emit("bad_byte_too_many", w.bytes, w.n_bytes, "corrupt",
         "the last 1 bytes belong to no tensor");
    w.n_bytes--;

    static const struct {
        const char *name, *near; /* a text in the header, or NULL: from the end */
        size_t at;
        const char *text;
    } flips[] = {
        {"bad_flip_version", "base_version", 15, ALTERED},
        {"bad_flip_digest", "base_digest", 20, ALTERED},
        {"bad_flip_count", "changed\"", 10, ALTERED},
        {"bad_flip_seal", "\"seal\":", 10, ALTERED},
        {"bad_flip_index_name", NULL, 8 + END - 2, ALTERED},
        {"bad_flip_index_digest", NULL, 8 + END - NEW_DIGEST, ALTERED},
        {"bad_flip_index_head", NULL, 8 + END - HEAD, ALTERED},
        {"bad_flip_block", NULL, 3,
         "tensor 's': its blocks were altered: the checksum does not match"},
    };
    for (size_t i = 0; i < sizeof flips / sizeof flips[0]; i++) {
        uint8_t *at = w.bytes + w.n_bytes - flips[i].at;
        if (flips[i].near) {
            size_t n = strlen(flips[i].near);
            for (at = w.bytes + 8; memcmp(at, flips[i].near, n) != 0;)
                at++;
            at += flips[i].at;
        }
        *at ^= 1;
        emit(flips[i].name, w.bytes, w.n_bytes, "corrupt", flips[i].text);
        *at ^= 1;
    }
    dw_writer_release(&w);
}

static void bad_headers(void)
{
    parts p = sample();
    set(&p, "format", "deltawire/2");
    bad("bad_version_2", &p, "unsupported",
        "format 'deltawire/2' is not known to deltawire " DW_VERSION_STRING
        ", which reads 'deltawire/1'");
    p = sample();
    set(&p, "format", "deltawire/1 ");
    bad("bad_version_space", &p, "unsupported",
        "format 'deltawire/1 ' is not known to deltawire " DW_VERSION_STRING
        ", which reads 'deltawire/1'");
    p = sample();
    set(&p, "format", NULL);
    bad("bad_no_format", &p, "unsupported",
        "a safetensors file, but not a delta: its metadata names neither deltawire's nor "
        "TRL's format");
    p = sample();
    p.broken_seal = true;
    bad("bad_seal_zero", &p, "corrupt", ALTERED);
    p = sample();
    p.index_name = "indices";
    bad("bad_no_index", &p, "corrupt", PARTS);
    p = sample();
    p.index_dtype = DW_I8;
    bad("bad_index_dtype", &p, "corrupt", PARTS);
    p = sample();
    static const uint64_t none[] = {0};
    p.extra = (dw_tensor){"more", DW_U8, 1, none, 0, NULL, 0, NULL};
    bad("bad_third_tensor", &p, "corrupt", PARTS);

    static const struct {
        const char *name, *key, *value, *text;
    } numbers[] = {
        {"bad_no_base_version", "base_version", NULL,
         "metadata 'base_version' is missing, or not a number of 64 bits"},
        {"bad_no_changed", "changed", NULL,
         "metadata 'changed' is missing, or not a number of 64 bits"},
        {"bad_no_new_digest", "new_digest", NULL,
         "metadata 'new_digest' is missing, or not a number of 64 bits"},
        {"bad_number_empty", "elements", "",
         "metadata 'elements' is missing, or not a number of 64 bits"},
        {"bad_number_negative", "tensors", "-1",
         "metadata 'tensors' is missing, or not a number of 64 bits"},
        {"bad_number_text", "new_version", "5x",
         "metadata 'new_version' is missing, or not a number of 64 bits"},
        {"bad_number_space", "new_version", " 5",
         "metadata 'new_version' is missing, or not a number of 64 bits"},
        {"bad_digest_upper_case", "base_digest", "00000000000000AB",
         "metadata 'base_digest' is missing, or not a number of 64 bits"},
        {"bad_number_overflows", "elements", "18446744073709551616",
         "metadata 'elements' is missing, or not a number of 64 bits"},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        p = sample();
        set(&p, numbers[i].key, numbers[i].value);
        bad(numbers[i].name, &p, "corrupt", numbers[i].text);
    }
}

static void bad_names(void)
{
    parts p = sample();
    p.index[1] = 0x7f;
    bad("bad_name_past_end", &p, "corrupt", "index: malformed name after ''");
    p = sample();
    p.index[0] = 1;
    bad("bad_name_shares_nothing", &p, "corrupt", "index: malformed name after ''");
    p = sample();
    p.index[2] = 0;
    bad("bad_name_nul", &p, "corrupt", "index: malformed name after ''");
    p = sample();
    p.index[2] = 0xff;
    bad("bad_name_not_utf8", &p, "corrupt", "index: the name after '' is not UTF-8");
    p = sample();
    char name[1030] = {0};
    memset(name, 'n', sizeof name);
    splice(&p, 1, 2, "\x81\x08", 2); /* 1025 */
    splice(&p, 3, 0, name, 1025);
    p.broken_checksum = true;
    bad("bad_name_long", &p, "corrupt", "index: malformed name after ''");
    p = sample();
    splice_number(&p, 1, UINT64_MAX);
    bad("bad_name_length_overflows", &p, "corrupt", "index: malformed name after ''");

    static const struct {
        const char *name, *second;
        size_t n_second;
        bool first_empty;
        const char *text;
    } pairs[] = {
        {"bad_names_twice", "\x01\x00", 2, false, "index: name 's' is out of order"},
        {"bad_names_descend", "\x00\x01r", 3, false, "index: name 'r' is out of order"},
        {"bad_names_empty_twice", "\x00\x00", 2, true, "index: name '' is out of order"},
        {"bad_name_shares_too_much", "\x02\x01t", 3, false,
         "index: malformed name after 's'"},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        p = sample();
        uint8_t rest[END - DTYPE];
        if (pairs[i].first_empty)
            splice(&p, 1, 2, "\x00", 1);
        dw_store64(p.index + p.n_index - 10, XXH64(p.blocks, p.n_blocks, 0));
        memcpy(rest, p.index + p.n_index - sizeof rest, sizeof rest);
        splice(&p, p.n_index, 0, pairs[i].second, pairs[i].n_second);
        splice(&p, p.n_index, 0, rest, sizeof rest);
        p.broken_checksum = true;
        bad(pairs[i].name, &p, "corrupt", pairs[i].text);
    }
}

static void bad_entries(void)
{
#define SHAPE  "tensor 's': impossible shape"
#define COUNT  "tensor 's': impossible count or digest"
#define ENTRY  "tensor 's': the index entry is malformed"
#define BLOCKS "tensor 's': the index ends inside the list of its blocks"
#define FIRST  "tensor 's': block 0 is outside the file"
    static const struct {
        const char *name;
        size_t at;
        uint64_t number;
        const char *text;
    } numbers[] = {
        {"bad_dtype_22", DTYPE, 22, "tensor 's': unknown dtype or shape"},
        {"bad_dims_65", N_DIMS, 65, "tensor 's': unknown dtype or shape"},
        {"bad_dims_overflow", N_DIMS, UINT64_MAX, "tensor 's': unknown dtype or shape"},
        {"bad_dims_64", N_DIMS, 64, SHAPE},
        {"bad_shape_overflows", DIM, UINT64_MAX, SHAPE},
        {"bad_shape_huge", DIM, 1ull << 60, BLOCKS},
        {"bad_shape_many_blocks", DIM, 40ull << 20, BLOCKS},
        {"bad_count_zero", N_CHANGED, 0, COUNT},
        {"bad_count_more_than_elements", N_CHANGED, 9, COUNT},
        {"bad_count_overflows", N_CHANGED, UINT64_MAX, COUNT},
        {"bad_class_base", CLASS_BASE, 1, ENTRY},
        {"bad_class_base_huge", CLASS_BASE, UINT64_MAX, ENTRY},
        {"bad_block_past_end", HEAD, 9 << 2 | 3, FIRST},
        {"bad_block_huge", HEAD, UINT64_MAX, FIRST},
        {"bad_block_over_32_bits", HEAD, (1ull << 34) | 3, FIRST},
        {"bad_block_same_with_bytes", HEAD, 8 << 2 | 0, FIRST},
        {"bad_block_without_bytes", HEAD, 0 << 2 | 3, FIRST},
        {"bad_block_short", HEAD, 7 << 2 | 3,
         "tensor 's': its blocks were altered: the checksum does not match"},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        parts p = sample();
        splice_number(&p, numbers[i].at, numbers[i].number);
        p.broken_checksum = numbers[i].at < CHECKSUM && p.n_index != END;
        bad(numbers[i].name, &p, "corrupt", numbers[i].text);
    }
    parts p = sample();
    p.index[DTYPE] = DW_F4;
    p.index[DIM] = 3;
    bad("bad_half_bytes", &p, "corrupt", SHAPE);
    p = sample();
    dw_store64(p.index + NEW_DIGEST, (1ull << 61) - 1);
    bad("bad_digest_is_prime", &p, "corrupt", COUNT);
    p = sample();
    splice(&p, CLASS_BASE, 1, "\x80\x00", 2);
    bad("bad_number_padded", &p, "corrupt", ENTRY);
    p = sample();
    p.n_index = CHECKSUM + 4;
    bad("bad_index_ends_early", &p, "corrupt", DISAGREE);
    p = sample();
    p.n_index = HEAD;
    bad("bad_index_ends_before_blocks", &p, "corrupt", BLOCKS);
    p = sample();
    splice(&p, END, 0, "\0\0", 2);
    bad("bad_index_left_over", &p, "corrupt", DISAGREE);
    p = sample();
    p.n_blocks = 9;
    p.broken_checksum = true;
    bad("bad_blocks_left_over", &p, "corrupt", DISAGREE);
    p = sample();
    set(&p, "changed", "9");
    bad("bad_changed_disagrees", &p, "corrupt", DISAGREE);
}

/* Well formed, with valid hashes, but wrong. */
static void bad_contents(void)
{
    parts p = sample();
    p.index[N_CHANGED] = 7;
    set(&p, "changed", "7");
    bad("bad_count_wrong", &p, "corrupt",
        "tensor 's': decodes to other weights than the delta names");
    p = sample();
    p.index[NEW_DIGEST] ^= 1;
    bad("bad_new_digest_wrong", &p, "corrupt",
        "tensor 's': decodes to other weights than the delta names");
    p = sample();
    p.blocks[3] ^= 1;
    bad("bad_block_wrong", &p, "corrupt",
        "tensor 's': decodes to other weights than the delta names");
    p = sample();
    p.index[HEAD] = 8 << 2 | 1;
    bad("bad_block_no_class", &p, "corrupt", "tensor 's': block 0 does not decode");
    p = sample();
    p.index[HEAD] = 8 << 2 | 2;
    bad("bad_block_no_packed", &p, "corrupt", "tensor 's': block 0 does not decode");
    p = sample();
    p.index[HEAD] = 7 << 2 | 3;
    p.n_blocks = 7;
    bad("bad_block_stored_short", &p, "corrupt", "tensor 's': block 0 does not decode");
    p = sample();
    p.index[HEAD] = 0;
    p.n_blocks = 0;
    bad("bad_block_same", &p, "corrupt",
        "tensor 's': decodes to other weights than the delta names");
    p = sample();
    set(&p, "new_digest", "0000000000000001");
    bad("bad_new_state", &p, "corrupt", "decodes to another model state than it names");

    p = sample();
    set(&p, "base_digest", "0000000000000001");
    bad("stale_base_state", &p, "stale", STALE "a tensor it does not touch differs");
    p = sample();
    p.index[BASE_DIGEST] ^= 1;
    bad("stale_base_digest", &p, "stale", STALE "tensor 's' differs");
    p = sample();
    set(&p, "tensors", "6");
    bad("mismatch_tensors", &p, "mismatch",
        "the delta is for a model of 6 tensors and 4109 elements, but these weights have "
        "5 and 4109");
    p = sample();
    p.index[DTYPE] = DW_I8;
    bad("mismatch_dtype", &p, "mismatch",
        "tensor 's': it is I8 [8] here, but U8 [8] in the weights");
    p = sample();
    splice(&p, N_DIMS, 2, "\x02\x02\x04", 3);
    dw_store64(p.index + CHECKSUM + 1, XXH64(p.blocks, p.n_blocks, 0));
    p.broken_checksum = true;
    bad("mismatch_shape", &p, "mismatch",
        "tensor 's': it is U8 [2,4] here, but U8 [8] in the weights");
    p = sample();
    splice(&p, 1, 2, "\x04../s", 5);
    dw_store64(p.index + CHECKSUM + 3, XXH64(p.blocks, p.n_blocks, 0));
    p.broken_checksum = true;
    bad("mismatch_name_dots", &p, "mismatch",
        "tensor '../s': the weights have no tensor of that name");
    p = sample();
    splice(&p, 1, 2, "\x06\x1b[31ms", 7);
    dw_store64(p.index + CHECKSUM + 5, XXH64(p.blocks, p.n_blocks, 0));
    p.broken_checksum = true;
    bad("mismatch_name_control", &p, "mismatch",
        "tensor '\\x1b[31ms': the weights have no tensor of that name");
}

int main(int argc, char **argv)
{
    char path[1024];
    MUST(argc == 2);
    folder = argv[1];
    snprintf(path, sizeof path, "%s/expected.txt", folder);
    expected = fopen(path, "w");
    MUST(expected);

    good("good_class", golden_change_few, DW_CODEC_CLASS, 0);
    good("good_packed_and_stored", golden_change_all, DW_CODEC_CLASS, 0);
    good("good_small", golden_change_small, DW_CODEC_CLASS, 0);
    good("good_no_change", NULL, DW_CODEC_CLASS, 0);
    good("good_gap", golden_change_few, DW_CODEC_GAP, 3);
    good("good_gap_dense", golden_change_all, DW_CODEC_GAP, 3);
    good("good_raw_v1", golden_change_few, DW_CODEC_RAW, 1);
    good("good_raw_v3", golden_change_few, DW_CODEC_RAW, 3);
    good("good_raw_no_change", NULL, DW_CODEC_RAW, 3);
    damaged_files();
    bad_headers();
    bad_names();
    bad_entries();
    bad_contents();
    MUST(fclose(expected) == 0);
    return 0;
}
