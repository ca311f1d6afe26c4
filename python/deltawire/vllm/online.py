"""Weights that vLLM quantises while it loads them: `--quantization fp8` and a checkpoint in BF16.

The engine keeps fp8 elements and a scale for each unit, which is a tensor, a row or a block of
128 x 128. A changed element is quantised with the scale of its unit as long as the unit's largest
absolute value stays. Otherwise the unit is quantised again, from the checkpoint. Ranks may have
parts of a unit (shared.py). The arithmetic is that of vLLM's classes; whether it is the same is
shown by the first comparison of all weights with the checkpoint."""
from __future__ import annotations

from typing import Any, Callable, Iterator

import torch

BLOCK = 128
PACKED_ROWS = 32
"""Rows of a weight that vLLM's CPU kernels pack together."""
CHUNK_ELEMENTS = 16 << 20
"""Of a weight that are quantised at a time."""

METHODS = {
    "Fp8PerTensorOnlineLinearMethod": "tensor", "Fp8PerTensorOnlineMoEMethod": "tensor",
    "Fp8PtpcOnlineLinearMethod": "row", "Fp8PtpcOnlineMoEMethod": "row",
    "Fp8PerBlockOnlineLinearMethod": "block", "Fp8PerBlockOnlineMoEMethod": "block",
}
BASES = {"OnlineLinearBase", "OnlineMoEMethodBase"}
"""Other methods than those above are of kind "other": vLLM loads their layers again."""
PARTS = {"weight": "weight_scale", "w13_weight": "w13_weight_scale",
         "w2_weight": "w2_weight_scale"}
MIN_ROW_SCALE = 1.0 / (448 * 512)
MIN_BLOCK_MAX = 1e-4


class OnlineWeight:
    """One weight of a layer. X are elements as they are loaded, Q as the engine keeps them."""

    def __init__(self, target: str, module: torch.nn.Module, part: str, kind: str,
                 loaded: torch.Tensor, pack: Callable | None, is_shared: bool = False) -> None:
        """LOADED has the type and shape of the weight before it is quantised; PACK is what the
        kernel then does with its order. If IS_SHARED, units have parts on other ranks."""
        self.is_shared = is_shared
        self.target, self.module, self.part, self.kind = target, module, part, kind
        self.dtype = loaded.dtype
        *_, self._rows, self._columns = loaded.shape
        self.shape = (loaded.numel() // max(self._rows * self._columns, 1), self._rows,
                      self._columns)
        self._scale_name = PARTS[part] + ("_inv" if kind == "block" else "")
        self._order = _order_of(pack, self._columns) if pack else None
        self._greatest: torch.Tensor | None = None  # of each unit
        self.pending = torch.zeros(self.n_units, dtype=torch.bool)
        """Units whose scale may have changed: they are quantised again by redo()."""

    # ---- memory -----------------------------------------------------------------------

    def elements(self) -> torch.Tensor:
        """The bytes of the engine's elements, in the order of memory."""
        return _flat(getattr(self.module, self.part)).view(torch.uint8)

    def scales(self) -> torch.Tensor:
        return _flat(getattr(self.module, self._scale_name))

    def is_known(self) -> bool:
        """Whether the engine keeps the weight in the form that this class knows."""
        if self.kind == "other":
            return False
        weight = getattr(self.module, self.part, None)
        scale = getattr(self.module, self._scale_name, None)
        return (weight is not None and scale is not None
                and weight.dtype == torch.float8_e4m3fn and scale.dtype == torch.float32
                and weight.numel() == self.shape[0] * self._rows * self._columns
                and scale.numel() == self.n_units
                and _flat(weight) is not None and _flat(scale) is not None
                and (self._order is None or self._rows % PACKED_ROWS == 0))

    def _places(self, positions: torch.Tensor) -> torch.Tensor:
        """Where the elements at POSITIONS of the loaded weight are."""
        if self._order is None:
            return positions
        period = len(self._order)
        order = self._order.to(positions.device)
        return positions // period * period + order[positions % period]

    # ---- units ------------------------------------------------------------------------

    @property
    def n_units(self) -> int:
        n, rows, columns = self.shape
        return {"other": 0, "tensor": n, "row": n * rows,
                "block": n * _blocks(rows) * _blocks(columns)}[self.kind]

    def _units(self, positions: torch.Tensor) -> torch.Tensor:
        row = positions // self._columns
        if self.kind == "row":
            return row
        matrix = row // self._rows
        if self.kind == "tensor":
            return matrix
        return ((matrix * _blocks(self._rows) + row % self._rows // BLOCK)
                * _blocks(self._columns) + positions % self._columns // BLOCK)

    def _chunks(self) -> Iterator[tuple[int, int, int, slice]]:
        """Matrix, first row, last row + 1, and units of parts that consist of whole units."""
        n, rows, columns = self.shape
        step = max(CHUNK_ELEMENTS // max(columns, 1) // BLOCK, 1) * BLOCK
        step = rows if self.kind == "tensor" else step
        for matrix in range(n):
            for first in range(0, rows, max(step, 1)):
                last = min(first + step, rows)
                if self.kind == "tensor":
                    units = slice(matrix, matrix + 1)
                elif self.kind == "row":
                    units = slice(matrix * rows + first, matrix * rows + last)
                else:
                    start = matrix * _blocks(rows) + first // BLOCK
                    end = matrix * _blocks(rows) + _blocks(last)
                    units = slice(start * _blocks(columns), end * _blocks(columns))
                yield matrix, first, last, units

    def _greatest_of(self, x: torch.Tensor) -> torch.Tensor:
        """Of each unit of a chunk."""
        if self.kind == "tensor":
            return x.abs().amax().reshape(1)
        if self.kind == "row":
            return x.abs().amax(dim=1)
        rows, columns = x.shape
        padded = torch.nn.functional.pad(
            x, (0, -columns % BLOCK, 0, -rows % BLOCK)).abs()
        return padded.unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK)).amax(
            dim=(1, 3)).flatten()

    def _spread(self, values: torch.Tensor, rows: int) -> torch.Tensor:
        """The values of a chunk's units, for each of its elements."""
        if self.kind == "tensor":
            return values
        if self.kind == "row":
            return values[:, None]
        grid = values.view(-1, _blocks(self._columns)).repeat_interleave(BLOCK, 0)[:rows]
        return grid.repeat_interleave(BLOCK, 1)[:, :self._columns]

    # ---- arithmetic -------------------------------------------------------------------

    def _scale_of(self, greatest: torch.Tensor) -> torch.Tensor:
        limit = torch.finfo(torch.float8_e4m3fn).max
        if self.kind == "block":
            return greatest.clamp(MIN_BLOCK_MAX) / limit
        scale = greatest / torch.tensor(limit, dtype=torch.float32, device=greatest.device)
        return scale.clamp_min(MIN_ROW_SCALE) if self.kind == "row" else scale

    def _quantised(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """The bytes of Q."""
        limit = torch.finfo(torch.float8_e4m3fn).max
        scaled = x / scale if self.kind == "row" else x * (1.0 / scale)
        if self.kind != "block":
            scaled = scaled.clamp(-limit, limit)
        return scaled.to(torch.float8_e4m3fn).view(torch.uint8)

    # ---- patches ----------------------------------------------------------------------

    def check(self, positions: torch.Tensor, old: torch.Tensor, patch: str) -> None:
        """Raises unless the elements are those of OLD, except in units that are to be redone."""
        units = self._units(positions)
        kept = ~self.pending.to(units.device)[units]
        positions, units, old = positions[kept], units[kept], old[kept]
        wanted = self._quantised(old.float(), self.scales()[units])
        if not torch.equal(self.elements()[self._places(positions)], wanted):
            raise RuntimeError(f"{self.target} is not what {patch} replaces: these are not the "
                               "weights that it was made for")

    def mark(self, units: torch.Tensor, old: torch.Tensor, new: torch.Tensor) -> None:
        """Units of changed elements become pending if their largest value was changed, or is
        exceeded."""
        old, new = old.float(), new.float()
        pending = self.pending.to(units.device)
        if self._greatest is None:
            pending[units] = True
        else:
            greatest = self._greatest.to(units.device)[units]
            stays = (new.abs() <= greatest) & (old.abs() < greatest)  # false for NaN
            pending[units[~stays]] = True
        self.pending = pending.to(self.pending.device)

    def store(self, positions: torch.Tensor, old: torch.Tensor, new: torch.Tensor) -> int:
        """Stores the new values, except in units that are pending then, and reads them back.
        Returns how many. If units are shared, call mark() for the changes of all ranks before."""
        units = self._units(positions)
        if not self.is_shared:
            self.mark(units, old, new)
        kept = ~self.pending.to(units.device)[units]
        places = self._places(positions[kept])
        values = self._quantised(new[kept].float(), self.scales()[units[kept]])
        elements = self.elements()
        elements[places] = values
        if not torch.equal(elements[places], values):
            raise RuntimeError(f"{self.target} does not hold what was stored")
        return len(places)

    # ---- whole weights ----------------------------------------------------------------

    def redo(self, loaded: torch.Tensor, every: bool = False,
             shared: torch.Tensor | None = None) -> None:
        """Quantises the pending units, or every unit, of the weight LOADED again. SHARED has the
        largest values of units that have parts on other ranks."""
        elements, scales = self.elements(), self.scales()
        if self._greatest is None:
            self._greatest, every = torch.zeros(self.n_units, dtype=torch.float32), True
        for matrix, first, last, units in self._chunks():
            if not every and not bool(self.pending[units].any()):
                continue
            x = loaded.view(self.shape)[matrix, first:last].to(elements.device).float()
            greatest = self._greatest_of(x) if shared is None else shared[units].to(x.device)
            scale = self._scale_of(greatest)
            q = self._quantised(x, self._spread(scale, last - first))
            elements[self._span(matrix, first, last)] = q.flatten()
            scales[units] = scale
            self._greatest[units] = greatest.to(self._greatest.device)
        self.pending.zero_()

    def _span(self, matrix: int, first: int, last: int) -> Any:
        start = (matrix * self._rows + first) * self._columns
        end = (matrix * self._rows + last) * self._columns
        if self._order is None:
            return slice(start, end)
        return self._places(torch.arange(start, end, device=self.elements().device))

    def compare(self, loaded: torch.Tensor, shared: torch.Tensor | None = None) -> int:
        """How many elements and scales are not those of the weight LOADED."""
        elements, scales = self.elements(), self.scales()
        self._greatest = torch.zeros(self.n_units, dtype=torch.float32)
        n_wrong = 0
        for matrix, first, last, units in self._chunks():
            x = loaded.view(self.shape)[matrix, first:last].to(elements.device).float()
            greatest = self._greatest_of(x) if shared is None else shared[units].to(x.device)
            self._greatest[units] = greatest.to(self._greatest.device)
            scale = self._scale_of(greatest)
            q = self._quantised(x, self._spread(scale, last - first)).flatten()
            n_wrong += int((q != elements[self._span(matrix, first, last)]).sum())
            n_wrong += int((scale.view(torch.int32) != scales[units].view(torch.int32)).sum())
        if n_wrong == 0:
            self.pending.zero_()
        return n_wrong


def _flat(tensor: torch.Tensor) -> torch.Tensor | None:
    from .weights import in_memory_order

    return in_memory_order(tensor)


def _blocks(n: int) -> int:
    return -(-n // BLOCK)


def _order_of(pack: Callable, columns: int) -> torch.Tensor:
    """The place of each element in PACKED_ROWS rows, of which a packed weight consists."""
    n = PACKED_ROWS * columns
    numbers = torch.arange(n)
    found = torch.zeros(n, dtype=torch.int64)
    for shift in range(0, max(n - 1, 1).bit_length(), 8):
        codes = (numbers >> shift & 0xFF).to(torch.uint8).view(PACKED_ROWS, columns)
        packed = pack(codes.view(torch.float8_e4m3fn)).reshape(-1).view(torch.uint8)
        found |= packed.to(torch.int64) << shift
    order = torch.empty(n, dtype=torch.int64)
    order[found] = numbers
    return order


# ---- the weights of a model ------------------------------------------------------------


def _pack(weight: torch.Tensor) -> torch.Tensor:
    return torch.ops._C.convert_weight_packed(weight.contiguous())


def _pack_of(method: Any) -> Callable | None:
    kernel = type(getattr(method, "fp8_linear", None)).__name__
    backend = getattr(getattr(method, "fp8_backend", None), "name", None)
    return _pack if kernel == "CPUFp8BlockScaledMMKernel" or backend == "CPU" else None


def _is_shared(module: torch.nn.Module, method: Any, kind: str, part: str) -> bool:
    """Whether vLLM takes the largest values over all ranks: if they have parts of one unit."""
    from vllm.model_executor.layers.quantization.utils import quant_utils

    if kind in ("block", "other") or not hasattr(quant_utils, "amax_for_tp_weight_quant"):
        return False
    moe = getattr(method, "moe", None)
    if moe is not None:  # rows of w13 are whole
        return moe.tp_size > 1 and (kind == "tensor" or part == "w2_weight")
    if getattr(module, "tp_size", 1) == 1:
        return False
    is_cut = module.input_size != module.input_size_per_partition
    return is_cut or (kind == "tensor"
                      and module.output_size != module.output_size_per_partition)


def weights_of(name: str, module: torch.nn.Module) -> list[OnlineWeight]:
    """The weights of a layer that vLLM quantises while it loads them; none if it does not."""
    method = getattr(module, "quant_method", None)
    kind = METHODS.get(type(method).__name__)
    if kind is None and not BASES.isdisjoint(base.__name__ for base in type(method).__mro__):
        kind = "other"
    if kind is None or getattr(method, "requantization_source", None) is not None:
        return []
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

    loaded = get_layerwise_info(module).restore_metadata[0]
    return [OnlineWeight(f"{name}.{part}", module, part, kind, loaded[part], _pack_of(method),
                         _is_shared(module, method, kind, part))
            for part in PARTS if part in loaded]
