"""The stock safetensors package and libdeltawire read and write the same files.

DW_LIB names the shared library; build/libdeltawire.so by default.
"""
import ctypes
import json
import os
import pathlib
import struct

import numpy
import pytest
import safetensors
import safetensors.numpy

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "safetensors"


class Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("where", ctypes.c_char * 512),
                ("text", ctypes.c_char * 1024)]


class Tensor(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("dtype", ctypes.c_int),
                ("n_dims", ctypes.c_uint32), ("dims", ctypes.POINTER(ctypes.c_uint64)),
                ("n_bytes", ctypes.c_uint64), ("data", ctypes.c_void_p),
                ("first_byte", ctypes.c_uint64), ("device", ctypes.c_void_p)]


class Pair(ctypes.Structure):
    _fields_ = [("key", ctypes.c_char_p), ("value", ctypes.c_char_p)]


class WriteOptions(ctypes.Structure):
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("metadata", ctypes.POINTER(Pair)),
                ("n_metadata", ctypes.c_size_t),
                ("max_shard_bytes", ctypes.c_uint64)]


lib = ctypes.CDLL(os.environ.get("DW_LIB", str(ROOT / "build" / "libdeltawire.so")))
lib.dw_checkpoint_tensors.restype = ctypes.POINTER(Tensor)
lib.dw_checkpoint_tensors.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)]
lib.dw_checkpoint_metadata.restype = ctypes.c_char_p
lib.dw_checkpoint_metadata.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
lib.dw_checkpoint_close.argtypes = [ctypes.c_void_p]
lib.dw_dtype_name.restype = ctypes.c_char_p

DTYPES = {lib.dw_dtype_name(i).decode(): i for i in range(22)}

# the stock package's names of types when it writes
STOCK_NAMES = dict(
    BOOL="bool", U8="uint8", I8="int8", U16="uint16", I16="int16", U32="uint32",
    I32="int32", U64="uint64", I64="int64", F16="float16", BF16="bfloat16", F32="float32",
    F64="float64", F8_E4M3="float8_e4m3fn", F8_E5M2="float8_e5m2", C64="complex64",
    F8_E8M0="float8_e8m0fnu", F8_E4M3FNUZ="float8_e4m3fnuz",
    F8_E5M2FNUZ="float8_e5m2fnuz", F4="float4_e2m1fn_x2")


def write(path, tensors, metadata=None, max_shard_bytes=0):
    """tensors: name -> (dtype, shape, bytes)"""
    array = (Tensor * len(tensors))()
    keep = []
    for slot, (name, (dtype, shape, data)) in zip(array, tensors.items()):
        dims = (ctypes.c_uint64 * len(shape))(*shape)
        buffer = ctypes.create_string_buffer(data, len(data))
        keep += [dims, buffer]
        slot.name, slot.dtype, slot.n_dims = name.encode(), DTYPES[dtype], len(shape)
        slot.dims, slot.n_bytes = dims, len(data)
        slot.data = ctypes.addressof(buffer)
    pairs = [Pair(k.encode(), v.encode()) for k, v in (metadata or {}).items()]
    options = WriteOptions(ctypes.sizeof(WriteOptions), (Pair * len(pairs))(*pairs),
                           len(pairs), max_shard_bytes)
    error = Error()
    if lib.dw_checkpoint_write(os.fsencode(path), array, ctypes.c_size_t(len(tensors)),
                               ctypes.byref(options), ctypes.byref(error)):
        raise ValueError(f"{error.where.decode()}: {error.text.decode()}")


def read(path, *metadata_keys):
    handle, error = ctypes.c_void_p(), Error()
    if lib.dw_checkpoint_open(ctypes.byref(handle), os.fsencode(path), 0,
                              ctypes.byref(error)):
        raise ValueError(f"{error.where.decode()}: {error.text.decode()}")
    count = ctypes.c_size_t()
    tensors = lib.dw_checkpoint_tensors(handle, ctypes.byref(count))
    names = {number: name for name, number in DTYPES.items()}
    found = {t.name.decode(): (names[t.dtype], tuple(t.dims[:t.n_dims]),
                               ctypes.string_at(t.data, t.n_bytes) if t.n_bytes else b"")
             for t in tensors[:count.value]}
    values = [lib.dw_checkpoint_metadata(handle, key.encode()) for key in metadata_keys]
    lib.dw_checkpoint_close(handle)
    return (found, *values) if metadata_keys else found


def plain(arrays):
    names = {"bool": "BOOL", "float": "F", "uint": "U", "int": "I", "complex": "C"}
    def dtype_of(array):
        word = array.dtype.name.rstrip("0123456789")
        return names[word] + array.dtype.name[len(word):]
    return {name: (dtype_of(a), a.shape, a.tobytes()) for name, a in arrays.items()}


@pytest.fixture
def arrays():
    random = numpy.random.default_rng(3)
    made = {f"{kind}.{i}": (random.random((2, i + 1)) * 100).astype(kind)
            for kind in ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32",
                         "uint64", "int64", "float16", "float32", "float64", "complex64")
            for i in range(2)}
    made["scalar"] = numpy.array(7.5, dtype="float32")
    made["empty"] = numpy.zeros((0, 3), dtype="int16")
    made[""] = numpy.zeros(1, dtype="uint8")
    made['odd "\\/\b\f\n\r\t\x01\x1f\x7f\u2028\u00e9\U0001f600'] = numpy.ones(3, "uint8")
    return made


@pytest.mark.parametrize("metadata", [None, {"format": 'a "quoted"\tvalue\u00e9'}])
def test_same_bytes(tmp_path, arrays, metadata):
    safetensors.numpy.save_file(arrays, tmp_path / "stock", metadata=metadata)
    write(tmp_path / "ours", plain(arrays), metadata)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "stock").read_bytes()


def test_same_bytes_for_no_tensors(tmp_path):
    safetensors.numpy.save_file({}, tmp_path / "stock")
    write(tmp_path / "ours", {})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "stock").read_bytes()


def test_we_open_what_stock_writes(tmp_path, arrays):
    safetensors.numpy.save_file(arrays, tmp_path / "stock", metadata={"k": "v", "e": ""})
    assert read(tmp_path / "stock", "k", "e") == (plain(arrays), b"v", b"")


def test_stock_opens_what_we_write(tmp_path, arrays):
    write(tmp_path / "ours", plain(arrays))
    loaded = safetensors.numpy.load_file(tmp_path / "ours")
    assert loaded.keys() == arrays.keys()
    for name, array in arrays.items():
        assert loaded[name].dtype == array.dtype
        assert numpy.array_equal(loaded[name], array)


def test_stock_opens_our_shards(tmp_path, arrays):
    write(tmp_path / "shards", plain(arrays), max_shard_bytes=64)
    index = json.loads((tmp_path / "shards/model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(a.nbytes for a in arrays.values())
    assert list(index["weight_map"]) == sorted(arrays, key=str.encode)
    for name, file in index["weight_map"].items():
        loaded = safetensors.numpy.load_file(tmp_path / "shards" / file)
        assert numpy.array_equal(loaded[name], arrays[name])
    assert read(tmp_path / "shards") == plain(arrays)


def test_every_dtype_in_stock_order(tmp_path):
    """Types that numpy does not have, through the package's lower layer."""
    if not hasattr(safetensors, "TensorSpec"):
        pytest.skip("this safetensors has no TensorSpec")
    tensors, specs, keep = {}, {}, []
    for i, (dtype, stock_name) in enumerate(STOCK_NAMES.items()):
        width = {"BOOL": 1, "F4": 1, "BF16": 2}.get(dtype) or int(
            dtype.split("_")[0][1:]) // 8
        storage = 2 if dtype == "F4" else 4  # F4: two elements in each stored byte
        data = bytes([i]) * (storage * width)
        buffer = ctypes.create_string_buffer(data, len(data))
        keep.append(buffer)
        tensors[f"t.{i}"] = (dtype, (4,), data)
        specs[f"t.{i}"] = safetensors.TensorSpec(
            dtype=stock_name, shape=[storage], data_ptr=ctypes.addressof(buffer),
            data_len=len(data))
    write(tmp_path / "ours", tensors)
    assert (tmp_path / "ours").read_bytes() == bytes(safetensors.serialize(specs))
    assert read(tmp_path / "ours") == tensors


def test_same_bytes_as_torch(tmp_path):
    torch = pytest.importorskip("torch")
    import safetensors.torch
    arrays = {"w": torch.randn(3, 5).to(torch.bfloat16), "b": torch.randn(4),
              "q": torch.randn(6).to(torch.float8_e4m3fn)}
    safetensors.torch.save_file(arrays, tmp_path / "stock", metadata={"format": "pt"})
    names = {torch.bfloat16: "BF16", torch.float32: "F32", torch.float8_e4m3fn: "F8_E4M3"}
    tensors = {k: (names[t.dtype], tuple(t.shape),
                   t.contiguous().view(torch.uint8).numpy().tobytes())
               for k, t in arrays.items()}
    write(tmp_path / "ours", tensors, {"format": "pt"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "stock").read_bytes()
    assert read(tmp_path / "stock") == tensors


# cases in which deltawire is stricter than the stock library on purpose
STRICTER = {"bad_duplicate_name", "bad_nul_in_name", "bad_header_starts_with_space",
            "bad_unknown_key", "bad_entry_is_list", "bad_too_many_dims",
            "bad_metadata_null", "bad_metadata_nul"}


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*.safetensors")),
                         ids=lambda file: file.stem)
def test_golden_files_with_stock(file):
    """The stock library accepts the good files and refuses the bad ones."""
    try:
        safetensors.deserialize(file.read_bytes())
        accepted = True
    except safetensors.SafetensorError:
        accepted = False
    assert accepted == (file.stem.startswith("good_") or file.stem in STRICTER)


def test_many_tensors(tmp_path):
    tensors = {f"layer.{i}": ("U8", (1,), b"x") for i in range(20000)}
    write(tmp_path / "ours", tensors)
    content = (tmp_path / "ours").read_bytes()
    (n_header,) = struct.unpack("<Q", content[:8])
    assert (8 + n_header) % 8 == 0
    assert len(safetensors.deserialize(content)) == 20000
