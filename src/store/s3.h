/* The driver for S3 and servers that speak its protocol, and for Google Cloud Storage,
 * whose XML API differs in how requests prove who sends them, and in conditions. */
#ifndef DW_STORE_S3_H
#define DW_STORE_S3_H

#include "deltawire/store.h"
#include "store/key_ring.h"

/* s3://BUCKET[/PREFIX]; the other settings come from OPTIONS (may be NULL), the
 * environment and files. */
dw_status dw_s3_store_open(dw_store **out, const char *url,
                           const dw_store_options *options, dw_error *err);

/* The full location of a bucket. All strings are borrowed for the call. */
typedef struct dw_s3_location {
    const char *endpoint; /* a URL, whose path comes before the bucket; NULL: Amazon */
    const char *bucket;
    const char *prefix; /* "" or "a/b": comes before every key */
    const char *region;
    bool path_style;   /* ENDPOINT/BUCKET/KEY rather than BUCKET.ENDPOINT/KEY */
    dw_key_ring *keys; /* taken, also by an open that fails; NULL: requests are not signed
                        */
    bool follow_redirects; /* a GET may be redirected to another host */
    bool missing_is_403;   /* the server answers 403 for missing objects, so a listing
                              decides */
    bool is_google; /* the keys are access tokens; headers are x-goog-, not x-amz- */
} dw_s3_location;

/* gs://BUCKET[/PREFIX]; the endpoint comes from OPTIONS or STORAGE_EMULATOR_HOST,
 * otherwise it is Google's. */
dw_status dw_gcs_store_open(dw_store **out, const char *url,
                            const dw_store_options *options, dw_error *err);

/* The parts of SCHEME://BUCKET[/PREFIX], checked. BUCKET is to be freed; PREFIX, which
 * may be "", points into it. */
dw_status dw_s3_url_split(char **bucket, const char **prefix, const char *scheme,
                          const char *url, dw_error *err);

/* The same for a given location. URL is for messages. */
dw_status dw_s3_store_open_at(dw_store **out, const char *url,
                              const dw_s3_location *location,
                              const dw_store_options *options, dw_error *err);

#endif
