/* Hugging Face buckets: hf://buckets/NAMESPACE/NAME[/PREFIX]
 *
 *     HF_S3_ACCESS_KEY_ID and HF_S3_SECRET_ACCESS_KEY    the Hub's S3 gateway: all calls.
 *         Made in the Hub's token settings. The gateway is https://s3.hf.co/NAMESPACE;
 *         options or HF_S3_ENDPOINT name another.
 *     HF_TOKEN, or the file HF_TOKEN_PATH, HF_HOME/token or ~/.cache/huggingface/token
 *         the Hub's own API at HF_ENDPOINT or https://huggingface.co: only reads, since
 *         writes want hashes of the Hub's own kind.
 *
 * Neither: DW_DENIED.
 */
#ifndef DW_STORE_HF_H
#define DW_STORE_HF_H

#include "deltawire/store.h"

dw_status dw_hf_store_open(dw_store **out, const char *url,
                           const dw_store_options *options, dw_error *err);

/* ---- hf_native.c ---- */

/* All borrowed for the call. */
typedef struct dw_hf_location {
    const char *endpoint; /* a URL without a slash at its end */
    const char *bucket;   /* NAMESPACE/NAME */
    const char *prefix;   /* "" or "a/b" */
    const char *token;
    const char *origin; /* where it is, for people */
} dw_hf_location;

dw_status dw_hf_native_open(dw_store **out, const char *url,
                            const dw_hf_location *location,
                            const dw_store_options *options, dw_error *err);

#endif
