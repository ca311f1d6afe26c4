"""Companion files, read from a stream and installed by a follower."""
import hashlib
import os
import subprocess

import numpy as np
import pytest
from safetensors.numpy import save_file

import deltawire as dw

DELTAWIRE = os.environ["DELTAWIRE"]


@pytest.fixture
def url(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url = f"file://{tmp_path}/stream"
    for version in range(2):
        where = tmp_path / f"v{version}"
        where.mkdir()
        save_file({"w": np.arange(100, dtype=np.float32) + version}, where / "model.safetensors")
        (where / "config.json").write_text('{"version": %d}' % version)
        (where / "merges.txt").write_text("")
        subprocess.run([DELTAWIRE, "publish", url, where, "--quiet"], check=True,
                       stdout=subprocess.DEVNULL)
    return url


def test_a_stream_lists_and_reads_them(url):
    with dw.Stream(url) as stream:
        files = stream.files(1)
        assert list(files) == ["config.json", "merges.txt"]
        text = b'{"version": 1}'
        assert files["config.json"] == (len(text), hashlib.sha256(text).hexdigest(), 1)
        assert files["merges.txt"].n_bytes == 0 and files["merges.txt"].version == 0
        assert stream.files() == files
        assert stream.read_file(1, "config.json") == text
        assert stream.read_file(None, "config.json") == text
        assert stream.read_file(0, "config.json") == b'{"version": 0}'
        assert stream.read_file(0, "merges.txt") == b""
        with pytest.raises(dw.NotFound, match="vocab.json"):
            stream.read_file(1, "vocab.json")
        for call in (stream.version, stream.files, lambda v: stream.read_file(v, "config.json")):
            with pytest.raises(dw.NotFound, match="no version 2 yet: the newest is 1"):
                call(2)


def test_a_version_without_files(tmp_path):
    with dw.Publisher(f"file://{tmp_path}/plain", {"w": np.zeros(4, np.float32)}):
        pass
    with dw.Stream(f"file://{tmp_path}/plain") as stream:
        assert stream.files(0) is None


def test_a_follower_installs_them(url, tmp_path):
    into = tmp_path / "into"
    with dw.Follower(url, into=into, report=False) as follower:
        report = follower.sync(0)
        assert report.n_files_installed == 2 and report.n_files_kept == 0
        assert (into / "config.json").read_text() == '{"version": 0}'
        (into / "config.json").write_text("mine")
        report = follower.sync(1)
        assert report.n_files_installed == 0 and report.n_files_kept == 1
        assert follower.files_kept == [str(into / "config.json")]
        assert follower.totals.n_files_installed == 2
        assert (into / "config.json").read_text() == "mine"


def test_a_follower_leaves_them_out(url, tmp_path):
    into = tmp_path / "into"
    with dw.Follower(url, into=into, report=False, files=False) as follower:
        assert follower.sync().n_files_installed == 0
    assert not (into / "config.json").exists()
