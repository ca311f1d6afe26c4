"""botocore and src/store/sigv4.c sign the same requests alike.

DW_SIGV4_DRIVER names the program made of sigv4_driver.c; build/tests/sigv4_driver by
default.
"""
import datetime
import os
import pathlib
import subprocess
import urllib.parse

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import botocore.utils
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ROOT = pathlib.Path(__file__).resolve().parents[2]
DRIVER = os.environ.get("DW_SIGV4_DRIVER", str(ROOT / "build" / "tests" / "sigv4_driver"))


@pytest.fixture(scope="module")
def driver():
    with subprocess.Popen([DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          encoding="utf-8") as process:
        def ask(*fields):
            process.stdin.write("\t".join(fields) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            assert answer.endswith("\n"), "the driver ended"
            return answer[:-1].split("\t")
        yield ask
        process.stdin.close()
        assert process.wait() == 0


def signed_by_botocore(monkeypatch, method, url, headers, payload, region, when, keys):
    """x-amz-date and Authorization of the stock signer."""
    class Now(datetime.datetime):
        @classmethod
        def utcnow(cls):
            return when

        @classmethod
        def now(cls, tz=None):
            return when
    # older versions ask datetime, newer ones a function for the time
    monkeypatch.setattr(botocore.auth.datetime, "datetime", Now) \
        if hasattr(botocore.auth, "datetime") else None
    if hasattr(botocore.auth, "get_current_datetime"):
        monkeypatch.setattr(botocore.auth, "get_current_datetime",
                            lambda remove_tzinfo=True: when)

    class Signer(botocore.auth.S3SigV4Auth):
        def payload(self, request):
            return payload

        def _should_sha256_sign_payload(self, request):
            return True

    request = botocore.awsrequest.AWSRequest(method=method, url=url, headers=headers)
    Signer(botocore.credentials.Credentials(*keys), "s3", region).add_auth(request)
    return request.headers["X-Amz-Date"], request.headers["Authorization"]


text = st.text(st.characters(blacklist_categories=("Cs", "Cc")), max_size=20)
word = st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/+=",
               min_size=1, max_size=60)
header_value = st.text([chr(c) for c in range(0x20, 0x7f)], max_size=30)
header_name = st.sampled_from(["range", "content-type", "content-md5", "if-none-match",
                               "if-match", "x-amz-meta-a", "x-amz-copy-source",
                               "x-amz-acl", "x-amz-checksum-crc32c"])


@settings(max_examples=200, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(method=st.sampled_from(["GET", "PUT", "POST", "HEAD", "DELETE"]),
       host=st.sampled_from(["b.s3.amazonaws.com", "localhost:9000", "s3.hf.co"]),
       key=text, query=st.lists(st.tuples(text, text), max_size=6),
       headers=st.dictionaries(header_name, header_value),
       payload=st.sampled_from(["UNSIGNED-PAYLOAD", "0" * 64]),
       region=st.sampled_from(["us-east-1", "eu-central-1", "auto"]),
       when=st.datetimes(datetime.datetime(1971, 1, 1), datetime.datetime(2200, 1, 1)),
       access=word, secret=word, token=st.one_of(st.just(""), word))
def test_same_as_botocore(driver, monkeypatch, method, host, key, query, headers, payload,
                          region, when, access, secret, token):
    def encode(words, keep_slash=False):
        # the driver's own encoding must be botocore's
        encoded, = driver("encode/" if keep_slash else "encode", words)
        assert encoded == urllib.parse.quote(words, safe="/~" if keep_slash else "~")
        return encoded

    path = "/" + encode(key, keep_slash=True)
    queries = "&".join(f"{encode(k)}={encode(v)}" for k, v in query)
    url = f"http://{host}{path}" + (f"?{queries}" if queries else "")
    wall_ms = (when - datetime.datetime(1970, 1, 1)) // datetime.timedelta(milliseconds=1)
    fields = [field for pair in headers.items() for field in pair]
    ours = driver(method, host, path, queries, payload, region, str(wall_ms), access,
                  secret, token, *fields)
    stock = signed_by_botocore(monkeypatch, method, url, headers, payload, region, when,
                               (access, secret, token or None))
    assert tuple(ours) == stock
