"""TRL: its trainers publish into a stream, and its samples carry the version that made them.

    transfer = deltawire.trl.WeightTransfer("s3://bucket/run-7", engines=["http://gpu1:8000"])
    args = AsyncGRPOConfig(..., vllm_server_base_url=transfer.gate())   # exact tags
    trainer = AsyncGRPOTrainer(model, reward, args, data)
    transfer.attach(trainer)

    Trainer(model, ..., callbacks=[deltawire.trl.PublishCallback("s3://bucket/run-7")])

Beside each vLLM runs `deltawire follow URL --into DIR --engine vllm=http://127.0.0.1:8000`,
which pauses it only for the stores. docs/PYTHON.md describes it.
"""
from __future__ import annotations

import contextlib
import inspect
import sys
import time
import warnings
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping

import torch

from transformers import TrainerCallback

from . import _core, _peft
from . import torch as dw_torch
from ._companions import saved_files
from ._drive import Driven, bring_all
from ._engines import Engine, Wait, label_of
from ._outcomes import PublishWarning
from ._publish_callback import PublishCallback, is_sharded_model, plain_name

if TYPE_CHECKING:
    from ._trl_gate import Gate

__all__ = ["WeightTransfer", "PublishCallback"]

POLL_S = 0.05
MAX_WAIT_S = 60  # of a sync for its version
METHODS = ("init_weight_transfer", "pause", "send_weights", "resume", "destroy")


class _Copies:
    """Collects the tensors that TRL passes one by one, each only for a moment. A publisher needs
    all at once, on the CPU, float32 as bfloat16. TRL passes tied tensors once."""

    def __init__(self, dtype: torch.dtype | None, names: dw_torch.Names) -> None:
        self.dtype, self._names = dtype, names
        self.tensors: dict[str, torch.Tensor] = {}

    def take(self, pairs: Iterable[tuple[str, torch.Tensor]]) -> None:
        is_first = not self.tensors
        tensors = dict(self.tensors)
        seen = set()
        for name, tensor in pairs:
            name = dw_torch.renamed(name, names=self._names)
            if name is None:
                continue
            if name in seen:
                raise ValueError(f"two tensors are named {name!r}")
            seen.add(name)
            tensor = tensor.detach()
            if is_first:
                dtype = self.dtype if tensor.dtype == torch.float32 else None
                tensors[name] = torch.empty(
                    tensor.shape, dtype=dtype or tensor.dtype, pin_memory=tensor.is_cuda)
            copy = tensors.get(name)
            if copy is None or copy.shape != tensor.shape:
                raise ValueError(f"{name!r} was not among the weights sent first, or had "
                                 "another shape: a stream has the same tensors throughout")
            copy.copy_(tensor)
        if not tensors:
            raise ValueError("no weights were sent: is every parameter frozen?")
        if len(seen) != len(tensors):
            missing = next(name for name in tensors if name not in seen)
            raise ValueError(f"{missing!r} was sent before, and is missing now")
        self.tensors = tensors


def _trainer_of(iterator: Any) -> Any:
    """TRL passes the weights as a generator of the trainer; None if this is another iterator."""
    if not inspect.isgenerator(iterator):
        return None
    return inspect.getgeneratorlocals(iterator).get("self")


def _attribute(owner: Any, methods: Iterable[str]) -> str | None:
    """The name of the attribute whose object has all these methods."""
    return next((name for name, value in vars(owner).items()
                 if all(callable(getattr(value, method, None)) for method in methods)), None)


def _trl() -> str:
    return f"TRL {getattr(sys.modules.get('trl'), '__version__', 'of an unknown version')}"


class _Closes(TrainerCallback):
    """Closes the stream on every rank."""

    def __init__(self, transfer: WeightTransfer) -> None:
        self._transfer = transfer

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._transfer.destroy()


class WeightTransfer:
    """TRL's weight transfer through a stream: `attach(trainer)` before train().

    Generation goes on during the transfer. A sync returns when every engine of `engines` reports
    that it serves the version, or when `followers` (a number, or ids) have reported it to the
    stream. So TRL raises its model_version only when that version is served. If neither is given,
    it returns when the version is committed.

    With `drive` no follower runs beside the engines: their workers follow the stream by
    themselves (vLLM's back end `deltawire`), and each sync pauses them to apply what they have
    staged. A mapping instead of True is added to their init_info (docs/PYTHON.md).

    The versions carry the configuration of the trainer's model and the files of its
    `processing_class`, unless `files` names others; `files={}` leaves them out.

    `away_after`: a sync does not wait for an engine that could not be reached for so many
    seconds. When it is back, only a gate() tags its samples correctly."""

    def __init__(
        self,
        url: _core.Store | str,
        *,
        engines: Iterable[str] = (),
        followers: int | Iterable[str] | None = None,
        drive: bool | Mapping[str, Any] = False,
        timeout: float = 600,
        away_after: float | None = None,
        engine_token: str | None = None,
        dtype: torch.dtype | None = torch.bfloat16,
        names: dw_torch.Names = None,
        on_sync: Callable[[WeightTransfer], object] | None = None,
        **options: Any,
    ) -> None:
        """`timeout`: seconds for engines and followers to reach a version. `dtype` is that
        of float32 weights in the stream; None leaves them. `names` maps names as for
        deltawire.torch.Publisher. `on_sync` is called when a version is served. `options`
        are those of deltawire.Publisher."""
        _peft.refuse_option(options)
        if isinstance(engines, str):
            engines = [engines]
        if isinstance(followers, str):
            followers = [followers]
        if dtype not in (None, torch.bfloat16):
            raise ValueError("float32 is published as it is, or as bfloat16")
        self.url = url if isinstance(url, str) else url.url
        self._store, self._options = url, options
        self._engines = [Engine(engine, engine_token) for engine in engines]
        self._followers = (followers if followers is None or isinstance(followers, int)
                           else frozenset(followers))
        self._timeout, self._away_after = timeout, away_after
        if drive and not self._engines:
            raise ValueError("drive=True wants engines=[URL, ...]")
        if drive and away_after is not None:
            raise ValueError("engines that are driven are always waited for")
        if drive and not isinstance(url, str) and not (
                isinstance(drive, Mapping) and "store" in drive):
            raise ValueError("workers that are driven open the store by themselves: give its "
                             'URL, or its options for them too: drive={"store": {...}}')
        info = {"url": self.url, "trust": list(options.get("trust", ())),
                "stream": options.get("stream"), "interval": 0.1}
        info |= drive if isinstance(drive, Mapping) else {}
        self._driven = [Driven(engine, info) for engine in self._engines] if drive else []
        self._copies, self._names = _Copies(dtype, names), names
        self._publisher: _core.Publisher | None = None
        self._model: dw_torch.Publisher | None = None  # publishes the trainer's model itself
        self._gate: Gate | None = None
        self.trainer: Any = None
        """Whose model and `processing_class` have the companion files. The default is the trainer
        that sends the first weights."""
        self._on_sync = on_sync
        self._report: _core.PublishReport | None = None
        self._version: int | None = None
        self._step = 0  # of the last version that was tried
        self._sent: int | None = None  # TRL's number of the version that was sent, until resume()
        self._away: list[str] = []
        self._seconds: tuple[float, float] = (0.0, 0.0)
        self.model_version = 0
        """TRL's number of the newest version that is served: it counts syncs. If a run continues
        from a checkpoint, it is the trainer's."""
        self.versions: dict[int, int] = {}
        """The stream's version of each of TRL's."""

    # ---- status ------------------------------------------------------------------------

    @property
    def version(self) -> int | None:
        """The stream's version of the newest sync."""
        return self._version

    @property
    def report(self) -> _core.PublishReport | None:
        """The report of the newest publish; None for the first sync, which opens the stream."""
        return self._report

    @property
    def seconds(self) -> tuple[float, float]:
        """Seconds of the newest sync: until it was committed, and then until it was served."""
        return self._seconds

    @property
    def away(self) -> list[str]:
        """Engines that the newest sync did not wait for."""
        return list(self._away)

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The weights of the newest sync, as in the stream. Do not write to them. They change
        with the next sync."""
        if self._model is not None:
            return self._model.published()
        return self._copies.tensors

    @property
    def publisher(self) -> _core.Publisher | None:
        return self._publisher

    # ---- TRL's trainer ----------------------------------------------------------------

    def gate(self, servers: Iterable[str] | None = None) -> str:
        """Starts a gate in front of the servers (default: the engines), and returns its URL for
        `vllm_server_base_url`. Samples that come through it carry the oldest version that made one
        of their tokens, and those of weights without a version are discarded."""
        from ._trl_gate import Gate

        servers = [engine.url for engine in self._engines] if servers is None else servers
        servers = [servers] if isinstance(servers, str) else list(servers)
        if not servers:
            raise ValueError("a gate wants servers=[URL, ...]")
        if self._gate is None:
            self._gate = Gate(servers, lambda: getattr(self._publisher, "stream_id", ""))
        return self._gate.url

    def attach(self, trainer: Any) -> None:
        """Makes the trainer send its weights here; on every rank, before train(). If the trainer has
        a `_sync_weight`, that is replaced, and the model is published where it is: each rank its
        shards, adapters merged. Otherwise this replaces its object with the five methods of a
        weight transfer, and TRL gathers the weights."""
        is_main, cls = trainer.accelerator.is_main_process, type(trainer)
        queue = _attribute(trainer, ("get", "put", "qsize"))
        missing = []
        if callable(getattr(cls, "_sync_weight", None)):
            missing += [] if hasattr(trainer, "model_version") else ["a `model_version`"]
            if is_main and _attribute(trainer, ("update_model_version",)) is None:
                missing.append("a rollout worker with `update_model_version`")
        elif is_main and _attribute(trainer, METHODS) is None:
            missing.append(f"a `_sync_weight` or an object with {', '.join(METHODS)}")
        if is_main and self._gate is not None and queue is None:
            missing.append("a queue of samples")
        if missing:
            raise RuntimeError(
                f"{_trl()}: {cls.__name__} has not {' and '.join(missing)}, so deltawire cannot "
                "serve it: use TRL 1.16, or publish with PublishCallback")
        self.trainer = trainer
        if (name := _attribute(trainer, METHODS)) is not None:
            setattr(trainer, name, self)
        if hasattr(cls, "_sync_weight"):
            trainer._sync_weight = self._sync
            for callback in trainer.callback_handler.callbacks:  # which took the method before
                for name, value in vars(callback).items():
                    if getattr(value, "__func__", None) is cls._sync_weight:
                        setattr(callback, name, self._sync)
        if is_main and self._gate is not None:
            from ._trl_gate import TaggedQueue

            setattr(trainer, queue, TaggedQueue(getattr(trainer, queue), self._gate,
                                                self._number_of))
        trainer.add_callback(_Closes(self))

    def _number_of(self, version: int) -> int:
        """TRL's number of the stream's VERSION. Only one sync runs at a time, so a version newer
        than all known ones gets the next number. A version older than all is as far back as it is
        in the stream."""
        known = sorted(self.versions.items())
        if not known or version > known[-1][1]:
            return self.model_version + 1
        older = [number for number, other in known if other <= version]
        return older[-1] if older else known[0][0] - (known[0][1] - version)

    def _sync(self) -> None:
        """Replaces the trainer's `_sync_weight`: on every rank, publishes the model and returns when
        the version is served."""
        trainer = self.trainer
        model = trainer.accelerator.unwrap_model(trainer.model)
        is_main, ranks = trainer.accelerator.is_main_process, torch.distributed
        numbers = [trainer.model_version]
        if ranks.is_available() and ranks.is_initialized():
            ranks.broadcast_object_list(numbers, src=0)
        self.model_version = numbers[0]
        if is_main or is_sharded_model(model):
            self._send_model(model)
        if is_main and self._sent is not None:
            self.resume()
            trainer.model_version = self.model_version
            worker = getattr(trainer, _attribute(trainer, ("update_model_version",)))
            worker.update_model_version(self.model_version)

    def _send_model(self, model: torch.nn.Module) -> None:
        """If the store fails, or takes longer than `max_wait`, nothing is sent: rollouts go on with
        the weights that they have, and the next sync covers this one."""
        start, number = time.monotonic(), self.model_version + 1
        # a step that was given up may have become a version since: ranks need another number
        step = self._step = max(number, self._step + 1)
        if self._publisher is None:  # opening publishes the weights if they differ from the stream
            with self._files(self.trainer) as files:
                self._model = dw_torch.Publisher(
                    model, url=self._store, dtype=self._copies.dtype, step=step,
                    names=lambda name: dw_torch.renamed(plain_name(name), names=self._names),
                    **{"max_wait": MAX_WAIT_S} | files | self._options)
            self._publisher = self._model.native
            self._version, self._report = self._publisher.version, None
        else:
            self._report = self._model.publish_now(step)
            if self._report is None:
                return
            self._version = self._report.version
        self._sent = number
        self._seconds = (time.monotonic() - start, 0.0)

    # ---- TRL's protocol ---------------------------------------------------------------

    def init_weight_transfer(self) -> None:
        """Does nothing: the stream is opened with the first weights, because only they have names
        and shapes."""

    def pause(self) -> None:
        """Does nothing: engines are not paused during the transfer."""

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Returns when the weights are committed as a version."""
        start = time.monotonic()
        trainer = self.trainer or _trainer_of(iterator)
        self.model_version = getattr(trainer, "model_version", self.model_version)
        if self._publisher is not None:  # a call that was interrupted may have left it reading
            self._publisher.captured()
        self._copies.take(iterator)
        step = self.model_version + 1
        if self._publisher is None:  # opening publishes the weights if they differ from the stream
            with self._files(trainer) as files:
                self._publisher = _core.Publisher(
                    self._store, self._copies.tensors, step=step, publish_changed=True,
                    **files | self._options)
            self._version, self._report = self._publisher.version, None
        else:
            self._report = self._committed(self._publisher.publish(step=step), step)
            self._version = self._report.version
        self._sent = step
        self._seconds = (time.monotonic() - start, 0.0)

    @contextlib.contextmanager
    def _files(self, trainer: Any) -> Iterator[dict[str, Any]]:
        """The option for the companion files, if the caller gave none."""
        model = getattr(trainer, "model", None)
        if "files" in self._options or model is None:
            yield {}
            return
        with saved_files(model, getattr(trainer, "processing_class", None),
                         self._copies.dtype) as files:
            yield {} if files is None else {"files": files}

    def _committed(self, ticket: int, step: int) -> _core.PublishReport:
        if not ticket:
            raise _core.Unavailable(f"{self.url}: step {step} was not published: the store cannot "
                                    "be reached")
        return self._publisher.wait(ticket)

    def _stream(self) -> _core.Stream:
        return _core.Stream(self._store, trust=self._options.get("trust", ()),
                            stream=self._options.get("stream"))

    def resume(self) -> None:
        """Returns when the version that was sent is served."""
        number = self._sent
        if number is None:
            return
        start = time.monotonic()
        self._drive_engines(start + self._timeout)
        self._wait_engines()
        self._wait_followers()
        self.versions[number] = self._version
        self.model_version = number
        self._sent = None
        self._seconds = (self._seconds[0], time.monotonic() - start)
        if self._on_sync is not None:
            self._on_sync(self)

    def destroy(self) -> None:
        """Waits until folds and anchors are also made, and closes the stream. Raises nothing,
        because every sync waited for its version and training has ended."""
        if self._gate is not None:
            self._gate.close()
        if self._publisher is None:
            return
        publisher, self._publisher = self._model or self._publisher, None
        for end in (publisher.drain, publisher.close):
            try:
                end(self._timeout)
            except (_core.Error, TimeoutError) as error:
                warnings.warn(f"training ended, but its publishing did not: {error}",
                              PublishWarning, stacklevel=2)

    # ---- waiting ----------------------------------------------------------------------

    def _wait_engines(self) -> None:
        waits = [Wait(engine, self._label(), self._away_after) for engine in self._engines]
        left = list(waits)
        deadline = time.monotonic() + self._timeout
        while left := [wait for wait in left if not wait.done()]:
            if time.monotonic() >= deadline:
                raise TimeoutError("; ".join(self._late(wait) for wait in left))
            time.sleep(POLL_S)
        self._away = [wait.engine.url for wait in waits if wait.is_away]
        if waits and len(self._away) == len(waits):
            raise TimeoutError(f"none of the engines answers: {', '.join(self._away)}; "
                               "start them, and a follower beside each")

    def _label(self) -> str:
        return label_of(self._publisher.stream_id, self._version)

    def _drive_engines(self, deadline: float) -> None:
        failures = bring_all(self._driven, self._version, self._stream, deadline)
        for error in failures.values():
            if not isinstance(error, TimeoutError):
                raise error
        if failures:
            raise TimeoutError("; ".join(
                f"{one.engine.url} does not come to version {self._version} of {self.url} in "
                f"{self._timeout:.0f} s: {one.status}; see vLLM's log, and that its workers "
                "reach the store" for one in failures))

    def _late(self, wait: Wait) -> str:
        url = wait.engine.url
        return (f"{url}: {wait.status}, not version {self._version} of {self.url}, after "
                f"{self._timeout:.0f} s; see that `deltawire follow {self.url} --into DIR "
                f"--engine vllm={url}` runs beside it, and read its log")

    def _is_there(self, follower: _core.FollowerInfo) -> bool:
        """With any other status, the version of the directory is not served."""
        return (follower.status in ("following", "serving")
                and follower.version is not None and follower.version >= self._version)

    def _wait_followers(self) -> None:
        if not self._followers:
            return
        deadline = time.monotonic() + self._timeout
        with self._stream() as stream:
            while True:
                at = {f.id: f for f in stream.followers()}
                there = {id for id, f in at.items() if self._is_there(f)}
                if isinstance(self._followers, int):
                    if len(there) >= self._followers:
                        return
                    late = f"{len(there)} of {self._followers} followers are"
                elif self._followers <= there:
                    return
                else:
                    missing = sorted(self._followers - there)
                    late = ", ".join(f"{id} ({_place(at.get(id))})" for id in missing) + " not"
                if time.monotonic() >= deadline:
                    raise TimeoutError(
                        f"{late} at version {self._version} of {self.url} after "
                        f"{self._timeout:.0f} s; `deltawire status {self.url}` shows them all")
                time.sleep(10 * POLL_S)


def _place(follower: _core.FollowerInfo | None) -> str:
    if follower is None:
        return "no report"
    return f"{follower.status} at {follower.version}"
