"""Tensors on a device of the fake driver (tests/cuda), whose memory is that of the host."""
import ctypes

import numpy as np

CUDA = 2
CUDA_HOST = 3


class Managed(ctypes.Structure):
    """The start of DLPack's struct of version 1."""
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32),
                ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
                ("flags", ctypes.c_uint64), ("data", ctypes.c_void_p),
                ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


def get_pointer(capsule):
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return get(capsule, b"dltensor_versioned")


class OnDevice:
    """The values, exported as if they were on device INDEX."""

    def __init__(self, values: np.ndarray, index: int = 0, says: int | None = None):
        self.values, self.index = values, index
        self.says = index if says is None else says

    def __dlpack_device__(self):
        return (CUDA, self.says)

    def __dlpack__(self, *, stream, max_version=None):
        assert stream == -1, "no stream may wait"
        capsule = self.values.__dlpack__(max_version=(1, 0))
        managed = Managed.from_address(get_pointer(capsule))
        managed.device_type, managed.device_id = CUDA, self.index
        return capsule


class Pinned(OnDevice):
    """As PyTorch exports pinned memory: a device's in one place, the host's in the other."""

    def __dlpack_device__(self):
        return (CUDA_HOST, 0)

    def __dlpack__(self, *, max_version=None):
        return self.values.__dlpack__(max_version=(1, 0))
