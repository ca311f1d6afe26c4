"""Reports the results of versions that nobody waits for.

A trainer publishes in the background and rarely calls wait(). Instead, its publisher checks
earlier versions at each step: a failed version becomes a warning, and it is an exception if
another trainer took the stream over.
"""
from __future__ import annotations

import logging
import time
import warnings
from collections import deque
from typing import Callable

from . import _core

log = logging.getLogger("deltawire")

UNCHANGED_MAX = 20  # so many versions in a row without a change are reported

OnError = Callable[[_core.Error], object]


class PublishWarning(UserWarning):
    """A version was not published, and the next one covers it; versions turned out to be damaged,
    and a later one repaired that; or what is published can hardly be meant."""


class Outcomes:
    """The outcomes of a publisher's versions, in order.

    An outage begins with a version that failed, or that held training for too long, and ends with
    the next version that is committed. It is warned of once; its end is logged."""

    def __init__(self, native: _core.Publisher, on_error: OnError | None = None) -> None:
        self._native, self._on_error = native, on_error
        self._open: deque[int] = deque()  # tickets of versions that may still be in progress
        self._seen = 0  # the last ticket that was in it
        self._last_error: _core.Error | None = None
        self.is_merged = False  # the last publish waits for a next one, which covers it
        self._outage_since: float | None = None
        self._n_unchanged = 0  # versions in a row
        self._was_denied = False  # to remove what is superseded
        self._was_finite = True  # so far
        self.last: tuple[int, _core.PublishReport] | None = None  # committed: its ticket and report
        self._has_published = native.created or native.opening is not None
        self.metrics = {"versions": 0, "bytes": 0, "merged_steps": 0, "waited_seconds": 0.0,
                        "outages": 0, "outage_seconds": 0.0}
        if native.opening is not None:
            _warn_damaged(native.opening)

    def _look(self) -> None:
        """Takes a new ticket from the publisher, which has it even if the call that made it was
        interrupted."""
        ticket = self._native.ticket
        if ticket > self._seen:
            self._seen = ticket
            self._open.append(ticket)

    def is_final(self, error: _core.Error) -> bool:
        """Whether a person must decide."""
        return isinstance(error, _core.Conflict) or (
            isinstance(error, _core.Denied) and not self._has_published)

    def check(self) -> None:
        """Reports each failure since the last call. Raises what a person must decide: Conflict if
        another trainer took the stream over, and Denied unless an earlier version was allowed.
        Waits for nothing. Call it between two publishes."""
        self._look()
        while self._open:
            report, error = None, None
            try:
                report = self._native.wait(self._open[0], timeout=0)
            except TimeoutError:
                return
            except _core.Error as failure:
                error = failure
            ticket = self._open.popleft()
            if error is not None and self.is_final(error):
                raise error
            self._last_error = error
            if error is not None and not isinstance(error, _core.Cancelled):
                self.failed(error)  # a later publish covers what was cancelled
            if report is not None:
                self.last = ticket, report
                self._committed(report)

    def reported(self, ticket: int) -> None:
        """The caller has the error of this version, so there is no warning."""
        self._look()
        if ticket in self._open:
            self._open.remove(ticket)
            self._last_error = None

    def check_last(self) -> None:
        """Raises if the last publish became no version."""
        if self.is_merged:
            raise _core.Unavailable("the last step was merged into the next version, and there is "
                                    "none yet: publish() once more")

    def failed(self, error: _core.Error) -> None:
        self._begin_outage(f"a version was not published, the next one covers it: {error}")
        if self._on_error is not None:
            self._on_error(error)

    def held(self, seconds: float) -> None:
        """A version held training for as long as it may."""
        self._begin_outage(f"a version takes longer than training may wait ({seconds:g} s): steps "
                           "are merged into the next version until the store answers")

    def _begin_outage(self, text: str) -> None:
        if self._outage_since is None:
            self._outage_since = time.monotonic()
            self.metrics["outages"] += 1
            warnings.warn(text, PublishWarning, stacklevel=2)

    def _committed(self, report: _core.PublishReport) -> None:
        m, self._has_published = self.metrics, True
        m["versions"] += 1
        m["bytes"] += report.n_bytes
        m["merged_steps"] += report.n_merged
        m["waited_seconds"] += report.waited_ms / 1000
        self._n_unchanged = self._n_unchanged + 1 if report.unchanged else 0
        if self._n_unchanged == UNCHANGED_MAX:
            warnings.warn(f"the last {UNCHANGED_MAX} versions changed nothing: is this the model "
                          "that is trained, and the learning rate above 0?", PublishWarning,
                          stacklevel=2)
        if report.n_not_finite and self._was_finite:
            self._was_finite = False
            warnings.warn(f"version {report.version} has {report.n_not_finite} new weights that are "
                          "infinite or not a number", PublishWarning, stacklevel=2)
        if self._outage_since is not None:
            seconds = time.monotonic() - self._outage_since
            self._outage_since = None
            m["outage_seconds"] += seconds
            log.warning("publishing again: version %d covers %d steps that were not published. The "
                        "outage took %.0f s, training waited for %.1f s of it", report.version,
                        report.n_merged, seconds, report.waited_ms / 1000)
        if report.removal_denied and not self._was_denied:
            self._was_denied = True
            warnings.warn("anchors that newer ones supersede stay in the store and are paid for: "
                          "this trainer may not remove them (docs/STORES.md, section 4)",
                          PublishWarning, stacklevel=2)
        _warn_damaged(report)

    def close(self, timeout: float | None) -> None:
        """Closes the publisher. Raises if the newest version was not published, even if that
        was reported before: no later version covers it."""
        self._look()
        was_reported = not self._open
        self._native.close(timeout)
        try:
            self.check_last()
        finally:
            self.is_merged = False
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
