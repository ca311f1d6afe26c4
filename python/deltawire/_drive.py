"""Engines whose workers follow the stream by themselves: each version is taken over when all
workers of an engine have staged it, engine by engine in threads, side by side."""
from __future__ import annotations

import threading
import time
import uuid
from typing import Any, Callable

from . import _core
from ._engines import Engine, EngineError

POLL_S = 0.1
NO_URL = "needs the stream's url"  # as a worker says it that was started anew


class Driven:
    """One engine. Its workers report to the stream under names that begin with `id`."""

    def __init__(self, engine: Engine, info: dict[str, Any]) -> None:
        self.engine = engine
        self._given = info
        self._forget()
        self.says = "was not asked"

    def _forget(self) -> None:
        """It follows nothing. Under another name, for its old reports tell nothing now."""
        self.id = f"trl-{uuid.uuid4().hex[:12]}"
        self._info = self._given | {"id": self.id}
        self._n_workers = 0
        self._served: int | None = None

    def _begin(self, deadline: float) -> None:
        """An engine that was started anew follows nothing, and has forgotten its label."""
        if self._served is not None and self.engine.label() == "default":
            self._forget()
            self.engine.is_mixed = False
        if self._n_workers:
            return
        n_workers = self.engine.n_workers()
        self.engine.follow(self._info, max(deadline - time.monotonic(), 1))
        self._n_workers = n_workers

    def _is_staged(self, version: int, stream: _core.Stream) -> bool:
        """A hop on the way is enough: a worker fetches the rest. What says that it has staged
        what is served is a report from before."""
        mine = [f for f in stream.followers()
                if f.id == self.id or f.id.startswith(f"{self.id}-rank-")]
        there = [f for f in mine if f.version == version
                 or (f.status == "staged" and f.message != str(self._served))]
        if len(there) < self._n_workers:
            failed = [f.message for f in mine if f.status == "failed"]
            self.says = (failed[0] if failed else f"{len(there)} of {self._n_workers} workers "
                         f"have staged version {version}")
        return len(there) >= self._n_workers

    def bring(self, version: int, stream: _core.Stream, deadline: float) -> None:
        """Raises TimeoutError; what was wrong stands in `says`."""
        while True:
            try:
                self._begin(deadline)
                if self._is_staged(version, stream):
                    self.engine.update(version, max(deadline - time.monotonic(), 1))
                    self._served = version
                    return
            except (EngineError, _core.Unavailable) as error:
                self.says = str(error)
                if isinstance(error, EngineError) and (error.away or NO_URL in self.says):
                    self._forget()
            if time.monotonic() >= deadline:
                raise TimeoutError(self.says)
            time.sleep(POLL_S)


def bring_all(
    driven: list[Driven], version: int, open_stream: Callable[[], _core.Stream],
    deadline: float,
) -> dict[Driven, BaseException]:
    """Those that did not come there, and why."""
    failures: dict[Driven, BaseException] = {}

    def bring(one: Driven) -> None:
        try:
            with open_stream() as stream:
                one.bring(version, stream, deadline)
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
            failures[one] = error

    threads = [threading.Thread(target=bring, args=(one,), name="deltawire-drive", daemon=True)
               for one in driven]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures
