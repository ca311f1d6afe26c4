"""Looks for the patch that an agent stages, so that it can be prepared before the engine pauses."""
from __future__ import annotations

import os
import threading
from typing import Any, Callable

INTERVAL = 0.02
NAMES = (".deltawire/staged", ".deltawire/model.safetensors.staged")
"""Of a staged patch; it appears complete, and is renamed before the update is sent."""


class Ahead:
    """Calls ON_STAGED with each patch that is staged in the directory. The lock is held then."""

    def __init__(self, on_staged: Callable[[str], None], log: Any) -> None:
        self._on_staged, self._log = on_staged, log
        self.lock = threading.Lock()
        self._stop = threading.Event()  # of the thread
        self._dir: str | None = None
        self._seen: tuple[int, ...] | None = None
        self._thread: threading.Thread | None = None

    def watch(self, directory: str | None) -> None:
        self._dir = directory
        if directory is None or (self._thread is not None and self._thread.is_alive()):
            return
        self._stop.set()  # of one whose start was interrupted
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(self._stop,),
                                        name="deltawire-ahead", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join()
        self._thread = None

    def _run(self, stop: threading.Event) -> None:
        while not stop.wait(INTERVAL):
            for name in NAMES:
                try:
                    self._look(os.path.join(self._dir or "", name))
                except Exception as error:  # noqa: BLE001 - the update works without it
                    self._log.warning("deltawire: the next patch is not prepared: %s", error)

    def _look(self, path: str) -> None:
        try:
            found = os.stat(path)
        except OSError:
            return
        seen = (found.st_ino, found.st_size, found.st_mtime_ns)
        if seen == self._seen:
            return
        with self.lock:
            self._seen = seen
            self._on_staged(path)
