"""Sends one signed S3 request, only with the standard library, to check if a server works.

    s3_request.py METHOD URL [FILE]     FILE is the body; keys come from the environment

Prints the reply's body; exits with 1 unless the status is 2xx.
"""

import datetime
import hashlib
import hmac
import os
import sys
import urllib.error
import urllib.parse
import urllib.request

REGION = os.environ.get("AWS_REGION", "us-east-1")


def signed(method, url, body):
    at = urllib.parse.urlsplit(url)
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    sha = hashlib.sha256(body).hexdigest()
    headers = {"host": at.netloc, "x-amz-content-sha256": sha, "x-amz-date": now}
    names = ";".join(headers)
    canonical = "\n".join(
        [method, at.path, "&".join(sorted(at.query.split("&")))]
        + [f"{k}:{v}" for k, v in headers.items()]
        + ["", names, sha]
    )
    scope = f"{now[:8]}/{REGION}/s3/aws4_request"
    text = "\n".join(
        ["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(canonical.encode()).hexdigest()]
    )
    key = b"AWS4" + os.environ["AWS_SECRET_ACCESS_KEY"].encode()
    for part in scope.split("/") + [text]:
        key = hmac.digest(key, part.encode(), "sha256")
    headers["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={os.environ['AWS_ACCESS_KEY_ID']}/{scope}, "
        f"SignedHeaders={names}, Signature={key.hex()}"
    )
    return urllib.request.Request(url, body, headers, method=method)


def main(method, url, path=None):
    body = b""
    if path:
        with open(path, "rb") as file:
            body = file.read()
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(signed(method, url, body), timeout=60) as reply:
            sys.stdout.buffer.write(reply.read())
    except urllib.error.HTTPError as e:
        sys.exit(f"{method} {url}: {e.code} {e.read().decode(errors='replace')}")
    except OSError as e:
        sys.exit(f"{method} {url}: {e}")


if __name__ == "__main__":
    main(*sys.argv[1:])
