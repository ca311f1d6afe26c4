"""A model's weights as vLLM keeps them: fused, split among ranks, packed. The position of each
element of the checkpoint is learnt once, by loading tensors that spell their own numbers through
the model's own load_weights()."""
from __future__ import annotations

import collections
import functools
import os
from typing import Any, Callable, Iterable, Iterator, Mapping, Sequence

import torch

from .. import _core
from . import online, quantised, shared, ties
from .shadows import Shadows, as_bytes, in_memory_order
from .undo import Undo

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

GROUP_BYTES = 256 << 20
"""Bytes of tensors that are loaded at a time while a layout is learnt."""


def table_of(tensors: Mapping[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()}


def as_words(flat: torch.Tensor) -> torch.Tensor:
    return flat.view(_WORDS[flat.element_size()])


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu", copy=True)


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(as_bytes(a.reshape(-1)), as_bytes(b.reshape(-1)))


def _is_reached(device: torch.device) -> bool:
    """Whether the library stores in memory of DEVICE by itself."""
    if device.type != "cuda" or torch.version.hip is not None:
        return device.type == "cpu"
    return _core.device_fault(f"cuda:{device.index}") is None


def _identity(path: str) -> tuple[int, ...]:
    """That of a file, which stays when it is renamed."""
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _tensors(tensors: Mapping[str, Any],
             names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
    for name in names:
        yield name, torch.from_dlpack(tensors[name])


class Refused(RuntimeError):
    """The engine cannot hold the version. The weights are as they were."""


class Weights:
    """The parameters of MODEL, and the positions of a checkpoint's tensors in them."""

    def __init__(
        self, model: torch.nn.Module, model_config: Any, table: Table, log: Any,
        threads: int = 0, undo: Undo | None = None,
    ) -> None:
        """UNDO puts MODEL back if one of the calls was interrupted."""
        self.table = dict(table)
        self._model, self._model_config = model, model_config
        self._log, self._threads = log, threads
        self._undo = undo or Undo()
        self._parameters: dict[str, torch.nn.Parameter] = {}
        self._others: dict[str, torch.Tensor] = dict(model.named_buffers())
        self._online = {weight.target: weight for name, module in model.named_modules()
                        for weight in online.weights_of(name, module)}
        for name, parameter in model.named_parameters():
            if name in self._online:
                continue
            if parameter.dtype in _NAMES and in_memory_order(parameter) is not None:
                self._parameters[name] = parameter
            else:
                self._others[name] = parameter
        self._layers, _ = quantised.layers_of(model, model_config.dtype)
        for layer in self._layers:
            self._parameters[layer.target] = layer.weight()
        self._targets = {name: in_memory_order(p) for name, p in self._parameters.items()}
        devices = {flat.device for flat in self._targets.values()}
        self._on_cpu = all(device.type == "cpu" for device in devices)
        self._devices = [device for device in devices if device.type == "cuda"]
        self._is_direct = all(_is_reached(device) for device in devices)
        self._ready: tuple[int, ...] | None = None  # the patch that is prepared
        self._checked: tuple[int, ...] | None = None  # the one that check() has passed
        self._to_quantise: list[tuple[online.OnlineWeight, tuple[torch.Tensor, ...]]] = []
        self.layout = _core.Layout(
            self.table, {name: (_NAMES[flat.dtype], (flat.numel(),))
                         for name, flat in self._targets.items()})
        # the positions in weights before they are quantised; no memory has these
        self._sources = _core.Layout(
            self.table, {name: (_NAMES[weight.dtype], weight.shape)
                         for name, weight in self._online.items()})
        self._redone: dict[str, torch.nn.Module] = {}  # tensors that need vLLM's own reload
        self._shared: dict[str, shared.Shared] = {}  # of weights that ranks share scales of
        self._whole: _core.Layout | None = None  # the tensors behind these, as they are
        self.reasons: dict[str, str] = {}
        """The reasons why tensors are loaded again when they change."""
        self.confirmed = False
        self._unplaced: str | None = None
        self._said: set[str] = set()
        self._covered: collections.Counter[str] = collections.Counter()
        self._reported: set[str] = set()  # by load_weights() as loaded
        self._addresses: list[int] | None = None  # of the parameters, when they were bound
        self._quantised = set(self._online)  # also those that are given up
        self._learn()
        self.layout.end()
        self._sources.end()
        self._learn_shared()
        for layer in self._layers:
            sums = layer.sums()
            if sums is not None:
                self.layout.add_sums(layer.target, **sums)
        self._is_redone = any(isinstance(layer, quantised.Repacked) or (
            not self._on_cpu and type(layer).finish is not quantised.Layer.finish)
            for layer in self._layers)
        for name in {*self.layout.forgotten, *self._sources.forgotten}:
            self.reasons.setdefault(name, "it lies in too many places")
        self._forget_unplaced()
        self._set_by = {target: set(self._sources_of(target))
                        for target in (*self._parameters, *self._quantised)}
        self._ties = ties.Ties(self._tied(), self.table, self._layout_of)

    def _forget_unplaced(self) -> None:
        """If a target was loaded from unknown tensors, every tensor without a known position may
        be in it. For tensors of other ranks this is wasted work, but correct."""
        for name, n in self.held.items():
            if n == 0 and self._unplaced:
                self._forget(name, self._unplaced)
        for name, why in self.reasons.items():
            if name not in self._said:
                self._log.warning("deltawire: %s is loaded anew when it changes: %s", name, why)
                self._said.add(name)

    @property
    def held(self) -> dict[str, int]:
        """How many positions hold elements of each tensor."""
        sources = self._sources.held
        return {name: n + sources[name] for name, n in self.layout.held.items()}

    # ---- learning ---------------------------------------------------------------------

    @torch.no_grad()
    def _learn(self) -> None:
        self._packers = dict(_packers(self._model))
        packers = self._packers | {layer.target: layer.pack for layer in self._layers}
        layers = [*self._layers, *self._online.values()]
        before, stray = self._digests(), []
        others = {name: _on_host(t) for name, t in self._others.items()}
        with self._undo:
            self._undo.add(lambda: stray.extend(self._put_back(others)))
            # loaded instead of the targets of the same names, which are not touched
            stages = quantised.stage(layers, self._undo) if layers else {}
            self._loads = {name: stages.get(name, p) for name, p in self._parameters.items()}
            self._loads |= {name: stages[name] for name in self._online}
            self._shadows = Shadows(self._loads, stages, self._undo)
            for group in self._groups():
                self._learn_group(group, stages, packers)
        del self._shadows, self._loads
        for name, digest in self._digests().items():
            if digest != before[name]:
                raise RuntimeError(f"load_weights() stores in {name} past its parameter, so that "
                                   "its layout cannot be learnt: use vLLM without the back end "
                                   "deltawire")
        self._forget_derived()
        if stray:
            self._unplaced = f"it may be in {stray[-1]}, whose places cannot be told"

    @torch.no_grad()
    def _put_back(self, others: Mapping[str, torch.Tensor]) -> Iterator[str]:
        """Yields the names of those that were changed."""
        for name, tensor in self._others.items():
            if not _same_bits(_on_host(tensor), others[name]):
                yield name
                tensor.copy_(others[name])

    def _digests(self) -> dict[str, str]:
        if not self._is_direct:
            return {}
        self._wait()
        return _core.digest({name: as_bytes(flat) for name, flat in self._targets.items()}).tensors

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
                names = set(self._loads) if loaded is None else self._resolve(loaded)
                self._reported |= set(self._loads) if loaded is None else set(loaded)
                for name in set(loaded or ()) & set(stages) - set(self._loads):
                    self._unplaced = f"vLLM does not keep {name}"
                for name in names | set(touched):
                    codes = (stages[name] if name in stages
                             else self._parameters[name]).detach()
                    if name in packers:
                        codes = packers[name](codes)
                    target = self._targets.get(name, self._loads[name])
                    if codes.numel() != target.numel() or codes.dtype != target.dtype:
                        self._unplaced = f"vLLM keeps {name} in another form than it loads"
                        continue
                    touched.setdefault(name, []).append(
                        as_bytes(in_memory_order(codes)).to("cpu", copy=True))
        except Exception as error:
            for name in known:
                self._forget(name, f"load_weights() fails with it: {error}")
            names = set(self._loads)  # any of them
            self._reported |= names
            touched = {}
        for name, passes in touched.items():
            try:
                layout = self._sources if name in self._online else self.layout
                self._covered[name] += layout.learn(name, passes)
            except _core.Unsupported as error:
                self._unplaced = f"it may be in {name}: {error.text}"
        self._shadows.clear(names)

    def _learn_shared(self) -> None:
        """Finds the whole tensors behind weights of which this rank has a part."""
        n_targets = collections.Counter(name for target in self._online
                                        for name in self._sources.sources(target))
        n_targets.update(name for name, n in self.layout.held.items() if n > 0)
        for weight in list(self._online.values()):
            if weight.target not in self._online:
                continue
            if not weight.is_known():
                self._give_up(weight, "vLLM keeps it in a form that is not known")
            elif weight.is_shared:
                names = self._sources.sources(weight.target)
                is_apart = bool(names) and all(n_targets[name] == 1 for name in names)
                found = shared.shared_of(weight, names, self.table,
                                         self._matrices_of(weight, names)) if is_apart else None
                if found is None:
                    self._give_up(weight, "it is split among ranks in a way that is not known")
                else:
                    self._shared[weight.target] = found
        names = [name for found in self._shared.values() for name in found.names]
        if names:
            self._whole = self._layout_of(names)

    def _layout_of(self, names: Sequence[str]) -> _core.Layout:
        """Its targets are the tensors themselves."""
        layout = _core.Layout(self.table, {name: self.table[name] for name in names})
        for name in names:
            passes = []
            for number in range(layout.passes()):
                passes.append(torch.empty(self._bytes_of(name), dtype=torch.uint8))
                layout.spell(name, number, passes[-1])
            layout.learn(name, passes)
        layout.end()
        return layout

    def _matrices_of(self, weight: online.OnlineWeight,
                     names: Sequence[str]) -> dict[str, list[int]]:
        """The matrices of a weight that have elements of each tensor: each is loaded with a
        number of its own instead of its values."""
        n = weight.shape[0]
        if n == 1 or len(names) >= 1 << 15 or weight.dtype.itemsize != 2:
            return {name: list(range(n)) for name in names}
        codes = {name: torch.full(self.table[name][1], number, dtype=torch.int16)
                 for number, name in enumerate(names, 1)}
        loaded = self._loaded(weight, {name: code.view(weight.dtype)
                                       for name, code in codes.items()})
        found = [set(matrix.unique().tolist()) for matrix in loaded.view(torch.int16).view(n, -1)]
        return {name: [i for i, numbers in enumerate(found) if number in numbers]
                for number, name in enumerate(names, 1)}

    def _give_up(self, weight: online.OnlineWeight, why: str) -> None:
        """From now on vLLM itself loads and quantises the layer again when it changes."""
        for other in [w for w in self._online.values() if w.module is weight.module]:
            for name in self._sources.sources(other.target):
                self._redone[name] = weight.module
                self._forget(name, why)
            self._shared.pop(other.target, None)
            del self._online[other.target]

    def _resolve(self, loaded: Iterable[str]) -> set[str]:
        """The targets that load_weights() reports as loaded."""
        names = set(loaded)
        found = names & set(self._loads)
        return found if found == names else set(self._loads)

    def _forget(self, name: str, why: str) -> None:
        if name not in self.reasons:
            self.layout.forget(name)
            self._sources.forget(name)
            if self._whole is not None:
                self._whole.forget(name)
            self.reasons[name] = why  # at last, or an interrupt would leave the rest undone

    def _forget_derived(self) -> None:
        """Attention with latent keys and values computes with copies that are made after a weight
        is loaded, so a store to the weight itself has no effect."""
        self._derived: set[str] = set()
        if any(hasattr(module, "W_UV") or hasattr(module, "W_UK_T")
               for module in self._model.modules()):
            self._derived = {name for name in self.table if "kv_b_proj" in name}
        for name in self._derived:
            self._forget(name, "attention keeps copies of it in another form")

    # ---- which parameters the checkpoint sets -----------------------------------------

    def _sources_of(self, target: str) -> list[str]:
        return (self._sources if target in self._quantised else self.layout).sources(target)

    @property
    def unset(self) -> list[str]:
        """The parameters that no tensor of the checkpoint sets."""
        return [target for target in self._set_by
                if not self._covered[target] and target not in self._reported]

    def lacks(self, before: Weights | None) -> list[str]:
        """The tensors that the checkpoint lacks, though the model has them: those that set elements
        BEFORE which nothing sets now. Without it, that the model was loaded from is not known:
        then all weights and biases are wanted."""
        if before is None:
            return sorted({*self._unloaded_parts(), *(
                target for target in self.unset if target.endswith(("weight", "bias")))})
        # tensors without known places may be in any parameter
        missing = {name for name in before.reasons if name not in self.table}
        for target, names in before._set_by.items():
            if self._covered[target] < before._covered[target]:
                gone = {name for name in names if name not in self.table}
                missing |= gone or (names if names.isdisjoint(self.reasons) else set())
        return sorted(missing)

    def _unloaded_parts(self) -> Iterator[str]:
        """Of fused parameters that are set in part."""
        packed = getattr(self._model, "packed_modules_mapping", None) or {}
        for target, names in self._set_by.items():
            module, _, last = target.rpartition(".")
            above, _, fused = module.rpartition(".")
            found = {name.split(".")[-2] for name in names if name.count(".")}
            for part in packed.get(fused, ()) if names else ():
                if part not in found and not found.isdisjoint(packed[fused]):
                    yield f"{above}.{part}.{last}"

    def _tied(self) -> list[list[str]]:
        """Tensors of the checkpoint, in groups, for which the model has one memory."""
        names: dict[tuple[int, int], list[str]] = {}
        for name, parameter in self._model.named_parameters(remove_duplicate=False):
            if parameter.numel():
                names.setdefault((parameter.data_ptr(), parameter.numel()), []).append(name)
        held, found = self.held, []
        for same in names.values():
            if len(same) < 2:
                continue
            group = {source for name in same if name in self._set_by
                     for source in self._set_by[name]}
            # vLLM passes over what it has tied
            group |= {tensor for tensor in self.table if not held[tensor] and any(
                name == tensor or name.endswith("." + tensor) for name in same)}
            found.append(sorted(group))
        return [group for group in found if len(group) > 1]

    def forget_untied(self, tensors: Mapping[str, Any]) -> None:
        """TENSORS is the checkpoint that vLLM has loaded: tensors that differ in it and have one
        memory all the same are so by vLLM's choice."""
        for names in self._ties.forget_different(tensors):
            self._log.warning("deltawire: vLLM has one memory for %s, which differ in the "
                              "checkpoint", " and ".join(names))

    def check_ties(self, tensors: Mapping[str, Any]) -> None:
        """Raises Refused if tensors that the model has one memory for differ."""
        for names in self._ties.different(tensors):
            raise _untied(names)

    # ---- use --------------------------------------------------------------------------

    def equal(self, tensors: Mapping[str, Any]) -> bool:
        """Whether the model is known to compute with TENSORS."""
        return self.confirmed and not self.reasons and not self.compare(tensors)

    def bind(self) -> None:
        """The parameters' memory may have moved."""
        addresses = [p.data_ptr() for p in self._parameters.values()]
        if addresses == self._addresses:
            return
        self._addresses, self._ready = None, None  # until it is done
        self._targets = {name: in_memory_order(p) for name, p in self._parameters.items()}
        if self._is_direct:
            self.layout.bind({name: as_bytes(flat) for name, flat in self._targets.items()})
        self._addresses = addresses

    def _unbind(self) -> None:
        """Memory that the library reaches stays bound until it moves."""
        if not self._is_direct:
            self._addresses = None
            self.layout.bind({})

    def _wait(self) -> None:
        """The library does not wait for PyTorch's streams."""
        for device in self._devices:
            torch.cuda.synchronize(device)

    def compare(self, tensors: Mapping[str, Any]) -> dict[str, int]:
        """For each tensor, how many elements differ from what the model computes with."""
        if self._is_direct:
            self.bind()
            self._wait()
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
                wrong[layer.target] = n
        for weight in self._online.values():
            names = self._sources.sources(weight.target)
            n = weight.compare(self._loaded(weight, tensors),
                               self._greatest_of(weight, tensors)) if names else 0
            if n > 0:
                wrong[names[0]] = n
        return wrong

    def _loaded(self, weight: online.OnlineWeight, tensors: Mapping[str, Any]) -> torch.Tensor:
        """A weight as vLLM loads it, before it is quantised."""
        flat = torch.zeros(weight.shape, dtype=weight.dtype).view(-1)  # there may be padding
        self._sources.bind({weight.target: as_bytes(flat)})
        try:
            self._sources.write_target(
                weight.target, {name: tensors[name]
                                for name in self._sources.sources(weight.target)},
                threads=self._threads)
        finally:
            self._sources.bind({})
        return flat

    def _greatest_of(self, weight: online.OnlineWeight, tensors: Mapping[str, Any],
                     units: torch.Tensor | None = None) -> torch.Tensor | None:
        """The largest values of units, or of UNITS, that have parts on other ranks."""
        found = self._shared.get(weight.target)
        return found and found.greatest(tensors, units)

    def confirm(self, tensors: Mapping[str, Any]) -> bool:
        """TENSORS is the checkpoint that vLLM has loaded. Forgets tensors that are not at their
        learnt positions. Returns whether there were any."""
        try:
            wrong = self.compare(tensors)
        except Exception:
            self._agree(dict.fromkeys(self._shared, True))  # the other ranks wait for it
            raise
        is_known = {}  # the arithmetic of a weight
        for target in self._online:
            names = self._sources.sources(target)
            is_known[target] = bool(names) and names[0] not in wrong
        is_known |= self._agree({target: is_known[target] for target in self._shared})
        for weight in list(self._online.values()):
            if weight.target in self._online and not is_known[weight.target]:
                self._give_up(weight, "vLLM quantises it in another way")
        for name, n in wrong.items():
            if name not in self.table:
                raise RuntimeError(f"{n} sums beside {name} are not those of its rows: this vLLM "
                                   "packs weights in another way")
            self._unplaced = f"{n} elements of {name} are others than in the checkpoint"
            self._forget(name, self._unplaced)
        self._forget_unplaced()
        self.confirmed = True
        return bool(wrong)

    def _agree(self, is_known: Mapping[str, bool]) -> dict[str, bool]:
        """Whether all ranks know each of these weights: if vLLM loads a layer again, ranks wait
        for each other."""
        if not is_known:
            return {}
        from vllm.distributed.parallel_state import get_ep_group, get_tp_group

        agreed: dict[str, bool] = {}
        for is_expert, group in ((False, get_tp_group), (True, get_ep_group)):
            targets = [target for target in is_known
                       if hasattr(self._online[target].module, "w2_weight") == is_expert]
            flags = torch.tensor([not is_known[target] for target in targets],
                                 dtype=torch.uint8)
            if targets:
                torch.distributed.all_reduce(flags, op=torch.distributed.ReduceOp.MAX,
                                             group=group().cpu_group)
            agreed |= {target: not flag for target, flag in zip(targets, flags.tolist())}
        return agreed

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Any], names: Iterable[str] | None = None) -> None:
        """Loads whole tensors: all, or those in NAMES. Through the layout, because vLLM would not
        pack them again on CPUs, and so that no address changes. What it has no place for is loaded
        by vLLM: on devices as its own back ends do it, in whole layers."""
        if names is None and self._is_direct:
            names = self.reasons
            self.bind()
            self._wait()
            try:
                self.layout.write(tensors, threads=self._threads)
            finally:
                self._unbind()
            for layer in self._layers:
                layer.finish(None)
            for weight in self._online.values():
                weight.redo(self._loaded(weight, tensors), True,
                            self._greatest_of(weight, tensors))
        if not self._on_cpu:
            if names is None or self._redo_layers(tensors, names):
                self._reload(tensors)
            return
        names = self._redo_layers(tensors, names)
        is_derived = not self._derived.isdisjoint(names)
        if self._packers and (is_derived or any("experts" in name for name in names)):
            raise RuntimeError("experts that this machine's kernels have packed cannot be "
                               "loaded anew, and so not with " + sorted(names)[0])
        if is_derived:
            self._reload(tensors)
            return
        if (self._layers or self._online) and names:
            self._load_staged(tensors, names)
        elif names:
            self._model.load_weights(_tensors(tensors, names))

    def _redo_layers(self, tensors: Mapping[str, Any], names: Iterable[str]) -> set[str]:
        """Has vLLM quantise layers again whose arithmetic is not known; returns the other
        names."""
        from vllm.model_executor.model_loader.reload import (
            finalize_layerwise_reload,
            initialize_layerwise_reload,
        )

        # in the same order on all ranks, which wait for each other
        for module in dict.fromkeys(self._redone[name] for name in sorted(names)
                                    if name in self._redone):
            with self._undo:
                self._undo.add(functools.partial(finalize_layerwise_reload, module,
                                                 self._model_config))
                initialize_layerwise_reload(module)
                self._model.load_weights(_tensors(
                    tensors, [name for name, m in self._redone.items() if m is module]))
        return set(names) - set(self._redone)

    def _load_staged(self, tensors: Mapping[str, Any], names: Iterable[str]) -> None:
        """Of quantised layers only scales: they have the same form in all kernels."""
        with self._undo:
            stages = quantised.stage([*self._layers, *self._online.values()], self._undo)
            packed = {layer.target for layer in self._layers} | set(self._online)
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

        with self._undo:
            self._undo.add(functools.partial(finalize_layerwise_reload, self._model,
                                             self._model_config))
            initialize_layerwise_reload(self._model)
            self._model.load_weights(_tensors(tensors, self.table))

    def prepare(self, patch: str) -> None:
        """Does what an apply() of PATCH can do before the engine pauses: computes the positions of
        the stores and copies them to the devices. The weights do not change."""
        found = _identity(patch)
        if not self._is_direct:
            return
        self.bind()
        if found == self._ready:
            return
        self._ready = None
        self.layout.prepare(patch, threads=self._threads)
        if _identity(patch) == found:
            self._ready = found

    @torch.no_grad()
    def check(self, patch: str) -> None:
        """Does what an apply() of PATCH does before it stores. Raises if the patch is damaged, or
        the weights cannot take it."""
        self._checked = None
        found = _identity(patch)
        for names in self._ties.moved_apart(patch):
            raise _untied(names)
        self._to_quantise = self._stores_to_quantise(patch)
        for weight, (places, old, _) in self._to_quantise:
            weight.check(places, old, patch)
        self.prepare(patch)
        self._checked = found

    @torch.no_grad()
    def apply(self, patch: str, base: str | None) -> _core.LayoutReport:
        """Applies a patch file and reads it back. Call redo() afterwards if is_pending."""
        if self._checked is None or self._checked != _identity(patch):
            self.check(patch)
        quantised_stores, self._to_quantise, self._checked = self._to_quantise, [], None
        self.bind()
        is_ready, self._ready = self._ready == _identity(patch), None
        try:
            if self._is_direct:
                self._wait()
                report = (self.layout.store(base=base, threads=self._threads) if is_ready
                          else self.layout.apply(patch, base=base, threads=self._threads))
                stores = self.layout.stores(patch)[1] if self._is_redone else {}
            else:
                report, stores = self.layout.stores(patch, base=base)
                self._store_on_device(patch, stores)
        finally:
            self._unbind()
        for layer in self._layers:
            self._finish(layer, stores)
        self._mark_shared(patch)
        n_stored = sum(weight.store(*values) for weight, values in quantised_stores)
        return report._replace(n_stored=report.n_stored + n_stored)

    def _stores_to_quantise(
        self, patch: str
    ) -> list[tuple[online.OnlineWeight, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]]:
        if not self._online:
            return []
        _, stores = self._sources.stores(patch)
        work = []
        for name, (places, old, new) in stores.items():
            if name not in self._online:
                continue
            weight = self._online[name]
            device = weight.elements().device
            work.append((weight, (
                torch.frombuffer(places, dtype=torch.int64).to(device),
                torch.frombuffer(old, dtype=weight.dtype).to(device),
                torch.frombuffer(new, dtype=weight.dtype).to(device))))
        return work

    def _mark_shared(self, patch: str) -> None:
        """Of changes on all ranks."""
        if self._whole is None:
            return
        _, stores = self._whole.stores(patch)
        for target, found in self._shared.items():
            weight = self._online[target]
            for name in found.names:
                if name in stores:
                    places, old, new = stores[name]
                    weight.mark(found.units(name, torch.frombuffer(places, dtype=torch.int64)),
                                torch.frombuffer(old, dtype=weight.dtype),
                                torch.frombuffer(new, dtype=weight.dtype))

    @property
    def is_pending(self) -> bool:
        """Whether weights must be quantised again, because a scale may have changed."""
        return any(bool(weight.pending.any()) for weight in self._online.values())

    @torch.no_grad()
    def redo(self, tensors: Mapping[str, Any]) -> int:
        """Quantises units again whose scale may have changed. Returns how many."""
        n = 0
        for weight in self._online.values():
            n_pending = int(weight.pending.sum())
            if n_pending > 0:
                weight.redo(self._loaded(weight, tensors), False,
                            self._greatest_of(weight, tensors, weight.pending))
            n += n_pending
        return n

    def _finish(self, layer: quantised.Layer,
                stores: Mapping[str, tuple[bytearray, bytearray, bytearray]]) -> None:
        """Computes again what depends on the weights that STORES changed."""
        if self._on_cpu and not isinstance(layer, quantised.Repacked):
            layer.copy_bias()  # its sums are moved
            return
        name = layer.target
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


def _untied(names: Sequence[str]) -> Refused:
    return Refused(f"{' and '.join(names)} are one memory in this engine, and differ in the "
                   "version: start vLLM again from the directory")


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
