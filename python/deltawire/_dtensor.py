"""Finds the part of a model that each rank publishes: DTensors of FSDP2 and tensor parallelism.

A rank owns a range of rows of a DTensor, which is one run of the tensor's elements. A tensor that
is split along another dimension, or along interleaved rows, is redistributed into rows at each
publish.
"""
from __future__ import annotations

import math
import uuid
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

__all__ = ["Part", "is_sharded", "part_of", "agree", "largest", "steps_now"]

DTYPES = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.uint16: "U16",
    torch.int16: "I16", torch.uint32: "U32", torch.int32: "I32", torch.uint64: "U64",
    torch.int64: "I64", torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32",
    torch.float64: "F64", torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
    torch.float8_e4m3fnuz: "F8_E4M3FNUZ", torch.float8_e5m2fnuz: "F8_E5M2FNUZ",
    torch.complex64: "C64",
}


def is_sharded(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, DTensor)


class Part:
    """The part of a tensor that this rank has and publishes."""

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.is_mine = True  # False: another rank has the same
        self._rows: list[Any] | None = None  # the placements to redistribute it to first
        self.first = 0
        if not is_sharded(tensor):
            return
        mesh, placements = tensor.device_mesh, tensor.placements
        if any(isinstance(p, Partial) for p in placements):
            raise ValueError(f"{name!r} is a sum over ranks that was not made yet (Partial)")
        at = mesh.get_coordinate()
        self.is_mine = at is not None and all(
            at[i] == 0 for i, p in enumerate(placements) if isinstance(p, Replicate))
        if not all(isinstance(p, Replicate) or (type(p) is Shard and p.dim == 0)
                   for p in placements):
            self._rows = [p if isinstance(p, Replicate) else Shard(0) for p in placements]
        _, offset = compute_local_shape_and_global_offset(
            tensor.shape, mesh, self._rows or placements)
        self.first = offset[0] * math.prod(tensor.shape[1:]) if offset else 0

    @property
    def is_rows(self) -> bool:
        """Whether this rank's data can be published in place."""
        return self._rows is None

    @property
    def rows(self) -> slice | None:
        """The rows of the tensor that this rank has; None if they are not in one piece."""
        if self._rows is not None or not self.tensor.dim():
            return None
        first = self.first // max(math.prod(self.tensor.shape[1:]), 1)
        n = self.tensor.to_local().shape[0] if is_sharded(self.tensor) else self.tensor.shape[0]
        return slice(first, first + n)

    def local(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """This rank's rows. A collective call if other ranks have some of them."""
        tensor = self.tensor.detach()
        if not is_sharded(tensor):
            return tensor
        if self._rows is not None:
            tensor = tensor.to(dtype) if dtype else tensor  # less to send
            tensor = tensor.redistribute(placements=self._rows)
        return tensor.to_local().detach()


def agree(
    parts: dict[str, Part], published: dict[str, torch.dtype], same: dict[str, Any], group: Any
) -> tuple[dict[str, tuple[str, tuple[int, ...]]], str]:
    """All ranks exchange what they have. Returns every tensor's type and shape, and the name of
    this start. If several ranks have a whole tensor, the first of them publishes it. The values in
    `same` must be the same on all ranks."""
    mine = {name: (DTYPES.get(published[name], str(published[name])),
                   tuple(part.tensor.shape), is_sharded(part.tensor))
            for name, part in parts.items()}
    rank, every = dist.get_rank(group), [None] * dist.get_world_size(group)
    dist.all_gather_object(every, (mine, uuid.uuid4().hex, same), group=group)
    found: dict[str, tuple[str, tuple[int, ...]]] = {}
    for other, (tensors, _, theirs) in enumerate(every):
        for name, value in every[0][2].items():
            if theirs[name] != value:
                raise ValueError(f"{name} is {value} on rank 0 and {theirs[name]} on rank {other}: "
                                 "give all ranks the same")
        for name, (dtype, shape, sharded) in tensors.items():
            if dtype not in DTYPES.values():  # raise on all ranks, or the others would wait
                raise ValueError(f"{name!r} is {dtype} on rank {other}, which is no type of "
                                 "safetensors")
            if found.setdefault(name, (dtype, shape)) != (dtype, shape):
                raise ValueError(f"{name!r} is not the same on all ranks: {found[name]} and "
                                 f"{(dtype, shape)} on rank {other}")
            if not sharded and other < rank and name in parts:
                parts[name].is_mine = False
    return found, every[0][1]


def largest(numbers: memoryview, group: Any) -> None:
    """Replaces 32-bit numbers below 2^31 by the largest over all ranks: the library's `agree`."""
    mine = torch.frombuffer(numbers, dtype=torch.int32)
    # only NCCL by itself has no memory of the host
    shared = mine.cuda() if dist.get_backend(group) == "nccl" else mine
    dist.all_reduce(shared, op=dist.ReduceOp.MAX, group=group)
    mine.copy_(shared)


def steps_now(step: Any, group: Any) -> tuple[int, int]:
    """The lowest and the highest step that ranks call with. What is no step counts for nothing."""
    lowest = highest = -2**62
    if str(step).isdecimal():
        lowest, highest = -int(step), int(step)
    shared = torch.tensor([lowest, highest])
    shared = shared.cuda() if dist.get_backend(group) == "nccl" else shared
    dist.all_reduce(shared, op=dist.ReduceOp.MAX, group=group)
    return -int(shared[0]), int(shared[1])
