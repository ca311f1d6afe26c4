"""A callback that publishes what a trainer of transformers, or of TRL, makes of a model."""
from __future__ import annotations

from typing import Any

import torch
from transformers import TrainerCallback

from . import _core
from . import torch as dw_torch


class PublishCallback(TrainerCallback):
    """Publishes from any trainer of transformers or TRL: `callbacks=[PublishCallback(url)]`.

    Each step becomes a version, in the background; the one that training ends with always
    does. Ranks of FSDP2 publish their shards, nothing is gathered; elsewhere rank 0 does."""

    def __init__(self, url: _core.Store | str, *, every: int = 1, **options: Any) -> None:
        """`options` are those of deltawire.torch.Publisher."""
        if every < 1:
            raise ValueError("every is 1 or more")
        self._url, self._every, self._options = url, every, options
        self._publisher: dw_torch.Publisher | None = None
        self._published = -1

    @property
    def publisher(self) -> dw_torch.Publisher | None:
        """While training is under way."""
        return self._publisher

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self._publisher is not None:
            self._publisher.close()
        model = given["model"]
        if state.is_world_process_zero or _is_sharded(model):
            options: dict[str, Any] = {"names": _plain_name} | self._options
            self._publisher = dw_torch.Publisher(model, url=self._url, **options)
        self._published = -1

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """What is published from where it lies must have been read before it changes."""
        if self._publisher is not None:
            self._publisher.captured()

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if state.global_step % self._every == 0:
            self._publish(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self._publisher is None:
            return
        if self._published != state.global_step or args.load_best_model_at_end:
            self._publish(state.global_step)
        publisher, self._publisher = self._publisher, None
        try:
            publisher.drain()
        finally:
            publisher.close()

    def _publish(self, step: int) -> None:
        if self._publisher is not None:
            self._publisher.publish(step=step)
            self._published = step


def _is_sharded(model: torch.nn.Module) -> bool:
    return any(hasattr(p, "device_mesh") for p in model.parameters())


def _plain_name(name: str) -> str:
    """As checkpoints have it: what wraps modules leaves its mark in names."""
    for mark in ("module.", "_orig_mod."):
        name = name.removeprefix(mark)
    return name.replace("_checkpoint_wrapped_module.", "").replace("._orig_mod.", ".")
