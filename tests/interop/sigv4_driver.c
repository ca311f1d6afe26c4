/* Signs requests for tests/interop/test_sigv4.py, which compares with botocore.
 *
 * Reads lines from standard input, each a request with fields separated by tabs:
 *
 *     METHOD HOST PATH QUERY PAYLOAD REGION WALL_MS ACCESS SECRET TOKEN [NAME VALUE]...
 *
 * and writes one line for each: x-amz-date, a tab, Authorization. An empty TOKEN is none.
 * Instead of METHOD, `encode` percent-encodes the second field, `encode/` keeps slashes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/sigv4.h"

enum { MAX_FIELDS = 64, MAX_LINE = 1 << 16 };

static size_t split(char *line, const char *fields[MAX_FIELDS])
{
    size_t n = 0;
    line[strcspn(line, "\n")] = '\0';
    for (char *at = line; at && n < MAX_FIELDS; n++) {
        fields[n] = at;
        at = strchr(at, '\t');
        if (at)
            *at++ = '\0';
    }
    return n;
}

static int encode(const char *text, bool keep_slash)
{
    dw_writer out = {0};
    dw_percent_encode(&out, text, keep_slash);
    dw_write_u8(&out, 0);
    puts((const char *)out.bytes);
    dw_writer_release(&out);
    return 0;
}

static int sign(const char *const *fields, size_t n)
{
    dw_sigv4_header headers[MAX_FIELDS / 2];
    size_t n_headers = 0;
    for (size_t i = 10; i + 1 < n; i += 2)
        headers[n_headers++] = (dw_sigv4_header){fields[i], fields[i + 1]};
    dw_sigv4_request request = {.method = fields[0],
                                .host = fields[1],
                                .path = fields[2],
                                .query = fields[3],
                                .headers = headers,
                                .n_headers = n_headers,
                                .payload_sha256 = fields[4],
                                .region = fields[5],
                                .wall_ms = strtoll(fields[6], NULL, 10)};
    dw_sigv4_credentials keys = {fields[7], fields[8], *fields[9] ? fields[9] : NULL};
    dw_writer out = {0};
    char date[DW_SIGV4_DATE];
    dw_error err;
    if (dw_sigv4_authorization(&out, date, &request, &keys, &err) != DW_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    printf("%s\t%s\n", date, (const char *)out.bytes);
    dw_writer_release(&out);
    return 0;
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0); /* the test waits for each line */
    static char line[MAX_LINE];
    int status = 0;
    while (status == 0 && fgets(line, sizeof line, stdin)) {
        const char *fields[MAX_FIELDS];
        size_t n = split(line, fields);
        if (n == 2)
            status = encode(fields[1], strcmp(fields[0], "encode/") == 0);
        else
            status = n < 10 ? 2 : sign(fields, n);
    }
    return status;
}
