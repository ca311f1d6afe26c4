"""Scales that ranks share. With tensor parallelism a rank has a part of a tensor or row, and vLLM
takes its largest absolute value over all ranks. Each rank has the whole checkpoint and the whole
patch, so it computes that value by itself, and ranks need not exchange anything."""
from __future__ import annotations

from typing import Any, Iterable, Mapping, Sequence

import torch

from . import online

Table = Mapping[str, tuple[str, tuple[int, ...]]]


class Shared:
    """The whole tensors behind a weight, of which this rank has a part."""

    def __init__(self, weight: online.OnlineWeight, sources: Mapping[str, int],
                 table: Table) -> None:
        """SOURCES are tensors, each with the matrix of the weight that it is a part of; a stack
        begins with the first one."""
        self._weight = weight
        self._sources = {name: (first, _as_stack(table[name][1]))
                         for name, first in sources.items()}

    @property
    def names(self) -> Iterable[str]:
        return self._sources

    def units(self, name: str, positions: torch.Tensor) -> torch.Tensor:
        """Those of the elements at POSITIONS of a whole tensor."""
        first, (_, rows, columns) = self._sources[name]
        row = positions // columns
        if self._weight.kind == "row":
            return first * rows + row
        return first + row // rows

    def greatest(self, tensors: Mapping[str, Any],
                 units: torch.Tensor | None = None) -> torch.Tensor:
        """The largest absolute value of each unit; if UNITS is given, only of matrices in which
        it is set."""
        weight = self._weight
        found = torch.zeros(weight.n_units, dtype=torch.float32)
        by_matrix = found.view(weight.shape[0], -1)
        wanted = (torch.ones(weight.shape[0], dtype=torch.bool) if units is None
                  else units.view(weight.shape[0], -1).any(dim=1))
        for name, (first, shape) in self._sources.items():
            if not bool(wanted[first:first + shape[0]].any()):
                continue
            whole = torch.from_dlpack(tensors[name]).view(shape)
            for i in range(shape[0]):
                if wanted[first + i]:
                    values = by_matrix[first + i]
                    torch.maximum(values, _greatest(whole[i], weight.kind), out=values)
        return found


def _as_stack(shape: Sequence[int]) -> tuple[int, int, int]:
    n, rows, columns = (1, *shape) if len(shape) == 2 else shape
    return n, rows, columns


def _greatest(x: torch.Tensor, kind: str) -> torch.Tensor:
    """Of a matrix, or of each of its rows, a part at a time."""
    step = max(online.CHUNK_ELEMENTS // max(x.shape[1], 1), 1)
    parts = [part.abs().amax(dim=1).float() for part in x.split(step)]
    rows = torch.cat(parts)
    return rows if kind == "row" else rows.amax().reshape(1)


def shared_of(weight: online.OnlineWeight, names: Sequence[str], table: Table,
              matrices: Mapping[str, Sequence[int]]) -> Shared | None:
    """MATRICES are those of the weight that have elements of each tensor. None if the tensors are
    cut in a way that is not known."""
    n, rows, _ = weight.shape
    sources: dict[str, int] = {}
    used = [0] * n
    for name in names:
        shape, where = table[name][1], list(matrices[name])
        is_stack = len(shape) == 3 and where == list(range(n)) and shape[0] == n
        if not is_stack and (len(shape) != 2 or len(where) != 1):
            return None
        if weight.kind == "row" and shape[-2] != rows:
            return None
        for matrix in where:
            used[matrix] += 1
        sources[name] = where[0]
    if 0 in used or (weight.kind == "row" and max(used) > 1):
        return None
    return Shared(weight, sources, table)
