"""The functions of the model of examples/wordle that the tests call, as a library."""
import ctypes
import os
from ctypes import POINTER, byref, c_bool, c_char, c_char_p, c_float, c_int32, c_size_t
from ctypes import c_uint32, c_uint64, c_void_p

import numpy as np
import pytest

if not os.path.exists(os.environ["DW_WORDLE_LIB"]):
    pytest.skip("examples/wordle was not built", allow_module_level=True)
LIB = ctypes.CDLL(os.environ["DW_WORDLE_LIB"])


class Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("where", c_char * 512), ("text", c_char * 1024)]


class Config(ctypes.Structure):
    _fields_ = [(name, c_uint32) for name in (
        "n_vocab", "n_hidden", "n_inter", "n_layers", "n_heads", "n_kv_heads", "head_dim",
        "max_positions")] + [("rope_theta", c_float), ("rms_eps", c_float),
                             ("tied", c_bool), ("eos", c_int32),
                             ("more_eos", c_int32 * 15), ("n_more_eos", c_uint32)]


class Adamw(ctypes.Structure):
    _fields_ = [(name, c_float) for name in (
        "lr", "beta1", "beta2", "eps", "weight_decay", "max_grad_norm")]


class Tensor(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("dtype", ctypes.c_int), ("n_dims", c_uint32),
                ("dims", POINTER(c_uint64)), ("n_bytes", c_uint64), ("data", c_void_p),
                ("first_byte", c_uint64), ("device", c_void_p)]


class Failed(Exception):
    pass


for name in ("dw_checkpoint_tensors", "qwen_trainer_weights"):
    getattr(LIB, name).restype = POINTER(Tensor)
LIB.qwen_trainer_step.restype = c_float
LIB.tokenizer_encode.restype = c_size_t
LIB.tokenizer_decode.restype = c_size_t


def call(name, *args):
    err = Error()
    if getattr(LIB, name)(*args, byref(err)) != 0:
        raise Failed(f"{err.where.decode()}: {err.text.decode()}")


def pointer(array):
    return None if array is None else array.ctypes.data_as(c_void_p)


class Model:
    """A directory of config.json and safetensors, opened."""

    def __init__(self, path):
        self.config = Config()
        call("qwen_config_read", byref(self.config), str(path).encode())
        self.checkpoint = c_void_p()
        call("dw_checkpoint_open", byref(self.checkpoint), str(path).encode(), 0)
        self.n_tensors = c_size_t()
        self.tensors = LIB.dw_checkpoint_tensors(self.checkpoint, byref(self.n_tensors))
        self.weights = c_void_p()
        call("qwen_weights_bind", byref(self.weights), byref(self.config), self.tensors,
             self.n_tensors)

    def __del__(self):
        LIB.qwen_weights_free(self.weights)
        LIB.dw_checkpoint_close(self.checkpoint)


class Session:
    def __init__(self, model, n_seqs, max_tokens, n_threads=1):
        self.model, self.handle = model, c_void_p()
        call("qwen_session_new", byref(self.handle), byref(model.config), n_seqs,
             max_tokens, n_threads)

    def __del__(self):
        LIB.qwen_session_free(self.handle)

    def step(self, rows):
        """Logits of each of the rows (sequence, token)."""
        seqs = np.array([seq for seq, _ in rows], np.uint32)
        tokens = np.array([token for _, token in rows], np.int32)
        logits = np.empty((len(rows), self.model.config.n_vocab), np.float32)
        call("qwen_session_step", self.handle, self.model.weights, pointer(seqs),
             pointer(tokens), None, c_size_t(len(rows)), pointer(logits))
        return logits


class Trainer:
    def __init__(self, model, n_threads=1):
        self.handle = c_void_p()
        call("qwen_trainer_new", byref(self.handle), byref(model.config), n_threads)
        call("qwen_trainer_load", self.handle, model.tensors, model.n_tensors)

    def __del__(self):
        LIB.qwen_trainer_free(self.handle)

    def forward(self, sequences):
        tokens = np.concatenate([np.array(s, np.int32) for s in sequences])
        lengths = np.array([len(s) for s in sequences], np.uint32)
        logp, entropy = np.empty((2, len(tokens)), np.float32)
        call("qwen_trainer_forward", self.handle, pointer(tokens), pointer(lengths),
             c_size_t(len(lengths)), pointer(logp), pointer(entropy))
        return logp, entropy

    def backward(self, coef):
        call("qwen_trainer_backward", self.handle, pointer(np.asarray(coef, np.float32)))

    def step(self, adamw):
        return LIB.qwen_trainer_step(self.handle, byref(adamw))

    def save_state(self, path):
        call("qwen_trainer_save_state", self.handle, str(path).encode())

    def load_state(self, path):
        call("qwen_trainer_load_state", self.handle, str(path).encode())

    def weights(self):
        """The bf16 weights by name, as their 16 bits."""
        n = c_size_t()
        tensors = LIB.qwen_trainer_weights(self.handle, byref(n))
        found = {}
        for t in tensors[:n.value]:
            data = ctypes.string_at(t.data, t.n_bytes)
            found[t.name.decode()] = np.frombuffer(data, np.uint16).reshape(
                t.dims[:t.n_dims])
        return found


class Tokenizer:
    def __init__(self, path):
        self.handle = c_void_p()
        call("tokenizer_open", byref(self.handle), str(path).encode())

    def __del__(self):
        LIB.tokenizer_close(self.handle)

    def encode(self, text):
        data = text if isinstance(text, bytes) else text.encode()
        ids = np.empty(3 * len(data) + 1, np.int32) # NFC makes a few characters longer
        n = LIB.tokenizer_encode(self.handle, data, c_size_t(len(data)), pointer(ids),
                                 c_size_t(len(ids)))
        assert n <= len(ids)
        return ids[:n].tolist()

    def decode(self, ids):
        ids = np.array(ids, np.int32)
        args = self.handle, pointer(ids), c_size_t(len(ids))
        n = LIB.tokenizer_decode(*args, None, c_size_t(0))
        out = ctypes.create_string_buffer(n + 1)
        assert LIB.tokenizer_decode(*args, out, c_size_t(n)) == n
        return out.raw[:n]
