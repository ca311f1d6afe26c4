"""Tensors on GPUs: which of them the library uses where they are, and the order of its work and
that of PyTorch."""
from __future__ import annotations

import logging
from typing import Any, Iterable

import torch

from . import _core

log = logging.getLogger("deltawire")


class Exported:
    """A tensor on a GPU for the library. PyTorch exports only tensors of the current device."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def data_ptr(self) -> int:
        return self._tensor.data_ptr()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._tensor.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        with torch.cuda.device(self._tensor.device):
            return self._tensor.__dlpack__(**options)


def exported(tensor: torch.Tensor) -> Any:
    """The tensor as the library takes it."""
    return Exported(tensor) if tensor.is_cuda else tensor


def gpus_of(tensors: Iterable[torch.Tensor]) -> set[torch.device]:
    return {tensor.device for tensor in tensors if tensor.is_cuda}


def wait_for(devices: Iterable[torch.device]) -> None:
    """Waits for all work that the devices were given, on any CUDA stream."""
    for device in devices:
        torch.cuda.synchronize(device)


def streams_of(devices: Iterable[torch.device]) -> dict[str, int]:
    """The CUDA streams that this thread gives its work to."""
    return {str(device): torch.cuda.current_stream(device).cuda_stream for device in devices}


def usable(
    devices: set[torch.device], baseline: str | None, options: dict[str, Any]
) -> set[torch.device]:
    """The devices whose tensors are published from where they are. The tensors of the others are
    copied to the host at each publish, and that is logged: as a warning, unless the baseline is to
    be on the host anyway."""
    if baseline not in (None, "device", "host"):
        raise ValueError("baseline is 'device' or 'host'")
    # not for tensors of a device, in the library
    faults = [f"{option}= needs tensors on the host" for option in ("baseline_dir", "quantize")
              if options.get(option) is not None]
    good = set()
    for device in sorted(devices, key=str):
        fault = faults[0] if faults else _core.device_fault(str(device))
        if fault is None:
            good.add(device)
        elif baseline == "device":
            raise ValueError(f"baseline='device': {device} cannot be used: {fault}")
        else:
            log.log(logging.INFO if baseline == "host" else logging.WARNING,
                    "tensors on %s are copied to the host at each publish, because %s "
                    "(with baseline='host' this is no warning)", device, fault)
    return good
