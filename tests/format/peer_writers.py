"""Independent writers of TRL's buckets and slime's directories, with the stock
safetensors package, zlib, and the system's zstd and xxHash.

A model is a dict of name -> decoder.Tensor. Each writer takes a directory and puts one
version into it, as the trainer of that system does.
"""
import ctypes
import json
import struct
import zlib

import numpy
import safetensors

from decoder import Tensor
from make_models import unit_type

STOCK_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64",
               "I32": "int32", "U16": "uint16", "U32": "uint32", "U8": "uint8",
               "F8_E4M3": "float8_e4m3fn"}
LAYOUTS = {"raw-v1": (".indices", ".values", None), "raw": (".idx", ".val", "raw"),
           "gap": (".idx", ".val", "gap_delta")}


def stock_save(tensors, metadata):
    """{name: Tensor} -> the bytes of a file, by the stock package"""
    keep = {name: ctypes.create_string_buffer(t.data, max(len(t.data), 1))
            for name, t in tensors.items()}
    if hasattr(safetensors, "TensorSpec"):
        specs = {name: safetensors.TensorSpec(
            dtype=STOCK_NAMES[t.dtype], shape=list(t.shape),
            data_ptr=ctypes.addressof(keep[name]), data_len=len(t.data))
            for name, t in tensors.items()}
    else:
        specs = {name: {"dtype": STOCK_NAMES[t.dtype], "shape": list(t.shape), "data": t.data}
                 for name, t in tensors.items()}
    return bytes(safetensors.serialize(specs, metadata))


def trl_delta(base, new, layout, model_version):
    """A delta as TRL's trainer makes it."""
    index_suffix, values_suffix, encoding = LAYOUTS[layout]
    parts, changed, n_changed, n_elems = {}, [], 0, 0
    for name in sorted(base):
        kind = unit_type(base[name].dtype)
        old, next_ = (numpy.frombuffer(m[name].data, kind) for m in (base, new))
        positions = numpy.flatnonzero(old != next_)
        if positions.size == 0:
            continue
        changed.append(name)
        n_changed += positions.size
        n_elems += old.size
        if encoding == "gap_delta":
            gaps = numpy.diff(positions, prepend=-1) - 1
            indices = gaps.astype("<u2" if gaps.max() <= 0xFFFF else "<u4")
            dtype = "U16" if indices.itemsize == 2 else "U32"
        else:
            indices, dtype = positions.astype("<i4"), "I32"
        shape = (positions.size,)
        parts[name + index_suffix] = Tensor(dtype, shape, indices.tobytes())
        parts[name + values_suffix] = Tensor(base[name].dtype, shape, next_[positions].tobytes())
    metadata = {
        "format": "sparse_weight_patch", "version": "1", "sparse": "True",
        "model_version": str(model_version), "num_changed_params": str(len(changed)),
        "total_changed_elements": str(n_changed), "total_elements": str(n_elems),
        "sparsity": str(1 - n_changed / n_elems if n_elems else 1.0),
        **({"encoding": encoding} if encoding else {"changed_params": json.dumps(changed)})}
    return stock_save(parts, metadata)


# ---- TRL ----

def trl_anchor(model, version, encoding=None, only=None):
    """Whole weights; ONLY leaves out all other names, as periodic anchors of v2 may"""
    names = [name for name in model if only is None or name in only]
    n_elems = sum(len(model[n].data) // numpy.dtype(unit_type(model[n].dtype)).itemsize
                  for n in names)
    metadata = {"format": "sparse_weight_patch", "version": "1", "sparse": "False",
                "model_version": str(version), "num_changed_params": str(len(names)),
                "total_changed_elements": str(n_elems), "total_elements": str(n_elems),
                "sparsity": "0.0"}
    if encoding:
        metadata["encoding"] = encoding
    return stock_save({name: model[name] for name in names}, metadata)


def trl_put(root, base, new, version, layout, interval=10, only=None):
    """Writes the file of a sync, unless nothing changed. Returns whether it wrote one."""
    encoding = LAYOUTS[layout][2]
    is_anchor = version == 1 or version % interval == 0
    content = (trl_anchor(new, version, encoding, only) if is_anchor
               else trl_delta(base, new, layout, version))
    if not is_anchor and base == new:
        return False
    path = root / ("anchors" if is_anchor else "deltas") / f"step_{version:06d}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return True


# ---- packed tensors ----

def zstd_frame(content, level=1):
    lib = ctypes.CDLL("libzstd.so.1")
    lib.ZSTD_compressBound.restype = lib.ZSTD_compress.restype = ctypes.c_size_t
    lib.ZSTD_compressBound.argtypes = [ctypes.c_size_t]
    lib.ZSTD_compress.argtypes = [ctypes.c_char_p, ctypes.c_size_t, ctypes.c_char_p,
                                  ctypes.c_size_t, ctypes.c_int]
    room = ctypes.create_string_buffer(lib.ZSTD_compressBound(len(content)))
    n = lib.ZSTD_compress(room, len(room), content, len(content), level)
    return room.raw[:n]


class Hash128(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def xxh3_128(content):
    lib = ctypes.CDLL("libxxhash.so.0")
    lib.XXH3_128bits.restype = Hash128
    lib.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    found = lib.XXH3_128bits(content, len(content))
    return f"{found.high:016x}{found.low:016x}"


CHECKSUMS = {"xxh3-128": xxh3_128, "adler32": lambda content: f"{zlib.adler32(content):08x}"}


def xor_frame(old, new):
    return zstd_frame((numpy.frombuffer(old, "u1") ^ numpy.frombuffer(new, "u1")).tobytes())


def overwrite_frame(old, new):
    old, new = (numpy.frombuffer(x, "u1") for x in (old, new))
    at = numpy.flatnonzero(old != new)
    return zstd_frame(struct.pack("<I", at.size) + at.astype("<u4").tobytes() +
                      new[at].tobytes())


FRAMES = {"xor": xor_frame, "overwrite": overwrite_frame}


def changed_names(base, new):
    return [name for name in sorted(new) if base[name].data != new[name].data]


def packed(frame):
    return Tensor("U8", (len(frame),), frame)


# ---- slime ----

def slime_write(root, version, files, metadata, checksums=None):
    """files: a list of {name: Tensor}; the index comes last"""
    where = root / f"weight_v{version:06d}"
    where.mkdir(parents=True)
    weight_map = {}
    for i, tensors in enumerate(files):
        name = f"model-{i:05d}-of-{len(files):05d}.safetensors"
        sums = {n: checksums[n] for n in tensors} if checksums else None
        (where / name).write_bytes(stock_save(tensors, sums))
        weight_map.update({tensor: name for tensor in tensors})
    index = {"metadata": metadata, "weight_map": weight_map}
    (where / "model.safetensors.index.json").write_text(json.dumps(index))
    return where


def in_files(tensors, n_files):
    files = [{} for _ in range(n_files)]
    for i, name in enumerate(sorted(tensors)):
        files[i % n_files][name] = tensors[name]
    return [f for f in files if f]


def slime_put(root, base, new, version, base_version, encoding="xor", checksum="xxh3-128",
              n_files=2):
    names = changed_names(base, new)
    return slime_write(
        root, version,
        in_files({n: packed(FRAMES[encoding](base[n].data, new[n].data)) for n in names},
                 n_files),
        {"version": f"{version:06d}", "base_version": f"{base_version:06d}",
         "delta_encoding": encoding, "compression_format": "zstd",
         "checksum_format": checksum},
        {n: CHECKSUMS[checksum](new[n].data) for n in names})


def slime_put_whole(root, model, version, n_files=2):
    return slime_write(root, version, in_files(model, n_files),
                       {"version": f"{version:06d}",
                        "total_size": sum(len(t.data) for t in model.values())})
