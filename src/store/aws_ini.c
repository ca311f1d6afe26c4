#include "store/aws_ini.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

/* Cuts blanks off the end, and returns the first non-blank byte. */
static char *trim(char *text)
{
    size_t n = strlen(text);
    while (n > 0 && is_blank(text[n - 1]))
        text[--n] = '\0';
    while (is_blank(*text))
        text++;
    return text;
}

static void cut_comment(char *text)
{
    for (char *p = text; *p; p++) {
        if ((*p == '#' || *p == ';') && (p == text || is_blank(p[-1]))) {
            *p = '\0';
            return;
        }
    }
}

/* `profile  "a name"` as `profile a name`: one space between words, no quotes. */
static void tidy_section(char *text)
{
    char *to = text;
    for (const char *p = text; *p; p++) {
        if (*p == '"' || (is_blank(*p) && (to == text || is_blank(to[-1]))))
            continue;
        *to++ = is_blank(*p) ? ' ' : *p;
    }
    *to = '\0';
}

typedef struct parse_state {
    dw_aws_ini *ini;
    size_t n_room;
    const char *section; /* NULL before the first */
    const char *block;
} parse_state;

static bool add(parse_state *state, const char *block, const char *key, const char *value)
{
    dw_aws_ini *ini = state->ini;
    void *settings = ini->settings;
    if (!dw_grow_array(&settings, &state->n_room, ini->n_settings, sizeof *ini->settings))
        return false;
    ini->settings = settings;
    ini->settings[ini->n_settings++] =
        (dw_aws_setting){state->section, block, key, value};
    return true;
}

/* False when out of memory. LINE is changed in place. */
static bool parse_line(parse_state *state, char *line)
{
    bool indented = is_blank(*line);
    line = trim(line);
    if (!*line || *line == '#' || *line == ';')
        return true;
    if (*line == '[' && !indented) {
        char *end = strchr(line, ']');
        state->section = NULL;
        state->block = "";
        if (!end)
            return true;
        *end = '\0';
        char *section = trim(line + 1);
        tidy_section(section);
        state->section = section;
        return add(state, "", "", "");
    }
    char *sign = strchr(line, '=');
    if (!sign || !state->section)
        return true;
    *sign = '\0';
    char *key = trim(line);
    char *value = sign + 1;
    cut_comment(value);
    value = trim(value);
    if (!indented)
        state->block = *value ? "" : key;
    return !*key || add(state, indented ? state->block : "", key, value);
}

static dw_status parse(dw_aws_ini *ini, const char *path, dw_error *err)
{
    parse_state state = {.ini = ini, .block = ""};
    for (char *line = ini->text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next)
            *next++ = '\0';
        if (!parse_line(&state, line))
            return dw_fail_memory(err, path);
    }
    return DW_OK;
}

/* Does not use stdio, whose buffer would keep the secrets, or mmap, because people name
 * /dev/null here. */
static dw_status read_all(dw_aws_ini *ini, int fd, const char *path, dw_error *err)
{
    size_t n_room = DW_AWS_INI_BYTES + 1;
    ini->text = dw_alloc(n_room + 1);
    if (!ini->text)
        return dw_fail_memory(err, path);
    while (ini->n_text < n_room) {
        ssize_t n = read(fd, ini->text + ini->n_text, n_room - ini->n_text);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return dw_fail_errno(err, path, "read the profiles");
        if (n == 0) {
            ini->text[ini->n_text] = '\0';
            return DW_OK;
        }
        ini->n_text += (size_t)n;
    }
    return dw_fail(err, DW_INVALID, path, "a file of profiles has at most 1 MiB");
}

dw_status dw_aws_ini_read(dw_aws_ini *out, const char *path, dw_error *err)
{
    *out = (dw_aws_ini){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR))
        return DW_OK;
    if (fd < 0)
        return dw_fail_errno(err, path, "open the profiles");
    dw_status status = read_all(out, fd, path, err);
    close(fd);
    if (status == DW_OK)
        status = parse(out, path, err);
    if (status != DW_OK)
        dw_aws_ini_release(out);
    return status;
}

void dw_aws_ini_release(dw_aws_ini *ini)
{
    if (ini->text)
        OPENSSL_cleanse(ini->text, ini->n_text);
    dw_free(ini->text);
    dw_free(ini->settings);
    *ini = (dw_aws_ini){0};
}
