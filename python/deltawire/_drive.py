"""Engines whose workers follow the stream by themselves. An engine takes a version over when all
its workers have staged it. Each engine has a thread."""
from __future__ import annotations

import threading
import time
import uuid
from typing import Any, Callable

from . import _core
from ._engines import Engine, EngineError

POLL_S = 0.1
NO_URL = "needs the stream's url"  # the error of a worker that was restarted


class Driven:
    """One engine. Its workers report to the stream under names that begin with `id`."""

    def __init__(self, engine: Engine, info: dict[str, Any]) -> None:
        self.engine = engine
        self.lock = threading.Lock()
        """Held by the thread that brings it to a version."""
        self.stop = threading.Event()
        """Ends that thread."""
        self._given = info
        self._forget()
        self.status = "was not asked"

    def _forget(self) -> None:
        """It follows nothing. It gets another name, because its old reports no longer count."""
        self.id = f"trl-{uuid.uuid4().hex[:12]}"
        self._info = self._given | {"id": self.id}
        self._n_workers = 0
        self._served: int | None = None

    def _begin(self, deadline: float) -> None:
        """A restarted engine follows nothing, and has lost its label."""
        if self._served is not None and self.engine.label() == "default":
            self._forget()
            self.engine.is_mixed = False
        if self._n_workers:
            return
        n_workers = self.engine.n_workers()
        self.engine.follow(self._info, max(deadline - time.monotonic(), 1))
        self._n_workers = n_workers

    def _is_staged(self, version: int, stream: _core.Stream) -> bool:
        """A staged step on the route is enough: a worker fetches the rest. A report that the
        served version is staged is an old one."""
        mine = [f for f in stream.followers()
                if f.id == self.id or f.id.startswith(f"{self.id}-rank-")]
        there = [f for f in mine if f.version == version
                 or (f.status == "staged" and f.message != str(self._served))]
        if len(there) < self._n_workers:
            failed = [f.message for f in mine if f.status == "failed"]
            self.status = (failed[0] if failed else f"{len(there)} of {self._n_workers} workers "
                         f"have staged version {version}")
        return len(there) >= self._n_workers

    def bring(self, version: int, stream: _core.Stream, deadline: float,
              stop: threading.Event | None = None) -> None:
        """Raises TimeoutError; `status` has the reason. Ends when `stop` is set."""
        stop = stop or threading.Event()
        while not stop.is_set():
            try:
                self._begin(deadline)
                if self._is_staged(version, stream):
                    self.engine.update(stream.id, version, max(deadline - time.monotonic(), 1))
                    self._served = version
                    return
            except (EngineError, _core.Unavailable) as error:
                self.status = str(error)
                if isinstance(error, EngineError) and (error.away or NO_URL in self.status):
                    self._forget()
            if time.monotonic() >= deadline:
                raise TimeoutError(self.status)
            stop.wait(POLL_S)


def bring_all(
    driven: list[Driven], version: int, open_stream: Callable[[], _core.Stream],
    deadline: float,
) -> dict[Driven, BaseException]:
    """The engines that did not get there, and why."""
    failures: dict[Driven, BaseException] = {}
    stop = threading.Event()
    for one in driven:
        one.stop.set()  # of a call that was interrupted
        one.stop = stop

    def bring(one: Driven) -> None:
        try:
            with one.lock, open_stream() as stream:
                one.bring(version, stream, deadline, stop)
        except BaseException as error:  # noqa: BLE001 - raised by the thread that waits
            failures[one] = error

    threads = [threading.Thread(target=bring, args=(one,), name="deltawire-drive", daemon=True)
               for one in driven]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        stop.set()  # if this was interrupted
    return failures
