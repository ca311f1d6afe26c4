"""Memory that parameters have while a layout is learnt, so that the weights stay as they are."""
from __future__ import annotations

import functools
import mmap
from typing import Container, Iterable, Mapping

import torch

from .undo import Undo


def in_memory_order(tensor: torch.Tensor) -> torch.Tensor | None:
    """The same memory as a flat tensor, or None if it has holes."""
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    turned = tensor.detach().permute(order)
    if tensor.numel() == 1:
        return turned.as_strided((1,), (1,))  # its strides may be 0
    return turned.reshape(-1) if turned.is_contiguous() else None


def as_bytes(flat: torch.Tensor) -> torch.Tensor:
    return flat.view(torch.uint8) if flat.numel() else flat.new_empty(0, dtype=torch.uint8)


class Shadows:
    """Until UNDO, PARAMETERS have memory of the host, in which all bits are equal until something
    is loaded. It takes room only where something is loaded, also for parameters of a device. Those
    named in OWN keep their memory, and what is in it is lost."""

    def __init__(self, parameters: Mapping[str, torch.Tensor], own: Container[str],
                 undo: Undo) -> None:
        self._parameters, self._own = parameters, own
        self._maps: dict[str, mmap.mmap] = {}
        for name, parameter in parameters.items():
            if name in own:
                self.clear([name])
            elif parameter.numel():
                undo.add(functools.partial(setattr, parameter, "data", parameter.data))
                self._replace(name, parameter)

    def _replace(self, name: str, parameter: torch.Tensor) -> None:
        n_bytes = parameter.numel() * parameter.element_size()
        room = self._maps[name] = mmap.mmap(-1, n_bytes,
                                            flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        flat = torch.frombuffer(room, dtype=torch.uint8).view(parameter.dtype)
        parameter.data = flat.as_strided(parameter.shape, parameter.stride())

    def clear(self, names: Iterable[str]) -> None:
        """Forgets what was loaded into NAMES, and gives the memory back."""
        for name in names:
            if name in self._maps:
                self._maps[name].madvise(mmap.MADV_DONTNEED)
            elif name in self._own:
                as_bytes(in_memory_order(self._parameters[name])).fill_(0xFF)
