"""Requests to inference engines over vLLM's HTTP interface."""
from __future__ import annotations

import errno
import http.client
import json
import socket
import ssl
import time
import urllib.error
import urllib.request
from typing import Any

ANSWER_S = 10.0
MAX_ANSWER = 1 << 20


class EngineError(Exception):
    """An engine gave a wrong answer, or none. `away`: nobody listens there. `status`: of the
    answer, if it was a failure."""

    def __init__(self, text: str, away: bool = False, status: int | None = None) -> None:
        super().__init__(text)
        self.away, self.status = away, status


def _is_away(reason: object) -> bool:
    """Whether the error of a request means that the engine is away: refused, no such host, no
    route to it, or no answer in time. An engine that closes the connection, or whose certificate
    is bad, is not away."""
    if isinstance(reason, ssl.SSLError):
        return False
    if isinstance(reason, (ConnectionRefusedError, TimeoutError, socket.gaierror)):
        return True
    return isinstance(reason, OSError) and reason.errno in (
        errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an error, as in `deltawire follow`: urllib would send the token to any host
    it names."""

    def redirect_request(self, *_: Any) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirect)


def label_of(stream: str, version: int) -> str:
    """What an engine calls a version of a stream."""
    return f"{stream}:{version}"


def version_of(label: str) -> tuple[str, int] | None:
    """The stream and version that a label names, or None."""
    stream, _, version = label.rpartition(":")
    if not stream or not version.isascii() or not version.isdigit():
        return None
    return stream, int(version)


class Engine:
    """One vLLM with VLLM_SERVER_DEV_MODE=1, or an engine with the interface of docs/OPERATIONS.md."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url.rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"an engine is an http:// or https:// URL, not {url!r}")
        self._token = token
        self.is_mixed = False
        """Whether an update was begun and not ended. Samples would then belong to no version."""

    def call(
        self, method: str, path: str, body: Any = None, timeout: float = ANSWER_S
    ) -> dict[str, Any]:
        request = urllib.request.Request(self.url + path, method=method)
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        if self._token is not None:
            request.add_header("Authorization", f"Bearer {self._token}")
        try:
            with _opener.open(request, timeout=timeout) as answer:
                text = answer.read(MAX_ANSWER)
        except urllib.error.HTTPError as error:
            message = error.read(500).decode(errors="replace")
            hint = ""
            if error.code in (404, 405):
                hint = "; start vLLM with VLLM_SERVER_DEV_MODE=1"
            elif 300 <= error.code < 400:
                hint = "; redirects are not followed: give the URL of the engine itself"
            raise EngineError(f"{method} {path}: status {error.code}: {message}{hint}",
                              status=error.code) from None
        except urllib.error.URLError as error:
            raise EngineError(f"does not answer: {error.reason}",
                              _is_away(error.reason)) from None
        except (OSError, http.client.HTTPException) as error:
            raise EngineError(f"does not answer: {error!r}") from None
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise EngineError(f"{method} {path}: the answer is no JSON object: is this vLLM?")
        return found

    def _order(self, path: str, body: Any, timeout: float, member: str,
               word: str | None = None) -> None:
        """POSTs. A 200 counts as success only if `member` of the answer is a string (`word`, if
        that is given) and there is no `error`."""
        answer = self.call("POST", path, body, timeout)
        result = answer.get(member)
        if (not isinstance(result, str) or (word is not None and result != word)
                or "error" in answer or "detail" in answer):
            raise EngineError(f"POST {path}: the answer does not say that it is done: "
                              f"is this vLLM?")

    def label(self) -> str:
        """The version that it reports for its weights; 'default' after a start."""
        label = self.call("GET", "/weight_info").get("weight_version")
        if not isinstance(label, str):
            raise EngineError("GET /weight_info: no weight_version: is this vLLM?")
        return label

    def is_paused(self) -> bool:
        paused = self.call("GET", "/is_paused").get("is_paused")
        if not isinstance(paused, bool):
            raise EngineError("GET /is_paused: no is_paused: is this vLLM?")
        return paused

    def n_workers(self) -> int:
        return int(self.call("GET", "/get_world_size").get("world_size", 1))

    def follow(self, info: dict[str, Any], timeout: float) -> None:
        """Makes the workers follow a stream by themselves (docs/PYTHON.md)."""
        self._order("/init_weight_transfer_engine", {"init_info": info}, timeout, "message")

    def update(self, stream: str, version: int, timeout: float) -> None:
        """Takes over a version of STREAM, an id, that the workers have staged. An engine whose
        weights may be a mix stays paused until an update succeeds. One that was found paused counts
        as such: a killed process may have left it half way."""
        self.is_mixed = self.is_paused() or self.is_mixed
        self._order("/pause?mode=keep", None, timeout, "status", "paused")
        try:
            self._start(timeout)
        except EngineError:
            if not self.is_mixed:
                self._order("/resume", None, timeout, "status", "resumed")  # nothing was touched
            raise
        self.is_mixed = True
        self._drop_label(timeout)
        self._order("/update_weights", {"update_info": {"version": version}}, timeout, "message")
        self._order("/finish_weight_update", {"weight_version": label_of(stream, version)},
                    timeout, "message")
        self.is_mixed = False
        self._order("/resume", None, timeout, "status", "resumed")

    def _drop_label(self, timeout: float) -> None:
        """No version is named until the update ends. A vLLM without this request keeps the old
        label."""
        body = {"new_version": "none", "abort_all_requests": False}
        try:
            self.call("POST", "/update_weight_version", body, timeout)
        except EngineError as error:
            if error.status not in (404, 405, 501):
                raise

    def _start(self, timeout: float) -> None:
        try:
            self._order("/start_weight_update", {}, timeout, "message")
        except EngineError as error:
            if "already active" not in str(error):
                raise
            # ends an update that was left open, without a version
            self._order("/finish_weight_update", {}, timeout, "message")
            self._order("/start_weight_update", {}, timeout, "message")


class Wait:
    """Waits for one engine to serve what it then calls LABEL. Call done() repeatedly: it is true
    once the engine does. `status` describes what it serves, for the error of a timeout."""

    def __init__(self, engine: Engine, label: str, away_after: float | None) -> None:
        self.engine, self._label, self._away_after = engine, label, away_after
        self.status = "was not asked"
        self.is_away = False
        self._refused_since: float | None = None

    def done(self) -> bool:
        try:
            label = self.engine.label()
            paused = self.engine.is_paused()
        except EngineError as error:
            self.status = str(error)
            now = time.monotonic()
            if not error.away:
                self._refused_since = None
                return False
            if self._refused_since is None:
                self._refused_since = now
            self.is_away = (self._away_after is not None
                            and now - self._refused_since >= self._away_after)
            return self.is_away
        self._refused_since = None
        self.status = f"serves {_named(label)}" + (" and is paused" if paused else "")
        return label == self._label and not paused


def _named(label: str) -> str:
    found = version_of(label)
    return (f"weights that it calls {label!r}" if found is None
            else f"version {found[1]} of the stream {found[0]}")
