"""The back end: what vLLM calls in each worker."""
from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.logger import init_logger

from .. import _core
from . import plain
from .stream import StreamSource

logger = init_logger("vllm.deltawire")

FORMAT = "deltawire/1"


@dataclass
class InitInfo(WeightTransferInitInfo):
    """Nothing, where `deltawire follow` on this machine brings updates. With `url` each
    worker follows that stream by itself."""

    url: str | None = None
    dir: str | None = None
    trust: list[str] = field(default_factory=list)
    id: str | None = None
    store: dict[str, Any] = field(default_factory=dict)
    interval: float = 1.0
    threads: int = 0


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """What `deltawire follow` sends (docs/ENGINES.md, section 6), or a version of the
    stream that is followed."""

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

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        plain.check(self.model)
        self._source: StreamSource | None = None
        self._version: int | None = None  # None: not known, or perhaps a mix

    # ---- vLLM's calls -----------------------------------------------------------------

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        self.shutdown()
        if init_info.url is None:
            return
        ranks = self.parallel_config.world_size
        own = "" if ranks == 1 else f"rank-{self.parallel_config.rank}"
        self._source = StreamSource(
            init_info.url,
            dir=init_info.dir and os.path.join(init_info.dir, own),
            trust=init_info.trust,
            id=init_info.id and f"{init_info.id}-{own}".rstrip("-"),
            store=init_info.store,
            interval=init_info.interval,
            threads=init_info.threads,
            log=logger,
        )

    def start_weight_update(self) -> None:
        plain.check(self.model)

    def finish_weight_update(self) -> None:
        pass

    def shutdown(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            source.close()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        version, self._version = self._version, None  # until this has succeeded
        if update_info.kind == "stream":
            self._follow(update_info.version)
        else:
            if update_info.kind == "patch" and update_info.from_version != version:
                # nothing was touched
                self._version = version
                raise ValueError(f"the patch starts from version {update_info.from_version}, "
                                 f"the weights are version {version}")
            self._load_whole(update_info.dir)
        self._version = update_info.version

    # ---- the ways to a version --------------------------------------------------------

    def _follow(self, version: int) -> None:
        if self._source is None:
            raise RuntimeError("an update that names no directory needs the stream's url: "
                               "POST /init_weight_transfer_engine "
                               '{"init_info":{"url":"s3://..."}}')
        self._source.bring(version, None)
        self._load_whole(self._source.dir)

    @torch.no_grad()
    def _load_whole(self, directory: str) -> None:
        with _core.Checkpoint(directory) as checkpoint:
            weights = ((name, torch.from_dlpack(tensor)) for name, tensor in checkpoint.items())
            loaded = self.model.load_weights(weights)
        if loaded is not None:
            missing = {name for name, _ in self.model.named_parameters()} - set(loaded)
            if missing:
                raise RuntimeError(f"{directory} lacks {sorted(missing)[0]}")
