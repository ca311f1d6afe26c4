"""Memory in and out: buffers, DLPack, checkpoints."""
import array
import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest
import safetensors.numpy

import deltawire as dw


def bits(tensor):
    return bytes(memoryview(tensor).cast("B") if memoryview(tensor).nbytes else b"")


def test_buffers_of_all_kinds(tmp_path):
    path = tmp_path / "m.safetensors"
    dw.write_checkpoint(path, {
        "bytes": b"abc",
        "array": array.array("d", [1.5, -2]),
        "numpy": np.arange(6, dtype=np.int32).reshape(2, 3),
        "scalar": np.float32(3).reshape(()),
        "empty": np.empty((0, 4), np.float16),
        "bf16": (np.array([[0x3F80, 0x4000]], np.uint16), "BF16"),
        "fp8": (bytearray(4), "F8_E4M3", (2, 2)),
        "flat": (bytes(8), "BF16"),
        "four": (bytes(4), "F4", (2, 4)),
        "bool": np.array([True, False]),
        "c64": np.array([1 + 2j], np.complex64),
    }, metadata={"format": "pt"})
    with dw.Checkpoint(path) as found:
        assert {n: (t.dtype, t.shape) for n, t in found.items()} == {
            "array": ("F64", (2,)), "bf16": ("BF16", (1, 2)), "bool": ("BOOL", (2,)),
            "bytes": ("U8", (3,)), "c64": ("C64", (1,)), "empty": ("F16", (0, 4)),
            "flat": ("BF16", (4,)), "four": ("F4", (2, 4)), "fp8": ("F8_E4M3", (2, 2)),
            "numpy": ("I32", (2, 3)), "scalar": ("F32", ())}
        assert found.metadata("format") == "pt" and found.metadata("x") is None
        assert np.array_equal(np.asarray(found["numpy"]), [[0, 1, 2], [3, 4, 5]])
        assert memoryview(found["bf16"]).tolist() == [[0x3F80, 0x4000]]
        assert "x" not in found and found.get("x") is None and len(found) == 11
        with pytest.raises(KeyError):
            found["x"]
        with pytest.raises(TypeError):
            memoryview(found["bytes"])[0] = 1
    with pytest.raises(dw.Invalid):
        found["numpy"]


def test_what_is_refused():
    x = np.zeros((4, 4), np.float32)
    for bad, kind in [
        (x.T[1:], dw.Invalid),
        (x[:, ::2], dw.Invalid),
        (x.astype(">f4"), dw.Unsupported),
        ((x, "BF17"), dw.Invalid),
        ((x, "BF16"), dw.Invalid),
        ((x, "F32", (4, 5)), dw.Invalid),
        ((x, "F32", (-4,)), OverflowError),
        ((x,), TypeError),
        (5, TypeError),
        (np.zeros(2, "S3"), dw.Unsupported),
    ]:
        with pytest.raises(kind):
            dw.digest({"x": bad})
    with pytest.raises(TypeError):
        dw.digest([x])
    with pytest.raises(TypeError):
        dw.digest({1: x})
    with pytest.raises(ValueError):
        dw.digest({"a\0b": x})


def test_device_tensors_are_refused_by_name():
    class OnGpu:
        def __dlpack_device__(self):
            return (2, 0)

        def __dlpack__(self, **_):
            raise AssertionError("must not be asked")

    with pytest.raises(dw.Unsupported) as caught:
        dw.digest({"model.weight": OnGpu()})
    assert caught.value.where == "model.weight" and "CUDA" in caught.value.text
    assert caught.value.code == "unsupported"


def test_the_stock_library_agrees(tmp_path):
    rng = np.random.default_rng(1)
    model = {f"t{i}": rng.standard_normal((i, 5)).astype(t)
             for i, t in enumerate([np.float32, np.float64, np.float16, np.int64, np.uint8])}
    dw.write_checkpoint(tmp_path / "ours", model)
    safetensors.numpy.save_file(model, tmp_path / "theirs")
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    found = dw.Checkpoint(tmp_path / "theirs")
    assert dw.digest(found) == dw.digest(model)
    for name, array_ in safetensors.numpy.load_file(tmp_path / "ours").items():
        assert bits(found[name]) == array_.tobytes()


def test_views_outlive_the_checkpoint(tmp_path):
    dw.write_checkpoint(tmp_path / "m", {"x": np.arange(100000, dtype=np.int32)})
    with dw.Checkpoint(tmp_path / "m") as found:
        x = found["x"]
        y = np.from_dlpack(x)
        z = memoryview(x)
    del found, x
    gc.collect()
    assert y[99999] == 99999 and z[99998] == 99998
    assert not y.flags.writeable and z.readonly


def test_writable_checkpoints(tmp_path):
    dw.write_checkpoint(tmp_path / "m", {"x": np.zeros(4, np.float32)})
    with dw.Checkpoint(tmp_path / "m", writable=True) as found:
        np.asarray(found["x"])[2] = 7
        found.sync()
    assert np.asarray(dw.Checkpoint(tmp_path / "m")["x"]).tolist() == [0, 0, 7, 0]


def test_shards(tmp_path):
    model = {f"t{i}": np.full(1000, i, np.float32) for i in range(6)}
    dw.write_checkpoint(tmp_path / "m", model, max_shard_bytes=9000)
    with dw.Checkpoint(tmp_path / "m") as found:
        assert len(found.files) > 1 and dw.digest(found) == dw.digest(model)


class Exporter:
    """A DLPack exporter that notes when its memory is released."""

    def __init__(self, values, **options):
        self.values, self.options = values, options

    def __dlpack_device__(self):
        return self.values.__dlpack_device__()

    def __dlpack__(self, **options):
        if self.options.get("old") and "max_version" in options:
            raise TypeError("max_version")
        return self.values.__dlpack__(**options)


@pytest.mark.parametrize("old", [False, True])
def test_dlpack_memory_is_held_as_long_as_used(url, old):
    values = np.zeros(1000, np.float32)
    gone = weakref.ref(values)
    publisher = dw.Publisher(url, {"x": Exporter(values, old=old)})
    assert gone() is not None
    del values
    gc.collect()
    assert gone() is not None  # the publisher still reads it
    gone()[5] = 1
    publisher.wait(publisher.publish())
    publisher.close()
    gc.collect()
    assert gone() is None
    target = np.zeros(1000, np.float32)
    with dw.Follower(url, tensors={"x": target}) as follower:
        follower.sync()
    assert target[5] == 1


def test_a_buffer_in_use_cannot_be_resized(url):
    values = bytearray(64)
    with dw.Publisher(url, {"x": values}):
        with pytest.raises(BufferError):
            values.extend(b"more")
    values.extend(b"more")


def test_read_only_memory_is_not_written(url):
    with dw.Publisher(url, {"x": bytes(8)}):
        pass
    with pytest.raises(BufferError):
        dw.Follower(url, tensors={"x": bytes(8)})
    array_ = np.zeros(8, np.uint8)
    array_.setflags(write=False)
    with pytest.raises((BufferError, ValueError)):
        dw.Follower(url, tensors={"x": array_})


def test_cast_rounds_as_bfloat16_should():
    source = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, -0.0, 3e38, np.inf], np.float32)
    into = np.zeros(6, np.uint16)
    dw.cast({"x": source}, {"x": (into, "BF16")})
    assert [hex(v) for v in into] == ["0x3f80", "0x3f80", "0x3f82", "0x8000", "0x7f62",
                                      "0x7f80"]
    with pytest.raises(dw.Mismatch):
        dw.cast({"x": source}, {"y": (into, "BF16")})


def test_a_mapped_file_that_shrinks(tmp_path):
    """An error and not a signal."""
    script = f"""
import os, sys
import numpy as np
import deltawire
path = {str(tmp_path / 'model.safetensors')!r}
deltawire.write_checkpoint(path, {{"w": np.ones(100_000, np.float32)}})
model = deltawire.Checkpoint(path)
os.truncate(path, 5000)
try:
    deltawire.digest(model)
    sys.exit("no error")
except deltawire.IoError as error:
    assert error.where == path and "shrank" in error.text, error
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
