"""Tensors of a checkpoint that have one memory in the engine: embed_tokens and lm_head. They must
stay equal, because vLLM loads only one of them."""
from __future__ import annotations

from typing import Any, Callable, Iterator, Mapping, Sequence

import torch

from .. import _core


class Ties:
    """GROUPS of tensors that have one memory. LAYOUT_OF gives a layout whose targets are the
    tensors themselves."""

    def __init__(self, groups: Sequence[Sequence[str]],
                 table: Mapping[str, tuple[str, tuple[int, ...]]],
                 layout_of: Callable[[Sequence[str]], _core.Layout]) -> None:
        self._groups, self._table = list(groups), table
        self._layout: _core.Layout | None = None
        self._layout_of = layout_of

    def different(self, tensors: Mapping[str, Any]) -> Iterator[Sequence[str]]:
        """The groups that are not equal in TENSORS."""
        for group in self._groups:
            first = group[0]
            if any(self._table[name] != self._table[first] for name in group) or any(
                    not torch.equal(_bytes(tensors[name]), _bytes(tensors[first]))
                    for name in group[1:]):
                yield group

    def forget_different(self, tensors: Mapping[str, Any]) -> list[Sequence[str]]:
        """Forgets the groups that are not equal in TENSORS, and returns them."""
        forgotten = list(self.different(tensors))
        self._groups = [group for group in self._groups if group not in forgotten]
        return forgotten

    def moved_apart(self, patch: str) -> Iterator[Sequence[str]]:
        """The groups of which PATCH does not change all members in the same way."""
        if not self._groups:
            return
        if self._layout is None:
            self._layout = self._layout_of([name for group in self._groups for name in group])
        _, stores = self._layout.stores(patch)
        for group in self._groups:
            changes = [stores.get(name, (b"", b"", b"")) for name in group]
            if any((at, new) != (changes[0][0], changes[0][2]) for at, _, new in changes):
                yield group


def _bytes(tensor: Any) -> torch.Tensor:
    return torch.from_dlpack(tensor).reshape(-1).view(torch.uint8)
