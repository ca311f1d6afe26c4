"""Reports the results of versions that nobody waits for.

A trainer publishes in the background and rarely calls wait(). Instead, its publisher checks
earlier versions at each step: a failed version becomes a warning, and it is an exception if
another trainer took the stream over.
"""
from __future__ import annotations

import logging
import re
import time
import warnings
from collections import deque
from typing import Callable

from . import _core

log = logging.getLogger("deltawire")

SLOW_S = 5.0  # a longer wait for the store is logged

OnError = Callable[[_core.Error], object]


class PublishWarning(UserWarning):
    """A version was not published, and the next one covers it; or versions turned out to be
    damaged, and a later one repaired that."""


class Outcomes:
    """The outcomes of a publisher's versions, in order."""

    def __init__(self, native: _core.Publisher, on_error: OnError | None = None) -> None:
        self._native, self._on_error = native, on_error
        self._open: deque[int] = deque()  # tickets of versions that may still be in progress
        self._seen = 0  # the last ticket that was in it
        self._warned: set[str] = set()
        self._last_error: _core.Error | None = None
        if native.opening is not None:
            _warn_damaged(native.opening)

    def _look(self) -> None:
        """Takes a new ticket from the publisher, which has it even if the call that made it was
        interrupted."""
        ticket = self._native.ticket
        if ticket > self._seen:
            self._seen = ticket
            self._open.append(ticket)

    def check(self) -> None:
        """Reports each failure since the last call. Raises Conflict if another trainer took
        the stream over. Waits for nothing. Call it between two publishes."""
        self._look()
        while self._open:
            report, error = None, None
            try:
                report = self._native.wait(self._open[0], timeout=0)
            except TimeoutError:
                return
            except _core.Cancelled:
                pass  # a later publish covers it, because of when_busy="fold"
            except _core.Error as failure:
                error = failure
            self._open.popleft()
            if isinstance(error, _core.Conflict):
                raise error
            self._last_error = error
            if error is not None:
                self._report(error)
            if report is not None:
                _warn_damaged(report)

    def reported(self, ticket: int) -> None:
        """The caller has the error of this version, so there is no warning."""
        self._look()
        if ticket in self._open:
            self._open.remove(ticket)
            self._last_error = None

    def _report(self, error: _core.Error) -> None:
        cause = type(error).__name__ + re.sub(r"[0-9a-f]*[0-9][0-9a-f]*", "", str(error))
        if cause not in self._warned:
            self._warned.add(cause)
            warnings.warn(f"a version was not published, the next one covers it: {error}",
                          PublishWarning, stacklevel=2)
        if self._on_error is not None:
            self._on_error(error)

    def close(self, timeout: float | None) -> None:
        """Closes the publisher. Raises if the newest version was not published, even if that
        was reported before: no later version covers it."""
        self._look()
        was_reported = not self._open
        self._native.close(timeout)
        if was_reported and self._last_error is not None:
            error, self._last_error = self._last_error, None
            raise error


def _warn_damaged(report: _core.PublishReport) -> None:
    """Warns that earlier versions were damaged by the trainer's memory or disk."""
    if report.restarted:
        text = (f"version {report.version - 1} could not be decoded, so version {report.version} "
                "restarts the stream with the whole model. Followers cross over by themselves")
    elif report.suspect_from is not None:
        text = (f"the baseline was damaged: versions {report.suspect_from} to "
                f"{report.version - 1} may differ from the weights that were published. Version "
                f"{report.version} is right")
    else:
        return
    warnings.warn(text + ". Check the memory and the disk of this machine", PublishWarning,
                  stacklevel=2)


def wait_logged(wait: Callable[[float], bool], doing: str) -> None:
    """Calls `wait(seconds)` until it returns true. Logs a wait that lasts long, and its end."""
    start, seconds = time.monotonic(), SLOW_S
    while not wait(seconds):
        log.warning("%s: waiting for the store for %.0f s", doing, time.monotonic() - start)
        seconds = min(2 * seconds, 300)
    if seconds > SLOW_S:
        log.warning("%s: done after %.0f s", doing, time.monotonic() - start)
