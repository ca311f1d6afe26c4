"""What the glue for trainers asks of inference engines over vLLM's HTTP interface."""
from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from typing import Any

ANSWER_S = 10.0
MAX_ANSWER = 1 << 20


class EngineError(Exception):
    """An engine answered what it should not, or nothing. `away`: nobody listens there."""

    def __init__(self, text: str, away: bool = False) -> None:
        super().__init__(text)
        self.away = away


class Engine:
    """One vLLM with VLLM_SERVER_DEV_MODE=1, or what speaks as docs/ENGINES.md says."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url.rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"an engine is an http:// or https:// URL, not {url!r}")
        self._token = token

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
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                text = answer.read(MAX_ANSWER)
        except urllib.error.HTTPError as error:
            said = error.read(500).decode(errors="replace")
            hint = ("; start vLLM with VLLM_SERVER_DEV_MODE=1"
                    if error.code in (404, 405) else "")
            raise EngineError(f"{method} {path}: status {error.code}: {said}{hint}") from None
        except urllib.error.URLError as error:
            # refused, no such host, no way to it; one that is slow, or hangs up, is there
            is_there = (TimeoutError, ConnectionResetError, ConnectionAbortedError)
            away = isinstance(error.reason, OSError) and not isinstance(error.reason, is_there)
            raise EngineError(f"does not answer: {error.reason}", away) from None
        except (OSError, http.client.HTTPException) as error:
            raise EngineError(f"does not answer: {error!r}") from None
        try:
            found = json.loads(text) if text else {}
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise EngineError(f"{method} {path}: the answer is no JSON object: is this vLLM?")
        return found

    def label(self) -> str:
        """The version it says its weights are; 'default' after a start."""
        label = self.call("GET", "/weight_info").get("weight_version")
        if not isinstance(label, str):
            raise EngineError("GET /weight_info: no weight_version: is this vLLM?")
        return label

    def is_paused(self) -> bool:
        return bool(self.call("GET", "/is_paused").get("is_paused"))

    def n_workers(self) -> int:
        return int(self.call("GET", "/get_world_size").get("world_size", 1))

    def follow(self, info: dict[str, Any], timeout: float) -> None:
        """Has the workers follow a stream by themselves (docs/python/vllm.md)."""
        self.call("POST", "/init_weight_transfer_engine", {"init_info": info}, timeout)

    def update(self, version: int, timeout: float) -> None:
        """Takes over a version that the workers have staged. An engine whose weights may be
        a mix afterwards stays paused: what it would generate belongs to no version."""
        self.call("POST", "/pause?mode=keep", timeout=timeout)
        try:
            self._start(timeout)
        except EngineError:
            self.call("POST", "/resume", timeout=timeout)  # nothing was touched
            raise
        self.call("POST", "/update_weights", {"update_info": {"version": version}}, timeout)
        self.call("POST", "/finish_weight_update", {"weight_version": str(version)}, timeout)
        self.call("POST", "/resume", timeout=timeout)

    def _start(self, timeout: float) -> None:
        try:
            self.call("POST", "/start_weight_update", {}, timeout)
        except EngineError as error:
            if "already active" not in str(error):
                raise
            # one that was left open; without a version, which ends it
            self.call("POST", "/finish_weight_update", {}, timeout)
            self.call("POST", "/start_weight_update", {}, timeout)


class Wait:
    """Waits for one engine to serve a version. Asked again and again: done() once it does;
    in between `says` is what it serves, for the message that ends a wait that is over."""

    def __init__(self, engine: Engine, version: int, away_after: float | None) -> None:
        self.engine, self.version, self._away_after = engine, version, away_after
        self.says = "was not asked"
        self.is_away = False
        self._refused_since: float | None = None

    def done(self) -> bool:
        try:
            label = self.engine.label()
            paused = self.engine.is_paused()
        except EngineError as error:
            self.says = str(error)
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
        self.says = f"serves {_named(label)}" + (" and is paused" if paused else "")
        return label == str(self.version) and not paused


def _named(label: str) -> str:
    return f"version {label}" if label.isdigit() else f"weights that it calls {label!r}"
