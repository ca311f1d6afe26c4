"""A worker that follows a stream by itself, into a directory of its own: versions are
fetched, proven and staged by a thread while the engine serves."""
from __future__ import annotations

import os
import shutil
import tempfile
import threading
from typing import Any, Callable, Mapping, Sequence

from .. import _core

Hop = Callable[[int, str], "str | None"]
"""Takes the version that the patch file leads to, and the file; gives the digest that was
reached."""


class StreamSource:
    def __init__(
        self,
        url: str,
        *,
        dir: str | None = None,
        trust: Sequence[str] = (),
        id: str | None = None,
        store: Mapping[str, Any] | None = None,
        interval: float = 1.0,
        log: Any = None,
    ) -> None:
        self._scratch = dir is None
        self.dir = dir or tempfile.mkdtemp(prefix="deltawire-vllm-")
        self._interval = interval
        self._log = log
        self._reports = id is not None
        self._lock = threading.Lock()  # of the follower, over several of its calls
        self._stop = threading.Event()
        self._applied = False  # and not yet settled
        self._goal: int | None = None  # what was last staged for
        self._complaint = ""
        self._told: tuple[str, str | None] | None = None
        try:
            self._follower = _core.Follower(
                _core.Store(url, **dict(store or {})), into=self.dir, trust=trust, id=id)
        except BaseException:
            self._remove_scratch()
            raise
        self._thread = threading.Thread(target=self._run, name="deltawire-stream",
                                        daemon=True)
        self._thread.start()

    # ---- the thread -------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self._lock:
                    self._stage_newest()
            except _core.Invalid:  # it was closed, at the end of the process for instance
                return
            except Exception as error:  # the store may be back at the next round
                if self._stop.is_set():
                    return
                self._complain(str(error))
                self._report("failed", str(error))
            self._stop.wait(self._interval)

    def _stage_newest(self) -> None:
        """Under the lock."""
        follower = self._follower
        self._settle()
        newest = follower.poll()
        if newest is not None and newest not in (follower.version, self._goal):
            follower.stage(newest)
            # the way there may have several hops: what is staged is the first of them
            self._goal = newest
            self._settle()  # where an empty directory was filled
        staged = follower.staged
        if staged is not None:
            self._report("staged", str(staged))
        elif follower.version is not None:
            self._report("serving", None)

    def _settle(self) -> None:
        """Ends what an update has applied, or an empty directory was filled with."""
        is_filled = self._follower.staged is not None and self._follower.staged_path is None
        if self._applied or is_filled:
            self._follower.settle()
            self._applied = False

    def _complain(self, text: str) -> None:
        """Once, though it may go on for hours."""
        if self._log and text != self._complaint:
            self._log.warning("deltawire: %s: %s", self.dir, text)
        self._complaint = text

    def _report(self, status: str, message: str | None) -> None:
        if not self._reports or self._told == (status, message):
            return
        try:
            self._follower.report(status, message)
            self._told = (status, message)
        except _core.Error as error:  # no reason to stop
            self._complain(f"no report: {error}")

    # ---- updates ----------------------------------------------------------------------

    @property
    def version(self) -> int | None:
        """The version that the directory holds."""
        return self._follower.version

    def bring(self, version: int, hop: Hop | None) -> str:
        """Brings the directory to VERSION, and calls `hop` before each step; the digest of
        the version. With hops, the last one is settled by the thread: the engine need not
        wait for a disk."""
        with self._lock:
            follower = self._follower
            self._told = self._goal = None
            self._settle()
            while follower.version != version:
                follower.stage(version)
                if follower.staged_path is not None:
                    reached = self._step(hop)
                    if hop is not None and follower.staged == version:
                        return reached
                self._settle()
            return follower.state

    def _step(self, hop: Hop | None) -> str | None:
        self._follower.commit()
        try:
            return hop(self._follower.staged, self._follower.staged_path) if hop else None
        finally:  # from here there is only forward, whatever became of the engine
            self._follower.apply()
            self._applied = True

    def close(self) -> None:
        self._stop.set()
        self._follower.close()
        self._thread.join()
        self._remove_scratch()

    def _remove_scratch(self) -> None:
        if self._scratch and os.path.isdir(self.dir):
            shutil.rmtree(self.dir, ignore_errors=True)
