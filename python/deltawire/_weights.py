"""The weights that a publisher reads: in place, or from copies."""
from __future__ import annotations

from typing import Any, Callable, Iterable

import torch

from . import _core, _devices, _peft

if torch.distributed.is_available():
    from . import _dtensor
else:
    _dtensor = None


# Every so many publishes all weights are read, to find writes that left no trace.
READ_ALL_EVERY = 64


def is_sharded(tensor: torch.Tensor) -> bool:
    return _dtensor is not None and _dtensor.is_sharded(tensor)


def span(tensor: torch.Tensor) -> tuple[str, int, int]:
    """The memory between a tensor's first and last element."""
    n = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    start = tensor.data_ptr()
    return str(tensor.device), start, start + n * tensor.element_size()


def overlapping(tensors: Iterable[Any]) -> set[int]:
    """The ids of tensors whose memory another one of them has, too."""
    found: set[int] = set()
    device, end, last = "", 0, 0
    for (on, start, stop), i in sorted((span(t), i) for i, t in {
            id(t): t for t in tensors
            if isinstance(t, torch.Tensor) and not is_sharded(t) and t.numel()}.items()):
        if on == device and start < end:
            found |= {i, last}
        if on != device or stop > end:
            device, end, last = on, stop, i
    return found


def all_agree(ask: Callable[[], bool], group: Any) -> bool:
    """Whether the answer is true on every rank. If it raises on one, all raise."""
    if _dtensor is None or not _dtensor.dist.is_initialized():
        raise ValueError("ranks need torch.distributed, initialized")
    every: list[Any] = [None] * _dtensor.dist.get_world_size(group)
    error, mine = None, ""
    try:
        mine = ask()
    except Exception as failure:
        error, mine = failure, str(failure)
    _dtensor.dist.all_gather_object(every, mine, group=group)
    for rank, answer in enumerate(every):
        if isinstance(answer, str):
            raise error or _core.Unavailable(f"rank {rank} failed: {answer}")
    return all(every)


def meet(step: Any, group: Any) -> None:
    """Returns when all ranks are at this step. A rank that is ahead of another, which skipped or
    repeated one, waits for it here. Raises Unavailable on one that is behind: it comes again with
    its next step. Collective calls that follow belong to one step on all ranks."""
    lowest, highest = -1, 0
    while lowest < highest:
        try:
            lowest, highest = _dtensor.steps_now(step, group)
        except RuntimeError:
            return  # a rank ended: the version fails, and its error names the rank
        if str(step).isdecimal() and int(step) < highest:
            raise _core.Unavailable(f"another rank is already at step {highest}, this one is at "
                                    f"step {step}: this is no version. The next one covers it")


class Weights:
    """The tensors of a publisher: read in place, or from a copy.

    Copied are tensors that the library cannot read in place (not contiguous, or not split by
    rows), a module's buffers, which change in every forward pass, and weights that adapters are
    merged into. The copy is on the same
    device, unless the library cannot use that: then it is on the host."""

    def __init__(
        self, live: dict[str, torch.Tensor], dtype: torch.dtype | None, is_module: bool,
        find: Callable[[], dict[str, torch.Tensor]] | None = None,
        optimizer: torch.optim.Optimizer | None = None, skip_frozen: bool = True,
        every: Iterable[Any] = (), copy_masters: bool = False, devices: set[torch.device] | None = None,
        adapters: _peft.Adapters | None = None,
    ) -> None:
        """`find` returns the current tensors, if they may have been replaced. `every` are all
        tensors of the model: one that shares its memory may change with another. `copy_masters`:
        copies of float32 stay float32, and the library rounds them. `devices`: those that the
        library uses. `adapters`: which of the tensors are to be merged."""
        self.live, self._find, self._adapters = dict(live), find, adapters
        self._found: dict[str, torch.Tensor] | None = None
        self._optimizer, self._n_taken = optimizer, 0
        self.parts = {name: _dtensor.Part(name, tensor) for name, tensor in live.items()} \
            if any(map(is_sharded, live.values())) else {}
        self.masters = {name for name, tensor in live.items()
                        if dtype is not None and tensor.dtype == torch.float32}
        self.dtype = dtype
        self._copy_masters = copy_masters
        self.copies: dict[str, torch.Tensor] = {}
        self.in_place: dict[str, torch.Tensor] = {}
        self.devices = devices or set()
        self._seen: dict[str, Any] = {}
        for name, tensor in live.items():
            is_buffer = is_module and not isinstance(tensor, torch.nn.Parameter)
            is_rows = name not in self.parts or self.parts[name].is_rows
            local = self._local(name)
            on_device = local.device in self.devices
            if (is_rows and not is_buffer and (local.is_cpu or on_device)
                    and local.is_contiguous() and self._unit(name) is None):
                self.in_place[name] = local
            else:
                self.copies[name] = torch.empty(
                    local.shape,
                    dtype=dtype if name in self.masters and not copy_masters else local.dtype,
                    device=local.device if on_device else None,
                    pin_memory=local.is_cuda and not on_device)
        self._read = [live[name] for name in self.in_place]
        self._read_sharded = any(map(is_sharded, self._read))
        self._places = [(t.data_ptr(), t.numel(), t.dtype) for t in self._read_now()]
        shared = overlapping(every)
        self._may_freeze = [(name, tensor) for name, tensor in live.items()
                            if skip_frozen and isinstance(tensor, torch.nn.Parameter)
                            and not is_sharded(tensor) and not tensor.is_inference()
                            and id(tensor) not in shared]
        self.take()

    def _local(self, name: str) -> torch.Tensor:
        if name in self.parts:
            cast = name in self.masters and not self._copy_masters
            return self.parts[name].local(self.dtype if cast else None)
        return self.live[name].detach()

    def _unit(self, name: str) -> _peft.Unit | None:
        return None if self._adapters is None else self._adapters.unit(self.live[name])

    @property
    def as_bf16(self) -> set[str]:
        """The tensors that the library rounds while it compares."""
        return self.masters if self._copy_masters else self.masters & self.in_place.keys()

    @property
    def host_reads(self) -> bool:
        """Whether weights are read in the memory of the host, where nothing but the caller can
        wait until they are read."""
        return any(tensor.is_cpu for tensor in self.in_place.values())

    def published(self) -> dict[str, torch.Tensor]:
        found = {name: self.copies[name] if name in self.copies else self.in_place[name]
                 for name in self.live}
        return {name: tensor.to(self.dtype) if name in self.masters else tensor
                for name, tensor in found.items()}

    def now(self, name: str) -> Any:
        return _devices.exported(self.copies[name] if name in self.copies
                                 else self.in_place[name])

    def take(self) -> tuple[list[str], dict[str, Any]]:
        """Updates the copies. Returns the tensors that did not change since the last noted()
        call, and the versions to note."""
        if self._find is not None:
            found = self._find()
            if found is not self._found:
                self._follow_objects(found)
                self._found = found
        seen = self._versions()
        frozen = [name for name, version in seen.items() if self._seen.get(name) == version]
        if self._n_taken % READ_ALL_EVERY == 0:
            frozen = []
        self._n_taken += 1
        self._check_places()
        # with ranks: all of them in the same order, because it may be a collective call
        changed = [name for name in self.copies if self.parts or name not in frozen]
        self._copy({name: self._local(name) for name in changed if self._unit(name) is None})
        rows = {id(part.tensor): part.rows for part in self.parts.values()}
        for unit in {id(u): u for u in map(self._unit, changed) if u is not None}.values():
            merged = unit.merged(rows)  # one at a time, to need little memory
            self._copy({name: self._own(name, merged[id(self.live[name])]) for name in changed
                        if id(self.live[name]) in merged})
        return frozen, seen

    def _own(self, name: str, whole: torch.Tensor) -> torch.Tensor:
        """This rank's part of a merged tensor."""
        copy = self.copies[name]
        if whole.numel() == copy.numel():
            return whole
        first = self.parts[name].first
        return whole.reshape(-1)[first:first + copy.numel()].view(copy.shape)

    def _copy(self, changed: dict[str, torch.Tensor]) -> None:
        casts = {name: tensor for name, tensor in changed.items()
                 if tensor.is_cpu and tensor.is_contiguous()}
        _core.cast(casts, {name: self.copies[name] for name in casts})
        for name, tensor in changed.items():
            if name not in casts:
                self.copies[name].copy_(tensor, non_blocking=tensor.is_cuda)
        _devices.wait_for({tensor.device for name, tensor in changed.items()
                           if tensor.is_cuda and self.copies[name].is_cpu})

    def _versions(self) -> dict[str, Any]:
        """The version of a tensor that counts as frozen while its version stays the same. Fused
        and grouped steps, and writes to a DTensor's part, do not change the version."""
        still = [(name, tensor) for name, tensor in self._may_freeze if not tensor.requires_grad]
        if not still:
            return {}
        stepped = set()
        if self._optimizer is not None:
            stepped = {id(p) for group in self._optimizer.param_groups for p in group["params"]}
        versions: dict[str, Any] = {}
        for name, tensor in still:
            unit = self._unit(name)
            parts = [tensor] if unit is None else unit.tensors()
            if not any(part.requires_grad or id(part) in stepped for part in parts):
                versions[name] = (tuple(part._version for part in parts),
                                  unit and unit.settings())
        return versions

    def _follow_objects(self, found: dict[str, torch.Tensor]) -> None:
        """A module may have new objects under the same names. A new buffer is copied. A new
        parameter is an error, because the optimizer has the old one."""
        for name, old in self.live.items():
            new = found.get(name)
            if new is old and (name not in self.in_place or self._unit(name) is None):
                continue
            if (new is None or name in self.in_place or is_sharded(new) or is_sharded(old)
                    or isinstance(old, torch.nn.Parameter)
                    or isinstance(new, torch.nn.Parameter)
                    or (new.shape, new.dtype) != (old.shape, old.dtype)):
                raise RuntimeError(f"{name!r} was {'replaced' if new is not None else 'removed'}"
                                   " since the publisher was made: make a new publisher")
            self.live[name] = new
            if name in self.parts:
                self.parts[name].tensor = new
        for name in found.keys() - self.live.keys():
            if isinstance(found[name], torch.nn.Parameter):
                raise RuntimeError(f"{name!r} is new, or not tied any more, since the publisher "
                                   "was made: make a new publisher")

    def _read_now(self) -> list[torch.Tensor]:
        """The tensors that are read in place, or this rank's parts of them."""
        if not self._read_sharded:
            return self._read
        return [t._local_tensor if is_sharded(t) else t for t in self._read]

    def _check_places(self) -> None:
        """The library reads what was there when the publisher was made. A view at the same
        address may have another order of elements. One expression for all, because this takes
        most of the time of publish()."""
        same = [t.data_ptr() == at and t.is_contiguous() and t.numel() == n and t.dtype is dtype
                for t, (at, n, dtype) in zip(self._read_now(), self._places)]
        if not all(same):
            raise RuntimeError(
                f"{list(self.in_place)[same.index(False)]!r} lies elsewhere, or in another order, "
                "than when the publisher was made, which reads it in place: make a new publisher")

    def noted(self, seen: dict[str, Any]) -> None:
        self._seen = seen

    def arguments(self, group: Any, same: dict[str, Any]) -> dict[str, Any]:
        """The arguments for the library's publisher. The values in `same` must be the same on all
        ranks."""
        if group is None and not self.parts:
            return {"tensors": {name: self.now(name) for name in self.live},
                    "as_bf16": self.as_bf16}
        parts = self.parts or {name: _dtensor.Part(name, tensor)
                               for name, tensor in self.live.items()}
        found, start = _dtensor.agree(
            parts, {name: self.dtype if name in self.masters else tensor.dtype
                    for name, tensor in self.live.items()}, same, group)
        return {
            "tensors": {name: (None, "F32" if name in self.as_bf16 else dtype, shape)
                        for name, (dtype, shape) in found.items()},
            "as_bf16": self.as_bf16,
            "shards": [(name, part.first, self.now(name)) for name, part in parts.items()
                       if part.is_mine],
            "rank": _dtensor.dist.get_rank(group),
            "n_ranks": _dtensor.dist.get_world_size(group),
            "start": start,
            "agree": lambda numbers: _dtensor.largest(numbers, group),
        }
