"""A callback that publishes the model of a trainer of transformers or TRL."""
from __future__ import annotations

import sys
import warnings
from typing import Any, Callable

import torch
from transformers import TrainerCallback

from . import _core
from . import torch as dw_torch
from ._companions import saved_files
from ._outcomes import OnError, PublishWarning


class PublishCallback(TrainerCallback):
    """Publishes from any trainer of transformers or TRL: `callbacks=[PublishCallback(url)]`.

    The first model is published if it differs from the stream, for example after a restart from
    an older checkpoint. Then each step becomes a version, in the background. The last step always
    does. Ranks of FSDP2 publish their shards, and nothing is gathered; otherwise rank 0
    publishes. The versions carry the model's configuration and the files of its tokenizer or
    processor (`processing_class`), unless `files` names others; `files={}` leaves them out.

    If a version fails, there is a PublishWarning and training goes on: the next version covers
    it. If the last one fails, train() still returns. If another trainer takes the stream over,
    the next step raises Conflict."""

    def __init__(
        self, url: _core.Store | str, *, every: int = 1, raise_on_error: bool = False,
        on_error: OnError | None = None, **options: Any,
    ) -> None:
        """`raise_on_error`: a version that fails raises at the next step, or at the end of
        train(). `on_error` is called with the exception of each. `options` are those of
        deltawire.torch.Publisher."""
        if every < 1:
            raise ValueError("every is 1 or more")
        self._url, self._every, self._options = url, every, options
        self._raise_on_error, self._on_error = raise_on_error, on_error
        self._publisher: dw_torch.Publisher | None = None
        self._published = -1
        self._steps: dict[int, int] = {}  # of tickets that may not be committed yet

    @property
    def publisher(self) -> dw_torch.Publisher | None:
        """The publisher, during training."""
        return self._publisher

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **given: Any) -> None:
        """Adds the newest version to the trainer's logs (wandb, TensorBoard): its bytes, the share
        of the weights that changed, the seconds from publish to commit, and how many steps training
        is ahead of it."""
        if self._publisher is None or logs is None:
            return
        if self._publisher._outcomes.last is not None:
            ticket, report = self._publisher._outcomes.last
            step = self._steps.get(ticket)
            self._steps = {t: s for t, s in self._steps.items() if t >= ticket}
            logs["deltawire/bytes"] = report.n_bytes
            logs["deltawire/changed"] = report.n_changed / max(self._n_elements, 1)
            logs["deltawire/seconds"] = report.times["committed"] / 1000
            if step is not None:
                logs["deltawire/lag"] = state.global_step - step
        for name in ("outages", "waited_seconds"):
            logs[f"deltawire/{name}"] = self._publisher.metrics[name]

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self._publisher is not None:
            self._publisher.close()
        # before the callbacks that report, so that they see what on_log adds
        handler = sys._getframe(1).f_locals.get("self")
        if self in getattr(handler, "callbacks", ()):
            handler.callbacks = [self] + [other for other in handler.callbacks if other is not self]
        model = given["model"]
        dw_torch.refuse_hidden(model.named_parameters())  # on every rank
        if state.is_world_process_zero or is_sharded_model(model):
            options: dict[str, Any] = {
                "names": plain_name, "start_step": state.global_step} | self._options
            with saved_files(model, given.get("processing_class"),
                             options.get("dtype", torch.bfloat16)) as files:
                if files is not None:
                    options.setdefault("files", files)
                self._publisher = dw_torch.Publisher(
                    model, url=self._url, on_error=self._failed, **options)
            self._n_elements = sum(t.numel() for t in self._publisher._weights.live.values())
        self._published = state.global_step

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Weights that are published in place must be read before they change."""
        if self._publisher is not None:
            self._publisher._before_step()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """After the last one a trainer may load the best model, in place."""
        self.on_pre_optimizer_step(args, state, control)

    def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if state.global_step % self._every == 0:
            self._publish(state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Waits for the last version. Raises nothing, so that a script goes on to save its
        model, unless raise_on_error asks for it."""
        if self._publisher is None:
            return
        publisher, self._publisher = self._publisher, None
        ends: list[Callable[[], object]] = [publisher.drain, publisher.close]
        if self._published != state.global_step or args.load_best_model_at_end:
            # the best model is other weights than the last step's: ranks need another number
            step = state.global_step + (self._published == state.global_step)
            # after the version before, which would hold it
            ends[:0] = [publisher.drain, lambda: publisher.publish(step=step)]
        errors = []
        for end in ends:  # all of them, even if one fails
            try:
                end()
            except _core.Error as error:
                errors.append(error)
        if errors and self._raise_on_error:
            raise errors[0]
        if errors:
            warnings.warn(f"training ended, but its publishing did not: {errors[0]}",
                          PublishWarning, stacklevel=2)

    def _failed(self, error: _core.Error) -> None:
        if self._on_error is not None:
            self._on_error(error)
        if self._raise_on_error:
            raise error

    def _publish(self, step: int) -> None:
        ticket = self._publisher.publish(step=step) if self._publisher is not None else 0
        if ticket:
            self._published = self._steps[ticket] = step


def is_sharded_model(model: torch.nn.Module) -> bool:
    return any(hasattr(p, "device_mesh") for p in model.parameters())


def plain_name(name: str) -> str:
    """The name as in checkpoints, without the prefixes that wrappers of modules add."""
    for mark in ("module.", "_orig_mod."):
        name = name.removeprefix(mark)
    return name.replace("_checkpoint_wrapped_module.", "").replace("._orig_mod.", ".")
