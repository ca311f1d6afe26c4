"""Readers of TRL's buckets and slime's directories. They work like those
systems' own readers, with the stock safetensors package, zlib, and the system's zstd and xxHash,
and do not use the library.

Each returns {version: {name: bytes}} for all versions in a directory. BASE, {name: bytes}, is the
engines' version 0.
"""
import ctypes
import json
import re
import struct

import numpy
import safetensors

from peer_writers import CHECKSUMS



def load(path):
    """{name: (dtype, shape, bytes)} and the metadata"""
    content = path.read_bytes()
    tensors = {name: (t["dtype"], tuple(t["shape"]), bytes(t["data"]))
               for name, t in safetensors.deserialize(content)}
    n_header = struct.unpack("<Q", content[:8])[0]
    return tensors, json.loads(content[8:8 + n_header]).get("__metadata__", {})


def numbers(root, pattern):
    """{number: path} of the entries of ROOT whose names match"""
    found = ((re.fullmatch(pattern, p.name), p) for p in root.iterdir()) if root.is_dir() else ()
    return {int(m[1]): p for m, p in found if m}


# ---- TRL ----

def trl_positions(index, encoding):
    dtype, _, data = index
    if encoding != "gap_delta":
        assert dtype == "I32"
        return numpy.frombuffer(data, "<i4").astype("i8")
    gaps = numpy.frombuffer(data, {"U16": "<u2", "U32": "<u4"}[dtype]).astype("i8")
    assert dtype == "U16" or gaps.max(initial=0) > 0xFFFF
    return numpy.cumsum(gaps + 1) - 1


def trl_apply(weights, tensors, metadata):
    encoding = metadata.get("encoding")
    index, values = (".idx", ".val") if encoding else (".indices", ".values")
    names = [name[:-len(index)] for name in tensors if name.endswith(index)]
    if not encoding:
        assert sorted(json.loads(metadata["changed_params"])) == sorted(names)
    assert len(tensors) == 2 * len(names)
    n_changed = n_elements = 0
    for name in names:
        dtype, shape, data = tensors[name + values]
        assert dtype == "BF16"
        at = trl_positions(tensors[name + index], encoding)
        assert (numpy.diff(at, prepend=-1) > 0).all() and shape == at.shape
        new = numpy.frombuffer(weights[name], "<u2").copy()
        new[at] = numpy.frombuffer(data, "<u2")
        weights[name] = new.tobytes()
        n_changed += at.size
        n_elements += new.size
    assert int(metadata["num_changed_params"]) == len(names)
    assert int(metadata["total_changed_elements"]) == n_changed
    assert int(metadata["total_elements"]) == n_elements
    assert metadata["sparsity"] == str(1 - n_changed / n_elements if n_elements else 1.0)


def read_trl(root, base=None):
    name = r"step_(\d{6,})\.safetensors"
    anchors, deltas = numbers(root / "anchors", name), numbers(root / "deltas", name)
    assert not anchors.keys() & deltas.keys()
    found, weights = {}, None
    for version in sorted(anchors | deltas):
        tensors, metadata = load(anchors.get(version) or deltas[version])
        assert metadata["format"] == "sparse_weight_patch" and metadata["version"] == "1"
        assert metadata["sparse"] == str(version in deltas)
        assert int(metadata["model_version"]) == version
        assert ("encoding" in metadata) != ("changed_params" in metadata)
        if version in anchors:
            assert all(t[0] == "BF16" for t in tensors.values())
            weights = {name: t[2] for name, t in tensors.items()}
        else:
            assert found and version == max(found) + 1, "a delta that follows nothing"
            weights = dict(weights)
            trl_apply(weights, tensors, metadata)
        found[version] = weights
    return found


# ---- packed tensors ----

def unzstd(frame):
    lib = ctypes.CDLL("libzstd.so.1")
    lib.ZSTD_getFrameContentSize.restype = ctypes.c_ulonglong
    lib.ZSTD_decompress.restype = lib.ZSTD_findFrameCompressedSize.restype = ctypes.c_size_t
    size = ctypes.c_size_t(len(frame))
    n = lib.ZSTD_getFrameContentSize(frame, size)
    assert n < 1 << 40, "the frame does not tell the size of its content"
    assert lib.ZSTD_findFrameCompressedSize(frame, size) == len(frame), "not one frame"
    room = ctypes.create_string_buffer(max(n, 1))
    assert lib.ZSTD_decompress(room, ctypes.c_size_t(n), frame, size) == n
    return room.raw[:n]


def unpack(old, frame, encoding):
    content = unzstd(frame)
    if encoding == "xor":
        return (numpy.frombuffer(old, "u1") ^ numpy.frombuffer(content, "u1")).tobytes()
    n = struct.unpack_from("<I", content)[0]
    at = numpy.frombuffer(content, "<u4", n, 4)
    new = numpy.frombuffer(old, "u1").copy()
    new[at] = numpy.frombuffer(content, "u1", n, 4 + 4 * n)
    assert len(content) == 4 + 5 * n
    return new.tobytes()


# ---- slime ----

def read_slime(root, base=None):
    found = {0: base} if base else {}
    for version, where in sorted(numbers(root, r"weight_v(\d{6,})").items()):
        index = json.loads((where / "model.safetensors.index.json").read_text())
        metadata, weight_map = index["metadata"], index["weight_map"]
        assert metadata["version"] == f"{version:06d}" == where.name[8:]
        files = sorted(set(weight_map.values()))
        assert files == [f"model-{i:05d}-of-{len(files):05d}.safetensors"
                         for i in range(len(files))]
        assert sorted(p.name for p in where.glob("*.safetensors")) == files
        encoding = metadata.get("delta_encoding")
        new = {}
        if encoding:
            assert int(metadata["base_version"]) == version - 1
            assert metadata["compression_format"] == "zstd"
            new = dict(found[version - 1])
        for file in files:
            tensors, sums = load(where / file)
            assert all(weight_map[name] == file for name in tensors)
            for name, (dtype, shape, data) in tensors.items():
                if not encoding:
                    new[name] = data
                    continue
                assert (dtype, shape) == ("U8", (len(data),))
                new[name] = unpack(new[name], data, encoding)
                assert sums[name] == CHECKSUMS[metadata["checksum_format"]](new[name])
        assert encoding or new.keys() == weight_map.keys()
        found[version] = new
    if base:
        del found[0]
    return found


READERS = {"trl": read_trl, "slime": read_slime}
