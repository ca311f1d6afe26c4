"""vLLM on CPUs keeps a packed copy of each linear weight and drops the weight. A later load would
succeed but change nothing that is generated. With this back end, weights are not packed, or, if
they are quantised, where they can be reached."""
from __future__ import annotations

from typing import Any

from . import quantised

_names: set[str] = set()


def install(name: str) -> None:
    """Turns packing off in engines with the back end NAME. Call it before the model is loaded."""
    import torch
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    first = not _names
    _names.add(name)
    if first:
        # without asking the kernel for it, the first use is SIGILL
        getattr(torch.cpu, "_init_amx", lambda: None)()
        _replace_dispatch()
        quantised.install(_is_chosen)


def _is_chosen() -> bool:
    from vllm.config import get_current_vllm_config

    try:
        transfer = get_current_vllm_config().weight_transfer_config
    except AssertionError:  # none is set
        return False
    return transfer is not None and transfer.backend in _names


def _replace_dispatch() -> None:
    import torch
    from vllm.model_executor.layers import utils

    packing = getattr(utils, "dispatch_cpu_unquantized_gemm", None)
    if packing is None:
        return  # check() reports it if that matters

    def dispatch(layer: torch.nn.Module, remove_weight: bool) -> None:
        weight = layer.weight
        if weight.is_meta or weight.ndim != 2 or not _is_chosen():
            packing(layer, remove_weight)
        else:
            layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = dispatch


def check(model: Any) -> None:
    """Raises if weights were packed nevertheless."""
    for name, parameter in model.named_parameters():
        if parameter.numel() == 0:
            raise RuntimeError(
                f"vLLM has packed {name} away, so that new weights would change nothing "
                "that is generated: is the plugin deltawire left out of VLLM_PLUGINS, or did it "
                "fail as the log tells?")
    quantised.check(model)
