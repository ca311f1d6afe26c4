"""The back end, which vLLM calls in each worker."""
from __future__ import annotations

import contextlib
import fnmatch
import os
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Iterable, Mapping, NamedTuple, Sequence, TypeVar

from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.logger import init_logger

from .. import _core
from . import plain, ranks
from .ahead import Ahead
from .stream import StreamSource
from .undo import Undo
from .weights import Refused, Table, Weights, table_of

logger = init_logger("vllm.deltawire")

FORMAT = "deltawire/1"
NOTHING_STORED = "nothing was stored"
"""In the error of an update that left the weights as they are. `deltawire follow` looks for it."""


Result = TypeVar("Result")


class Position(NamedTuple):
    """The version that the weights are proven to be; None: not known."""

    stream: str | None = None
    version: int | None = None
    state: str | None = None  # its digest


@dataclass
class InitInfo(WeightTransferInitInfo):
    """Empty if `deltawire follow` on this machine sends updates. With `url`, each worker follows
    that stream by itself."""

    url: str | None = None
    dir: str | None = None
    trust: list[str] = field(default_factory=list)
    stream: str | None = None
    id: str | None = None
    store: dict[str, Any] = field(default_factory=dict)
    interval: float = 1.0


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """An update of `deltawire follow` (docs/OPERATIONS.md, section 2), or a version of the stream
    that the worker follows."""

    version: int
    format: str = FORMAT
    kind: str = "stream"
    stream: str | None = None
    from_version: int | None = None
    state: str | None = None
    dir: str | None = None
    patch: str | None = None

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"updates are of {FORMAT}, not of {self.format!r}")
        is_patch = self.kind == "patch"
        if self.kind not in ("patch", "snapshot", "stream"):
            raise ValueError(f"kind is patch, snapshot or stream, not {self.kind!r}")
        if not isinstance(self.version, int) or self.version < 0:
            raise ValueError(f"version {self.version!r} is no version")
        if (self.patch is not None) != is_patch or (self.from_version is not None) != is_patch:
            raise ValueError(f"an update of kind {self.kind} with the patch {self.patch!r} "
                             f"from version {self.from_version!r}")
        if (self.dir is None) != (self.kind == "stream"):
            raise ValueError(f"an update of kind {self.kind} with the directory {self.dir!r}")


class DeltawireEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False
    sweep_every = 64
    """Patches after which all weights are compared with the directory."""

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        super().__init__(config, vllm_config, device, model)
        self._is_cpu = device.type == "cpu"
        self._check_plain()
        self._source: StreamSource | None = None
        self._weights: Weights | None = None
        self._undo = Undo()
        self._holds = Position()
        self._is_fresh = False  # as vLLM has loaded it from a directory
        self._stored: set[str] = set()  # tensors that updates have set
        self._n_patches = 0
        self._ahead = Ahead(self._prepare, logger)  # for an agent's patches
        self._learn_at_start()

    # ---- vLLM's calls -----------------------------------------------------------------

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        self.shutdown()
        self._holds = Position()  # the number means another version in another stream
        if init_info.url is None:
            return
        rank = self._rank()
        directory, name = init_info.dir, init_info.id
        if rank is not None:  # each has its own directory and reports
            directory = directory and os.path.join(directory, f"rank-{rank}")
            name = name and f"{name}-rank-{rank}"
        self._source = StreamSource(
            init_info.url,
            dir=directory,
            trust=init_info.trust,
            stream=init_info.stream,
            id=name,
            store=init_info.store,
            interval=init_info.interval,
            log=logger,
            on_staged=self._prepare,
        )
        self._source.start()  # not before, or an interrupt would leave a thread to nobody

    def start_weight_update(self) -> None:
        self._undo()
        self._check_plain()

    def finish_weight_update(self) -> None:
        pass

    def shutdown(self) -> None:
        self._ahead.stop()
        if self._source is not None:
            self._source.close()
            self._source = None

    def receive_weights(self, update_info: UpdateInfo) -> None:
        with self._source.lock if self._source else self._ahead.lock:
            self._receive(update_info)
        if self._source is None:
            self._ahead.watch(update_info.dir)

    def _receive(self, update_info: UpdateInfo) -> None:
        self._undo()
        before, was_fresh, weights = self._holds, self._is_fresh, self._weights
        # after a failed update nothing is known of the weights
        self._holds, self._is_fresh = Position(), False
        if self._source is not None:
            self._source.served = None
        try:
            state = self._take(update_info, before, was_fresh)
        except Refused as error:
            self._holds, self._is_fresh, self._weights = before, was_fresh, weights
            if self.parallel_config.data_parallel_size > 1:  # another replica may have stored it
                raise RuntimeError(str(error)) from None
            raise RuntimeError(f"{NOTHING_STORED}: {error}") from None
        if update_info.state is not None:
            _check_state(state, update_info.state, update_info.version)
        self._holds = Position(update_info.stream, update_info.version,
                               update_info.state or state)
        if self._source is not None and update_info.kind == "stream":
            self._source.served = update_info.version

    def _take(self, update: UpdateInfo, before: Position, was_fresh: bool) -> str | None:
        """Returns the digest of the weights then."""
        if update.kind == "patch":
            return self._take_patch(update, before)
        # the weights of a fresh engine, or those that another agent meets, may be the version's
        may_hold = was_fresh or (before.state is not None and before.state == update.state)
        if update.kind == "snapshot":
            return self._load_whole(update.dir, may_hold)
        return self._follow(update.version, before, may_hold)

    def _together(self, work: Callable[[], Result],
                  stores: bool = False) -> tuple[Result, list[Any]]:
        """Does WORK on all ranks of the engine, and returns its result here and, unless it STORES,
        on each. If it fails on one, it raises on all, so that none waits for another afterwards:
        Refused, if nothing was stored."""
        result, error = None, None
        try:
            result = work()
        except Exception as failure:  # noqa: BLE001 - the others wait to hear of it
            error = RuntimeError(str(failure)) if stores and isinstance(failure, Refused) \
                else failure
        is_refusal = isinstance(error, (Refused, _core.Error, OSError)) and not stores
        votes = ranks.gathered(
            ranks.Vote(error and (str(error) or repr(error)), is_refusal,
                       None if stores else result), self.parallel_config)
        failed = {rank: vote for rank, vote in enumerate(votes) if vote.error is not None}
        if not failed:
            return result, [vote.result for vote in votes]
        if error is not None and not is_refusal:
            raise error
        rank, vote = next(iter(failed.items()))
        text = f"rank {rank}: {vote.error}" if len(votes) > 1 else vote.error
        if all(vote.is_refusal for vote in failed.values()):
            raise Refused(text) from error
        raise RuntimeError(text)

    def _check_plain(self) -> None:
        if self._is_cpu:
            plain.check(self.model)

    def _rank(self) -> int | None:
        """The rank among all workers of the engine; None: it is the only one."""
        parallel = self.parallel_config
        if parallel.world_size * parallel.data_parallel_size == 1:
            return None
        replica = getattr(parallel, "data_parallel_index", parallel.data_parallel_rank)
        return replica * parallel.world_size + parallel.rank

    # ---- the layout --------------------------------------------------------------------

    def _learn_at_start(self) -> None:
        """Learns the layout from the checkpoint that was loaded, if that is a directory."""
        path = self.model_config.model
        if not os.path.isdir(path) or self.vllm_config.load_config.load_format == "dummy":
            return
        try:
            checkpoint = _core.Checkpoint(path)
        except _core.Error as error:
            logger.warning("deltawire: the weights' places are learnt at the first update, "
                           "for %s cannot be read: %s", path, error)
            return
        self._ahead.watch(path)  # an agent stages its patches beside the weights
        with checkpoint, self._ahead.lock:
            self._weights = self._learnt(table_of(checkpoint))
            self._is_fresh = not self._weights.confirm(checkpoint)
            self._weights.forget_untied(checkpoint)
            unset = self._weights.unset
            if unset:
                logger.info("deltawire: not part of the checkpoint: %s", ", ".join(unset))

    def _learnt(self, table: Table) -> Weights:
        start = time.monotonic()
        weights = Weights(self.model, self.model_config, table, logger, undo=self._undo)
        held = sum(n > 0 for n in weights.held.values())
        logger.info("deltawire: learnt where %d of %d tensors lie, in %d pieces: %.2f s",
                    held, len(table), weights.layout.pieces, time.monotonic() - start)
        return weights

    def _learn(self, table: Table) -> None:
        """For another checkpoint than before. It must set all that the engine has loaded so far,
        or the rest would stay as it is."""
        weights = self._learnt(table)
        missing = [name for name in weights.lacks(self._weights) if not self._is_kept(name)]
        if missing:
            raise Refused(f"the version has no {_listed(missing)}, which this engine needs: "
                          "start vLLM from a checkpoint of the same model as the stream's")
        self._weights = weights

    def _is_kept(self, name: str) -> bool:
        """Whether a tensor need not be in a version: the user named it when vLLM was started, and
        it is still what vLLM loaded then."""
        given = getattr(self.vllm_config, "additional_config", None)
        given = given.get("deltawire") if isinstance(given, Mapping) else None
        patterns = given.get("keep", ()) if isinstance(given, Mapping) else ()
        return name not in self._stored and any(
            fnmatch.fnmatchcase(name, pattern) for pattern in patterns)

    def _prepare(self, patch: str) -> None:
        """Computes the stores of a patch while the engine serves. If that fails, it is done during
        the update, whose error is the one that counts."""
        if self._weights is None:
            return
        try:
            start = time.monotonic()
            self._weights.prepare(patch)
            logger.debug("deltawire: %s was prepared: %.1f ms", patch,
                         1e3 * (time.monotonic() - start))
        except (_core.Error, OSError, MemoryError) as error:
            logger.debug("deltawire: %s is not prepared before the pause: %s", patch, error)

    # ---- the ways to a version --------------------------------------------------------

    def _check_fits(self, update: UpdateInfo, holds: Position) -> None:
        """Checks the version before anything is touched. That of an engine which was started from
        the directory is not known before it was compared whole."""
        if self._weights is None or (holds.stream, holds.version) != (
                update.stream, update.from_version):
            at = "not known" if holds.version is None else f"version {holds.version}"
            if holds.stream != update.stream and holds.stream is not None:
                at += " of another stream"
            raise Refused(f"the patch starts from version {update.from_version}, the weights "
                          f"are {at}: send the whole directory")

    def _take_patch(self, update: UpdateInfo, before: Position) -> str | None:
        def check() -> None:
            self._check_fits(update, before)
            self._weights.check(update.patch)

        self._together(check)
        report, _ = self._together(
            lambda: self._store(update.version, update.patch, before.state), stores=True)
        self._finish_patches(update.dir, report.forgotten)
        return report.state if report.reached is None else report.reached

    def _follow(self, goal: int, before: Position, may_hold: bool) -> str | None:
        source = self._source

        def can_patch() -> bool:
            if source is None or source.is_closed:
                raise Refused("an update that names no directory needs the stream's url: "
                              "POST /init_weight_transfer_engine "
                              '{"init_info":{"url":"s3://..."}}')
            is_known = self._weights is not None and before.version is not None
            return is_known and source.position() == (before.version, before.state)

        if not all(self._together(can_patch)[1]):
            return self._load_whole(source.dir, may_hold, lambda: source.bring(goal, None), goal)
        state, forgotten, is_agreed = before.state, set(), None

        def agree(check: Callable[[], Any]) -> None:
            nonlocal is_agreed
            is_agreed = False
            self._together(check)
            is_agreed = True

        def on_step(to: int, patch: str) -> str | None:
            nonlocal state
            if is_agreed is None:  # the steps after the first one are not known yet
                agree(lambda: self._weights.check(patch))
            report = self._store(to, patch, state)
            forgotten.update(report.forgotten)
            state = report.state
            return state

        error = None
        try:
            state = source.bring(goal, on_step)
        except Exception as failure:  # noqa: BLE001 - raised below
            error = failure
        if is_agreed is None:
            agree(lambda: _raise(error))
        elif not is_agreed:
            raise error
        self._together(lambda: _raise(error), stores=True)
        self._finish_patches(source.dir, forgotten)
        return state

    def _store(self, version: int, patch: str, base: str | None) -> _core.LayoutReport:
        """Applies a patch and reads it back. The digest must be the version's."""
        start = time.monotonic()
        self._stored.update(self._weights.table)
        report = self._weights.apply(patch, base)
        if report.version != version:
            raise RuntimeError(f"{patch} leads to version {report.version}, not {version}")
        if report.reached is not None and report.state is not None:
            _check_state(report.reached, report.state, version)
        logger.info("deltawire: version %d: %d changes, %d stores, %.1f ms", version,
                    report.n_changed, report.n_stored, 1e3 * (time.monotonic() - start))
        return report

    def _finish_patches(self, directory: str, forgotten: Iterable[str]) -> None:
        """Loads tensors again that could not be stored in place, and quantises those again whose
        scale changed. Now and then compares all weights."""
        self._n_patches += 1
        is_sweep = self._n_patches % self.sweep_every == 0
        if not forgotten and not is_sweep and not self._weights.is_pending:
            return
        if self._source is not None:
            self._source.settle()
        with _core.Checkpoint(directory) as checkpoint:
            n = self._weights.redo(checkpoint)
            if n > 0:
                logger.info("deltawire: %d rows, blocks or tensors were quantised again", n)
            if forgotten:
                logger.warning("deltawire: loaded anew: %s", ", ".join(sorted(forgotten)))
                self._weights.load(checkpoint, forgotten)
            if forgotten or is_sweep:
                self._compare(checkpoint)

    def _load_whole(self, directory: str, may_hold: bool,
                    bring: Callable[[], str] | None = None, version: int = 0) -> str:
        """Loads the checkpoint, which BRING makes VERSION first, and returns its digest. If the
        weights MAY HOLD it, they are compared first, and loaded only if they differ on a rank."""
        start = time.monotonic()
        wanted = checkpoint = None

        def check() -> tuple[bool, bool]:
            nonlocal wanted, checkpoint
            wanted = bring() if bring else None
            checkpoint = opened.enter_context(_core.Checkpoint(directory))
            table = table_of(checkpoint)
            if self._weights is None or self._weights.table != table:
                self._learn(table)
            self._weights.check_ties(checkpoint)
            return may_hold and self._weights.equal(checkpoint), self._weights.confirmed

        with contextlib.ExitStack() as opened:
            found = self._together(check)[1]
            is_held = all(is_equal for is_equal, _ in found)
            if not is_held:
                self._stored.update(self._weights.table)
                self._together(lambda: self._weights.load(checkpoint), stores=True)
                if not all(is_confirmed for _, is_confirmed in found):
                    self._weights.confirm(checkpoint)
                self._compare(checkpoint)
            state = _core.digest(checkpoint).state
        if wanted is not None:
            _check_state(state, wanted, version)
        logger.info("deltawire: %s was %s: %.2f s", directory,
                    "compared with the weights, which are equal" if is_held else "loaded whole",
                    time.monotonic() - start)
        return state

    def _compare(self, checkpoint: _core.Checkpoint) -> None:
        wrong = self._weights.compare(checkpoint)
        if wrong:
            name, n = next(iter(wrong.items()))
            raise RuntimeError(f"{n} elements of {name} are not those of the checkpoint, and "
                               f"{len(wrong) - 1} more tensors are wrong")


def _raise(error: Exception | None) -> None:
    if error is not None:
        raise error


def _listed(names: Sequence[str]) -> str:
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")


def _check_state(state: str | None, wanted: str, version: int) -> None:
    if state != wanted:
        raise RuntimeError(f"the weights have the digest {state}, version {version} has "
                           f"{wanted}")
