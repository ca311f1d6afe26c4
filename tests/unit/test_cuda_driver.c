/* labels: single */
/* The driver of CUDA and handles of devices, over a fake driver: every call made to fail,
 * and devices that are lost. */
#include "unit/suite.h"

#include "cuda/cuda_digest.h"
#include "cuda/fake.h"
#include "cuda/cuda.h"
#include "unit/random_model.h"
#include "inner.h"

TEST(test_no_driver)
{
    dw_cuda_driver driver;
    dw_error err;
    assert_int_equal(dw_cuda_driver_load(&driver, "/nowhere/libcuda.so.1", &err),
                     DW_NOT_FOUND);
    assert_non_null(strstr(err.text, "cannot load the CUDA driver"));
    assert_string_equal(err.where, "/nowhere/libcuda.so.1");
    /* a library without the functions */
    assert_int_equal(dw_cuda_driver_load(&driver, "libm.so.6", &err), DW_UNSUPPORTED);
    assert_non_null(strstr(err.text, "it has no cuInit"));
}

TEST(test_report)
{
    dw_cuda_report report;
    dw_cuda_device device;
    dw_error err;
    dw_cuda_look(&report);
    assert_true(report.has_driver);
    assert_int_equal(report.driver_version, 13000);
    assert_int_equal(report.n_devices, 2);
    assert_string_equal(report.fault, "");
    assert_int_equal(dw_cuda_describe(&device, 1, &err), DW_OK);
    assert_string_equal(device.name, "Fake device 1");
    assert_int_equal(device.major, 9);
    assert_int_equal(device.n_bytes, 1 << 30);
    assert_int_equal(dw_cuda_describe(&device, 2, &err), DW_NOT_FOUND);
    assert_string_equal(err.text, "no CUDA device 2: the driver sees 2");
}

TEST(test_no_kernels)
{
    if (dw_cuda_image_get())
        skip();
    dw_cuda *c;
    dw_error err;
    assert_int_equal(dw_cuda_open(&c, 0, NULL, &err), DW_UNSUPPORTED);
    assert_null(c);
    assert_string_equal(
        err.text, "this build of deltawire has no CUDA kernels: build it with nvcc");
}

/* Opens a device, digests two tensors in its memory, and closes it. */
static dw_status digest_two(uint32_t index, dw_digest digests[2], const void *bytes,
                            size_t n_bytes, dw_error *err)
{
    dw_cuda *c;
    cu_pointer memory = 0;
    dw_status status = dw_cuda_open(&c, index, &fake_image, err);
    if (status != DW_OK) {
        assert_null(c);
        return status;
    }
    status = dw_cuda_enter(c, err);
    if (status == DW_OK) {
        status = dw_cuda_alloc(&memory, c, n_bytes, "weights", err);
        if (status == DW_OK)
            status = dw_cuda_up(c, memory, bytes, n_bytes, err);
        dw_cuda_leave(c);
    }
    if (status == DW_OK) {
        const uint64_t half = n_bytes / 2;
        const dw_tensor tensors[2] = {
            {.name = "a", .dtype = DW_U8, .n_bytes = half, .data = (void *)memory},
            {.name = "b",
             .dtype = DW_U8,
             .n_bytes = n_bytes - half,
             .data = (uint8_t *)memory + half,
             .first_byte = half}};
        status = dw_cuda_digest_tensors(digests, c, tensors, 2, err);
    }
    assert_int_equal(dw_cuda_enter(c, NULL), DW_OK);
    dw_cuda_free(c, &memory);
    dw_cuda_leave(c);
    dw_cuda_close(c);
    return status;
}

TEST(test_digest)
{
    static const size_t sizes[] = {0,    1,       3,       4095,    4096,   4097,
                                   8192, 1000000, 2 << 20, 5000001, 3 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint8_t *bytes = malloc(sizes[i] + 1);
        for (size_t k = 0; k < sizes[i]; k++)
            bytes[k] = (uint8_t)random64();
        dw_digest digests[2];
        dw_error err;
        fake.seed(i);
        assert_int_equal(digest_two(i % 2, digests, bytes, sizes[i], &err), DW_OK);
        const size_t half = sizes[i] / 2;
        assert_true(digests[0] == dw_digest_bytes(bytes, half));
        assert_true(dw_digest_sum(digests, 2) == dw_digest_bytes(bytes, sizes[i]));
        assert_int_equal(fake.held(), 0);
        free(bytes);
    }
}

/* Every call of the driver fails in turn, once or from there on. */
TEST(test_faults)
{
    static const struct {
        int result;
        int lost;
        dw_status status;
        const char *text;
    } faults[] = {
        {CU_OUT_OF_MEMORY, 0, DW_NO_MEMORY,
         "out of memory (CUDA_ERROR_OUT_OF_MEMORY, 2)"},
        {700, 1, DW_IO, "the device fell off the bus (CUDA_ERROR_FAKE, 700)"},
    };
    uint8_t bytes[10000];
    dw_digest digests[2];
    dw_error err;
    memset(bytes, 7, sizeof bytes);
    fake.fail_at(-1, 0, 0);
    assert_int_equal(digest_two(0, digests, bytes, sizeof bytes, &err), DW_OK);
    const int64_t n_calls = fake.calls();
    assert_true(n_calls > 10);
    for (size_t f = 0; f < sizeof faults / sizeof faults[0]; f++) {
        int64_t n_failed = 0;
        for (int64_t at = 0; at < n_calls; at++) {
            fake.fail_at(at, faults[f].result, faults[f].lost);
            dw_status status = digest_two(0, digests, bytes, sizeof bytes, &err);
            /* releasing memory may fail without harm */
            if (status != DW_OK) {
                assert_int_equal(status, faults[f].status);
                assert_int_equal(err.code, faults[f].status);
                assert_non_null(strstr(err.text, faults[f].text));
                n_failed++;
            }
            assert_int_equal(fake.held(), 0);
        }
        assert_true(n_failed > n_calls / 2);
    }
    fake.fail_at(-1, 0, 0);
    assert_int_equal(digest_two(0, digests, bytes, sizeof bytes, &err), DW_OK);
}

RUN_TESTS(fake_open, NULL)
