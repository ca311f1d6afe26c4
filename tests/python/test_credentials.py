"""Store(credentials=...): keys from a function or a botocore session, renewed in time."""
import datetime
import os
import pathlib
import sys

import pytest

import deltawire

sys.path.insert(0, str(pathlib.Path(os.environ["DW_TEST_DIR"]) / "servers"))
import cloud as clouds
import google_cloud


@pytest.fixture
def cloud():
    with clouds.Cloud() as server:
        yield server
        assert server.counts["unsigned"] == 0


class Vault:
    def __init__(self, cloud, expires=True):
        self.cloud, self.expires, self.n_calls = cloud, expires, 0

    def __call__(self):
        self.n_calls += 1
        keys = self.cloud.issue()
        when = datetime.datetime.fromisoformat(keys["Expiration"].replace("Z", "+00:00"))
        return (keys["AccessKeyId"], keys["SecretAccessKey"], keys["Token"],
                when if self.expires else None)


@pytest.mark.parametrize("expires", [True, False])
def test_function(cloud, expires):
    cloud.lifetime = 1
    vault = Vault(cloud, expires)
    with deltawire.Store("s3://bucket/s", endpoint=cloud.url, credentials=vault) as store:
        assert vault.n_calls == 0
        n = 0
        while vault.n_calls < 4:
            store.put(f"k{n}", b"text")
            assert store.get(f"k{n}") == b"text"
            n += 1
    assert vault.n_calls < cloud.counts["s3"]


def test_botocore_session(cloud):
    session = pytest.importorskip("botocore.session").Session()
    session.set_credentials("AKIDLONGLIVED", "secret")
    with deltawire.Store("s3://bucket/s", endpoint=cloud.url, credentials=session) as store:
        store.put("k", b"text")
        assert store.get("k") == b"text"


@pytest.mark.parametrize("credentials,word", [
    (lambda: "no tuple", "tuple"), (lambda: ("a", 5), "no access key"),
    (lambda: (5, "a"), "str"), (lambda: 1 / 0, "division"),
    (lambda: ("a", "b", None, "soon"), "credentials"), (lambda: ("a b", "c"), "space")])
def test_bad_credentials(cloud, credentials, word):
    with deltawire.Store("s3://bucket/s", endpoint=cloud.url,
                         credentials=credentials) as store:
        with pytest.raises(deltawire.Error, match=word):
            store.get("k")
    assert cloud.counts["s3"] == 0


@pytest.mark.parametrize("expires", [True, False])
def test_access_token(expires):
    """Of Google: a function that gives (token, expiry)."""
    with google_cloud.Google(lifetime=1) as google:
        def ask():
            given = google.issue()
            when = datetime.datetime.now(datetime.timezone.utc) + \
                datetime.timedelta(seconds=given["expires_in"])
            return given["access_token"], when if expires else None

        with deltawire.Store("gs://bucket/s", endpoint=google.url, credentials=ask) as store:
            n = 0
            while google.counts["issued"] < 4:
                store.put(f"k{n}", b"text", create=True)
                assert store.get(f"k{n}") == b"text"
                n += 1
        assert google.counts["issued"] < google.counts["storage"]
        keys = deltawire.Store("gs://bucket/s", endpoint=google.url,
                               credentials=lambda: ("key", "secret"))
        with keys, pytest.raises(deltawire.Error, match="access token"):
            keys.get("k0")


def test_not_callable():
    with pytest.raises(TypeError, match="botocore"):
        deltawire.Store("s3://bucket/s", credentials=5)
