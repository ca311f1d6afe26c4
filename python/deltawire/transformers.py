"""A transformers model whose tensors are the weights that a follower keeps in a directory.

    model, weights = deltawire.transformers.load("/models/live", config="Qwen/Qwen3-0.6B")
    with weights.reading() as version:      # one whole version, which does not change
        tokens = model.generate(prompt)

Nothing is copied: when `deltawire follow` writes a version into the files, the model has it.
"""
from __future__ import annotations

import contextlib
import os
import threading
from typing import Any, Iterator

import torch
import transformers

from . import _core
from .torch import Names, renamed

__all__ = ["load", "Weights"]

_making = threading.Lock()


@contextlib.contextmanager
def _no_memory_for_parameters() -> Iterator[None]:
    """Parameters that are made here take no memory. Buffers, such as tables of angles, are made
    as usual, because no checkpoint has them."""
    def register(module: torch.nn.Module, name: str, parameter: Any) -> None:
        plain(module, name, parameter)
        if parameter is not None:
            module._parameters[name] = torch.nn.Parameter(
                parameter.to("meta"), requires_grad=parameter.requires_grad)

    with _making:
        plain = torch.nn.Module.register_parameter
        torch.nn.Module.register_parameter = register
        try:
            yield
        finally:
            torch.nn.Module.register_parameter = plain


class Weights:
    """A model's weights, mapped. Readers may overlap. While there is a reader, the version stays,
    and the follower waits up to its `reader_wait`."""

    def __init__(
        self, model: torch.nn.Module, dir: str | os.PathLike[str], *, prefix: str = "",
        names: Names = None, timeout: float = 10,
    ) -> None:
        """`prefix` and `names` map the model's names to those of the stream, as they do in
        deltawire.torch."""
        self._model, self._dir = model, dir
        self._names = {name: renamed(name, prefix, names) for name in model.state_dict()}
        self._snapshot = _core.Snapshot(dir)
        self._lock, self._readers, self._version = threading.Lock(), 0, 0
        self._mapped: dict[str, torch.Tensor] = {}  # the files at address _place
        self._place: int | None = None
        view = self._snapshot.hold(timeout)
        try:
            self._assign(self._tensors(view))
        finally:
            self._snapshot.release()

    def _tensors(self, view: Any) -> dict[str, torch.Tensor]:
        """The tensors of a version, as PyTorch's; they stay as long as the files do."""
        some = next((t for t in view.tensors.values() if t.nbytes), None)
        place = torch.from_dlpack(some).data_ptr() if some is not None else 0
        if self._place != place:  # other files
            self._place = place
            self._mapped = {
                name: torch.from_dlpack(tensor) for name, tensor in view.tensors.items()}
        return self._mapped

    def _assign(self, tensors: dict[str, torch.Tensor]) -> None:
        """Gives the model its parameters, if it has some without memory."""
        model, used = self._model, set()
        self._targets: list[tuple[torch.Tensor, str]] = []
        for name, theirs in self._names.items():
            if theirs not in tensors:
                continue
            path, _, leaf = name.rpartition(".")
            module, tensor = model.get_submodule(path), tensors[theirs]
            old = getattr(module, leaf)
            if old.shape != tensor.shape:
                raise ValueError(f"{name!r} has shape {tuple(old.shape)} in the model and "
                                 f"{tuple(tensor.shape)} in {self._dir}")
            if leaf in module._parameters:
                tensor = torch.nn.Parameter(tensor, requires_grad=False)
                module._parameters[leaf] = tensor
            else:
                module._buffers[leaf] = tensor
            used.add(theirs)
            self._targets.append((tensor, theirs))
        if hasattr(model, "tie_weights"):
            model.tie_weights()
        missing = [name for name, tensor in model.state_dict(keep_vars=True).items()
                   if tensor.is_meta]
        if missing or tensors.keys() - used:
            raise ValueError(f"the model and {self._dir} do not fit: {sorted(missing)} is only "
                             f"in the model, {sorted(tensors.keys() - used)} only there")

    @property
    def version(self) -> int:
        """The version that a read would get now."""
        return self._snapshot.version

    @contextlib.contextmanager
    def reading(self, timeout: float | None = 10) -> Iterator[int]:
        """Yields the version. The model stays at it until the end of the block."""
        with self._lock:
            if self._readers == 0:
                self._hold(timeout)
            self._readers += 1
        try:
            yield self._version
        finally:
            with self._lock:
                self._readers -= 1
                if self._readers == 0:
                    self._snapshot.release()

    def _hold(self, timeout: float | None) -> None:
        view = self._snapshot.hold(timeout)
        before = self._place
        try:
            tensors = self._tensors(view)
            if self._place != before:  # other files
                for tensor, name in self._targets:
                    tensor.data = tensors[name]
        except BaseException:
            self._place = None  # some may point elsewhere: set all of them the next time
            self._snapshot.release()
            raise
        self._version = view.version

    def close(self) -> None:
        """Closes the reader. The model keeps the mapping, and still sees new versions."""
        self._snapshot.close()

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def load(
    dir: str | os.PathLike[str], config: Any = None, *,
    model_class: Any = transformers.AutoModelForCausalLM, prefix: str = "",
    names: Names = None, timeout: float = 10, **options: Any,
) -> tuple[torch.nn.Module, Weights]:
    """A model, for use without gradients, on the weights in `dir`.

    `config` is a configuration, or a name or path for from_pretrained; the default is `dir`.
    `options` go to `model_class.from_config`."""
    where = dir if config is None else config
    if isinstance(where, (str, os.PathLike)):
        config = transformers.AutoConfig.from_pretrained(where)
    with _no_memory_for_parameters():
        make = getattr(model_class, "from_config", None) or model_class._from_config
        model = make(config, **options)
    weights = Weights(model, dir, prefix=prefix, names=names, timeout=timeout)
    if isinstance(where, (str, os.PathLike)):
        with contextlib.suppress(OSError):  # many models have none
            model.generation_config = transformers.GenerationConfig.from_pretrained(where)
    return model.eval(), weights
