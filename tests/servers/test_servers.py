"""The scripts that start servers keep their contract."""
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

HERE = pathlib.Path(__file__).resolve().parent
SCRIPTS = [HERE / "radosgw.sh", HERE / "swift.sh"]


def call(script, verb, where, **env):
    done = subprocess.run([script, verb, where], env=os.environ | env, text=True,
                          stderr=subprocess.PIPE, check=False)
    if done.returncode == 77:
        pytest.skip(done.stderr)
    return done


def processes_of(where):
    mark = f"DW_SERVER_DIR={where}".encode()
    found = []
    for environ in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark in environ.read_bytes().split(b"\0"):
                found.append(int(environ.parent.name))
        except OSError:
            pass
    return found


def request(env, method, path, body=None, who=""):
    """The status of a signed request."""
    keys = {name: env[f"DW_TEST_S3_{who}{name.removeprefix('AWS_')}" if who else name]
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    url = f"{env['DW_TEST_S3_ENDPOINT']}/{env['DW_TEST_S3_BUCKET']}{path}"
    done = subprocess.run(
        [sys.executable, HERE / "s3_request.py", method, url] + ([body] if body else []),
        env=os.environ | keys, capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else int(done.stderr.split(b": ")[1][:3])


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: s.stem)
def test_two_at_once(script, tmp_path):
    (tmp_path / "body").write_bytes(b"first")
    starts = [subprocess.Popen([script, "start", tmp_path / name],
                               stderr=subprocess.PIPE, text=True) for name in "ab"]
    try:
        for start in starts:
            err = start.communicate()[1]
            if start.returncode == 77:
                pytest.skip(err)
            assert start.returncode == 0, err
        one, two = (dict(line.removeprefix("export ").split("=", 1) for line in
                         (tmp_path / name / "env").read_text().splitlines())
                    for name in "ab")
        assert request(one, "PUT", "/key", tmp_path / "body") == b""
        assert request(one, "GET", "/key") == b"first"
        assert request(two, "GET", "/key") == 404
        assert request(one, "GET", "/key", who="DENIED_") == 403
        assert call(script, "start", tmp_path / "a").returncode == 1, "it runs already"
        assert request(one, "GET", "/key") == b"first"
    finally:
        for name in "ab":
            assert call(script, "stop", tmp_path / name).returncode == 0
    for name in "ab":
        assert not processes_of(tmp_path / name)
        assert [p.name for p in (tmp_path / name).iterdir() if p.name != "ceph.conf"] \
            == ["log"]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: s.stem)
def test_a_start_without_time_says_so_and_leaves_nothing(script, tmp_path):
    done = call(script, "start", tmp_path, SERVER_TIMEOUT="1")
    assert done.returncode == 1
    assert "not up after 1 s" in done.stderr or "failed: " in done.stderr
    assert not processes_of(tmp_path) and not (tmp_path / "env").exists()
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: s.stem)
def test_stop_after_a_start_was_killed(script, tmp_path):
    start = subprocess.Popen([script, "start", tmp_path], stderr=subprocess.PIPE, text=True)
    try:
        while start.poll() is None and not processes_of(tmp_path):
            time.sleep(0.01)
        if start.poll() == 77:
            pytest.skip(start.stderr.read())
        start.send_signal(signal.SIGKILL)
        start.communicate()
    finally:
        assert call(script, "stop", tmp_path).returncode == 0
    assert not processes_of(tmp_path) and not (tmp_path / "data").exists()
    assert call(script, "stop", tmp_path / "never").returncode == 0
