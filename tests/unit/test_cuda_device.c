/* labels: single */
/* Tensors on devices, over a fake driver: copies, digests, and what is refused. */
#include "unit/suite.h"

#include "cuda/cuda_device.h"
#include "cuda/cuda_driver.h"
#include "cuda/fake.h"
#include "deltawire/deltawire.h"
#include "unit/random_model.h"

enum { N = 5 };

/* A model whose tensors are on the host and on two devices. */
typedef struct placed {
    dw_device *devices[2];
    dw_tensor tensors[N];
} placed;

static dw_device *place_of(const placed *p, size_t i)
{
    return i % 3 == 2 ? NULL : p->devices[i % 3];
}

static void placed_close(placed *p)
{
    for (size_t i = 0; i < N; i++)
        if (p->tensors[i].device)
            p->tensors[i].device->ops->free(p->tensors[i].device, p->tensors[i].data);
        else
            free(p->tensors[i].data);
    dw_device_close(p->devices[0]);
    dw_device_close(p->devices[1]);
}

/* Close it in any case. */
static dw_status placed_open(placed *p, const dw_tensor *from, dw_error *err)
{
    *p = (placed){0};
    dw_status status = dw_cuda_device_open(&p->devices[0], 0, &fake_image, err);
    if (status == DW_OK)
        status = dw_cuda_device_open(&p->devices[1], 1, &fake_image, err);
    for (size_t i = 0; status == DW_OK && i < N; i++) {
        dw_tensor t = from[i];
        dw_device *device = place_of(p, i);
        t.data = NULL;
        if (device)
            status = device->ops->alloc(&t.data, device, t.n_bytes, "weights", err);
        else
            t.data = malloc(t.n_bytes + 1);
        t.device = device;
        p->tensors[i] = t;
    }
    return status;
}

static model small_model(size_t n_elems)
{
    model m = model_new(N);
    const char *const names[N] = {"e", "b", "d", "a", "c"};
    for (size_t i = 0; i < N; i++) {
        const uint64_t dims[1] = {n_elems + i};
        model_set(&m, i, names[i], i == 1 ? DW_F32 : DW_BF16, 1, dims, 3);
    }
    model_fill(&m);
    return m;
}

/* Copies a model to its places and back, digests it there, rounds it. */
static dw_status there_and_back(const model *m, dw_error *err)
{
    placed p;
    dw_digest digests[N], expected[N], state = 0, expected_state;
    dw_status status = placed_open(&p, m->tensors, err);
    assert_int_equal(
        dw_digest_tensors(expected, &expected_state, m->tensors, N, 1, NULL, NULL),
        DW_OK);
    if (status == DW_OK)
        status = dw_cast_tensors(p.tensors, m->tensors, N, 1, err);
    if (status == DW_OK)
        status = dw_digest_tensors(digests, &state, p.tensors, N, 1, NULL, err);
    if (status == DW_OK) {
        assert_memory_equal(digests, expected, sizeof expected);
        assert_true(state == expected_state);
    }
    model back = model_new(N);
    for (size_t i = 0; i < N; i++)
        model_set(&back, i, m->tensors[i].name, i == 1 ? DW_BF16 : m->tensors[i].dtype, 1,
                  m->tensors[i].dims, 0);
    if (status == DW_OK)
        status = dw_cast_tensors(back.tensors, p.tensors, N, 1, err);
    for (size_t i = 0; status == DW_OK && i < N; i++) {
        const dw_tensor *t = &m->tensors[i];
        if (i != 1) {
            assert_memory_equal(back.tensors[i].data, t->data, t->n_bytes);
            continue;
        }
        float *copy = malloc(t->n_bytes);
        uint16_t *rounded = malloc(t->n_bytes / 2);
        memcpy(copy, t->data, t->n_bytes);
        dw_cast_bf16(rounded, copy, t->n_bytes / 4);
        assert_memory_equal(back.tensors[i].data, rounded, t->n_bytes / 2);
        free(copy);
        free(rounded);
    }
    model_free(&back);
    placed_close(&p);
    assert_int_equal(fake.held(), 0);
    return status;
}

TEST(test_copies)
{
    dw_error err;
    for (size_t n = 1; n < 3000000; n = n * 37 + 11) {
        model m = small_model(n);
        fake.seed(n);
        assert_int_equal(there_and_back(&m, &err), DW_OK);
        model_free(&m);
    }
}

/* Inside a device, and from one to the other. */
TEST(test_places)
{
    dw_device *d[2];
    dw_error err;
    void *a, *b, *c;
    uint8_t bytes[1000], found[1000] = {0};
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)random64();
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(dw_cuda_device_open(&d[i], i, &fake_image, &err), DW_OK);
    assert_string_equal(dw_device_name(d[1]), "cuda:1");
    assert_int_equal(d[0]->ops->alloc(&a, d[0], 1000, "a", &err), DW_OK);
    assert_int_equal(d[0]->ops->alloc(&b, d[0], 1000, "b", &err), DW_OK);
    assert_int_equal(d[1]->ops->alloc(&c, d[1], 1000, "c", &err), DW_OK);
    const dw_place path[] = {
        {NULL, bytes}, {d[0], a}, {d[0], b}, {d[1], c}, {NULL, found}};
    for (size_t i = 1; i < sizeof path / sizeof path[0]; i++)
        assert_int_equal(dw_place_copy(path[i], path[i - 1], 1000, &err), DW_OK);
    assert_memory_equal(found, bytes, 1000);
    d[0]->ops->free(d[0], a);
    d[0]->ops->free(d[0], b);
    d[1]->ops->free(d[1], c);
    dw_device_close(d[0]);
    dw_device_close(d[1]);
    dw_device_close(NULL);
    assert_int_equal(fake.held(), 0);
}

TEST(test_names)
{
    static const char *const bad[] = {"",        "cuda",   "cuda:",      "cuda:x",
                                      "cuda:1x", "CUDA:0", "cuda:99999", "cpu"};
    dw_device *d;
    dw_error err;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(dw_device_open(&d, bad[i], &err), DW_INVALID);
        assert_null(d);
    }
    assert_int_equal(dw_device_open(&d, NULL, &err), DW_INVALID);
    /* the fake driver has two devices */
    const bool has_kernels = dw_cuda_image_get() != NULL;
    assert_int_equal(dw_device_open(&d, "cuda:2", &err),
                     has_kernels ? DW_NOT_FOUND : DW_UNSUPPORTED);
    assert_int_equal(dw_device_open(&d, "cuda:1", &err),
                     has_kernels ? DW_OK : DW_UNSUPPORTED);
    dw_device_close(d);
}

/* Functions that cannot use a device's tensors say so, and name the tensor. */
TEST(test_refusals)
{
    placed p;
    dw_error err;
    model m = small_model(10);
    assert_int_equal(placed_open(&p, m.tensors, &err), DW_OK);
    assert_int_equal(dw_checkpoint_write("/nowhere/at/all", p.tensors, N, NULL, &err),
                     DW_UNSUPPORTED);
    assert_string_equal(err.where, "cuda:0");
    assert_string_equal(err.text,
                        "tensor 'e': cannot write a checkpoint: its data is on the "
                        "device. Copy it to the host first");
    placed_close(&p);
    model_free(&m);
}

/* Every call of the driver fails in turn, once or from there on. */
TEST(test_faults)
{
    dw_error err;
    model m = small_model(5000);
    fake.fail_at(-1, 0, 0);
    assert_int_equal(there_and_back(&m, &err), DW_OK);
    const int64_t n_calls = fake.calls();
    for (int lost = 0; lost < 2; lost++)
        for (int64_t at = 0; at < n_calls; at++) {
            fake.fail_at(at, lost ? 700 : CU_OUT_OF_MEMORY, lost);
            const dw_status status = there_and_back(&m, &err);
            if (status != DW_OK)
                assert_int_equal(status, lost ? DW_IO : DW_NO_MEMORY);
        }
    fake.fail_at(-1, 0, 0);
    assert_int_equal(there_and_back(&m, &err), DW_OK);
    model_free(&m);
}

RUN_TESTS(fake_open, NULL)
