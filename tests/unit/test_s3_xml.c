#include "unit/suite.h"

#include "base/mem.h"
#include "failing_allocator.h"
#include "store/s3_xml.h"

#define DECLARATION "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
#define NAMESPACE   " xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\""

/* ---- <Error> ---- */

static bool parse_error(dw_s3_error *out, const char *xml)
{
    return dw_s3_error_parse(out, xml, strlen(xml));
}

TEST(test_error)
{
    dw_s3_error e;
    assert_true(parse_error(&e, DECLARATION
                            "<Error><Code>NoSuchKey</Code><Message>The &lt;key&gt; is "
                            "gone</Message><Resource>/b/k</Resource></Error>"));
    assert_string_equal(e.code, "NoSuchKey");
    assert_string_equal(e.message, "The <key> is gone");

    /* a 200 with blanks that keep it alive until the failure was known */
    assert_true(parse_error(&e, " \r\n \n" DECLARATION
                                "<Error><Code>InternalError</Code></Error>"));
    assert_string_equal(e.code, "InternalError");
    assert_string_equal(e.message, "");

    assert_true(parse_error(&e, "<Error/>"));
    assert_string_equal(e.code, "");
    assert_true(parse_error(&e, "<Error><Code>SlowDown</Code><Messa")); /* cut off */
    assert_string_equal(e.code, "SlowDown");
    /* codes in nested elements do not count */
    assert_true(parse_error(&e, "<Error><X><Code>Inner</Code></X></Error>"));
    assert_string_equal(e.code, "");
}

TEST(test_not_an_error)
{
    dw_s3_error e;
    assert_false(parse_error(&e, ""));
    assert_false(parse_error(&e, "   "));
    assert_false(dw_s3_error_parse(&e, NULL, 0));
    assert_false(parse_error(&e, "Error"));
    assert_false(parse_error(&e, "<html><body>502</body></html>"));
    assert_false(parse_error(&e, "<CompleteMultipartUploadResult><Error/>"
                                 "</CompleteMultipartUploadResult>"));
    assert_false(dw_s3_error_parse(&e, "\0<Error/>", 9));
    assert_string_equal(e.code, "");
}

TEST(test_long_error_is_cut)
{
    char *xml = malloc(40000);
    assert_non_null(xml);
    strcpy(xml, "<Error><Code>");
    memset(xml + 13, 'c', 100);
    strcpy(xml + 113, "</Code><Message>");
    memset(xml + 129, 'm', 30000);
    strcpy(xml + 30129, "</Message></Error>");
    dw_s3_error e;
    assert_true(parse_error(&e, xml));
    assert_int_equal(strlen(e.code), sizeof e.code - 1);
    assert_int_equal(strlen(e.message), sizeof e.message - 1);
    free(xml);
}

/* ---- listings ---- */

static dw_status parse_list(dw_s3_list_page *out, const char *xml, dw_error *err)
{
    return dw_s3_list_parse(out, xml, strlen(xml), "s3://b", err);
}

static const char two_objects[] =
    DECLARATION "<ListBucketResult" NAMESPACE "><Name>b</Name><Prefix>p/</Prefix>"
                "<KeyCount>2</KeyCount><IsTruncated>true</IsTruncated>"
                "<Contents><Key>p/a&amp;b</Key><Size>12</Size>"
                "<LastModified>2009-10-12T17:50:30.123Z</LastModified>"
                "<ETag>&quot;x&quot;</ETag><Owner><ID>1</ID></Owner></Contents>"
                "<Contents><LastModified>2009-10-12T17:50:30Z</LastModified>"
                "<Size>18446744073709551615</Size><Key>p/%41</Key></Contents>"
                "<NextContinuationToken>1/x+=</NextContinuationToken>"
                "<CommonPrefixes><Prefix>q/</Prefix></CommonPrefixes>"
                "</ListBucketResult>";

TEST(test_list)
{
    dw_s3_list_page page;
    assert_int_equal(parse_list(&page, two_objects, NULL), DW_OK);
    assert_int_equal(page.n_entries, 2);
    assert_true(page.truncated);
    assert_string_equal(page.next_token, "1/x+=");
    assert_string_equal(page.entries[0].key, "p/a&b");
    assert_int_equal(page.entries[0].n_bytes, 12);
    assert_int_equal(page.entries[0].modified_ms, 1255369830123);
    assert_string_equal(page.entries[1].key, "p/%41"); /* not marked as encoded */
    assert_true(page.entries[1].n_bytes == UINT64_MAX);
    assert_int_equal(page.entries[1].modified_ms, 1255369830000);
    dw_s3_list_page_release(&page);
    assert_null(page.entries);
    dw_s3_list_page_release(&page); /* twice does no harm */
}

TEST(test_list_empty)
{
    dw_s3_list_page page;
    assert_int_equal(parse_list(&page, "<ListBucketResult/>", NULL), DW_OK);
    assert_int_equal(page.n_entries, 0);
    assert_false(page.truncated);
    assert_null(page.next_token);
    dw_s3_list_page_release(&page);
}

TEST(test_list_url_encoded)
{
    dw_s3_list_page page;
    assert_int_equal(parse_list(&page,
                                "<ListBucketResult><Contents><Key>a%2Fb+c%2B%c3%BC</Key>"
                                "</Contents><NextContinuationToken>a%2F"
                                "</NextContinuationToken>"
                                "<EncodingType>url</EncodingType></ListBucketResult>",
                                NULL),
                     DW_OK);
    assert_string_equal(page.entries[0].key, "a/b c+\xc3\xbc");
    assert_string_equal(page.next_token, "a%2F"); /* tokens are not encoded */
    dw_s3_list_page_release(&page);
}

static int64_t time_of(const char *text)
{
    char xml[256];
    snprintf(xml, sizeof xml,
             "<ListBucketResult><Contents><Key>k</Key><LastModified>%s</LastModified>"
             "</Contents></ListBucketResult>",
             text);
    dw_s3_list_page page;
    assert_int_equal(parse_list(&page, xml, NULL), DW_OK);
    int64_t ms = page.entries[0].modified_ms;
    dw_s3_list_page_release(&page);
    return ms;
}

TEST(test_times)
{
    assert_int_equal(time_of("2026-11-15T05:20:59.123Z"), 1794720059123);
    assert_int_equal(time_of("2026-11-15T05:20:59.5Z"), 1794720059500);
    assert_int_equal(time_of("2026-11-15T05:20:59.123456789Z"), 1794720059123);
    assert_int_equal(time_of("2024-02-29T00:00:00Z"), 1709164800000);
    /* unknown, rather than wrong */
    assert_int_equal(time_of(""), 0);
    assert_int_equal(time_of("yesterday"), 0);
    assert_int_equal(time_of("2026-11-15T05:20:59"), 0);
    assert_int_equal(time_of("2026-11-15T05:20:59+02:00"), 0);
    assert_int_equal(time_of("2026-13-15T05:20:59Z"), 0);
    assert_int_equal(time_of("-001-01-15T05:20:59Z"), 0);
    assert_int_equal(time_of("2026-11-15T-5:20:59Z"), 0);
}

static void assert_bad_list(const char *xml, const char *word)
{
    dw_s3_list_page page;
    dw_error err;
    assert_int_equal(parse_list(&page, xml, &err), DW_CORRUPT);
    assert_string_equal(err.where, "s3://b");
    if (!strstr(err.text, word))
        fail_msg("no '%s' in '%s'", word, err.text);
    assert_null(page.entries);
    assert_null(page.next_token);
}

TEST(test_bad_lists)
{
    assert_bad_list("", "not XML");
    assert_bad_list("<html/>", "is a <html>, not a <ListBucketResult>");
    assert_bad_list("<ListBucketResult><Contents><Key>k</Key>", "not XML");
    assert_bad_list("<ListBucketResult><Contents/></ListBucketResult>", "without a key");
    assert_bad_list("<ListBucketResult><IsTruncated>true</IsTruncated>"
                    "</ListBucketResult>",
                    "sent no token");
    const char *sizes[] = {"", "-1", "1x", "18446744073709551616", " 1"};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char xml[256];
        snprintf(xml, sizeof xml,
                 "<ListBucketResult><Contents><Key>k</Key><Size>%s</Size></Contents>"
                 "</ListBucketResult>",
                 sizes[i]);
        assert_bad_list(xml, "size");
    }
    const char *keys[] = {"%", "%4", "%zz", "%00", "a%2"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char xml[256];
        snprintf(xml, sizeof xml,
                 "<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>%s"
                 "</Key></Contents></ListBucketResult>",
                 keys[i]);
        assert_bad_list(xml, "encoded");
    }
}

TEST(test_entities_are_refused)
{
    assert_bad_list("<!DOCTYPE x [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;\">]>"
                    "<ListBucketResult>&b;</ListBucketResult>",
                    "document type");
    assert_bad_list("<!DOCTYPE x SYSTEM \"file:///etc/passwd\"><ListBucketResult/>",
                    "document type");
    dw_s3_error e;
    assert_false(parse_error(&e, "<!DOCTYPE x><Error><Code>c</Code></Error>"));
    assert_string_equal(e.code, "");
}

/* HEAD, N times UNIT, TAIL; to be freed. */
static char *repeat(const char *head, const char *unit, size_t n, const char *tail)
{
    size_t n_unit = strlen(unit);
    char *text = malloc(strlen(head) + n * n_unit + strlen(tail) + 1);
    assert_non_null(text);
    char *at = text + sprintf(text, "%s", head);
    for (size_t i = 0; i < n; i++, at += n_unit)
        memcpy(at, unit, n_unit);
    strcpy(at, tail);
    return text;
}

TEST(test_bounds)
{
    static const char entry[] = "<Contents><Key>k</Key></Contents>";
    char *xml =
        repeat("<ListBucketResult>", entry, DW_S3_PAGE_ENTRIES, "</ListBucketResult>");
    dw_s3_list_page page;
    assert_int_equal(parse_list(&page, xml, NULL), DW_OK);
    assert_int_equal(page.n_entries, DW_S3_PAGE_ENTRIES);
    dw_s3_list_page_release(&page);
    free(xml);
    xml = repeat("<ListBucketResult>", entry, DW_S3_PAGE_ENTRIES + 1,
                 "</ListBucketResult>");
    assert_bad_list(xml, "too many objects");
    free(xml);

    static const char before[] = "<ListBucketResult><Contents><Key>";
    static const char after[] = "</Key></Contents></ListBucketResult>";
    xml = repeat(before, "k", DW_S3_KEY_BYTES, after);
    assert_int_equal(parse_list(&page, xml, NULL), DW_OK);
    assert_int_equal(strlen(page.entries[0].key), DW_S3_KEY_BYTES);
    dw_s3_list_page_release(&page);
    free(xml);
    xml = repeat(before, "k", DW_S3_KEY_BYTES + 1, after);
    assert_bad_list(xml, "more than 4096 bytes");
    free(xml);
    xml = repeat(before, "k", 3 * DW_S3_KEY_BYTES + 1, after);
    assert_bad_list(xml, "too long");
    free(xml);
    xml = repeat("<ListBucketResult><NextContinuationToken>", "t", DW_S3_KEY_BYTES + 1,
                 "</NextContinuationToken></ListBucketResult>");
    assert_bad_list(xml, "too long");
    free(xml);

    xml = repeat("<ListBucketResult>", "<a>", 100000, "");
    assert_bad_list(xml, "deeply");
    free(xml);
}

/* ---- multipart ---- */

TEST(test_complete_result)
{
    const char *const results[] = {
        "<CompleteMultipartUploadResult/>",
        "\n \n<?xml version=\"1.0\"?><CompleteMultipartUploadResult xmlns=\"x\">"
        "<ETag>e</ETag></CompleteMultipartUploadResult>\n",
    };
    const char *const others[] = {
        "",
        "\n",
        "<html/>",
        "<Error><Code>c</Code></Error>",
        "<CompleteMultipartUploadResult><ETag>",
        "not XML",
    };
    for (size_t i = 0; i < sizeof results / sizeof *results; i++)
        assert_int_equal(
            dw_s3_complete_parse(NULL, results[i], strlen(results[i]), "w", NULL), DW_OK);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_int_equal(
            dw_s3_complete_parse(NULL, others[i], strlen(others[i]), "w", NULL),
            DW_CORRUPT);
}

TEST(test_upload_id)
{
    static const char good[] = DECLARATION
        "<InitiateMultipartUploadResult" NAMESPACE "><Bucket>b</Bucket><Key>k</Key>"
        "<UploadId>2~a&amp;b</UploadId></InitiateMultipartUploadResult>";
    char *id;
    assert_int_equal(dw_s3_upload_id_parse(&id, good, strlen(good), "w", NULL), DW_OK);
    assert_string_equal(id, "2~a&b");
    dw_free(id);

    const char *bad[] = {"", "<Error/>", "<InitiateMultipartUploadResult/>",
                         "<InitiateMultipartUploadResult><UploadId/>"
                         "</InitiateMultipartUploadResult>",
                         "<InitiateMultipartUploadResult><UploadId>x</UploadId>"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        dw_error err;
        assert_int_equal(dw_s3_upload_id_parse(&id, bad[i], strlen(bad[i]), "w", &err),
                         DW_CORRUPT);
        assert_null(id);
    }
}

TEST(test_complete)
{
    char *etags[] = {"\"a\"", "<&>"};
    dw_writer out = {0};
    dw_s3_complete_write(&out, etags, 2);
    dw_write_u8(&out, 0);
    assert_string_equal(
        (char *)out.bytes,
        "<CompleteMultipartUpload" NAMESPACE
        "><Part><PartNumber>1</PartNumber><ETag>\"a\"</ETag></Part>"
        "<Part><PartNumber>2</PartNumber><ETag>&lt;&amp;&gt;</ETag></Part>"
        "</CompleteMultipartUpload>");
    dw_writer_release(&out);
}

/* ---- memory ---- */

static dw_status list_once(dw_error *err)
{
    dw_s3_list_page page;
    dw_status status = parse_list(&page, two_objects, err);
    dw_s3_list_page_release(&page);
    return status;
}

static dw_status upload_id_once(dw_error *err)
{
    static const char xml[] = "<InitiateMultipartUploadResult><UploadId>x</UploadId>"
                              "</InitiateMultipartUploadResult>";
    char *id;
    dw_status status = dw_s3_upload_id_parse(&id, xml, strlen(xml), NULL, err);
    dw_free(id);
    return status;
}

TEST(test_no_memory)
{
    fail_every_allocation(list_once, NULL);
    fail_every_allocation(upload_id_once, NULL);
    failing_allocator a;
    failing_allocator_install(&a, 0);
    dw_s3_error e;
    bool is_error = parse_error(&e, "<Other/>");
    dw_set_allocator(NULL);
    assert_true(is_error); /* it must not be taken for success */
}

RUN_TESTS(NULL, NULL)
