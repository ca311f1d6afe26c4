"""Stock readers load weights that a follower keeps in huge pages: a header padded with
spaces, types from small to large, data that ends with the file.

DELTAWIRE names the command; build/deltawire by default.
"""
import json
import os
import pathlib
import struct
import subprocess

import numpy
import pytest
import safetensors
import safetensors.numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
DELTAWIRE = os.environ.get("DELTAWIRE", str(ROOT / "build" / "deltawire"))
PAGES = pathlib.Path("/proc/sys/vm/nr_hugepages")
PAGE_BYTES = 2 << 20


@pytest.fixture
def huge(tmp_path):
    """A hugetlbfs with some pages."""
    mounted = tmp_path / "huge"
    mounted.mkdir()
    before = PAGES.read_text() if PAGES.exists() else None
    try:
        PAGES.write_text(str(max(int(before or 0), 16)))
        subprocess.run(["mount", "-t", "hugetlbfs", "-o", f"pagesize={PAGE_BYTES}", "none",
                        mounted], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no huge pages here: root, and some memory in one piece, are needed")
    yield mounted
    subprocess.run(["umount", mounted], check=True)
    PAGES.write_text(before)


def arrays(step):
    """Sizes that are no multiple of 8, so that nothing is aligned by chance."""
    random = numpy.random.default_rng(step)
    return {"a.u8": random.integers(0, 255, 1001, dtype="uint8"),
            "b.f16": random.random((3, 333)).astype("float16"),
            "c.f32": random.random(777).astype("float32"),
            "d.f64": random.random(55),
            "e.none": numpy.zeros((0, 4), "float32")}


def deltawire(*arguments):
    subprocess.run([DELTAWIRE, *map(str, arguments)], check=True, capture_output=True)


def test_stock_loads_from_huge_pages(tmp_path, huge):
    url = f"file://{tmp_path}/stream"
    for step in range(3):
        safetensors.numpy.save_file(arrays(step), tmp_path / f"{step}.safetensors")
        deltawire("publish", url, tmp_path / f"{step}.safetensors", "--baseline",
                  tmp_path / "baseline")
    into = tmp_path / "into"
    for step in (0, 2):
        deltawire("pull", url, "--into", into, "--weights-dir", huge, "--at", step)
        wanted = arrays(step)
        weights = into / "model.safetensors"
        assert weights.resolve().parent == huge
        assert weights.stat().st_size == PAGE_BYTES
        loaded = safetensors.numpy.load_file(weights)
        assert loaded.keys() == wanted.keys()
        for name, array in wanted.items():
            assert loaded[name].dtype == array.dtype
            assert numpy.array_equal(loaded[name], array)
        with safetensors.safe_open(weights, framework="np") as file:
            assert file.metadata() == {"format": "pt"}
            assert numpy.array_equal(file.get_tensor("c.f32"), wanted["c.f32"])
        content = weights.read_bytes()
        (n_header,) = struct.unpack("<Q", content[:8])
        for name, entry in json.loads(content[8:8 + n_header]).items():
            if name != "__metadata__":
                offset = 8 + n_header + entry["data_offsets"][0]
                assert offset % wanted[name].dtype.itemsize == 0
