/* One good record of each kind, and functions by the kind's number. */
#ifndef DW_TEST_SAMPLE_RECORDS_H
#define DW_TEST_SAMPLE_RECORDS_H

#include "stream/record.h"
#include "unit/reseal.h"

enum {
    SAMPLE_STREAM,
    SAMPLE_EPOCH,
    SAMPLE_DELTA,
    SAMPLE_ANCHOR,
    SAMPLE_BASE,
    SAMPLE_FORK,
    SAMPLE_FOLD_WAY,
    SAMPLE_ANCHOR_WAY,
    SAMPLE_RECEIPT,
    SAMPLE_SIGNED_END, /* kinds from here on carry no signature */
    SAMPLE_LATEST = SAMPLE_SIGNED_END,
    SAMPLE_FLOOR,
    SAMPLE_FOLLOWER,
    SAMPLE_COUNT,
};

#define SAMPLE_STREAM_ID "00112233445566778899aabbccddeeff"
#define SAMPLE_WRITER    "0123456789abcdef0123456789abcdef"
#define SAMPLE_WRITE_ID  "fedcba9876543210fedcba9876543210"
#define SAMPLE_NAME_0    "a \"quoted\"\n\xc3\xa9"

/* a: BF16 [4,6]; b: scalar F32; c: F4 [0,8]; d: F4 [16] */
static const dw_tensor sample_tensors[] = {
    {SAMPLE_NAME_0, DW_BF16, 2, (const uint64_t[]){4, 6}, 48, NULL, 0, NULL},
    {"b", DW_F32, 0, NULL, 4, NULL, 0, NULL},
    {"c[1:2]x", DW_F4, 2, (const uint64_t[]){0, 8}, 0, NULL, 0, NULL},
    {"d", DW_F4, 1, (const uint64_t[]){16}, 8, NULL, 0, NULL},
};
enum { SAMPLE_TENSORS = sizeof sample_tensors / sizeof *sample_tensors };

static dw_cover sample_covers[] = {{0, 0, 12}, {SIZE_MAX, 1, 3}, {3, 4, 16}};
static dw_cover sample_rest[] = {{0, 12, 24}, {3, 0, 4}};

/* Two objects that together cover everything. */
static inline dw_objects sample_objects(uint64_t version, const char *purpose)
{
    static dw_object items[2];
    for (unsigned i = 0; i < 2; i++) {
        items[i] = (dw_object){.n_bytes = 1000 + i,
                               .covers = i ? sample_rest : sample_covers,
                               .n_covers = i ? 2 : 3};
        dw_key_object(items[i].key, version, SAMPLE_WRITE_ID, purpose, i);
        memset(items[i].sha256, 0x70 + (int)i, DW_SHA256_BYTES);
    }
    return (dw_objects){items, 2};
}

/* A file that this version stored, and one of an older version. */
static inline dw_file_list sample_files(uint64_t version)
{
    static char names[2][32] = {"config.json", "token\xc3\xa9.json"};
    static dw_file_entry items[2];
    for (unsigned i = 0; i < 2; i++) {
        items[i] = (dw_file_entry){.name = names[i], .n_bytes = 700 * i};
        dw_key_file(items[i].key, version - 5 * i, SAMPLE_WRITE_ID, i);
        memset(items[i].sha256, 0x50 + (int)i, DW_SHA256_BYTES);
    }
    return (dw_file_list){true, items, 2};
}

static inline dw_commit_record sample_commit(dw_content content)
{
    uint64_t version = content == DW_CONTENT_DELTA ? 17 : 0;
    dw_commit_record r = {
        .stream = SAMPLE_STREAM_ID,
        .version = version,
        .epoch = 3,
        .writer = SAMPLE_WRITER,
        .write_id = SAMPLE_WRITE_ID,
        .created = "2026-11-15T05:20:59.123Z",
        .step = "1200",
        .notes = "lr 1e-6, \\ and a tab\t",
        .state = 0x0123456789abcdef,
        .n_changed = 99,
        .content = content,
    };
    if (content == DW_CONTENT_DELTA) {
        r.made_by = (dw_provenance){"0.2.0", "trainer-3"};
        r.times = (dw_times){{941, 1949, 4605, 0, 42268}}; /* 0: not known */
        r.source = (dw_origin){.stream = SAMPLE_WRITER, .version = 18};
        memset(r.source.commit_sha256, 0xef, DW_SHA256_BYTES);
    }
    if (content == DW_CONTENT_DELTA)
        memset(r.parent_sha256, 0xab, DW_SHA256_BYTES);
    if (content == DW_CONTENT_DELTA)
        r.files = sample_files(version);
    if (content == DW_CONTENT_ANCHOR)
        r.files.is_given = true; /* there are none */
    if (content == DW_CONTENT_BASE)
        r.base = "Qwen/Qwen3-8B";
    if (content == DW_CONTENT_FORK) {
        r.fork =
            (dw_fork){.url = "s3://bucket/run", .stream = SAMPLE_WRITER, .version = 40};
        memset(r.fork.commit_sha256, 0xcd, DW_SHA256_BYTES);
    }
    if (content == DW_CONTENT_DELTA || content == DW_CONTENT_ANCHOR)
        r.objects = sample_objects(version, NULL);
    return r;
}

static inline dw_shortcut_record sample_way(uint64_t from)
{
    dw_shortcut_record r = {
        .stream = SAMPLE_STREAM_ID,
        .version = 17,
        .from = from,
        .state = 0x1ffffffffffffffe,
        .created = "2026-11-15T05:20:59.123Z",
        .objects = sample_objects(18, from == DW_NO_VERSION ? "anchor" : "fold"),
    };
    memset(r.commit_sha256, 0x11, DW_SHA256_BYTES);
    if (from != DW_NO_VERSION)
        memset(r.from_sha256, 0x22, DW_SHA256_BYTES);
    return r;
}

static inline dw_receipt_record sample_receipt(void)
{
    return (dw_receipt_record){
        .stream = SAMPLE_STREAM_ID,
        .version = 17,
        .epoch = 3,
        .writer = SAMPLE_WRITER,
        .process = SAMPLE_WRITER,
        .turn = 2,
        .attempt = 4,
        .rank = 6,
        .n_ranks = 8,
        .share = 5,
        .n_changed = 12,
        .covers = sample_covers,
        .n_covers = 3,
        .objects = sample_objects(17, NULL),
    };
}

static inline dw_latest_record sample_latest(void)
{
    static dw_edge edges[] = {
        {DW_NO_VERSION, 10, 1000000, 4}, {10, 17, 900, 2}, {16, 17, 200, 1}};
    return (dw_latest_record){SAMPLE_STREAM_ID, 17, edges, 3};
}

static inline dw_follower_record sample_follower(void)
{
    return (dw_follower_record){SAMPLE_STREAM_ID,
                                "node-7.gpu_3",
                                16,
                                "node-7",
                                "applying",
                                "3 of 4 objects",
                                "2026-11-15T05:20:59.123Z",
                                {{13330, 14000, 14500, 0, 14956}}};
}

static inline dw_status write_sample(dw_writer *out, int sample, const dw_sign_key *key,
                                     dw_error *err)
{
    switch (sample) {
    case SAMPLE_STREAM: {
        dw_stream_record r = {.stream = SAMPLE_STREAM_ID,
                              .quantized = {"fp8-block", "bf16"},
                              .tensors = (dw_tensor *)(uintptr_t)sample_tensors,
                              .n_tensors = SAMPLE_TENSORS};
        return dw_stream_record_write(out, &r, key, err);
    }
    case SAMPLE_EPOCH: {
        dw_epoch_record r = {.stream = SAMPLE_STREAM_ID,
                             .epoch = 3,
                             .writer = SAMPLE_WRITER,
                             .job = "slurm 1234",
                             .start = "2nd",
                             .made_by = {"0.2.0", "trainer-3"},
                             .process = {4711, 1234567, "0123456789abcdef"}};
        return dw_epoch_record_write(out, &r, key, err);
    }
    case SAMPLE_DELTA:
    case SAMPLE_ANCHOR:
    case SAMPLE_BASE:
    case SAMPLE_FORK: {
        dw_commit_record r = sample_commit((dw_content)(sample - SAMPLE_DELTA));
        return dw_commit_record_write(out, &r, key, err);
    }
    case SAMPLE_FOLD_WAY:
    case SAMPLE_ANCHOR_WAY: {
        dw_shortcut_record r = sample_way(sample == SAMPLE_FOLD_WAY ? 9 : DW_NO_VERSION);
        return dw_shortcut_record_write(out, &r, key, err);
    }
    case SAMPLE_RECEIPT: {
        dw_receipt_record r = sample_receipt();
        return dw_receipt_record_write(out, &r, key, err);
    }
    case SAMPLE_LATEST: {
        dw_latest_record r = sample_latest();
        return dw_latest_record_write(out, &r, err);
    }
    case SAMPLE_FLOOR:
        return dw_floor_record_write(out, &(dw_floor_record){SAMPLE_STREAM_ID, 12}, err);
    default: {
        dw_follower_record r = sample_follower();
        return dw_follower_record_write(out, &r, err);
    }
    }
}

/* Parses and releases. If AGAIN is not NULL, writes the parsed record to it, unsigned.
 * SEAL may be NULL. */
static inline dw_status parse_sample(int sample, const void *bytes, size_t n,
                                     dw_record_seal *seal, dw_writer *again,
                                     dw_error *err)
{
    dw_record_seal unused;
    seal = seal ? seal : &unused;
    *seal = (dw_record_seal){0};
#define TRY(kind, CALL_WRITE, TAKE_SEAL)                                                 \
    do {                                                                                 \
        dw_##kind##_record r;                                                            \
        dw_status status = dw_##kind##_record_parse(&r, bytes, n, "some/object", err);   \
        if (status != DW_OK)                                                             \
            return status;                                                               \
        TAKE_SEAL;                                                                       \
        if (again)                                                                       \
            status = CALL_WRITE;                                                         \
        dw_##kind##_record_release(&r);                                                  \
        return status;                                                                   \
    } while (0)
#define TRY_SIGNED(kind)                                                                 \
    TRY(kind, dw_##kind##_record_write(again, &r, NULL, err), *seal = r.seal)
#define TRY_HINT(kind) TRY(kind, dw_##kind##_record_write(again, &r, err), (void)0)
    switch (sample) {
    case SAMPLE_STREAM:
        TRY_SIGNED(stream);
    case SAMPLE_EPOCH:
        TRY_SIGNED(epoch);
    case SAMPLE_DELTA:
    case SAMPLE_ANCHOR:
    case SAMPLE_BASE:
    case SAMPLE_FORK:
        TRY_SIGNED(commit);
    case SAMPLE_FOLD_WAY:
    case SAMPLE_ANCHOR_WAY:
        TRY_SIGNED(shortcut);
    case SAMPLE_RECEIPT:
        TRY_SIGNED(receipt);
    case SAMPLE_LATEST:
        TRY_HINT(latest);
    case SAMPLE_FLOOR: {
        dw_floor_record r;
        dw_status status = dw_floor_record_parse(&r, bytes, n, "some/object", err);
        return status == DW_OK && again ? dw_floor_record_write(again, &r, err) : status;
    }
    default:
        TRY_HINT(follower);
    }
#undef TRY_HINT
#undef TRY_SIGNED
#undef TRY
}

#endif
