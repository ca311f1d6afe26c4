"""TRL: its trainers publish into a stream, and its samples carry the version that made them.

    transfer = deltawire.trl.WeightTransfer("s3://bucket/run-7", engines=["http://gpu1:8000"])
    trainer = AsyncGRPOTrainer(model, reward, args, data, weight_transfer=transfer)
    deltawire.trl.RolloutWorker.replace(trainer, servers=["http://gpu1:8000"])   # exact tags

    Trainer(model, ..., callbacks=[deltawire.trl.PublishCallback("s3://bucket/run-7")])

Beside each vLLM runs `deltawire follow URL --into DIR --engine vllm=http://127.0.0.1:8000`,
which pauses it only for the stores. docs/PYTHON.md describes it.
"""
from __future__ import annotations

import contextlib
import inspect
import time
import warnings
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping

import torch

from . import _core
from . import torch as dw_torch
from ._companions import saved_files
from ._drive import Driven, bring_all
from ._engines import Engine, Wait, label_of
from ._outcomes import PublishWarning, wait_logged
from ._publish_callback import PublishCallback

if TYPE_CHECKING:
    from ._trl_worker import RolloutWorker

__all__ = ["WeightTransfer", "PublishCallback", "RolloutWorker"]

POLL_S = 0.05


def __getattr__(name: str) -> Any:
    if name == "RolloutWorker":  # brings TRL's rollouts, which a callback does not need
        from ._trl_worker import RolloutWorker

        return RolloutWorker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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


class WeightTransfer:
    """TRL's weight transfer through a stream: `AsyncGRPOTrainer(..., weight_transfer=this)`.

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
    seconds. When it is back, only RolloutWorker tags its samples correctly."""

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
        self._copies = _Copies(dtype, names)
        self._publisher: _core.Publisher | None = None
        self.trainer: Any = None
        """Whose model and `processing_class` have the companion files. The default is the trainer
        that sends the first weights."""
        self._on_sync = on_sync
        self._report: _core.PublishReport | None = None
        self._version: int | None = None
        self._sent: int | None = None  # TRL's number of the version that was sent, until resume()
        self._away: list[str] = []
        self._seconds: tuple[float, float] = (0.0, 0.0)
        self.model_version = 0
        """TRL's number of the newest version that is served: it counts syncs. Set it if a run
        continues from a checkpoint; RolloutWorker does."""
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
        return self._copies.tensors

    @property
    def publisher(self) -> _core.Publisher | None:
        return self._publisher

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
        if self._publisher is not None:  # a call that was interrupted may have left it reading
            wait_logged(lambda seconds: self._publisher.captured(None, seconds),
                        "the step before is being read")
        self._copies.take(iterator)
        step = self.model_version + 1
        if self._publisher is None:  # opening publishes the weights if they differ from the stream
            with self._files(trainer) as files:
                self._publisher = _core.Publisher(
                    self._store, self._copies.tensors, step=step, publish_changed=True,
                    **files | self._options)
            self._version, self._report = self._publisher.version, None
        else:
            self._report = self._publish(step)
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

    def _publish(self, step: int) -> _core.PublishReport:
        ticket = self._publisher.publish(step=step)

        def is_committed(seconds: float) -> bool:
            try:
                self._publisher.wait(ticket, seconds)
            except TimeoutError:
                return False
            return True

        wait_logged(is_committed, f"step {step} is being uploaded to {self.url}")
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
        publisher, self._publisher = self._publisher, None
        if publisher is None:
            return
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
