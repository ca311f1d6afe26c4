"""Companion files of versions that Python publishes."""
import json
import subprocess
import os

import numpy
import pytest

import deltawire

DELTAWIRE = os.environ.get("DELTAWIRE", "deltawire")


def inspect(url, *options):
    return json.loads(subprocess.check_output([DELTAWIRE, "inspect", url, "--json", *options]))


def names(url, *options):
    files = inspect(url, *options)["files"]
    return None if files is None else [file["name"] for file in files]


def read(url, name, *options):
    return subprocess.check_output([DELTAWIRE, "inspect", url, "--file", name, *options])


@pytest.fixture
def weights():
    return {"w": numpy.arange(64, dtype=numpy.float32)}


def test_mapping_and_directory(tmp_path, weights):
    url = str(tmp_path / "stream")
    (tmp_path / "vocab").write_bytes(b"words")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "notes.txt").write_text("none of the usual names")
    files = {"config.json": b'{"a": 1}', "vocab.txt": tmp_path / "vocab"}
    with deltawire.Publisher(url, weights, files=files) as publisher:
        assert names(url) == ["config.json", "vocab.txt"]
        assert read(url, "vocab.txt") == b"words"
        publisher.publish()
        publisher.wait()
        assert names(url, "--at", "1") == ["config.json", "vocab.txt"]
        publisher.publish(files=model)
        publisher.wait()
        assert names(url) == ["config.json"]
        assert read(url, "config.json") == b"{}"
        assert read(url, "config.json", "--at", "1") == b'{"a": 1}'
        publisher.publish(files={})
        publisher.wait()
        assert names(url) == []


def test_none_are_given(tmp_path, weights):
    url = str(tmp_path / "stream")
    with deltawire.Publisher(url, weights):
        assert names(url) is None


@pytest.mark.parametrize("files, fault", [
    ({"../config.json": b""}, "path"),
    ({"a\0b": b"x"}, "NUL"),
    ({"config.json": b""}, "config.json: .* not JSON"),
])
def test_bad_files(tmp_path, weights, files, fault):
    url = str(tmp_path / "stream")
    with pytest.raises(deltawire.Error, match=fault):
        deltawire.Publisher(url, weights, files=files)
    assert not (tmp_path / "stream").exists()
    with deltawire.Publisher(url, weights) as publisher:
        with pytest.raises(deltawire.Error, match=fault):
            publisher.publish(files=files)
        publisher.publish()
        assert publisher.wait().version == 1
    assert names(url) is None


def test_no_files(tmp_path, weights):
    url = str(tmp_path / "stream")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    bad = model / "tokenizer.json"
    bad.symlink_to("nowhere")
    with pytest.raises(deltawire.Error, match="tokenizer.json: .*leads nowhere") as raised:
        deltawire.Publisher(url, weights, files=model)
    assert "without" not in str(raised.value)
    bad.unlink()
    os.mkfifo(bad)
    with pytest.raises(deltawire.Invalid, match="not a regular file"):
        deltawire.Publisher(url, weights, files={"tokenizer.json": bad})
    assert not (tmp_path / "stream").exists()


def test_wrong_types(tmp_path, weights):
    url = str(tmp_path / "stream")
    for files in ({1: b""}, {"a": 1.5}, {"a": 0}, {"a": True}, {"a": None}):
        with pytest.raises(TypeError, match="files: "):
            deltawire.Publisher(url, weights, files=files)
    for files in (["a"], ("a",), 3.5, 0, {"a"}):
        with pytest.raises(TypeError, match="files: a directory, or a mapping"):
            deltawire.Publisher(url, weights, files=files)
    with pytest.raises(OSError):
        deltawire.Publisher(url, weights, files={"a": tmp_path / "nowhere"})
    with pytest.raises(deltawire.Error):
        deltawire.Publisher(url, weights, files=tmp_path / "nowhere")
