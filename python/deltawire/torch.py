"""Plain PyTorch: publish a model after each step, follow a stream into a live one.

    with deltawire.torch.Publisher(model, optimizer, url=url) as publisher:
        for batch in data:
            loss(model, batch).backward()
            optimizer.step()          # publishes, in the background
            optimizer.zero_grad()

    follower = deltawire.torch.Follower(model, url)
    follower.sync()                   # the model's own tensors, in place

The library reads and writes the weights. This module handles everything that is specific to
PyTorch.
"""
from __future__ import annotations

import bisect
import operator
import sys
import threading
import warnings
from typing import Any, Callable, Iterable, Mapping

import torch

from . import _core, _devices, _peft
from ._outcomes import OnError, Outcomes, PublishWarning
from ._weights import Weights, all_agree, is_sharded, meet, span

__all__ = ["Publisher", "Follower", "named_tensors"]

Names = Callable[[str], "str | None"] | Mapping[str, str] | None


def renamed(name: str, prefix: str = "", names: Names = None) -> str | None:
    """A tensor's name in a stream, or None if it is left out."""
    name = name.removeprefix(prefix)
    if callable(names):
        return names(name)
    return name if names is None else names.get(name, name)


def refuse_hidden(tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Refuses parameters of ZeRO-3 and FSDP1: a rank has only pieces without their place in the
    tensor."""
    for name, tensor in tensors:
        if hasattr(tensor, "ds_id"):
            raise ValueError(
                f"{name!r} is partitioned by DeepSpeed's ZeRO-3, which is not supported: use "
                "FSDP2 or ZeRO-2, or publish a gathered copy as a mapping of names to tensors")
        if hasattr(tensor, "_fsdp_flattened"):
            raise ValueError(
                f"{name!r} is flattened by FSDP1 (FullyShardedDataParallel), which is not "
                "supported: use FSDP2 (fully_shard; fsdp_version 2 in accelerate), or publish "
                "a gathered copy as a mapping of names to tensors")


def named_tensors(
    model: torch.nn.Module | Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]],
    *, prefix: str = "", names: Names = None,
) -> dict[str, torch.Tensor]:
    """The tensors of a model as in a stream: those of its state_dict, each once, even if it is
    tied under several names.

    `prefix` is removed from names that have it ("module.", "_orig_mod."). `names` then maps the
    names. It is a function, which returns None to leave a tensor out, or a mapping; names that
    are not in it stay as they are."""
    if _peft.has_adapters(model):
        raise ValueError("the model has adapters of PEFT, and a stream has merged weights: take a "
                         "plain model, such as the result of merge_and_unload()")
    if isinstance(model, torch.nn.Module):
        refuse_hidden(model.named_parameters())  # before a state_dict that would gather
        model = model.state_dict(keep_vars=True)
    model = dict(model)
    refuse_hidden(model.items())
    found: dict[str, torch.Tensor] = {}
    seen: set[tuple[Any, ...]] = set()
    for name, tensor in model.items():
        if not isinstance(tensor, torch.Tensor):
            continue  # extra state, not a weight
        name = renamed(name, prefix, names)
        # a rank may have no part of a DTensor: only the object identifies it
        key = (id(tensor),) if is_sharded(tensor) else (
            tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if name is None or (tensor.numel() and key in seen):
            continue
        seen.add(key)
        if name in found:
            raise ValueError(f"two tensors are named {name!r}")
        found[name] = tensor
    return found


class Finder:
    """named_tensors of a model, again and again: quick if its objects are the same as before. Then
    the result is the same object, too. `view` returns the tensors of a model whose state_dict has
    others."""

    def __init__(self, model: Any, prefix: str, names: Names,
                 view: Callable[[], dict[str, torch.Tensor]] | None = None) -> None:
        self._model, self._prefix, self._names, self._view = model, prefix, names, view
        self._last: _Found | None = None

    def __call__(self, anew: bool = False) -> dict[str, torch.Tensor]:
        if anew or self._last is None or not self._last.is_same():
            tensors = named_tensors(self._model if self._view is None else self._view(),
                                    prefix=self._prefix, names=self._names)
            self._last = _Found(self._model, tensors)
        return self._last.tensors


class _Found:
    """Tensors that were found, and the objects of the model at that time."""

    def __init__(self, model: Any, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors
        self._is_module = isinstance(model, torch.nn.Module)
        self._modules = list(model.modules()) if self._is_module else []
        self._objects = self._now()
        known, taken = set(map(id, self._objects)), set(map(id, tensors.values()))
        # a hook may make tensors for a state_dict each time: then they are never the same
        self._is_own = self._is_module and taken <= known
        # parameters that are not in the result, most of them because they share memory
        self._others = [item for item in self._objects
                        if isinstance(item, torch.nn.Parameter)
                        and id(item) not in taken and not is_sharded(item)]
        self._places = [tensor.data_ptr() for tensor in self._others]

    def _now(self) -> list[Any]:
        """All objects of the model, in order. A state_dict would take several times longer."""
        return [item for module in self._modules
                for table in (module._parameters, module._buffers, module._modules)
                for item in table.values()]

    def is_same(self) -> bool:
        objects = self._now()
        return (self._is_own and len(objects) == len(self._objects)
                and all(map(operator.is_, objects, self._objects))
                and [tensor.data_ptr() for tensor in self._others] == self._places)


class Publisher:
    """Publishes a model, by hand or after the steps of an optimizer.

    Weights are read in place while the next forward and backward pass run. The next step of the
    optimizer waits until they are read. float32 is rounded to bfloat16 while it is read
    (`dtype=None` publishes it as it is). A step that only accumulates gradients does not call the
    optimizer and publishes nothing.

    Tensors on GPUs are read there: what the current CUDA stream is given after publish() waits
    until they are read, and the host waits for nothing (docs/PYTHON.md).

    Opening makes the model the newest version of the stream: if it differs, for example after a
    restart from an older checkpoint, it is published at once.

    A model with adapters of PEFT is published merged, as a plain model under the names of the base
    model; its own weights stay as they are.

    If the model has DTensors (FSDP2, tensor parallelism), every rank of `group` makes a publisher
    and publishes its own part. All parts become one version."""

    def __init__(
        self,
        model: Any,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        url: _core.Store | str,
        publish_every: int = 1,
        start_step: int | None = None,
        dtype: torch.dtype | None = torch.bfloat16,
        prefix: str = "",
        names: Names = None,
        group: Any = None,
        frozen: str = "detect",
        on_error: OnError | None = None,
        baseline: str | None = None,
        max_wait: float | None = 10,
        **options: Any,
    ) -> None:
        """`start_step` is the model's step if a run continues from a checkpoint; steps are
        counted from there. `frozen="never"` also reads weights without a gradient at each
        publish; otherwise those that seem unchanged are skipped. `on_error` is called with the
        exception of each version that was not published; the step raises what it raises.
        `baseline` says where the newest version of tensors on GPUs is kept: "device", or "host",
        which needs no room for it on the GPU, but takes longer (docs/PYTHON.md). Tensors on a GPU
        that the library cannot use are copied to the host at each publish, unless `baseline` is
        "device". Training of the same `job` (default: TORCHELASTIC_RUN_ID or SLURM_JOB_ID), or with
        `take_over=True`, does not wait until another trainer writes no more. `max_wait`: for so many seconds (None: no limit) the store may hold a step. Then the
        step is merged into the next version, on all ranks alike. `options` are those of
        deltawire.Publisher."""
        if dtype not in (None, torch.bfloat16):
            raise ValueError("float32 is published as it is, or as bfloat16")
        if publish_every < 1:
            raise ValueError("publish_every is 1 or more")
        if frozen not in ("detect", "never"):
            raise ValueError("frozen is 'detect' or 'never'")

        _peft.refuse_option(options)
        _refuse_swapped(model, "deltawire.torch.Publisher(model, optimizer, url=url)")

        is_module = isinstance(model, torch.nn.Module)
        model = model if is_module else dict(model)
        adapters = _peft.Adapters(model) if _peft.has_adapters(model) else None
        find = Finder(model, prefix, names, adapters and adapters.tensors)
        if start_step is not None:
            start_step = operator.index(start_step)
        every = list(model.parameters() if is_module else model.values())
        if group is not None or any(map(is_sharded, every)):
            all_agree(lambda: find() is not None, group)  # or the others would wait for this rank
        live = find()
        _warn_of_others(optimizer, every)
        devices = _devices.usable(_devices.gpus_of(live.values()), baseline, options)
        self._weights = Weights(live, dtype, is_module, find if is_module else None,
                                optimizer, frozen == "detect", every,
                                bool(options.get("quantize_from_f32")), devices, adapters)
        self._every, self._steps = publish_every, start_step or 0
        arguments = self._weights.arguments(
            group, {"start_step": start_step, "publish_every": publish_every})
        self._is_one_of_several, self._group = arguments.get("n_ranks", 1) > 1, group
        # without collective calls in publish() ranks meet by what is in the store
        self._meets = self._is_one_of_several and (
            max_wait is not None or options.get("quantize") is not None
            or not all(part.is_rows for part in self._weights.parts.values()))
        self._max_wait = max_wait
        options = {"step": start_step, "baseline": baseline or "device",
                   "max_wait": max_wait} | options
        _devices.wait_for(devices)  # for whatever wrote the weights
        is_current = self._open(url, arguments, options, group)
        self._outcomes = Outcomes(self._native, on_error)
        self._hooks = []
        self._is_open = False  # or hooks of one that was interrupted here would publish
        if optimizer is not None:
            self._hooks = [optimizer.register_step_pre_hook(self._before_step),
                           optimizer.register_step_post_hook(self._after_step)]
        if not is_current:
            step = self._steps if options["step"] is None else options["step"]
            self.publish(step=step, notes=options.get("notes"))
            self.wait()
        self._is_open = True

    def _open(self, url: Any, arguments: dict[str, Any], options: dict[str, Any],
              group: Any) -> bool:
        """Opens the stream: on all ranks, or on none of them. Returns False if the weights are to
        be published: ranks do that together if the part of any of them differs."""
        def open_own() -> bool:
            self._native = _core.Publisher(url, **arguments, **options)
            return ("shards" not in arguments or not options.get("publish_changed", True)
                    or self._native.is_current())

        self._native = None
        if "shards" not in arguments:
            return open_own()
        try:
            return all_agree(open_own, group)
        except Exception:
            if self._native is not None:
                self._native.close()
            raise

    # ---- hooks ------------------------------------------------------------------------

    def _before_step(self, *_: Any) -> None:
        """Weights that are read in place must be read before they change. A CUDA stream waits
        for that by itself."""
        if not self._is_open:
            return
        if not self._is_one_of_several:  # ranks would not raise at the same step
            self._outcomes.check()
        if self._weights.host_reads:
            self._wait_captured()

    def _after_step(self, *_: Any) -> None:
        if not self._is_open:
            return
        self._steps += 1
        if self._steps % self._every == 0:
            self.publish(step=self._steps)

    def _wait_captured(self) -> None:
        """A large version is read as fast as it is uploaded: a store that does not answer must
        not hold training."""
        if not self._native.captured(None, self._max_wait):
            self._outcomes.held(self._max_wait)
            self._native.cancel()
            self._native.captured()

    # ---- by hand ----------------------------------------------------------------------

    @property
    def native(self) -> _core.Publisher:
        return self._native

    @property
    def version(self) -> int:
        return self._native.version

    @property
    def steps(self) -> int:
        """The trainer's step: `start_step`, and the optimizer's steps since this was made."""
        return self._steps

    def publish(self, *, step: str | int | None = None, notes: str | None = None,
                files: Any = None) -> int:
        """Publishes the weights as they are, in the background. `files` replaces the
        companion files, which otherwise stay. If there are several ranks, each calls it with the
        same step, a number that goes up; by default it is `steps`, if there is an optimizer. A
        step that not all ranks publish is no version. Returns 0 if the version before held it
        for `max_wait`, or if this rank is behind others: the next version covers it. Raises Conflict if another trainer took the
        stream over; a version that failed since the last call is a PublishWarning, once for each
        outage."""
        if step is None and self._is_one_of_several:
            if not self._hooks:
                raise ValueError("ranks publish one step together: give `step`, a number that is "
                                 "the same on all of them, and goes up")
            step = self._steps
        self._wait_captured()  # a copy must not change before it was read
        if self._meets:
            try:
                meet(step, self._group)
            except _core.Unavailable as error:
                self._outcomes.is_merged = True
                self._outcomes.failed(error)
                return 0
        frozen, seen = self._weights.take()
        fault = None
        try:
            self._outcomes.check()
        except Exception as error:
            if not self._is_one_of_several:
                raise
            fault = error  # after the collective calls, in which the others wait for this rank
        try:
            ticket = self._native.publish(
                step=step, notes=notes, unchanged=frozen, files=files,
                cuda_streams=_devices.streams_of(self._weights.devices))
        except _core.Error as error:
            if self._outcomes.is_final(error) or isinstance(error, (_core.Invalid, _core.Mismatch)):
                raise
            self._outcomes.is_merged = True
            self._outcomes.failed(error)
            if fault is not None:
                raise fault
            return 0
        self._outcomes.is_merged = not ticket
        if ticket:
            self._weights.noted(seen)
        if fault is not None:
            raise fault
        if not ticket:
            self._outcomes.held(self._max_wait)
        return ticket

    def publish_now(self, step: int) -> _core.PublishReport | None:
        """Publishes, and waits for the version for at most `max_wait`. Then, or if it fails, the
        result is None, there was a warning, and the next one covers it."""
        ticket = self.publish(step=step)
        if not ticket:
            return None
        try:
            report = self._native.wait(ticket, self._max_wait)
            self._outcomes.check()
            return report
        except TimeoutError:
            self._outcomes.held(self._max_wait)
        except _core.Error as error:
            self._outcomes.reported(ticket)
            if self._outcomes.is_final(error):
                raise
            self._outcomes.failed(error)
        return None

    @property
    def metrics(self) -> dict[str, float]:
        """Counters since the publisher was made, for a trainer's log: versions, their bytes, steps
        that were merged into a later version, how long training waited for the store, outages."""
        return dict(self._outcomes.metrics)

    def published(self) -> dict[str, torch.Tensor]:
        """The weights as publish() would read them now, and as they are in a stream; this rank's
        part. Adapters are merged as of the last publish()."""
        return self._weights.published()

    def captured(self, timeout: float | None = None) -> bool:
        """Whether the weights of the last publish may change."""
        return self._native.captured(None, timeout)

    def wait(
        self, ticket: int | None = None, timeout: float | None = None
    ) -> _core.PublishReport:
        """Waits until the version of the ticket, or of the last publish, is committed."""
        if not ticket:
            self._outcomes.check_last()
            ticket = None
        try:
            return self._native.wait(ticket, timeout)
        except _core.Error:
            self._outcomes.reported(self._native.ticket if ticket is None else ticket)
            raise

    def drain(self, timeout: float | None = None) -> None:
        self._native.drain(timeout)

    def close(self, timeout: float | None = None) -> None:
        self._is_open = False  # one hook without the other would publish what the step changes
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._outcomes.close(timeout)

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)


def _refuse_copies(model: torch.nn.Module, found: dict[str, torch.Tensor]) -> None:
    """Refuses tensors of a state_dict that are not the model's own memory: what is written to a
    copy never reaches the model."""
    own = sorted({span(item) for module in model.modules()
                  for table in (module._parameters, module._buffers)
                  for item in table.values()
                  if item is not None and not is_sharded(item) and item.numel()})
    for i in range(1, len(own)):  # so that one look finds the longest that begins before
        if own[i][0] == own[i - 1][0] and own[i][2] < own[i - 1][2]:
            own[i] = (*own[i][:2], own[i - 1][2])
    for name, tensor in found.items():
        if not tensor.numel():
            continue
        device, start, end = span(tensor)
        i = bisect.bisect_right(own, (device, start, sys.maxsize)) - 1
        if i < 0 or own[i][0] != device or own[i][2] < end:
            raise ValueError(
                f"{name!r} of state_dict() is a copy, made by a hook or an override, and not "
                "memory of a parameter or buffer: follow into a mapping of names to the "
                "tensors that the model computes with")


def _warn_of_others(optimizer: torch.optim.Optimizer | None, every: list[Any]) -> None:
    """Warns if an optimizer steps none of the tensors EVERY: its steps would publish nothing new."""
    def place(tensor: Any) -> Any:
        return id(tensor) if is_sharded(tensor) or tensor.is_meta else tensor.data_ptr()

    if optimizer is None:
        return
    own = {key for t in every if isinstance(t, torch.Tensor) for key in (id(t), place(t))}
    stepped = [p for group in optimizer.param_groups for p in group["params"]]
    if stepped and not any(id(p) in own or place(p) in own for p in stepped):
        warnings.warn("the optimizer steps none of the model's tensors: is it the optimizer of "
                      "another model?", PublishWarning, stacklevel=3)


def _refuse_swapped(model: Any, call: str) -> None:
    if isinstance(model, (str, _core.Store)):
        raise TypeError(f"the model comes first, then the stream, and {model!r} is a stream: {call}")


class Target:
    """The tensors of a model that a follower writes: found by name, and looked for again before
    each use. If they lie elsewhere, the follower goes on there, provided that they hold the same
    weights."""

    def __init__(self, model: Any, prefix: str, names: Names) -> None:
        if not isinstance(model, (torch.nn.Module, Mapping)):
            model = dict(model)
        self._model, self._find = model, Finder(model, prefix, names)
        self._places: dict[str, tuple[Any, ...]] = {}
        self._gpus: set[torch.device] = set()

    def open(self) -> dict[str, Any]:
        """The arguments for the library."""
        found = self._find()
        tensors = self._exported(found)
        self._places = {name: _place(tensor) for name, tensor in found.items()}
        return tensors

    def _exported(self, found: dict[str, torch.Tensor]) -> dict[str, Any]:
        for name, tensor in found.items():
            if is_sharded(tensor):
                raise ValueError(
                    f"{name!r} is a DTensor: a follower writes whole tensors. Follow into a "
                    "directory on one rank, and load each rank's part from there "
                    "(torch.distributed.checkpoint.state_dict.set_model_state_dict)")
        if isinstance(self._model, torch.nn.Module):
            _refuse_copies(self._model, found)
        self._gpus = _devices.gpus_of(found.values())
        self.wait()  # for whatever wrote the weights
        return {name: _devices.exported(tensor.detach()) for name, tensor in found.items()}

    def wait(self) -> None:
        """Waits for all work that the devices of the tensors were given."""
        _devices.wait_for(self._gpus)

    def check(self, native: _core.Follower) -> None:
        """Before the library reads or writes the tensors. If they moved on devices, this drops
        what is staged."""
        places = {name: _place(tensor) for name, tensor in self._find().items()}
        if places == self._places:
            return
        found = self._find(anew=True)  # one that moved may not share memory with others any more
        places = {name: _place(tensor) for name, tensor in found.items()}
        was = self._places
        for name in was.keys() ^ places.keys():
            what = ("was removed, or tied to another," if name in was
                    else "is new, or not tied any more,")
            raise RuntimeError(f"{name!r} {what} since the follower was made: make a new follower")
        moved = [name for name in places if places[name] != was[name]]
        for name in moved:
            if (places[name][1], places[name][3]) != (was[name][1], was[name][3]):
                raise RuntimeError(f"{name!r} has another shape or type than when the follower "
                                   "was made: make a new follower")
        try:
            native.move(self._exported(found))
        except _core.Stale as error:
            raise RuntimeError(
                f"{moved[0]!r} lies in other memory than when the follower was made (a new "
                "parameter, load_state_dict(assign=True), .to(), .data, share_memory()), and "
                f"that does not hold the version of the old one. Make a new follower: {error}"
            ) from error
        self._places = places


class Follower:
    """Brings a live model's own tensors to versions of a stream, by hand (sync) or in a thread
    (start). `pause` and `resume` are called around the stores, which run at memory speed;
    versions are fetched while the model is used. No weight changes before its version is proven.
    With `widen=True` a float32 model follows a bfloat16 stream, if nobody trains it. With
    `empty=True` the model holds nothing yet: the first version is fetched directly into it,
    between `pause` and `resume`.

    Tensors on GPUs are changed there, without a copy of the model. After `pause`, it waits until
    their devices have done all work that they were given, so nothing reads weights that change."""

    def __init__(
        self,
        model: Any,
        url: _core.Store | str,
        *,
        pause: Callable[[], object] | None = None,
        resume: Callable[[], object] | None = None,
        prefix: str = "",
        names: Names = None,
        **options: Any,
    ) -> None:
        """`options` are those of deltawire.Follower, such as `open_timeout`, `id` and `report`.
        It waits for a stream that does not exist yet."""
        _refuse_swapped(model, "deltawire.torch.Follower(model, url)")
        self._target = Target(model, prefix, names)
        self._pause, self._resume = pause, resume
        self._paused: bool | None = False  # None: pause() or resume() did not return
        self._reports = bool(options.get("report", True))
        self._native = _core.Follower(url, tensors=self._target.open(), **options)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._stop = threading.Event()

    @property
    def native(self) -> _core.Follower:
        return self._native

    @property
    def version(self) -> int | None:
        """The version of the weights; during `resume` it is already the new one."""
        native = self._native
        applied = native.staged if native.update_state == "applied" else None
        return native.version if applied is None else applied

    @property
    def error(self) -> BaseException | None:
        """The error that ended the thread."""
        return self._error

    def wait(self, timeout: float | None = None, max_wait: float = 5) -> int | None:
        """Waits for a version above the model's, and returns it; None if `timeout` seconds
        passed without one."""
        return self._native.wait(timeout, max_wait)

    def sync(self, goal: int | None = None) -> int | None:
        """Brings the model to `goal`, or to the newest version, step by step. If the stores fail,
        `resume` is not called, because they may be half done: the next sync() finishes them
        first. An exception of `resume` is raised after the version is finished. A sync that was
        interrupted is continued by the next one; `pause` or `resume` may be called again then."""
        native = self._native
        if native.update_state in ("prepared", "applied", "filled") or self._paused is not False:
            self._finish()  # what an earlier call left
            if native.version is not None:
                self._resume_once()
        if goal is None:
            goal = native.poll()
        self._target.check(native)  # also if nothing is new
        while goal is not None and native.version != goal:
            self._target.check(native)
            if native.will_fill:
                self._pause_once()
                self._target.check(native)
                self._target.wait()
            native.stage(goal)
            self._finish()
        if native.version is not None:
            self._resume_once()
        return native.version

    def _pause_once(self) -> None:
        if not self._paused:
            self._paused = None
            self._call(self._pause)
            self._paused = True

    def _resume_once(self) -> None:
        if self._paused is not False:
            self._paused = None
            self._call(self._resume)
            self._paused = False

    def _call(self, callback: Callable[[], object] | None) -> None:
        """An exception is its answer. After an interrupt nobody knows what it has done."""
        try:
            if callback is not None:
                callback()
        except Exception:
            self._paused = False
            raise

    def _finish(self) -> None:
        """Applies and finishes what is staged, or continues where a call ended before."""
        native = self._native
        try:
            if native.update_state in ("staged", "prepared"):
                self._pause_once()
                try:
                    self._target.check(native)
                except Exception:
                    self._resume_once()  # nothing is stored yet
                    raise
                if native.staged is None:
                    return
                self._target.wait()  # nothing may read the weights any more
                native.apply()
            if native.update_state in ("applied", "filled"):
                try:
                    self._resume_once()
                finally:
                    self._target.check(native)
                    native.finish()
        except _core.Invalid:
            if self._stop.is_set():
                self._resume_once()  # another thread closed it, and nothing is half done
            raise

    def start(self, max_wait: float = 1) -> Follower:
        """Follows in a thread, which asks for a new version at least every `max_wait` seconds,
        also while the store cannot be reached."""
        if self._thread is not None and self._thread.ident is not None:
            raise RuntimeError("it is following already")
        self._thread = threading.Thread(target=self._follow, args=(max_wait,),
                                        name="deltawire-follower", daemon=True)
        self._thread.start()
        return self

    def _follow(self, max_wait: float) -> None:
        while not self._stop.is_set():
            try:
                self._native.wait(max_wait=max_wait)
                self.sync()
            except _core.Unavailable:
                self._stop.wait(max_wait)
            except BaseException as error:  # noqa: BLE001 - kept for the caller
                if not self._stop.is_set():
                    self._error = error
                    self._report_end(error)
                return

    def _report_end(self, error: BaseException) -> None:
        """Reports the end of the thread to `deltawire status`."""
        try:
            if self._reports:
                self._native.report("error", f"it follows no longer: {error}")
        except _core.Error:
            pass  # the error itself comes out of close()

    def close(self) -> None:
        """Ends the thread; raises what ended it before."""
        self._stop.set()
        self._native.close()
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def __enter__(self) -> Follower:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
