"""A weight-transfer back end of vLLM: docs/PYTHON.md.

    vllm serve DIR --weight-transfer-config '{"backend":"deltawire"}'

vLLM finds it by itself, through the entry point `vllm.general_plugins` of this package.
Importing this imports neither vLLM nor PyTorch.
"""
from __future__ import annotations

__all__ = ["BACKEND", "OLDEST", "register"]

BACKEND = "deltawire"
OLDEST = (0, 28)
"""The oldest vLLM with this interface."""


def _release(version: str) -> tuple[int, ...]:
    """(0, 32) of "0.32.0" or "0.32.1.dev3+g12ab"."""
    numbers = []
    for part in version.split("+")[0].split(".")[:2]:
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def refusal(version: str) -> str | None:
    """The reason why this vLLM cannot be used, or None."""
    release = _release(version)
    if len(release) == 2 and release < OLDEST:
        return (f"deltawire needs vLLM {OLDEST[0]}.{OLDEST[1]} or later; this is vLLM "
                f"{version}")
    return None  # versions without a number are builds from source


def register(name: str = BACKEND, module: str = "deltawire.vllm.backend",
             class_name: str = "DeltawireEngine") -> None:
    """Called by vLLM in each of its processes, before the model is loaded. Does nothing if vLLM
    is started with another back end."""
    try:
        _register(name, module, class_name)
    except Exception as error:  # noqa: BLE001 - it would stop every vLLM of the environment
        _warn(f"deltawire: this vLLM cannot have the back end {name!r}: {error!r}")


def _warn(text: str) -> None:
    import logging

    logging.getLogger("vllm").warning("%s", text)


def _register(name: str, module: str, class_name: str) -> None:
    import vllm

    why_not = refusal(vllm.__version__)
    try:
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    except ImportError:
        _warn(why_not or "deltawire: this vLLM has no weight-transfer back ends")
        return
    if name in WeightTransferEngineFactory._registry:
        return
    if why_not is not None:
        class_name, module = "refused", "deltawire.vllm._refused"
    WeightTransferEngineFactory.register_engine(name, module, class_name)
    if why_not is None:
        from . import answers, plain

        answers.install(name)
        plain.install(name)
