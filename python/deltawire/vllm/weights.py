"""A model's weights as vLLM keeps them: fused, split among ranks, packed. The position of each
element of the checkpoint is learnt once, by loading tensors that spell their own numbers through
the model's own load_weights()."""
from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator, Mapping

import torch

from .. import _core
from . import quantised

Table = Mapping[str, tuple[str, tuple[int, ...]]]

DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "U16": torch.uint16,
    "I16": torch.int16, "U32": torch.uint32, "I32": torch.int32, "U64": torch.uint64,
    "I64": torch.int64, "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32,
    "F64": torch.float64, "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

GROUP_BYTES = 512 << 20
"""Bytes of tensors that are loaded at a time while a layout is learnt."""


def table_of(tensors: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()}


def in_memory_order(tensor: torch.Tensor) -> torch.Tensor | None:
    """The same memory as a flat tensor, or None if it has holes."""
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    turned = tensor.detach().permute(order)
    return turned.reshape(-1) if turned.is_contiguous() else None


def as_bytes(flat: torch.Tensor) -> torch.Tensor:
    return flat.view(torch.uint8) if flat.numel() else flat.new_empty(0, dtype=torch.uint8)


def as_words(flat: torch.Tensor) -> torch.Tensor:
    return flat.view(_WORDS[flat.element_size()])


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(as_bytes(a.detach().reshape(-1)), as_bytes(b.reshape(-1)))


def _tensors(tensors: Mapping[str, Any],
             names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
    for name in names:
        yield name, torch.from_dlpack(tensors[name])


class Weights:
    """The parameters of MODEL, and the positions of a checkpoint's tensors in them."""

    def __init__(
        self, model: torch.nn.Module, model_config: Any, table: Table, log: Any,
        threads: int = 0,
    ) -> None:
        self.table = dict(table)
        self._model, self._model_config = model, model_config
        self._log, self._threads = log, threads
        self._parameters: dict[str, torch.nn.Parameter] = {}
        self._others: dict[str, torch.Tensor] = dict(model.named_buffers())
        for name, parameter in model.named_parameters():
            if parameter.dtype in _NAMES and in_memory_order(parameter) is not None:
                self._parameters[name] = parameter
            else:
                self._others[name] = parameter
        self._layers, _ = quantised.layers_of(model, model_config.dtype)
        for layer in self._layers:
            self._parameters[f"{layer.name}.weight"] = layer.weight()
        self._targets = {name: in_memory_order(p) for name, p in self._parameters.items()}
        self._on_cpu = all(flat.is_cpu for flat in self._targets.values())
        self.layout = _core.Layout(
            self.table, {name: (_NAMES[flat.dtype], (flat.numel(),))
                         for name, flat in self._targets.items()})
        self.reasons: dict[str, str] = {}
        """The reasons why tensors are loaded again when they change."""
        self.confirmed = False
        self._unplaced: str | None = None
        self._said: set[str] = set()
        self._addresses: list[int] = []
        self._is_bound = False
        self._learn()
        self.layout.end()
        for layer in self._layers:
            sums = layer.sums()
            if sums is not None:
                self.layout.add_sums(f"{layer.name}.weight", **sums)
        self._is_redone = any(isinstance(layer, quantised.Repacked) for layer in self._layers)
        for name in self.layout.forgotten:
            self.reasons.setdefault(name, "it lies in too many places")
        self._forget_unplaced()

    def _forget_unplaced(self) -> None:
        """If a target was loaded from unknown tensors, every tensor without a known position may
        be in it. For tensors of other ranks this is wasted work, but correct."""
        for name, n in self.layout.held.items():
            if n == 0 and self._unplaced:
                self._forget(name, self._unplaced)
        for name, why in self.reasons.items():
            if name not in self._said:
                self._log.warning("deltawire: %s is loaded anew when it changes: %s", name, why)
                self._said.add(name)

    # ---- learning ---------------------------------------------------------------------

    @torch.no_grad()
    def _learn(self) -> None:
        self._packers = dict(_packers(self._model))
        packers = self._packers | {f"{layer.name}.weight": layer.pack for layer in self._layers}
        with quantised.staged(self._layers) as stages:
            self._learn_staged(stages, packers)

    def _learn_staged(self, stages: Mapping[str, torch.Tensor],
                      packers: Mapping[str, Callable]) -> None:
        """STAGES are loaded instead of the targets of the same names, which are not touched."""
        self._loads = {name: in_memory_order(stages.get(name, p))
                       for name, p in self._parameters.items()}
        saved = {name: flat.to("cpu", copy=True) for name, flat in self._targets.items()
                 if name not in stages}
        others = {name: t.detach().clone() for name, t in self._others.items()}
        stray = None
        try:
            for flat in self._loads.values():
                as_bytes(flat).fill_(0xFF)
            for group in self._groups():
                self._learn_group(group, stages, packers)
        finally:
            del self._loads
            for name, flat in saved.items():
                self._targets[name].copy_(flat)
            for name, tensor in self._others.items():
                if not _same_bits(tensor, others[name]):
                    tensor.copy_(others[name])
                    stray = name
        self._forget_derived()
        if stray:
            self._unplaced = f"it may be in {stray}, whose places cannot be told"

    def _groups(self) -> Iterator[list[str]]:
        """Layer by layer, so that the parts of a fused tensor are in one group."""
        layers: dict[str, list[str]] = {}
        for name in self.table:
            parts = name.split(".")
            number = next((i for i, part in enumerate(parts) if part.isdigit()), 0)
            layers.setdefault(".".join(parts[:number + 1]) if number else "", []).append(name)
        group: list[str] = []
        n_bytes = 0
        for names in layers.values():
            size = sum(self._bytes_of(name) for name in names)
            if group and n_bytes + size > GROUP_BYTES:
                yield group
                group, n_bytes = [], 0
            group, n_bytes = group + names, n_bytes + size
        if group:
            yield group

    def _bytes_of(self, name: str) -> int:
        dtype, shape = self.table[name]
        return torch.Size(shape).numel() * DTYPES[dtype].itemsize if dtype in DTYPES else 0

    def _spelled(self, group: Iterable[str], number: int) -> Iterator[tuple[str, torch.Tensor]]:
        for name in group:
            raw = torch.empty(self._bytes_of(name), dtype=torch.uint8)
            self.layout.spell(name, number, raw)
            dtype, shape = self.table[name]
            yield name, raw.view(DTYPES[dtype]).reshape(shape)

    def _learn_group(self, group: list[str], stages: Mapping[str, torch.Tensor],
                     packers: Mapping[str, Callable]) -> None:
        known = [name for name in group if self.table[name][0] in DTYPES]
        for name in set(group) - set(known):
            self._forget(name, f"PyTorch has no {self.table[name][0]}")
        touched: dict[str, list[torch.Tensor]] = {}
        try:
            for number in range(self.layout.passes()):
                loaded = self._model.load_weights(self._spelled(known, number))
                names = set(self._targets) if loaded is None else self._resolve(loaded)
                for name in set(loaded or ()) & set(stages) - set(self._targets):
                    self._unplaced = f"vLLM does not keep {name}"
                for name in names | set(touched):
                    codes = stages.get(name, self._parameters[name]).detach()
                    if name in packers:
                        codes = packers[name](codes)
                    target = self._targets[name]
                    if codes.numel() != target.numel() or codes.dtype != target.dtype:
                        self._unplaced = f"vLLM keeps {name} in another form than it loads"
                        continue
                    touched.setdefault(name, []).append(
                        as_bytes(in_memory_order(codes)).to("cpu", copy=True))
        except Exception as error:
            for name in known:
                self._forget(name, f"load_weights() fails with it: {error}")
            names = set(self._targets)  # any of them
            touched = {}
        for name, passes in touched.items():
            try:
                self.layout.learn(name, passes)
            except _core.Unsupported as error:
                self._unplaced = f"it may be in {name}: {error.text}"
        for name in names:
            as_bytes(self._loads[name]).fill_(0xFF)

    def _resolve(self, loaded: Iterable[str]) -> set[str]:
        """The targets that load_weights() reports as loaded."""
        names = set(loaded)
        found = names & set(self._targets)
        return found if found == names else set(self._targets)

    def _forget(self, name: str, why: str) -> None:
        if name not in self.reasons:
            self.reasons[name] = why
            self.layout.forget(name)

    def _forget_derived(self) -> None:
        """Attention with latent keys and values computes with copies that are made after a weight
        is loaded, so a store to the weight itself has no effect."""
        self._derived: set[str] = set()
        if any(hasattr(module, "W_UV") or hasattr(module, "W_UK_T")
               for module in self._model.modules()):
            self._derived = {name for name in self.table if "kv_b_proj" in name}
        for name in self._derived:
            self._forget(name, "attention keeps copies of it in another form")

    # ---- use --------------------------------------------------------------------------

    def bind(self) -> None:
        """The parameters' memory may have moved."""
        addresses = [p.data_ptr() for p in self._parameters.values()]
        if addresses != self._addresses:
            self._addresses, self._is_bound = addresses, False
            self._targets = {name: in_memory_order(p) for name, p in self._parameters.items()}
        if self._on_cpu and not self._is_bound:
            self.layout.bind({name: as_bytes(flat) for name, flat in self._targets.items()})
            self._is_bound = True

    def _unbind(self) -> None:
        """Memory of the CPU stays bound until it moves."""
        if not self._on_cpu:
            self.layout.bind({})
            self._is_bound = False

    def compare(self, tensors: Mapping[str, Any]) -> dict[str, int]:
        """For each tensor, how many elements differ from what the model computes with."""
        if self._on_cpu:
            self.bind()
        else:
            self.layout.bind({name: as_bytes(in_memory_order(p).cpu())
                              for name, p in self._parameters.items()})
        try:
            wrong = self.layout.compare(tensors, threads=self._threads)
        finally:
            self._unbind()
        for layer in self._layers:
            n = layer.n_wrong()
            if n > 0:
                wrong[f"{layer.name}.weight"] = n
        return wrong

    def confirm(self, tensors: Mapping[str, Any]) -> bool:
        """TENSORS is the checkpoint that vLLM has loaded. Forgets tensors that are not at their
        learnt positions. Returns whether there were any."""
        wrong = self.compare(tensors)
        for name, n in wrong.items():
            if name not in self.table:
                raise RuntimeError(f"{n} sums beside {name} are not those of its rows: this vLLM "
                                   "packs weights in another way")
            self._unplaced = f"{n} elements of {name} are others than in the checkpoint"
            self._forget(name, self._unplaced)
        self._forget_unplaced()
        self.confirmed = True
        return bool(wrong)

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Any], names: Iterable[str] | None = None) -> None:
        """Loads whole tensors: all, or those in NAMES. On CPUs through the layout, because vLLM
        would not pack them again; elsewhere as vLLM does, in whole layers."""
        if not self._on_cpu:
            self._reload(tensors)
            return
        if names is None:
            names = self.reasons
            self.bind()
            try:
                self.layout.write(tensors, threads=self._threads)
            finally:
                self._unbind()
            for layer in self._layers:
                layer.finish(None)
        is_derived = not self._derived.isdisjoint(names)
        if self._packers and (is_derived or any("experts" in name for name in names)):
            raise RuntimeError("experts that this machine's kernels have packed cannot be "
                               "loaded anew, and so not with " + sorted(names)[0])
        if is_derived:
            self._reload(tensors)
            return
        if self._layers and names:
            self._load_staged(tensors, names)
        elif names:
            self._model.load_weights(_tensors(tensors, names))

    def _load_staged(self, tensors: Mapping[str, Any], names: Iterable[str]) -> None:
        """Of quantised layers only scales: they have the same form in all kernels."""
        with quantised.staged(self._layers) as stages:
            packed = {f"{layer.name}.weight" for layer in self._layers}
            scales = {name: (stage, self._parameters[name]) for name, stage in stages.items()
                      if name not in packed and name in self._parameters}
            for stage, scale in scales.values():
                stage.copy_(scale)
            loaded = self._model.load_weights(_tensors(tensors, names))
            for name in packed & set(packed if loaded is None else loaded):
                raise RuntimeError(f"{name}, which vLLM has packed, cannot be loaded anew")
            for stage, scale in scales.values():
                scale.copy_(stage)
        for layer in self._layers:
            layer.finish(None)

    def _reload(self, tensors: Mapping[str, Any]) -> None:
        from vllm.model_executor.model_loader.reload import (
            finalize_layerwise_reload,
            initialize_layerwise_reload,
        )

        initialize_layerwise_reload(self._model)
        try:
            self._model.load_weights(_tensors(tensors, self.table))
        finally:
            finalize_layerwise_reload(self._model, self._model_config)

    @torch.no_grad()
    def apply(self, patch: str, base: str | None) -> _core.LayoutReport:
        """Applies a patch file and reads it back."""
        self.bind()
        try:
            if self._on_cpu:
                report = self.layout.apply(patch, base=base, threads=self._threads)
                stores = self.layout.stores(patch)[1] if self._is_redone else {}
            else:
                report, stores = self.layout.stores(patch, base=base)
                self._store_on_device(patch, stores)
        finally:
            self._unbind()
        for layer in self._layers:
            self._finish(layer, stores)
        return report

    def _finish(self, layer: quantised.Layer,
                stores: Mapping[str, tuple[bytearray, bytearray, bytearray]]) -> None:
        """Computes again what depends on the weights that STORES changed."""
        if self._on_cpu and not isinstance(layer, quantised.Repacked):
            layer.copy_bias()  # its sums are moved
            return
        name = f"{layer.name}.weight"
        if not any(stores.get(f"{layer.name}.{part}", ((),))[0]
                   for part in ("weight", "weight_scale", "bias")):
            return
        places, old, new = stores.get(name, (b"", b"", b""))
        flat = self._targets[name]
        layer.finish(tuple(
            torch.frombuffer(values, dtype=dtype).to(flat.device) if values
            else torch.empty(0, dtype=dtype, device=flat.device)
            for values, dtype in ((places, torch.int64), (old, flat.dtype), (new, flat.dtype))))

    def _store_on_device(
        self, patch: str, stores: Mapping[str, tuple[bytearray, bytearray, bytearray]]
    ) -> None:
        work = []
        for name, (places, old, new) in stores.items():
            words = as_words(self._targets[name])
            index = torch.frombuffer(places, dtype=torch.int64).to(words.device)
            work.append((name, words, index,
                         torch.frombuffer(old, dtype=words.dtype).to(words.device),
                         torch.frombuffer(new, dtype=words.dtype).to(words.device)))
        for name, words, index, old, _ in work:
            if not torch.equal(words[index], old):
                raise RuntimeError(f"{name} is not what {patch} replaces: these are not the "
                                   "weights that it was made for")
        for _, words, index, _, new in work:
            words[index] = new
        for name, words, index, _, new in work:
            if not torch.equal(words[index], new):
                raise RuntimeError(f"{name} does not hold what was stored")


def _packers(model: torch.nn.Module) -> Iterator[tuple[str, Callable]]:
    """Packs experts as vLLM does on CPUs after loading: the layout is that of the packed ones."""
    for name, module in model.named_modules():
        kernel = getattr(getattr(module, "quant_method", None), "moe_kernel", None)
        experts = getattr(kernel, "fused_experts", None)
        isa = getattr(experts, "isa", None)
        if isa is None or getattr(experts, "_use_zentorch", False):
            continue
        from vllm._custom_ops import cpu_prepack_moe_weight

        for weight in ("w13_weight", "w2_weight"):
            yield f"{name}.{weight}", lambda codes, isa=isa: cpu_prepack_moe_weight(codes, isa)
