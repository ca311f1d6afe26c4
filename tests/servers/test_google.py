"""Publishers and followers over gs://, with tokens that live for seconds, from every source
that is supported; Google Cloud is a server of our own (google_cloud.py). Nothing but loopback is
contacted."""
import json
import os
import pathlib
import subprocess
import sys
import threading
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import google_cloud as googles
from test_credentials import DELTAWIRE, LIMIT, Place, wait_for

PROGRAMS = pathlib.Path(DELTAWIRE).parent / "tests" / "store"


@pytest.fixture
def cloud():
    with googles.Google() as server:
        yield server
        assert server.counts["unsigned"] == 0


@pytest.fixture
def place(tmp_path, cloud):
    place = Place(tmp_path, cloud)
    place.variables = {"STORAGE_EMULATOR_HOST": cloud.url, "GCE_METADATA_HOST": "127.0.0.1:9"}
    return place


def use_variable(place):
    place.variables["GOOGLE_OAUTH_ACCESS_TOKEN"] = place.cloud.issue()["access_token"]


def use_service_account(place):
    place.variables["GOOGLE_APPLICATION_CREDENTIALS"] = \
        str(place.write("key.json", place.cloud.key_file()))


def use_user(place):
    place.variables["GOOGLE_APPLICATION_CREDENTIALS"] = \
        str(place.write("user.json", place.cloud.user_file()))


def use_gcloud(place):
    (place.path / ".config/gcloud").mkdir(parents=True)
    place.write(".config/gcloud/application_default_credentials.json",
                place.cloud.user_file())


def use_gcloud_elsewhere(place):
    place.variables["CLOUDSDK_CONFIG"] = str(place.path)
    place.write("application_default_credentials.json", place.cloud.key_file())


def use_metadata(place):
    place.variables["GCE_METADATA_HOST"] = place.cloud.url.removeprefix("http://")


RENEWED = [use_service_account, use_user, use_gcloud, use_gcloud_elsewhere, use_metadata]
by_name = lambda use: use.__name__[4:]


def model_of(place, directory):
    return (place.path / directory / "model.safetensors").read_bytes()


@pytest.mark.parametrize("use", [use_variable, *RENEWED], ids=by_name)
def test_publish_and_pull(place, use):
    use(place)
    place.model()
    place.run("publish", "gs://bucket/s", "run/base")
    place.run("publish", "gs://bucket/s", "run/step_000001")
    place.run("pull", "gs://bucket/s", "--into", "copy")
    assert model_of(place, "copy") == model_of(place, "run/step_000001")
    place.run("pull", "gs://bucket/s", "--into", "first", "--at", "0")
    assert model_of(place, "first") == model_of(place, "run/base")
    place.run("verify", "gs://bucket/s")
    assert "step" in place.run("log", "gs://bucket/s", "--endpoint",
                               place.variables.pop("STORAGE_EMULATOR_HOST"))


def test_conformance(place):
    use_service_account(place)
    place.variables["DW_TEST_STORE"] = "gs://bucket"
    place.cloud.lifetime = 3
    done = subprocess.run([PROGRAMS / "conformance"], env=place.environment(), cwd=place.path,
                          capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not place.far.exists() and not place.cloud.objects


@pytest.mark.parametrize("use", [use_service_account, use_metadata], ids=by_name)
def test_follow_and_watch_outlive_their_tokens(place, use):
    """Both run over many lifetimes of their tokens; every version arrives."""
    place.cloud.lifetime = 2
    use(place)
    place.model(steps=4)
    (place.path / "saves").mkdir()
    running = [place.start("publish", "gs://bucket/s", "--watch", "saves")]
    try:
        for number in range(1, 5):
            issued = place.cloud.counts["issued"]
            wanted = model_of(place, f"run/step_{number:06}")
            (place.path / f"run/step_{number:06}").rename(place.path / f"saves/step_{number}")
            wait_for(lambda: any(key.startswith("s/commits/") for _, key in
                                 list(place.cloud.objects)), running[0])
            if number == 1:
                running.append(place.start("follow", "gs://bucket/s", "--into", "copy",
                                           "--interval", "0.2"))
            copy = place.path / "copy/model.safetensors"
            wait_for(lambda: copy.exists() and copy.read_bytes() == wanted, running[-1])
            wait_for(lambda: place.cloud.counts["issued"] >= issued + 2, running[0])
        # one renewal serves all requests of a process
        assert place.cloud.counts["issued"] < place.cloud.counts["storage"] / 2
    finally:
        for process in running:
            process.terminate()
        output = "".join(process.communicate(timeout=LIMIT)[0] for process in running)
    assert "denied" not in output and "expired" not in output
    assert not place.far.exists()


def test_expiry_inside_an_upload(place):
    """The token is revoked while an anchor is uploaded in parts; it ends with a new one."""
    use_service_account(place)
    place.model("16M")
    place.cloud.parts_pass.clear()
    publisher = place.start("publish", "gs://bucket/s", "run/base")
    wait_for(lambda: place.cloud.counts["held"] > 0, publisher)
    place.cloud.revoke()
    place.cloud.parts_pass.set()
    assert publisher.wait(timeout=LIMIT) == 0, publisher.stdout.read()
    assert place.cloud.counts["expired"] > 0 and place.cloud.counts["issued"] == 2
    place.run("pull", "gs://bucket/s", "--into", "copy")
    assert model_of(place, "copy") == model_of(place, "run/base")


def test_the_file_is_read_again(place):
    """A key of the account is replaced while a follower runs."""
    use_service_account(place)
    place.model()
    place.run("publish", "gs://bucket/s", "run/base")
    follower = place.start("follow", "gs://bucket/s", "--into", "copy", "--interval", "0.2")
    try:
        wait_for((place.path / "copy/model.safetensors").exists, follower)
        place.cloud.key_id = "another"
        place.write("key.json.new", place.cloud.key_file())
        (place.path / "key.json.new").rename(place.path / "key.json")
        place.cloud.revoke()
        place.run("publish", "gs://bucket/s", "run/step_000001")
        wanted = model_of(place, "run/step_000001")
        wait_for(lambda: model_of(place, "copy") == wanted, follower)
    finally:
        follower.terminate()
        follower.communicate(timeout=LIMIT)


def meet(cloud, word):
    """The first two creates of a key with WORD wait for each other at the server."""
    both, arrived = threading.Barrier(2), cloud.counts

    class Handler(cloud.RequestHandlerClass):
        def serve(self, bucket, key, create):
            if create and word in key:
                with cloud.lock:
                    arrived[key] += 1
                    wait = arrived[key] <= 2
                if wait:
                    both.wait(LIMIT)
            super().serve(bucket, key, create)

    cloud.RequestHandlerClass = Handler


def test_two_writers_have_one_winner(place):
    """x-goog-if-generation-match decides between creates that are there at once."""
    use_service_account(place)
    meet(place.cloud, "contested")
    writers = []
    for text in ("one", "two"):
        writers.append(subprocess.Popen([PROGRAMS / "store_tool", "create", "gs://bucket/s", "contested",
                                         place.write(text, text)],
                                        env=place.environment(), stderr=subprocess.PIPE))
    said = b"".join(writer.communicate(timeout=LIMIT)[1] for writer in writers)
    codes = [writer.returncode for writer in writers]
    assert sorted(codes)[0] == 0 and b"exists already" in said, said
    assert codes.count(0) == 1
    assert place.cloud.objects[("bucket", "s/contested")] == [b"one", b"two"][codes.index(0)]


def test_two_publishers_begin_a_stream(place):
    """Both create it at once: one does, and the other goes on in the same stream, before
    or after it, or takes it over."""
    use_service_account(place)
    place.model()
    meet(place.cloud, "s/stream.json")
    writers = []
    for name in ("one", "two"):
        (place.path / name).mkdir()
        place.variables["XDG_CACHE_HOME"] = str(place.path / name)
        writers.append(place.start("publish", "gs://bucket/s", "run/base"))
    said = [writer.communicate(timeout=LIMIT)[0] for writer in writers]
    assert place.cloud.counts["s/stream.json"] == 2
    codes = {writer.returncode for writer in writers}
    assert 0 in codes and codes <= {0, 8}, said
    place.run("verify", "gs://bucket/s")
    place.run("pull", "gs://bucket/s", "--into", "copy")
    assert model_of(place, "copy") == model_of(place, "run/base")


@pytest.mark.parametrize("use,service", [(use_service_account, "token"),
                                         (use_metadata, "metadata"),
                                         (use_user, "storage")],
                         ids=["token", "metadata", "storage"])
def test_a_service_that_is_busy(place, use, service):
    use(place)
    place.model()
    place.cloud.refuse[service] = 2
    if service == "metadata":  # only one that has answered is waited for
        place.run("log", "gs://bucket/s", fails=True)
        place.cloud.refuse[service] = 0
    place.run("publish", "gs://bucket/s", "run/base")


def change(place, **members):
    place.write("key.json", place.cloud.key_file(**members))


@pytest.mark.parametrize("fault,words", [
    (lambda place: change(place, private_key=place.cloud.pem[:99]), ("key.json", "RSA key")),
    (lambda place: change(place, private_key=subprocess.run(
        ["openssl", "genpkey", "-algorithm", "RSA", "-quiet"], capture_output=True,
        text=True, check=True).stdout), (googles.EMAIL, "Invalid JWT Signature", "400")),
    (lambda place: change(place, client_email="nobody@x"), ("nobody@x", "not found")),
    (lambda place: change(place, client_email=None), ("key.json", "no 'client_email'")),
    (lambda place: change(place, type="external_account"),
     ("key.json", "external_account", "print-access-token")),
    (lambda place: change(place, token_uri="http://127.0.0.1:9/t"), ("127.0.0.1:9",
                                                                    googles.EMAIL)),
    (lambda place: place.write("key.json", "{"), ("key.json", "Google credentials")),
    (lambda place: (place.path / "key.json").unlink(), ("key.json", "No such file")),
], ids=["no-key", "other-key", "account", "no-email", "type", "address", "json", "no-file"])
def test_errors_name_the_source(place, fault, words):
    use_service_account(place)
    fault(place)
    said = place.run("log", "gs://bucket/s", "--timeout", 2, fails=True)
    assert all(word in said for word in words), said
    assert "PRIVATE" not in said and len(said.strip().splitlines()) <= 2, said
    assert place.cloud.counts["storage"] == 0


def test_refused_refresh_token(place):
    use_gcloud(place)
    place.write(".config/gcloud/application_default_credentials.json",
                place.cloud.user_file(refresh_token="revoked-secret"))
    said = place.run("log", "gs://bucket/s", fails=True)
    assert "expired or revoked" in said and "revoked-secret" not in said
    assert "application_default_credentials.json" in said


def test_wrong_token(place):
    place.variables["GOOGLE_OAUTH_ACCESS_TOKEN"] = "ya29.wrong-secret"
    said = place.run("log", "gs://bucket/s", fails=True)
    assert "GOOGLE_OAUTH_ACCESS_TOKEN" in said and "expired or is wrong" in said
    assert "wrong-secret" not in said and place.cloud.counts["storage"] <= 3


def test_account_without_rights(place):
    use_service_account(place)
    said = place.run("log", "gs://forbidden/s", fails=True)
    assert googles.EMAIL in said and "may not read" in said and "role" in said


def test_nothing_is_sent_without_credentials(place):
    said = place.run("log", "gs://bucket/s", fails=True)
    assert "no Google credentials were found" in said and "http://127.0.0.1:9: " in said
    assert "--anonymous" in said and place.cloud.counts["storage"] == 0


def test_instance_without_account(place):
    use_metadata(place)
    place.cloud.has_account = False
    said = place.run("log", "gs://bucket/s", fails=True)
    assert "metadata server" in said and "404" in said


def test_another_cloud_on_the_metadata_address(place):
    """There the answer has no Metadata-Flavor: no credentials, and nobody waits."""
    use_metadata(place)
    place.cloud.refuse["metadata"] = 99
    said = place.run("log", "gs://bucket/s", fails=True)
    assert "no Google credentials were found" in said
    assert place.cloud.counts["metadata"] == 1


def test_link_local_addresses_are_noticed(place):
    del place.variables["GCE_METADATA_HOST"]
    subprocess.run([DELTAWIRE, "log", "gs://bucket/s"], env=place.environment(),
                   capture_output=True, timeout=LIMIT)
    assert place.far.read_text().split() == ["169.254.169.254"]


def test_check(place):
    use_service_account(place)
    found = json.loads(place.run("check", "gs://bucket/s", "--json"))
    assert googles.EMAIL in found["keys"]["source"] and found["keys"]["expires"]
    assert found["keys"]["place"] == place.cloud.url and found["server"] == place.cloud.url
    assert not place.cloud.objects


@pytest.mark.parametrize("url", ["gs://", "gs:///s", "gs://b u/s", "gs://bucket/a//b"])
def test_wrong_urls(place, url):
    said = place.run("log", url, fails=True)
    assert "cannot be" in said and "credentials" not in said


def test_anonymous(place):
    use_service_account(place)
    place.model()
    place.run("publish", "gs://public/s", "run/base")
    del place.variables["GOOGLE_APPLICATION_CREDENTIALS"]
    place.run("pull", "gs://public/s", "--into", "copy", "--anonymous")
    assert model_of(place, "copy") == model_of(place, "run/base")
    said = place.run("log", "gs://bucket/s", "--anonymous", fails=True)
    assert "anonymous" in said
    assert place.cloud.counts.pop("unsigned") > 0
