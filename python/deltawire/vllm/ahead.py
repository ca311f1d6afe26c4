"""Looks for the patch that an agent stages, so that it is prepared before the engine pauses. The
agent waits for that: src/engine/ready.h."""
from __future__ import annotations

import collections
import contextlib
import fcntl
import os
import secrets
import threading
from typing import Any, Callable

INTERVAL = 0.005
OWN = ".deltawire"
NAMES = ("staged", "patch", "model.safetensors.staged", "model.safetensors.patch")
"""Of a patch in OWN. It appears complete, and is renamed when it is durable."""


class Ahead:
    """Calls ON_STAGED with each patch that is staged in the directory. The lock is held then."""

    def __init__(self, on_staged: Callable[[str], None], log: Any) -> None:
        self._on_staged, self._log = on_staged, log
        self.lock = threading.Lock()
        self._stop = threading.Event()  # of the thread
        self._dir: str | None = None
        self._thread: threading.Thread | None = None

    def watch(self, directory: str | None) -> None:
        """The directory, if it changes, also ends the thread that watches another one."""
        is_alive = self._thread is not None and self._thread.is_alive()
        if directory == self._dir and is_alive:
            return
        self.stop()
        self._dir = directory
        if directory is None:
            return
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(directory, self._stop),
                                        name="deltawire-ahead", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None and self._thread.ident is not None:
            self._thread.join()
        self._thread = None

    def _run(self, directory: str, stop: threading.Event) -> None:
        own = os.path.join(directory, OWN)
        # by number, size and time; two, for the next one may be staged beside the last one
        seen: collections.deque[tuple[int, ...]] = collections.deque(maxlen=2)
        with _Ready(own) as ready:
            while not stop.wait(INTERVAL):
                for name in NAMES:
                    try:
                        self._look(os.path.join(own, name), seen, ready)
                    except Exception as error:  # noqa: BLE001 - the update works without it
                        self._log.warning("deltawire: the next patch is not prepared: %s", error)

    def _look(self, path: str, seen: collections.deque[tuple[int, ...]], ready: _Ready) -> None:
        try:
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return
        try:
            found = os.fstat(file)
            patch = (found.st_ino, found.st_size, found.st_mtime_ns)
            if patch in seen:
                return
            seen.append(patch)
            try:
                with self.lock:
                    self._on_staged(f"/proc/self/fd/{file}")  # its name may change meanwhile
            finally:
                ready.say(patch)
        finally:
            os.close(file)


class _Ready:
    """The file that tells agents which patch this process has prepared, or could not. It is locked
    while the process lives. If it cannot be written, agents do not wait."""

    def __init__(self, own: str) -> None:
        self._own, self._file, self._path = own, -1, ""

    def __enter__(self) -> _Ready:
        self._write(b"")
        return self

    def say(self, patch: tuple[int, ...]) -> None:
        self._write(b"%d %d %d\n" % patch)

    def _write(self, text: bytes) -> None:
        try:
            if self._file < 0:
                self._make()
            os.pwrite(self._file, text, 0)
            os.ftruncate(self._file, len(text))
        except OSError:
            self._remove()

    def _make(self) -> None:
        name = f"engine-{os.getpid()}-{secrets.token_hex(4)}"
        self._path = os.path.join(self._own, f"{name}.tmp-0")
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        fcntl.flock(self._file, fcntl.LOCK_EX)  # before an agent sees it
        path = os.path.join(self._own, name)
        os.rename(self._path, path)
        self._path = path

    def _remove(self) -> None:
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            os.close(self._file)
        self._file = -1

    def __exit__(self, *_: object) -> None:
        self._remove()
