"""Layers with quantised weights, as vLLM's kernels keep them.

vLLM loads them into parameters of the checkpoint's form, then replaces these by what its kernel
wants and drops how they are loaded. So for the time of a load they are put back (`stage`)."""
from __future__ import annotations

import functools
from typing import Any, Callable, Iterable

import torch

from . import online
from .undo import Undo

BLOCK = 32
"""Rows of a weight that vLLM's CPU kernels pack together."""

Stores = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Positions, old values and new values of a target."""


# ---- before the model is loaded --------------------------------------------------------


def install(is_chosen: Callable[[], bool]) -> None:
    """Int8 weights on CPUs: of vLLM's two kernels, oneDNN's hides the packed weights, the other
    one keeps them in a parameter. Prefers the latter, also on processors without AMX, because it
    needs only AVX-512 VNNI."""
    try:
        from vllm.model_executor.kernels.linear.scaled_mm.cpu import (
            CPUInt8ScaledMMLinearKernel as kernel_class,
        )
    except ImportError:
        return  # check() reports it if that matters
    packing = kernel_class.process_weights_after_loading

    def process(kernel: Any, layer: torch.nn.Module) -> None:
        if not is_chosen():
            packing(kernel, layer)
        elif kernel.config.input_symmetric and _can_pack(*layer.weight.shape):
            kernel.linear_method = kernel._apply_weights_sgl
            kernel.process_weights_for_sgl(layer)
        else:
            kept = layer.weight.detach()
            kernel.linear_method = kernel._apply_weights_onednn
            kernel.process_weights_for_onednn(layer)
            layer.deltawire_kept = kept

    kernel_class.process_weights_after_loading = process


def _can_pack(n: int, k: int) -> bool:
    has_vnni = getattr(torch.cpu, "_is_vnni_supported", lambda: False)()
    has_kernel = hasattr(torch.ops._C, "int8_scaled_mm_with_quant")
    return has_vnni and has_kernel and n % BLOCK == 0 and k % BLOCK == 0


# ---- kinds of layers -------------------------------------------------------------------


class Layer:
    """A layer, or one of the two weights of a layer of experts, with the checkpoint's order in
    memory, perhaps transposed."""

    def __init__(self, name: str, module: torch.nn.Module, kernel: Any,
                 part: str = "weight") -> None:
        self.name, self.module, self.kernel, self.part = name, module, kernel, part
        self.target = f"{name}.{part}"

    def weight(self) -> torch.Tensor:
        """What patches are stored in."""
        return getattr(self.module, self.part)

    def pack(self, loaded: torch.Tensor) -> torch.Tensor:
        """What the kernel makes of a weight. Bytes that are no weights are 0xFF."""
        return loaded

    def finish(self, stores: Stores | None) -> None:
        """Computes again what depends on weights, scales or bias; STORES are the changes of the
        weight, None if it was loaded whole."""

    def n_wrong(self) -> int:
        """How many of the values that depend on the weights are wrong."""
        return 0

    def copy_bias(self) -> None:
        """Copies the bias to where the kernel reads it, if that is another place."""

    def sums(self) -> dict[str, int] | None:
        """For Layout.add_sums(): then patches on the CPU need no finish()."""
        return None


class PackedFp8(Layer):
    """Packed in a parameter."""

    def pack(self, loaded: torch.Tensor) -> torch.Tensor:
        return torch.ops._C.convert_weight_packed(loaded.contiguous())


class PackedInt8(PackedFp8):
    """Of each 32 rows: the weights, four columns of each row after another, then 128 times the
    sum of each row as int32."""

    def _blocks(self, packed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights [blocks, columns / 4, 32, 4] and sums [blocks, 32]."""
        rows, width = packed.shape
        blocks = packed.detach().view(rows // BLOCK, BLOCK * width)
        n = BLOCK * (width - 4)
        return (blocks[:, :n].unflatten(1, ((width - 4) // 4, BLOCK, 4)),
                blocks[:, n:].view(torch.int32))

    def _sums(self, weights: torch.Tensor) -> torch.Tensor:
        return 128 * weights.sum(dim=3, dtype=torch.int32).sum(dim=1, dtype=torch.int32)

    def pack(self, loaded: torch.Tensor) -> torch.Tensor:
        packed = super().pack(loaded)
        self._blocks(packed)[1].fill_(-1)
        return packed

    def finish(self, stores: Stores | None) -> None:
        weights, sums = self._blocks(self.module.weight)
        if stores is None:
            sums.copy_(self._sums(weights))
        else:
            places, old, new = stores
            block = places // (BLOCK * self.module.weight.shape[1])
            row = places // 4 % BLOCK  # a block's bytes are a multiple of 4 * BLOCK
            sums.index_put_((block, row), 128 * (new.to(torch.int32) - old.to(torch.int32)),
                            accumulate=True)
        self.copy_bias()

    def copy_bias(self) -> None:
        copy = getattr(self.module, "bias_fp32", None)
        if copy is not None:
            copy.copy_(self.module.bias)

    def sums(self) -> dict[str, int] | None:
        return {"block": BLOCK * self.module.weight.shape[1], "rows": BLOCK, "run": 4,
                "factor": 128}

    def n_wrong(self) -> int:
        weights, sums = self._blocks(self.module.weight)
        return int((sums != self._sums(weights)).sum())


class Repacked(Layer):
    """oneDNN packs the weights where they cannot be reached. They are kept beside it, and packed
    again when they change."""

    def __init__(self, name: str, module: torch.nn.Module, kernel: Any,
                 part: str = "weight") -> None:
        super().__init__(name, module, kernel, part)
        self.dtype = torch.get_default_dtype()

    def weight(self) -> torch.Tensor:
        return self.module.deltawire_kept

    def finish(self, stores: Stores | None) -> None:
        from vllm.utils.torch_utils import set_default_torch_dtype

        self.module.weight = torch.nn.Parameter(self.module.deltawire_kept,
                                                requires_grad=False)
        with set_default_torch_dtype(self.dtype):
            self.kernel.process_weights_for_onednn(self.module)


# ---- the layers of a model -------------------------------------------------------------


EXPERTS = ("w13_weight", "w2_weight")
PLAIN = {"ChannelWiseTorchFP8ScaledMMLinearKernel"}
"""Kernels that keep the checkpoint's order on CPUs too."""


def _is_on_device(weight: torch.Tensor) -> bool:
    return not weight.is_cpu


def _is_quantised(module: torch.nn.Module) -> bool:
    method = getattr(module, "quant_method", None)
    name = type(method).__name__
    return method is not None and not name.startswith("Unquantized") and "KVCache" not in name


def _kernel_of(module: torch.nn.Module) -> Any:
    scheme = getattr(module, "scheme", None)
    kernel = (getattr(scheme, "kernel", None) or getattr(scheme, "fp8_linear", None)
              or getattr(module.quant_method, "fp8_linear", None))
    return kernel or scheme or module.quant_method


def _kind_of(module: torch.nn.Module, kernel: Any) -> type[Layer] | None:
    """None: not known."""
    weight = getattr(module, "weight", None)
    name = type(kernel).__name__
    if name == "CPUInt8ScaledMMLinearKernel":
        if not kernel.config.is_channelwise:  # vLLM gives its one scale another shape
            return None
        if hasattr(module, "deltawire_kept"):
            return Repacked
        is_packed = weight is not None and kernel.linear_method == kernel._apply_weights_sgl
        return PackedInt8 if is_packed else None
    if name == "CPUFp8BlockScaledMMKernel":
        return PackedFp8 if weight is not None else None
    if weight is None:
        weight = getattr(module, EXPERTS[0], None)
        if getattr(getattr(kernel, "fp8_backend", None), "name", None) == "CPU":
            return PackedFp8
    is_plain = weight is not None and (_is_on_device(weight) or name in PLAIN)
    return Layer if is_plain else None  # whether it is, the comparison with the checkpoint shows


def layers_of(model: torch.nn.Module, dtype: torch.dtype) -> tuple[list[Layer], dict[str, str]]:
    """The quantised layers, and those whose layout is not known, with their kernels."""
    layers, unknown = [], {}
    for name, module in model.named_modules():
        if not _is_quantised(module) or online.weights_of(name, module):
            continue
        kernel = _kernel_of(module)
        kind = _kind_of(module, kernel)
        if kind is None:
            unknown[name] = type(kernel).__name__
            continue
        parts = EXPERTS if hasattr(module, EXPERTS[0]) else ("weight",)
        layers += [kind(name, module, kernel, part) for part in parts]
        if kind is Repacked:
            layers[-1].dtype = dtype
    return layers, unknown


def check(model: torch.nn.Module) -> None:
    """Raises for a quantised layer that could not be updated."""
    _, unknown = layers_of(model, torch.get_default_dtype())
    for name, kernel in unknown.items():
        raise RuntimeError(
            f"the weights of {name} are quantised for {kernel}, and deltawire does not know "
            "their layout there: serve int8 rows (compressed-tensors), fp8 blocks or a model "
            "that is not quantised, or use vLLM without the back end deltawire")


Staged = Layer | online.OnlineWeight


def stage(layers: Iterable[Staged], undo: Undo) -> dict[str, torch.nn.Parameter]:
    """Gives LAYERS, for a load, the parameters that vLLM loads into, and returns them by name.
    Their contents are arbitrary. UNDO removes them."""
    from vllm.model_executor.model_loader.reload import layerwise
    from vllm.model_executor.model_loader.reload.meta import materialize_meta_tensor
    from vllm.model_executor.model_loader.reload.sanitize import restore_layer_refs

    stages: dict[str, torch.nn.Parameter] = {}
    modules = {layer.target.rpartition(".")[0]: layer.module for layer in layers}
    for path, module in modules.items():
        info = layerwise.get_layerwise_info(module)
        undo.add(functools.partial(_put_back, module, dict(module._parameters)))
        for name, meta in info.restore_metadata[0].items():
            with torch.device("cpu"):
                made = restore_layer_refs(materialize_meta_tensor(meta), module)
            if hasattr(made, "weight_loader"):  # not that which quantises at the end
                made.weight_loader = layerwise._get_original_loader(made)
            module.register_parameter(name, made)
            stages[f"{path}.{name}"] = made
    return stages


def _put_back(module: torch.nn.Module, parameters: dict[str, Any]) -> None:
    module._parameters.clear()
    module._parameters.update(parameters)
