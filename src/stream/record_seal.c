/* Every record ends in a signature or a seal, which is a checksum. It protects all bytes
 * of the record, with zeros in its own place.
 *
 *     {"format":...  ,"key":"K...K","signature":"0...0"}
 *     {"format":...                  ,"seal":"0...0"}
 *                    |<------------- tail ------------>|
 *
 * Without it, a bit that flips in transit, for example in a digit of a hash, could be
 * accepted and would stay in the chain of hashes that a reader or the next writer builds
 * on it.
 */
#include "stream/record_seal.h"

#include "base/error.h"
#include "base/mem.h"
#include "codec/seal.h"
#include "stream/sign.h"

#define FORMAT_FAMILY "deltawire-stream/"
#define SIGNED_PREFIX DW_STREAM_FORMAT "\n"
#define BEFORE_KEY    ",\"key\":\""
#define BEFORE_SIGN   "\",\"signature\":\""
#define AFTER_SIGN    "\"}"
#define BEFORE_SEAL   ",\"seal\":\""
#define AFTER_SEAL    "\"}"

enum {
    PREFIX_BYTES = sizeof SIGNED_PREFIX - 1,
    KEY_DIGITS = 2 * DW_PUBLIC_KEY_BYTES,
    SIGN_DIGITS = 2 * DW_SIGNATURE_BYTES,
    KEY_AT = sizeof BEFORE_KEY - 1, /* places in the tail */
    SIGN_NAME_AT = KEY_AT + KEY_DIGITS,
    SIGN_AT = SIGN_NAME_AT + sizeof BEFORE_SIGN - 1,
    SIGN_END = SIGN_AT + SIGN_DIGITS,
    TAIL_BYTES = SIGN_END + sizeof AFTER_SIGN - 1,
    SEAL_AT = sizeof BEFORE_SEAL - 1, /* places in the other tail */
    SEAL_END = SEAL_AT + DW_SEAL_DIGITS,
    SEAL_TAIL_BYTES = SEAL_END + sizeof AFTER_SEAL - 1,
};

/* ---- reading ---- */

static bool take_digits(uint8_t *out, size_t n_bytes, const uint8_t *digits)
{
    char text[SIGN_DIGITS + 1];
    memcpy(text, digits, 2 * n_bytes);
    text[2 * n_bytes] = '\0';
    return dw_hex_decode(out, n_bytes, text);
}

/* That the last two members are these follows from the bytes: the record is one JSON
 * object that ends with them, and inside a string their quotes would be escaped. */
static bool take_tail(uint8_t key[DW_PUBLIC_KEY_BYTES],
                      uint8_t signature[DW_SIGNATURE_BYTES], const uint8_t *bytes,
                      size_t n_bytes)
{
    if (n_bytes < TAIL_BYTES)
        return false;
    const uint8_t *tail = bytes + n_bytes - TAIL_BYTES;
    return memcmp(tail, BEFORE_KEY, KEY_AT) == 0 &&
           memcmp(tail + SIGN_NAME_AT, BEFORE_SIGN, SIGN_AT - SIGN_NAME_AT) == 0 &&
           memcmp(tail + SIGN_END, AFTER_SIGN, TAIL_BYTES - SIGN_END) == 0 &&
           take_digits(key, DW_PUBLIC_KEY_BYTES, tail + KEY_AT) &&
           take_digits(signature, DW_SIGNATURE_BYTES, tail + SIGN_AT);
}

static dw_status verify(const uint8_t key[DW_PUBLIC_KEY_BYTES],
                        const uint8_t signature[DW_SIGNATURE_BYTES], const uint8_t *bytes,
                        size_t n_bytes, const char *where, dw_error *err)
{
    uint8_t *signed_bytes = dw_alloc(PREFIX_BYTES + n_bytes);
    if (!signed_bytes)
        return dw_fail_memory(err, where);
    memcpy(signed_bytes, SIGNED_PREFIX, PREFIX_BYTES);
    memcpy(signed_bytes + PREFIX_BYTES, bytes, n_bytes);
    memset(signed_bytes + PREFIX_BYTES + n_bytes - TAIL_BYTES + SIGN_AT, '0',
           SIGN_DIGITS);
    dw_error fault = {0};
    dw_status status =
        dw_sign_verify(key, signature, signed_bytes, PREFIX_BYTES + n_bytes, &fault);
    dw_free(signed_bytes);
    return status == DW_OK ? DW_OK : dw_fail(err, status, where, "%s", fault.text);
}

static bool ends_in_seal(const uint8_t *bytes, size_t n_bytes)
{
    if (n_bytes < SEAL_TAIL_BYTES)
        return false;
    const uint8_t *tail = bytes + n_bytes - SEAL_TAIL_BYTES;
    return memcmp(tail, BEFORE_SEAL, SEAL_AT) == 0 &&
           memcmp(tail + SEAL_END, AFTER_SEAL, SEAL_TAIL_BYTES - SEAL_END) == 0;
}

static dw_status check_seal(const uint8_t *bytes, size_t n_bytes, const char *where,
                            dw_error *err)
{
    char wanted[DW_SEAL_DIGITS + 1];
    size_t at = n_bytes - SEAL_TAIL_BYTES + SEAL_AT;
    dw_seal_make(wanted, bytes, n_bytes, at, NULL, 0);
    if (memcmp(bytes + at, wanted, DW_SEAL_DIGITS) == 0)
        return DW_OK;
    return dw_fail(err, DW_CORRUPT, where,
                   "the record was damaged: its seal does not match");
}

bool dw_record_signer(uint8_t key[DW_PUBLIC_KEY_BYTES], const void *bytes, size_t n_bytes)
{
    uint8_t signature[DW_SIGNATURE_BYTES];
    return take_tail(key, signature, bytes, n_bytes);
}

dw_status dw_record_check(dw_record_seal *seal, const void *bytes, size_t n_bytes,
                          const char *where, dw_error *err)
{
    uint8_t signature[DW_SIGNATURE_BYTES];
    *seal = (dw_record_seal){0};
    dw_status status;
    if (take_tail(seal->key, signature, bytes, n_bytes)) {
        seal->is_signed = true;
        status = verify(seal->key, signature, bytes, n_bytes, where, err);
    } else if (ends_in_seal(bytes, n_bytes)) {
        status = check_seal(bytes, n_bytes, where, err);
    } else {
        status = dw_fail(err, DW_CORRUPT, where,
                         "the record has neither a seal nor a signature");
    }
    return status == DW_OK ? dw_sha256_of(seal->sha256, bytes, n_bytes, err) : status;
}

/* A record ends in one of the two. */
static void refuse_misplaced(dw_fields *f, bool is_signed)
{
    static const char *const of_sealed[] = {"key", "signature", NULL};
    static const char *const of_signed[] = {"seal", NULL};
    const char *const *name = is_signed ? of_signed : of_sealed;
    for (; f->status == DW_OK && *name; name++)
        if (dw_json_get(f->object, *name))
            dw_fields_fail(f, DW_CORRUPT, *name, "does not belong to a record that is %s",
                           is_signed ? "signed" : "sealed");
}

static bool is_other_format(const char *format)
{
    const size_t n = strlen(FORMAT_FAMILY);
    return strncmp(format, FORMAT_FAMILY, n) == 0 &&
           strspn(format + n, "0123456789") == strlen(format + n) &&
           strcmp(format, DW_STREAM_FORMAT) != 0;
}

static void check_format(dw_fields *f)
{
    const char *format = dw_field_text(f, "format", 64);
    if (strcmp(format, DW_STREAM_FORMAT) != 0)
        dw_fields_fail(f, is_other_format(format) ? DW_UNSUPPORTED : DW_CORRUPT, "format",
                       "is '%s', not '" DW_STREAM_FORMAT "'", format);
}

/* No feature is known yet that could be required. */
static void check_requires(dw_fields *f)
{
    if (f->status != DW_OK || !dw_json_get(f->object, "requires"))
        return;
    const dw_json *list = dw_field_array(f, "requires");
    const dw_json *first = dw_json_first(list);
    for (const dw_json *it = first; it; it = dw_json_next(list, it))
        if (!dw_json_string(it))
            dw_fields_fail(f, DW_CORRUPT, "requires", "is not an array of strings");
    if (first)
        dw_fields_fail(f, DW_UNSUPPORTED, "requires",
                       "asks for '%.100s', which this version does not know",
                       dw_json_string(first));
}

static void check_kind(dw_fields *f, const char *kind)
{
    const char *found = dw_field_text(f, "kind", 64);
    if (strcmp(found, kind) != 0)
        dw_fields_fail(f, DW_CORRUPT, "kind", "is '%s', not '%s'", found, kind);
}

/* Another format may end or sign differently: then its name is a better error than FAULT,
 * which was found at the end. Nothing is parsed: writers put `format` first, in this
 * spelling. */
static dw_status fail_end(dw_status fault, const uint8_t *bytes, size_t n_bytes,
                          const char *where, dw_error *err)
{
    static const char start[] = "{\"format\":\"";
    const size_t n_start = sizeof start - 1;
    char format[64] = "";
    if (fault == DW_NO_MEMORY || ends_in_seal(bytes, n_bytes) || n_bytes < n_start ||
        memcmp(bytes, start, n_start) != 0)
        return fault;
    const size_t n_left = n_bytes - n_start;
    const uint8_t *end =
        memchr(bytes + n_start, '"', n_left < sizeof format ? n_left : sizeof format);
    if (end)
        memcpy(format, bytes + n_start, (size_t)(end - bytes) - n_start);
    if (!is_other_format(format))
        return fault;
    return dw_fail(err, DW_UNSUPPORTED, where,
                   "member 'format' is '%s', not '" DW_STREAM_FORMAT "'", format);
}

dw_status dw_record_open(dw_fields *fields, char stream[DW_ID_TEXT], dw_record_seal *seal,
                         const char *kind, size_t max_bytes, const void *bytes,
                         size_t n_bytes, const char *where, dw_error *err)
{
    *fields = (dw_fields){.path = "", .where = where, .err = err};
    if (n_bytes > max_bytes)
        return dw_fail(err, DW_CORRUPT, where,
                       "a record of %zu bytes is over the limit of %zu", n_bytes,
                       max_bytes);
    dw_record_seal unused;
    seal = seal ? seal : &unused;
    dw_status status = dw_record_check(seal, bytes, n_bytes, where, err);
    if (status != DW_OK)
        return fail_end(status, bytes, n_bytes, where, err);
    status = dw_json_read(&fields->root, bytes, n_bytes, "record", where, err);
    if (status != DW_OK)
        return status;
    fields->object = fields->root;
    check_format(fields);
    check_requires(fields);
    refuse_misplaced(fields, seal->is_signed);
    check_kind(fields, kind);
    dw_field_id(fields, stream, "stream");
    if (fields->status != DW_OK)
        dw_fields_release(fields);
    return fields->status;
}

/* ---- writing ---- */

void dw_record_begin(dw_writer *out, const char *kind, const char *stream)
{
    dw_write_format(out, "{\"format\":\"" DW_STREAM_FORMAT "\",\"kind\":\"%s\"", kind);
    dw_write_text(out, ",\"stream\":");
    dw_write_json_string(out, stream);
}

/* The tail with its zeros is written, all is signed, and the zeros replaced. */
static dw_status sign_tail(dw_writer *out, size_t start, dw_record_seal *seal,
                           const dw_sign_key *key, dw_error *err)
{
    char digits[SIGN_DIGITS + 1];
    uint8_t signature[DW_SIGNATURE_BYTES];
    seal->is_signed = true;
    dw_sign_key_public(key, seal->key);
    dw_hex_encode(digits, seal->key, DW_PUBLIC_KEY_BYTES);
    dw_write_format(out, BEFORE_KEY "%s" BEFORE_SIGN "%0*d" AFTER_SIGN, digits,
                    SIGN_DIGITS, 0);
    dw_writer signed_bytes = {0};
    dw_write_text(&signed_bytes, SIGNED_PREFIX);
    if (!out->failed)
        dw_write_bytes(&signed_bytes, out->bytes + start, out->n_bytes - start);
    dw_status status =
        out->failed || signed_bytes.failed
            ? dw_fail_memory(err, NULL)
            : dw_sign(key, signature, signed_bytes.bytes, signed_bytes.n_bytes, err);
    dw_writer_release(&signed_bytes);
    if (status == DW_OK) {
        dw_hex_encode(digits, signature, DW_SIGNATURE_BYTES);
        memcpy(out->bytes + out->n_bytes - TAIL_BYTES + SIGN_AT, digits, SIGN_DIGITS);
    }
    return status;
}

static void seal_tail(dw_writer *out, size_t start)
{
    char digits[DW_SEAL_DIGITS + 1];
    dw_write_text(out, BEFORE_SEAL DW_SEAL_BLANK AFTER_SEAL);
    if (out->failed)
        return;
    uint8_t *bytes = out->bytes + start;
    size_t n_bytes = out->n_bytes - start;
    size_t at = n_bytes - SEAL_TAIL_BYTES + SEAL_AT;
    dw_seal_make(digits, bytes, n_bytes, at, NULL, 0);
    memcpy(bytes + at, digits, DW_SEAL_DIGITS);
}

dw_status dw_record_end(dw_writer *out, size_t start, dw_record_seal *seal,
                        const dw_sign_key *key, dw_error *err)
{
    dw_record_seal unused;
    seal = seal ? seal : &unused;
    *seal = (dw_record_seal){0};
    dw_status status = DW_OK;
    if (key)
        status = sign_tail(out, start, seal, key, err);
    else
        seal_tail(out, start);
    if (status == DW_OK && out->failed)
        status = dw_fail_memory(err, NULL);
    if (status == DW_OK)
        status =
            dw_sha256_of(seal->sha256, out->bytes + start, out->n_bytes - start, err);
    return status;
}
