"""A worker that follows a stream by itself, into its own directory. A thread fetches, proves and
stages versions while the engine serves."""
from __future__ import annotations

import tempfile
import threading
from typing import Any, Callable, Mapping, Sequence

from .. import _core

OnStep = Callable[[int, str], "str | None"]
"""Takes the version that the patch file leads to, and the file. Returns the digest that was
reached."""


class StreamSource:
    def __init__(
        self,
        url: str,
        *,
        dir: str | None = None,
        trust: Sequence[str] = (),
        stream: str | None = None,
        id: str | None = None,
        store: Mapping[str, Any] | None = None,
        interval: float = 1.0,
        log: Any = None,
        on_staged: Callable[[str], None] | None = None,
    ) -> None:
        """ON_STAGED takes the patch file of the next step while the engine serves; the lock is
        held. Call start() when it lies where close() finds it."""
        self._scratch = None if dir else tempfile.TemporaryDirectory(
            prefix="deltawire-vllm-", ignore_cleanup_errors=True)
        self.dir = dir or self._scratch.name
        self._interval = interval
        self._log = log
        self._on_staged = on_staged
        self._reports = id is not None
        self.lock = threading.RLock()
        """Locks the follower over several calls. Its holder may read the directory."""
        self._stop = threading.Event()
        self._wake = threading.Event()  # of the thread
        self._goal: int | None = None  # the goal of the last stage
        self._served: int | None = None
        self._complaint = ""
        self._reported: tuple[str, str | None] | None = None
        self._follower = _core.Follower(
            _core.Store(url, **dict(store or {})), into=self.dir, trust=trust,
            stream=stream, id=id, report=False, open_timeout=0)
        self._thread = threading.Thread(target=self._run, name="deltawire-stream",
                                        daemon=True)

    # ---- the thread -------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self.lock:
                    self._stage_newest()
            except Exception as error:  # the store may be back at the next round
                if self._stop.is_set() or self.is_closed:
                    return
                self._complain(str(error))
                self._report("failed", str(error))
            self._wake.wait(self._interval)
            self._wake.clear()

    @property
    def is_closed(self) -> bool:
        """Also at the end of the process."""
        try:
            self._follower.version  # noqa: B018
        except _core.Invalid:
            return True
        return False

    def _stage_newest(self) -> None:
        """The lock is held."""
        follower = self._follower
        self._finish()
        newest = follower.poll()
        if newest is not None and newest != follower.version:
            if self._served is None:  # no weights wait for patches: all the way
                self._move(newest, None)
            elif newest != self._goal or follower.staged is None:
                follower.stage(newest)
                # the route may have several steps: what is staged is the first of them
                self._goal = newest
                self._finish()  # if an empty directory was filled
        if self._on_staged is not None and self._served is not None and follower.staged_path:
            self._on_staged(follower.staged_path)
        staged, version = follower.staged, follower.version
        if staged is None and version != self._served:
            staged = version  # in the directory, and not in the engine
        if staged is not None:
            self._report("staged", str(staged))
        elif version is not None:
            self._report("serving", None)

    def _finish(self) -> None:
        """Brings the directory to the version that the engine has stored, and ends what a step
        has begun, or an empty directory was filled with."""
        follower = self._follower
        if follower.update_state == "staged" and follower.staged == self._served:
            follower.prepare()
        if follower.update_state == "prepared":
            follower.apply()
        if follower.update_state in ("applied", "filled"):
            follower.finish()

    def _complain(self, text: str) -> None:
        """Logs it once, even if it lasts for hours."""
        if self._log and text != self._complaint:
            self._log.warning("deltawire: %s: %s", self.dir, text)
        self._complaint = text

    def _report(self, status: str, message: str | None) -> None:
        if not self._reports or self._reported == (status, message):
            return
        try:
            self._follower.report(status, message)
            self._reported = (status, message)
        except _core.Error as error:  # no reason to stop
            self._complain(f"no report: {error}")

    # ---- updates ----------------------------------------------------------------------

    @property
    def served(self) -> int | None:
        """The version that the engine has stored, set by the back end; None: it needs the whole
        directory. The directory follows while the engine serves."""
        return self._served

    @served.setter
    def served(self, version: int | None) -> None:
        with self.lock:
            if version is None:
                try:
                    self._finish()
                except _core.Error as error:  # the directory stays behind: it is loaded whole
                    self._complain(str(error))
            self._served = version
        self._wake.set()

    def position(self) -> tuple[int | None, str | None]:
        """The version of the directory and its digest."""
        with self.lock:
            self._finish()
            return self._follower.version, self._follower.state

    def bring(self, version: int, on_step: OnStep | None) -> str:
        """Brings the engine by ON_STEP, which stores a patch, or else the directory to VERSION,
        and returns its digest. The directory then waits for the last step until `served` is
        VERSION, or settle() is called. The caller holds the lock until then."""
        with self.lock:
            self.served = self._reported = self._goal = None
            return self._move(version, on_step)

    def _move(self, version: int, on_step: OnStep | None) -> str:
        """The lock is held."""
        follower = self._follower
        while follower.version != version:
            if follower.staged != version:  # else it is all here, even if the store is away
                follower.stage(version)
            if follower.staged_path is not None:
                if on_step is not None:
                    reached = on_step(follower.staged, follower.staged_path)
                    if follower.staged == version:
                        return reached
                follower.prepare()
            self._finish()
        return follower.state

    def settle(self) -> None:
        """Brings the directory to the version that ON_STEP has stored, at once."""
        with self.lock:
            if self._follower.update_state == "staged":
                self._follower.prepare()
            self._finish()

    def close(self) -> None:
        self._stop.set()
        self._wake.set()
        self._follower.close()
        if self._thread.ident is not None:
            self._thread.join()
        if self._scratch is not None:
            self._scratch.cleanup()
