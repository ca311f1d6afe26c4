"""The parts of libdeltawire that these tests need, through ctypes.

DW_LIB names the shared library; build/libdeltawire.so by default. A checkpoint is a dict
of name -> decoder.Tensor, a delta is bytes. Every failure raises Failed, with the code.
"""
import ctypes
import os
import pathlib

from decoder import DTYPES, Tensor

ROOT = pathlib.Path(__file__).resolve().parents[2]
u64, u32, size = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_size_t
NUMBER = {row[0]: i for i, row in enumerate(DTYPES)}
CODECS = {"class": (0, 3), "gap": (1, 3), "raw": (2, 3), "raw-v1": (2, 1)}
CODES = ("ok no_memory io not_found corrupt stale mismatch unsupported invalid conflict "
         "cancelled").split()


class CError(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("where", ctypes.c_char * 512),
                ("text", ctypes.c_char * 1024)]


class CTensor(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("dtype", ctypes.c_int), ("n_dims", u32),
                ("dims", ctypes.POINTER(u64)), ("n_bytes", u64), ("data", ctypes.c_void_p),
                ("first_byte", u64), ("device", ctypes.c_void_p)]


class Progress(ctypes.Structure):
    _fields_ = [("report", ctypes.c_void_p), ("context", ctypes.c_void_p)]


class DiffOptions(ctypes.Structure):
    _fields_ = [("struct_bytes", size), ("codec", ctypes.c_int),
                ("trl_layout", ctypes.c_uint), ("n_threads", ctypes.c_uint),
                ("base_version", u64), ("new_version", u64), ("update_base", ctypes.c_bool),
                ("round_next", ctypes.c_bool), ("base_digests", ctypes.POINTER(u64)),
                ("new_digests", ctypes.POINTER(u64)), ("progress", Progress)]


class Info(ctypes.Structure):
    _fields_ = [("codec", ctypes.c_int), ("trl_layout", ctypes.c_uint),
                ("has_digests", ctypes.c_bool), ("base_version", u64), ("new_version", u64),
                ("base_state", u64), ("new_state", u64), ("n_model_tensors", u64),
                ("n_model_elems", u64), ("n_changed", u64), ("n_bytes", u64),
                ("n_tensors", size), ("reserved", u64 * 4)]


class TensorInfo(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("has_shape", ctypes.c_bool),
                ("dtype", ctypes.c_int), ("n_dims", u32), ("dims", ctypes.POINTER(u64)),
                ("n_elems", u64), ("n_changed", u64), ("n_bytes", u64), ("base_digest", u64),
                ("new_digest", u64), ("n_blocks", u64), ("n_class_blocks", u64),
                ("n_packed_blocks", u64), ("n_stored_blocks", u64), ("reserved", u64 * 4)]


lib = ctypes.CDLL(os.environ.get("DW_LIB", str(ROOT / "build" / "libdeltawire.so")))
for function in (lib.dw_delta_close, lib.dw_patch_free):
    function.argtypes, function.restype = [ctypes.c_void_p], None
lib.dw_delta_get_info.argtypes = [ctypes.c_void_p, ctypes.POINTER(Info)]
lib.dw_dtype_name.restype = ctypes.c_char_p
lib.dw_digest_bytes.argtypes, lib.dw_digest_bytes.restype = [ctypes.c_char_p, u64], u64
lib.dw_delta_tensor.argtypes = [ctypes.c_void_p, size, ctypes.POINTER(TensorInfo)]
SINK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, size, ctypes.c_void_p)


class Failed(Exception):
    def __init__(self, error):
        self.code = CODES[error.code]
        super().__init__(f"{self.code}: {error.where.decode()}: {error.text.decode()}")


def call(function, *arguments):
    error = CError()
    if function(*arguments, ctypes.byref(error)):
        raise Failed(error)


class Memory:
    """Copies of tensors for the library."""

    def __init__(self, tensors):
        self.tensors, self.n = tensors, size(len(tensors))
        self.array, self.keep = (CTensor * len(tensors))(), []
        for slot, (name, t) in zip(self.array, tensors.items()):
            dims = (u64 * len(t.shape))(*t.shape)
            data = ctypes.create_string_buffer(t.data, max(len(t.data), 1))
            self.keep.append((dims, data))
            slot.name, slot.dtype, slot.n_dims = name.encode(), NUMBER[t.dtype], len(t.shape)
            slot.dims, slot.n_bytes, slot.data = dims, len(t.data), ctypes.addressof(data)

    def now(self):
        """The tensors with their current bytes."""
        return {name: t._replace(data=data.raw[:len(t.data)])
                for (name, t), (_, data) in zip(self.tensors.items(), self.keep)}


class Delta:
    """An open delta; frees itself."""

    def __init__(self, content=None):
        self.handle, self.content = ctypes.c_void_p(), content
        if content is not None:
            self.room = (u64 * (len(content) // 8 + 1))()  # 8-byte aligned
            ctypes.memmove(self.room, content, len(content))
            call(lib.dw_delta_open_bytes, ctypes.byref(self.handle), self.room,
                 size(len(content)), b"delta")

    def __del__(self):
        lib.dw_delta_close(self.handle)

    def bytes(self):
        pieces = []

        def take(_context, data, n, _error):
            pieces.append(ctypes.string_at(data, n))
            return 0
        call(lib.dw_delta_write, self.handle, SINK(take), None)
        return b"".join(pieces)

    def info(self):
        info = Info()
        lib.dw_delta_get_info(self.handle, ctypes.byref(info))
        return info

    def blocks(self):
        """(class, packed, stored) blocks over all tensors"""
        counts, info = [0, 0, 0], TensorInfo()
        for i in range(self.info().n_tensors):
            lib.dw_delta_tensor(self.handle, i, ctypes.byref(info))
            counts[0] += info.n_class_blocks
            counts[1] += info.n_packed_blocks
            counts[2] += info.n_stored_blocks
        return tuple(counts)


def options_of(codec, base_version=0, new_version=1):
    number, layout = CODECS[codec]
    return DiffOptions(struct_bytes=ctypes.sizeof(DiffOptions), codec=number, trl_layout=layout,
                       n_threads=1, base_version=base_version, new_version=new_version)


def diff(base, new, codec="class", **versions):
    delta, old, next_ = Delta(), Memory(base), Memory(new)
    call(lib.dw_delta_diff, ctypes.byref(delta.handle), old.array, next_.array, old.n,
         ctypes.byref(options_of(codec, **versions)))
    return delta.bytes()


def recode(base, content, codec):
    delta, old, out = Delta(content), Memory(base), Delta()
    call(lib.dw_delta_recode, ctypes.byref(out.handle), delta.handle, old.array, old.n,
         ctypes.byref(options_of(codec)))
    return out.bytes()


def apply(base, content):
    delta, memory = Delta(content), Memory(base)
    try:
        call(lib.dw_delta_apply, delta.handle, memory.array, memory.n, None)
    except Failed:
        assert memory.now() == base, "a refused delta left traces"
        raise
    return memory.now()
