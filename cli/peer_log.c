/* `deltawire log` of another system's versions. */
#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#include "base/error.h"
#include "json_out.h"
#include "peer_verbs.h"
#include "print.h"
#include "stream_open.h"

#define TIME_TEXT 24

static const char *format_time(char out[TIME_TEXT], int64_t ms)
{
    time_t seconds = (time_t)(ms / 1000);
    struct tm utc;
    if (ms <= 0 || !gmtime_r(&seconds, &utc) ||
        strftime(out, TIME_TEXT, "%Y-%m-%dT%H:%M:%S", &utc) == 0)
        return "-";
    return out;
}

static json_t *row_json(const dw_peer_version_info *v)
{
    char when[TIME_TEXT];
    json_t *row = json_object();
    cli_json_count(row, "version", v->version);
    cli_json_version(row, "base", v->base);
    json_object_set_new(row, "base_is_named", json_boolean(v->base_is_named));
    json_object_set_new(row, "partial", json_boolean(v->is_partial));
    cli_json_text(row, "modified", format_time(when, v->modified_ms));
    cli_json_text(row, "encoding", v->encoding);
    if (v->checksum)
        cli_json_text(row, "checksum", v->checksum);
    else
        json_object_set_new(row, "checksum", json_null());
    cli_json_count(row, "objects", v->n_objects);
    cli_json_count(row, "bytes", v->n_bytes);
    return row;
}

static void print_row(const dw_peer_version_info *v)
{
    char when[TIME_TEXT], size[CLI_NUMBER_SIZE], base[32] = "-";
    if (v->base != DW_NO_VERSION)
        snprintf(base, sizeof base, "%" PRIu64 "%s", v->base,
                 v->base_is_named ? "" : "?");
    printf("%7" PRIu64 "  %-19s  %7s  ", v->version, format_time(when, v->modified_ms),
           base);
    printf("%7" PRIu64 " %9s  ", v->n_objects, cli_format_size(size, v->n_bytes));
    cli_print_text(stdout, v->encoding);
    fputs(v->is_partial ? ", in part; " : "; ", stdout);
    cli_print_text(stdout, v->checksum ? v->checksum : "no checksum");
    putchar('\n');
}

/* A missing number is no gap for slime, whose versions name the version they start from.
 */
static void print_gap(const dw_peer_version_info *v)
{
    if (v->base == DW_NO_VERSION || v->base_is_named || v->version - v->base < 2)
        return;
    printf("%7s  %" PRIu64 " number%s without a file: no change, or lost uploads\n", "",
           v->version - v->base - 1, v->version - v->base == 2 ? "" : "s");
}

/* One record is damaged: list the others nevertheless. */
static bool is_damage(dw_status status)
{
    return status == DW_CORRUPT || status == DW_MISMATCH || status == DW_UNSUPPORTED ||
           status == DW_NOT_FOUND;
}

static void report_damage(uint64_t version, json_t *rows, const dw_error *err)
{
    if (rows) {
        json_t *row = json_object();
        cli_json_count(row, "version", version);
        cli_json_text(row, "error", err->text);
        json_array_append_new(rows, row);
        return;
    }
    printf("%7" PRIu64 "  ", version);
    cli_print_text(stdout, err->text);
    putchar('\n');
}

static dw_status list_rows(dw_peer *peer, const cli_session *s, uint64_t n_most,
                           json_t *rows, uint64_t *head, dw_error *err)
{
    const uint64_t *versions;
    size_t n;
    dw_status status = dw_peer_list(peer, &versions, &n, err);
    if (status == DW_OK && n == 0)
        status = dw_fail(err, DW_NOT_FOUND, "", "there is no version yet");
    if (status != DW_OK)
        return status;
    *head = versions[n - 1];
    if (!rows && !s->quiet)
        printf("%7s  %-19s  %7s  %7s %9s  %s (%s)\n", "version", "time (UTC)", "from",
               "objects", "bytes", "encoding",
               dw_peer_format_name(dw_peer_get_format(peer)));
    for (size_t i = 0; i < n && (n_most == 0 || i < n_most); i++) {
        dw_peer_version_info info;
        const uint64_t version = versions[n - 1 - i];
        status = cli_check_signal(err);
        if (status == DW_OK)
            status = dw_peer_version(peer, version, &info, err);
        if (is_damage(status)) {
            report_damage(version, rows, err);
            continue;
        }
        if (status != DW_OK)
            return status;
        if (rows)
            json_array_append_new(rows, row_json(&info));
        else
            print_row(&info), print_gap(&info);
    }
    return DW_OK;
}

int cli_peer_log(dw_peer *peer, const cli_session *s, const char *url, uint64_t n_most)
{
    dw_error err;
    uint64_t head = 0;
    json_t *rows = s->json ? json_array() : NULL;
    dw_status status = list_rows(peer, s, n_most, rows, &head, &err);
    if (status == DW_OK && rows) {
        json_t *object = json_object();
        cli_json_text(object, "url", url);
        cli_json_text(object, "format", dw_peer_format_name(dw_peer_get_format(peer)));
        cli_json_count(object, "head", head);
        json_object_set(object, "versions", rows);
        cli_json_print(object);
    }
    json_decref(rows);
    return status == DW_OK ? 0 : cli_stream_fail(s, &err, url);
}
