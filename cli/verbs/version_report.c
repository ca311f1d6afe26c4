#include "version_report.h"

#include <jansson.h>
#include <stdio.h>

#include <deltawire/deltawire.h>

#include "json_out.h"
#include "print.h"
#include "cuda/cuda.h"

static void print_lines(const dw_cuda_report *cuda)
{
    printf("deltawire %s (%s kernels)\n", dw_version(), dw_kernel_name());
    printf("CUDA, experimental: %s%s", cuda->kernels ? "kernels for " : "no kernels",
           cuda->kernels ? cuda->kernels : "");
    if (cuda->has_driver)
        printf("; driver %u.%u", cuda->driver_version / 1000,
               cuda->driver_version % 1000 / 10);
    if (cuda->fault[0]) {
        printf("; no device: ");
        cli_print_text(stdout, cuda->fault);
    }
    printf("\n");
    for (uint32_t i = 0; i < cuda->n_devices; i++) {
        dw_cuda_device d;
        dw_error err;
        char size[CLI_NUMBER_SIZE];
        const bool known = dw_cuda_describe(&d, i, &err) == DW_OK;
        printf("  device %u: ", i);
        cli_print_text(stdout, known ? d.name : err.text);
        if (known)
            printf(", %s, sm_%u%u, %u multiprocessors", cli_format_size(size, d.n_bytes),
                   d.major, d.minor, d.n_multiprocessors);
        printf("\n");
    }
}

static json_t *device_json(uint32_t index)
{
    dw_cuda_device d;
    dw_error err;
    json_t *object = json_object();
    if (dw_cuda_describe(&d, index, &err) != DW_OK) {
        json_object_set_new(object, "error", cli_json_error(&err));
        return object;
    }
    cli_json_text(object, "name", d.name);
    cli_json_count(object, "bytes", d.n_bytes);
    cli_json_count(object, "major", d.major);
    cli_json_count(object, "minor", d.minor);
    cli_json_count(object, "multiprocessors", d.n_multiprocessors);
    return object;
}

static void print_json(const dw_cuda_report *cuda)
{
    json_t *object = json_object(), *about = json_object(), *devices = json_array();
    cli_json_text(object, "version", dw_version());
    cli_json_text(object, "kernels", dw_kernel_name());
    if (cuda->kernels)
        cli_json_text(about, "kernels", cuda->kernels);
    else
        json_object_set_new(about, "kernels", json_null());
    if (cuda->has_driver)
        cli_json_count(about, "driver", cuda->driver_version);
    else
        json_object_set_new(about, "driver", json_null());
    if (cuda->fault[0])
        cli_json_text(about, "fault", cuda->fault);
    for (uint32_t i = 0; i < cuda->n_devices; i++)
        json_array_append_new(devices, device_json(i));
    json_object_set_new(about, "devices", devices);
    json_object_set_new(object, "cuda", about);
    cli_json_print(object);
}

void cli_print_version(bool json)
{
    dw_cuda_report cuda;
    dw_cuda_look(&cuda);
    if (json)
        print_json(&cuda);
    else
        print_lines(&cuda);
}
