#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <deltawire/stream.h>

#include "base/error.h"
#include "command_line.h"
#include "commands.h"
#include "fail.h"
#include "json_out.h"
#include "print.h"

/* Fails if there is a file of that name: a key is never overwritten. */
static FILE *create(const char *path, dw_error *err)
{
    FILE *file = fopen(path, "wx");
    if (!file)
        dw_fail_errno(err, path, "create");
    return file;
}

/* The public file is made first: if that fails, no secret key is left behind. */
static dw_status make_keys(const char *path, const char *public_path,
                           char text[DW_PUBLIC_KEY_TEXT], dw_error *err)
{
    FILE *file = create(public_path, err);
    if (!file)
        return err->code;
    dw_status status = dw_sign_key_create(path, text, err);
    if (status != DW_OK) {
        fclose(file);
        unlink(public_path);
        return status;
    }
    bool written = fprintf(file, "%s\n", text) > 0;
    written &= fclose(file) == 0;
    if (written)
        return DW_OK;
    status = dw_fail_errno(err, public_path, "write");
    unlink(public_path);
    unlink(path);
    return status;
}

static void print_keys(const cli_session *s, const char *path, const char *public_path,
                       const char *text)
{
    if (s->json) {
        json_t *object = json_object();
        cli_json_text(object, "secret", path);
        cli_json_text(object, "public", public_path);
        cli_json_text(object, "key", text);
        cli_json_print(object);
        return;
    }
    puts(text);
    if (s->quiet)
        return;
    fputs("\ndeltawire publish URL CKPT --sign-key ", stdout);
    cli_print_text(stdout, path);
    printf("\ndeltawire pull URL --into DIR --trust %s\n", text);
}

static int run(cli_session *s)
{
    cli_parse(s, NULL);
    const char *path = s->args[0];
    size_t n_bytes = strlen(path) + sizeof ".pub";
    char *public_path = malloc(n_bytes);
    if (!public_path)
        return cli_fail_as(s, "no memory", path, "out of memory", NULL);
    snprintf(public_path, n_bytes, "%s.pub", path);
    char text[DW_PUBLIC_KEY_TEXT];
    dw_error err;
    int exit_code = 0;
    if (make_keys(path, public_path, text, &err) == DW_OK)
        print_keys(s, path, public_path, text);
    else
        exit_code = cli_fail(s, &err, path, NULL);
    free(public_path);
    return exit_code;
}

const cli_verb cli_verb_keygen = {
    .name = "keygen",
    .summary = "make a key to sign versions with",
    .usage = "FILE",
    .about = "Makes a new Ed25519 key: the secret one in FILE, which only you can read, "
             "the public one in FILE.pub. Give the first to the trainer, the second to "
             "followers.",
    .examples =
        "  deltawire keygen trainer.key\n"
        "  deltawire publish s3://bucket/run ckpt/ --sign-key trainer.key\n"
        "  deltawire pull s3://bucket/run --into model/ --trust trainer.key.pub\n",
    .n_least = 1,
    .n_most = 1,
    .run = run,
};
