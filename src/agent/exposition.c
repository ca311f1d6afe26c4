#include "agent/exposition.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"

void dw_metric_begin(dw_exposition *e, const char *name, dw_metric_type type,
                     const char *help)
{
    static const char *const names[] = {"gauge", "counter", "histogram"};
    e->name = name;
    dw_write_format(e->out, "# HELP %s %s\n", name, help);
    dw_write_format(e->out, "# TYPE %s %s\n", name, names[type]);
}

static void write_value(dw_writer *out, const char *value)
{
    for (; *value; value++) {
        if (*value == '\n')
            dw_write_text(out, "\\n");
        else if (*value == '"' || *value == '\\')
            dw_write_format(out, "\\%c", *value);
        else
            dw_write_u8(out, (uint8_t)*value);
    }
}

static void write_label(dw_writer *out, const char *comma, const dw_metric_label *label)
{
    dw_writer valid = {0};
    dw_write_utf8(&valid, label->value);
    dw_write_u8(&valid, 0);
    dw_write_format(out, "%s%s=\"", comma, label->name);
    write_value(out, valid.failed ? "" : (const char *)valid.bytes);
    dw_write_text(out, "\"");
    dw_writer_release(&valid);
}

/* Name and labels of a sample; LE is that of a bucket, or NULL. */
static void write_name(dw_exposition *e, const char *more, const dw_metric_label *labels,
                       size_t n_labels, const char *le)
{
    const dw_metric_label bound = {"le", le};
    dw_write_format(e->out, "%s%s", e->name, more);
    for (size_t i = 0; i < n_labels; i++)
        write_label(e->out, i == 0 ? "{" : ",", &labels[i]);
    if (le)
        write_label(e->out, n_labels == 0 ? "{" : ",", &bound);
    dw_write_text(e->out, n_labels > 0 || le ? "} " : " ");
}

void dw_metric_count(dw_exposition *e, const dw_metric_label *labels, size_t n_labels,
                     uint64_t n)
{
    write_name(e, "", labels, n_labels, NULL);
    dw_write_format(e->out, "%" PRIu64 "\n", n);
}

static void write_real(dw_writer *out, double v)
{
    dw_write_real(out, v, 15);
    dw_write_text(out, "\n");
}

void dw_metric_real(dw_exposition *e, const dw_metric_label *labels, size_t n_labels,
                    double v)
{
    write_name(e, "", labels, n_labels, NULL);
    write_real(e->out, v);
}

/* "0.0001", "2.5", "300.0": always with a point. */
static void format_bound(char out[32], uint64_t us)
{
    snprintf(out, 32, "%" PRIu64 ".%06" PRIu64, us / 1000000, us % 1000000);
    for (size_t n = strlen(out); out[n - 1] == '0' && out[n - 2] != '.'; n--)
        out[n - 1] = '\0';
}

void dw_metric_histogram(dw_exposition *e, const dw_metric_label *labels, size_t n_labels,
                         const dw_histogram *histogram)
{
    uint64_t n = 0;
    for (size_t i = 0; i <= DW_N_BUCKETS; i++) {
        char le[32] = "+Inf";
        if (i < DW_N_BUCKETS)
            format_bound(le, dw_bucket_us[i]);
        n += histogram->n_in[i];
        write_name(e, "_bucket", labels, n_labels, le);
        dw_write_format(e->out, "%" PRIu64 "\n", n);
    }
    write_name(e, "_sum", labels, n_labels, NULL);
    write_real(e->out, (double)histogram->sum_us / 1e6);
    write_name(e, "_count", labels, n_labels, NULL);
    dw_write_format(e->out, "%" PRIu64 "\n", n);
}
