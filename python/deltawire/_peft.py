"""Models with adapters of PEFT: published merged, under the names of the base model.

PEFT merges in place. Here its own code merges into a copy of one layer's base weights at a time, so
the bits are those of merge_and_unload() and the model that trains stays as it is.
"""
from __future__ import annotations

import copy
import itertools
import sys
from typing import Any, Callable, Iterator, Mapping

import torch


def _is_layer(module: torch.nn.Module) -> bool:
    """Whether PEFT wraps a module of the base model in it."""
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper

    return isinstance(module, (BaseTunerLayer, AuxiliaryTrainingWrapper))


def _is_model(module: torch.nn.Module) -> bool:
    peft = sys.modules["peft"]
    return isinstance(module, (peft.PeftModel, peft.PeftMixedModel))


def has_adapters(model: Any) -> bool:
    return ("peft" in sys.modules and isinstance(model, torch.nn.Module)
            and any(_is_layer(module) or _is_model(module) for module in model.modules()))


def refuse_option(options: dict[str, Any]) -> None:
    if "adapter" in options:
        raise ValueError("adapter=: an adapter is no stream of its own yet; leave it out, and a "
                         "PEFT model is published merged")


def _saved(module: torch.nn.Module) -> torch.nn.Module:
    """The module that is trained in the place of another (modules_to_save)."""
    while (copies := module._modules.get("modules_to_save")) is not None and module.active_adapters:
        module = copies[module.active_adapters[0]]
    return module


def _base(module: torch.nn.Module) -> torch.nn.Module:
    """The module of the base model in a layer of PEFT."""
    module = module._modules.get("token_adapter", module)
    return module.get_base_layer() if hasattr(module, "get_base_layer") else module


def unties(model: Any) -> bool:
    """Whether a model that was tied has embeddings of its own at both ends, once it is merged."""
    if not has_adapters(model) or not getattr(model.config, "tie_word_embeddings", False):
        return False
    ends = [model.get_input_embeddings(), model.get_output_embeddings()]
    return None not in ends and len({id(_base(_saved(end)).weight) for end in ends}) > 1


def _own(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """A module's own tensors in a state_dict."""
    for name, tensor in itertools.chain(module._parameters.items(), module._buffers.items()):
        if tensor is not None and name not in module._non_persistent_buffers_set:
            yield name, tensor


def _twin(
    module: torch.nn.Module, instead: Callable[[torch.Tensor], torch.Tensor]
) -> torch.nn.Module:
    """A copy of a module with tensors that `instead` returns. Unlike a deep copy it copies
    nothing else, so a hook that refers to the whole model does no harm."""
    twin = object.__new__(type(module))
    twin.__dict__.update({name: copy.copy(value) if isinstance(value, (dict, list, set)) else value
                          for name, value in module.__dict__.items()})
    for table in (twin._parameters, twin._buffers):
        table.update({name: instead(t) for name, t in table.items() if t is not None})
    for name, child in twin._modules.items():
        if child is not None:
            twin._modules[name] = _twin(child, instead)
    return twin


class Unit:
    """Layers of PEFT that change the same base weights: one layer, or several if these are
    tied."""

    def __init__(self) -> None:
        self.layers: list[torch.nn.Module] = []
        self.base: dict[int, torch.Tensor] = {}

    def tensors(self) -> list[torch.Tensor]:
        """All that a merge depends on."""
        return [tensor for layer in self.layers
                for tensor in itertools.chain(layer.parameters(), layer.buffers())]

    def settings(self) -> tuple[Any, ...]:
        """What it depends on besides tensors."""
        return tuple((tuple(module.active_adapters), tuple(module.merged_adapters),
                      tuple(getattr(module, "scaling", {}).items()))
                     for layer in self.layers for module in layer.modules() if _is_layer(module))

    def _adds_rows(self) -> bool:
        """Whether each row of the result needs only the same row of the base weights."""
        from peft.tuners.lora import layer as lora

        return all(type(layer) in (lora.Linear, lora.Embedding) and not layer.lora_variant
                   and not any(layer.lora_bias.values()) for layer in self.layers)

    @torch.no_grad()
    def merged(self, rows: Mapping[int, slice | None]) -> dict[int, torch.Tensor]:
        """The merged weights, by the id of the base weights. `rows` says which rows of a DTensor
        this rank has; None if they are not in one piece. A collective call if there are ranks:
        adapters are gathered, and base weights only if a row depends on others. The update is
        computed whole, so that its bits do not depend on the number of ranks."""
        by_rows = self._adds_rows()
        mine = {key: rows.get(key) if by_rows else None for key in self.base}
        known: dict[int, torch.Tensor] = {}

        def instead(tensor: torch.Tensor) -> torch.Tensor:
            key = id(tensor)
            if key not in known:
                data = tensor.detach()
                if hasattr(data, "full_tensor"):
                    data = data.to_local() if mine.get(key) is not None else data.full_tensor()
                if key in self.base:
                    data = data.clone()
                known[key] = (torch.nn.Parameter(data, requires_grad=False)
                              if isinstance(tensor, torch.nn.Parameter) else data)
            return known[key]

        for layer in self.layers:
            twin = _twin(layer, instead)
            part = next((part for part in mine.values() if part is not None), None)
            if part is not None:
                whole = twin.get_delta_weight
                twin.get_delta_weight = lambda name, whole=whole, part=part: whole(name)[part]
            if hasattr(twin, "unload_and_optionally_merge_module"):
                twin.unload_and_optionally_merge_module(
                    merge=True, safe_merge=False, adapter_names=None)
            else:
                twin.merge(safe_merge=False)
        return {key: known[key].detach() for key in self.base}


class Adapters:
    """The tensors of a model with adapters."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._units: dict[int, Unit] = {}
        self.tensors()

    def tensors(self) -> dict[str, torch.Tensor]:
        """The base model's tensors by their names there, as they lie in the model. Those for
        which unit() returns something are to be merged."""
        self._units = {}
        return dict(self._walk(self._model, ""))

    def unit(self, tensor: torch.Tensor) -> Unit | None:
        return self._units.get(id(tensor))

    def _walk(self, module: torch.nn.Module, name: str) -> Iterator[tuple[str, torch.Tensor]]:
        if _is_model(module):
            tuner = module.base_model
            if not hasattr(tuner, "merge_and_unload"):
                raise ValueError(f"{type(module.active_peft_config).__name__} of PEFT adds prompts "
                                 "and no weights: there is nothing to merge and publish")
            tuner._check_merge_allowed()
            module = tuner.model
        module = _saved(module)
        if _is_layer(module):
            yield from self._merge(module, name)
            return
        for key, tensor in _own(module):
            yield name + key, tensor
        for key, child in module._modules.items():
            if child is not None:
                yield from self._walk(child, f"{name}{key}.")

    def _merge(self, layer: torch.nn.Module, name: str) -> Iterator[tuple[str, torch.Tensor]]:
        base = _base(layer)
        tensors = base.state_dict(keep_vars=True)
        if any(map(_is_layer, base.modules())) or not all(
                isinstance(t, torch.Tensor) and t.is_floating_point() for t in tensors.values()):
            raise ValueError(
                f"{name.removesuffix('.')!r} is {type(layer).__module__}.{type(layer).__name__} "
                f"over {type(base).__name__}, which cannot be merged into a copy: publish the "
                "result of merge_and_unload() of a copy of the model")
        unit = next((self._units[id(t)] for t in tensors.values() if id(t) in self._units), Unit())
        unit.layers.append(layer)
        for key, tensor in tensors.items():
            unit.base[id(tensor)] = tensor
            self._units[id(tensor)] = unit
            yield name + key, tensor
