"""Publishers and followers on keys that live for seconds, from every source that is
supported, over a cloud of our own (cloud.py). Nothing but loopback is contacted."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import cloud as clouds

DELTAWIRE = os.environ["DELTAWIRE"]
PRELOAD = pathlib.Path(DELTAWIRE).parent / "tests" / "libloopback_only.so"
LIMIT = 300


@pytest.fixture
def cloud():
    with clouds.Cloud() as server:
        yield server
        assert server.counts["unsigned"] == 0


@pytest.fixture
def place(tmp_path, cloud):
    """Runs the command with no settings but those given; all it connects to is checked."""
    return Place(tmp_path, cloud)


class Place:
    def __init__(self, path, cloud):
        self.path, self.cloud, self.far = path, cloud, path / "far"
        (path / ".aws").mkdir()
        self.variables = {"AWS_ENDPOINT_URL_S3": cloud.url,
                          "AWS_ENDPOINT_URL_STS": cloud.url + "/sts",
                          "AWS_EC2_METADATA_DISABLED": "true"}

    def environment(self):
        kept = {name: value for name, value in os.environ.items()
                if not name.startswith(("AWS_", "HF_", "GOOGLE_", "GCE_",
                                         "CLOUDSDK_", "STORAGE_"))
                and not name.lower().endswith("_proxy")}
        return {**kept, "HOME": str(self.path), "LD_PRELOAD": str(PRELOAD),
                "LOOPBACK_LOG": str(self.far), "http_proxy": "http://127.0.0.1:9",
                "no_proxy": "127.0.0.1", **self.variables}

    def run(self, *arguments, fails=False):
        done = subprocess.run([DELTAWIRE, *map(str, arguments)], env=self.environment(),
                              cwd=self.path, capture_output=True, text=True, timeout=LIMIT)
        assert not self.far.exists(), self.far.read_text()
        assert (done.returncode != 0) == fails, done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr if fails else done.stdout

    def start(self, *arguments):
        return subprocess.Popen([DELTAWIRE, *map(str, arguments)], env=self.environment(),
                                cwd=self.path, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)

    def write(self, name, text):
        (self.path / name).write_text(text)
        return self.path / name

    def model(self, params="200K", steps=2):
        self.run("synth", "-o", "run", "--params", params, "--steps", steps,
                 "--write", "checkpoints", "--quiet")


def use_environment(place):
    place.variables.update(AWS_ACCESS_KEY_ID="AKIDLONGLIVED", AWS_SECRET_ACCESS_KEY="secret")


def use_web_identity(place):
    place.variables.update(AWS_ROLE_ARN=clouds.ROLE,
                           AWS_WEB_IDENTITY_TOKEN_FILE=str(place.write("token",
                                                                       clouds.TOKEN + "\n")))


def use_container(place):
    token = place.write("container-token", clouds.CONTAINER_TOKEN)
    place.variables.update(AWS_CONTAINER_CREDENTIALS_FULL_URI=place.cloud.url + "/container",
                           AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE=str(token))


def use_instance(place):
    place.variables.update(AWS_EC2_METADATA_SERVICE_ENDPOINT=place.cloud.url)
    del place.variables["AWS_EC2_METADATA_DISABLED"]


def use_role_of_profile(place):
    place.variables["AWS_PROFILE"] = "trainer"
    place.write(".aws/config", f"[profile trainer]\nrole_arn = {clouds.ROLE}\n"
                               "source_profile = base\n")
    place.write(".aws/credentials", "[base]\naws_access_key_id = AKIDLONGLIVED\n"
                                    "aws_secret_access_key = secret\n")


def use_role_of_container(place):
    use_container(place)
    place.write(".aws/config", f"[default]\nrole_arn = {clouds.ROLE}\n"
                               "credential_source = EcsContainer\n")


def use_web_identity_of_profile(place):
    token = place.write("token", clouds.TOKEN)
    place.write(".aws/config", f"[default]\nrole_arn = {clouds.ROLE}\n"
                               f"web_identity_token_file = {token}\n")


def use_process(place):
    ask = place.write("ask.py", "import json, urllib.request as r\n"
                      f"q = r.Request('{place.cloud.url}/container', headers={{'Authorization':"
                      f" '{clouds.CONTAINER_TOKEN}'}})\n"
                      "k = json.load(r.urlopen(q)); k['SessionToken'] = k.pop('Token')\n"
                      "print(json.dumps({'Version': 1, **k}))\n")
    place.write(".aws/config", "[default]\ncredential_process = env -u http_proxy "
                               f"{sys.executable} {ask}\n")


RENEWED = [use_web_identity, use_container, use_instance, use_role_of_profile,
           use_role_of_container, use_web_identity_of_profile, use_process]
by_name = lambda use: use.__name__[4:]


@pytest.mark.parametrize("use", [use_environment, *RENEWED], ids=by_name)
def test_publish_and_pull(place, use):
    use(place)
    place.model()
    place.run("publish", "s3://bucket/s", "run/base")
    place.run("pull", "s3://bucket/s", "--into", "copy")
    assert (place.path / "copy/model.safetensors").read_bytes() == \
        (place.path / "run/base/model.safetensors").read_bytes()


@pytest.mark.parametrize("use", [use_web_identity, use_container, use_instance], ids=by_name)
def test_follow_outlives_its_keys(place, use):
    """A follower runs over many lifetimes of its keys, and gets every version."""
    place.cloud.lifetime = 1.5
    use(place)
    place.model()
    place.run("publish", "s3://bucket/s", "run/base")
    follower = place.start("follow", "s3://bucket/s", "--into", "copy", "--interval", "0.2")
    try:
        before = place.cloud.counts["issued"]
        wait_for(lambda: place.cloud.counts["issued"] >= before + 5, follower)
        place.run("publish", "s3://bucket/s", "run/step_000001")
        wanted = (place.path / "run/step_000001/model.safetensors").read_bytes()
        wait_for(lambda: (place.path / "copy/model.safetensors").exists() and
                 (place.path / "copy/model.safetensors").read_bytes() == wanted, follower)
        # one renewal serves all of its requests
        assert place.cloud.counts["issued"] < place.cloud.counts["s3"]
    finally:
        follower.terminate()
        output = follower.communicate(timeout=LIMIT)[0]
    assert "denied" not in output and "expired" not in output
    assert not place.far.exists()


def wait_for(condition, process):
    limit = time.monotonic() + LIMIT
    while not condition():
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < limit
        time.sleep(0.05)


def test_follow_reads_the_file_again(place):
    """Keys in a file carry no expiry: after the server refused them, the file is read."""
    def put_keys():
        keys = place.cloud.issue()
        place.write(".aws/credentials.new", "[default]\n"
                    f"aws_access_key_id = {keys['AccessKeyId']}\n"
                    f"aws_secret_access_key = {keys['SecretAccessKey']}\n"
                    f"aws_session_token = {keys['Token']}\n")
        (place.path / ".aws/credentials.new").rename(place.path / ".aws/credentials")
        return keys["AccessKeyId"]

    first = put_keys()
    place.model()
    place.run("publish", "s3://bucket/s", "run/base")
    follower = place.start("follow", "s3://bucket/s", "--into", "copy", "--interval", "0.2")
    try:
        wait_for((place.path / "copy/model.safetensors").exists, follower)
        secret, token, _ = place.cloud.keys[first]
        place.cloud.keys[first] = (secret, token, time.time() - 1)
        wait_for(lambda: place.cloud.counts["expired"] >= 3, follower)
        put_keys()
        place.run("publish", "s3://bucket/s", "run/step_000001")
        wanted = (place.path / "run/step_000001/model.safetensors").read_bytes()
        wait_for(lambda: (place.path / "copy/model.safetensors").read_bytes() == wanted,
                 follower)
    finally:
        follower.terminate()
        follower.communicate(timeout=LIMIT)


def test_expiry_inside_an_upload(place):
    """The keys are revoked while an anchor is uploaded in parts; it ends with new ones."""
    use_web_identity(place)
    place.model("16M")
    place.cloud.parts_pass.clear()
    publisher = place.start("publish", "s3://bucket/s", "run/base")
    wait_for(lambda: place.cloud.counts["held"] > 0, publisher)
    place.cloud.revoke()
    place.cloud.parts_pass.set()
    assert publisher.wait(timeout=LIMIT) == 0, publisher.stdout.read()
    assert place.cloud.counts["expired"] > 0 and place.cloud.counts["issued"] >= 2
    place.run("pull", "s3://bucket/s", "--into", "copy")
    assert (place.path / "copy/model.safetensors").read_bytes() == \
        (place.path / "run/base/model.safetensors").read_bytes()


def test_watch_outlives_its_keys(place):
    """A publisher that keeps running publishes each version on other keys."""
    place.cloud.lifetime = 1.5
    use_web_identity(place)
    place.model(steps=5)
    saves = place.path / "saves"
    saves.mkdir()
    versions = lambda: sum("/commits/" in key for _, key in list(place.cloud.objects))
    publisher = place.start("publish", "s3://bucket/s", "--watch", "saves")
    try:
        for number in range(1, 5):
            issued = place.cloud.counts["issued"]
            (place.path / f"run/step_{number:06}").rename(saves / f"step_{number}")
            wait_for(lambda: versions() == number, publisher)
            assert place.cloud.counts["issued"] > issued
            wait_for(lambda: not place.cloud.has_live_keys(), publisher)
    finally:
        publisher.terminate()
        output = publisher.communicate(timeout=LIMIT)[0]
    assert "denied" not in output and "expired" not in output
    place.cloud.lifetime = 3600
    place.run("pull", "s3://bucket/s", "--into", "copy")
    assert (place.path / "copy/model.safetensors").read_bytes() == \
        (saves / "step_4/model.safetensors").read_bytes()


@pytest.mark.parametrize("host", clouds.TIGRIS)
def test_tigris_checks_conditions_everywhere(place, host):
    use_environment(place)
    place.variables.update(AWS_ENDPOINT_URL_S3="http://" + host, http_proxy=place.cloud.url)
    place.model()
    place.run("publish", "s3://bucket/s", "run/base")
    place.run("publish", "s3://bucket/s", "run/step_000001")
    assert place.cloud.counts["s3"] > 0


@pytest.mark.parametrize("use,service", [(use_web_identity, "sts"),
                                         (use_container, "container"),
                                         (use_instance, "instance")],
                         ids=["sts", "container", "instance"])
def test_a_service_that_is_busy(place, use, service):
    use(place)
    place.cloud.refuse[service] = 2
    place.model()
    place.run("publish", "s3://bucket/s", "run/base")


@pytest.mark.parametrize("fault,words", [
    (lambda place: place.write("token", "another"), ("web identity", "InvalidIdentityToken",
                                                     "/sts/")),
    (lambda place: (place.path / "token").unlink(), ("web identity", "token")),
    (lambda place: place.variables.update(AWS_ROLE_ARN="arn:other"), ("arn:other",
                                                                      "AccessDenied")),
    (lambda place: place.variables.pop("AWS_ROLE_ARN"), ("AWS_ROLE_ARN",)),
], ids=["refused", "no-file", "other-role", "no-role"])
def test_errors_name_the_source(place, fault, words):
    use_web_identity(place)
    fault(place)
    said = place.run("log", "s3://bucket/s", "--timeout", 2, fails=True)
    assert all(word in said for word in words), said
    assert clouds.TOKEN not in said and len(said.strip().splitlines()) <= 2
    assert place.cloud.counts["s3"] == 0


def test_container_token_is_needed(place):
    use_container(place)
    place.write("container-token", "wrong")
    said = place.run("log", "s3://bucket/s", fails=True)
    assert "container endpoint" in said and "401" in said and "/container" not in said


def test_nothing_is_sent_without_credentials(place):
    said = place.run("log", "s3://bucket/s", fails=True)
    assert "no credentials were found" in said and "--anonymous" in said
    assert place.cloud.counts["s3"] == 0


def test_instance_metadata_is_not_there(place):
    place.variables["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = "http://127.0.0.1:9"
    del place.variables["AWS_EC2_METADATA_DISABLED"]
    said = place.run("log", "s3://bucket/s", fails=True)
    assert "http://127.0.0.1:9: " in said and "no credentials were found" in said


def test_link_local_addresses_are_noticed(place):
    """The proof that the proof works: the default address is refused and logged."""
    del place.variables["AWS_EC2_METADATA_DISABLED"]
    subprocess.run([DELTAWIRE, "log", "s3://bucket/s"], env=place.environment(),
                   capture_output=True, timeout=LIMIT)
    assert place.far.read_text().split() == ["169.254.169.254"]


def test_anonymous(place):
    said = place.run("log", "s3://bucket/s", "--anonymous", fails=True)
    assert "anonymous" in said
    assert place.cloud.counts.pop("unsigned") > 0


# ---- deltawire check ----

def check(place, *options, fails=False):
    if fails:
        done = subprocess.run([DELTAWIRE, "check", "s3://bucket/s", "--json", *options],
                              env=place.environment(), capture_output=True, text=True,
                              timeout=LIMIT)
        assert done.returncode == 10, done.stderr
        return json.loads(done.stdout)
    found = json.loads(place.run("check", "s3://bucket/s", "--json", *options))
    assert not any("/probe/" in key for _, key in place.cloud.objects)
    return found


@pytest.mark.parametrize("use,source,expires", [
    (use_environment, "the environment", False),
    (use_web_identity, f"web identity, role {clouds.ROLE}", True),
    (use_container, "container endpoint http://127.0.0.1:", True),
    (use_instance, "node-role", True),
    (use_role_of_profile, f"role {clouds.ROLE}, by the AWS profile 'base'", True),
    (use_process, "credential_process of profile 'default'", True),
], ids=lambda value: by_name(value) if callable(value) else "")
def test_check_says_which_keys_are_used(place, use, source, expires):
    use(place)
    found = check(place)
    assert source in found["keys"]["source"]
    assert bool(found["keys"]["expires"]) == expires
    if use == use_web_identity:
        assert found["keys"]["place"] == f"{place.path / 'token'}, at {place.cloud.url}/sts/"
    assert place.cloud.url in found["server"]
    assert found["create_once"]["ok"] and found["delete"]["ok"]
    assert "begin a new stream" in found["publisher"]["text"]
    said = place.run("check", "s3://bucket/s")
    assert source in said and ("  valid      until 20" in said) == expires
    for secret, token, _ in place.cloud.keys.values():
        assert secret not in said + str(found) and (not token or token not in said + str(found))


def test_check_names_the_file_of_a_profile(place):
    path = place.write(".aws/credentials", "[default]\naws_access_key_id = AKIDLONGLIVED\n"
                       "aws_secret_access_key = secret\n")
    assert check(place)["keys"] == {"source": "the AWS profile 'default'", "place": str(path),
                                    "key_end": "IVED", "expires": None}


def test_check_of_a_source_that_fails(place):
    use_web_identity(place)
    place.write("token", "another")
    found = check(place, fails=True)
    assert "web identity" in found["list"]["error"]["text"]
    assert "InvalidIdentityToken" in found["list"]["error"]["text"]
    assert not found["publisher"]["ok"] and not found["follower"]["ok"]
    assert place.cloud.counts["s3"] == 0


def test_check_of_the_clock(place):
    use_environment(place)
    assert abs(check(place)["clock_offset_seconds"]) < 1800
    place.cloud.ahead = 7200
    assert abs(check(place)["clock_offset_seconds"] - 7200) < 1800
    assert "ahead of this machine" in place.run("check", "s3://bucket/s")


def test_check_as_a_follower(place):
    use_environment(place)
    place.model()
    place.run("publish", "s3://bucket/s", "run/base")
    place.cloud.denied = {"PUT", "DELETE"}
    found = check(place)
    assert found["write"]["error"]["code"] == "denied" and found["range"]["ok"]
    assert found["download"]["bytes"] > 0 and found["head"] == 0
    assert not found["publisher"]["ok"] and "may not write" in found["publisher"]["text"]
    assert found["follower"]["ok"] and "follow --no-report" in found["follower"]["text"]
    place.cloud.denied.add("GET")
    assert "may not read" in check(place, fails=True)["follower"]["text"]


def test_check_without_the_right_to_delete(place):
    use_environment(place)
    place.cloud.denied = {"DELETE"}
    found = json.loads(place.run("check", "s3://bucket/s", "--json"))
    assert [key for _, key in place.cloud.objects] == ["s/" + found["left_over"]]
    assert "delete below probe/" in found["publisher"]["text"] and found["follower"]["ok"]


def test_check_without_conditions(place):
    use_environment(place)
    place.cloud.conditional = False
    found = check(place)
    assert found["create_once"]["error"]["code"] == "unsupported"
    assert found["publisher"]["ok"] and "--single-writer" in found["publisher"]["text"]


def test_check_anonymous(place):
    found = check(place, "--anonymous", fails=True)
    assert "not signed" in found["keys"]["source"]
    assert place.cloud.counts.pop("unsigned") > 0


def test_check_cleans_up_when_it_is_interrupted(place):
    use_environment(place)
    place.cloud.parts_pass.clear()
    process = place.start("check", "s3://bucket/s")
    wait_for(lambda: place.cloud.counts["held"] > 0, process)
    assert any("/probe/" in key for _, key in place.cloud.objects)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=LIMIT) == 130
    process.communicate()
    assert not place.cloud.objects and not place.cloud.uploads
