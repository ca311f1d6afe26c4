#include "agent/exposition.h"

#include <inttypes.h>
#include <stdio.h>
#include <strings.h>

#include "base/json.h"

/* ---- the choice between the two ---- */

static const char *skip_space(const char *at)
{
    return at + strspn(at, " \t");
}

/* Whether the piece of text from AT to END is WORD. */
static bool is_word(const char *at, const char *end, const char *word)
{
    while (end > at && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    return (size_t)(end - at) == strlen(word) && strncasecmp(at, word, strlen(word)) == 0;
}

/* "0.75" in thousandths, independent of the locale. */
static int parse_weight(const char *text)
{
    int weight = *text == '1' ? 1000 : 0;
    if ((*text == '0' || *text == '1') && text[1] == '.')
        for (int unit = 100, i = 2; unit > 0 && text[i] >= '0' && text[i] <= '9'; i++) {
            weight += unit * (text[i] - '0');
            unit /= 10;
        }
    return weight;
}

/* The weight of the media range from AT to END for TYPE in VERSION; 0 if it is another
 * type. */
static int weight_of(const char *at, const char *end, const char *type,
                     const char *version)
{
    int weight = 1000;
    const char *stop = at + strcspn(at, ";,");
    if (!is_word(at, stop, type))
        return 0;
    while (stop < end && *stop == ';') {
        at = skip_space(stop + 1);
        stop = at + strcspn(at, ";,");
        if (strncasecmp(at, "q=", 2) == 0)
            weight = parse_weight(at + 2);
        else if (strncasecmp(at, "version=", 8) == 0 && !is_word(at + 8, stop, version))
            return 0;
    }
    return weight;
}

static int best_weight(const char *accept, const char *type, const char *version)
{
    int best = 0;
    for (const char *at = accept; *at; at += *at == ',') {
        at = skip_space(at);
        const char *end = at + strcspn(at, ",");
        const int weight = weight_of(at, end, type, version);
        best = weight > best ? weight : best;
        at = end;
    }
    return best;
}

bool dw_accept_openmetrics(const char *accept)
{
    if (!accept)
        return false;
    const int wanted = best_weight(accept, "application/openmetrics-text", "1.0.0");
    return wanted > 0 && wanted >= best_weight(accept, "text/plain", "0.0.4");
}

/* ---- writing ---- */

static const char *type_name(const dw_exposition *e)
{
    switch (e->type) {
    case DW_METRIC_COUNTER:
        return "counter";
    case DW_METRIC_HISTOGRAM:
        return "histogram";
    case DW_METRIC_INFO:
        return e->is_openmetrics ? "info" : "gauge";
    case DW_METRIC_GAUGE:
        break;
    }
    return "gauge";
}

/* The suffix of a sample's name after the name of its family. */
static const char *suffix(const dw_exposition *e)
{
    return e->type == DW_METRIC_COUNTER ? "_total"
           : e->type == DW_METRIC_INFO  ? "_info"
                                        : "";
}

void dw_metric_begin(dw_exposition *e, const char *name, dw_metric_type type,
                     const char *unit, const char *help)
{
    e->name = name;
    e->type = type;
    const char *more = e->is_openmetrics ? "" : suffix(e);
    dw_write_format(e->out, "# HELP %s%s %s\n", name, more, help);
    dw_write_format(e->out, "# TYPE %s%s %s\n", name, more, type_name(e));
    if (unit && e->is_openmetrics)
        dw_write_format(e->out, "# UNIT %s %s\n", name, unit);
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

/* Both formats are UTF-8. */
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
    write_name(e, suffix(e), labels, n_labels, NULL);
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
    write_name(e, suffix(e), labels, n_labels, NULL);
    write_real(e->out, v);
}

/* "0.0001", "2.5", "300.0": always with a point, as OpenMetrics wants numbers in
 * labels. */
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

void dw_exposition_end(dw_exposition *e)
{
    if (e->is_openmetrics)
        dw_write_text(e->out, "# EOF\n");
}
