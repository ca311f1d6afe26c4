"""A gate between TRL's rollouts and vLLM servers, which knows the version behind every sample.

TRL tags a group of samples with its counter at the time of the first request. When the samples are
generated, an engine may already serve a newer version, one of several may be behind, and a
restarted one may serve any weights. vLLM knows better: each answer of its endpoint for tokens names
the version of every token. The gate takes TRL's requests, spreads them over the servers, and notes
these versions; answers of weights without a version never reach TRL. Samples are recognised by
their tokens and log-probabilities when the trainer takes them from TRL's queue.
"""
from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import OrderedDict
from typing import Any, Callable, Sequence

import aiohttp
import numpy as np
from aiohttp import web

from ._engines import version_of

log = logging.getLogger("deltawire")

COMPLETIONS, GENERATE = "/v1/completions", "/inference/v1/generate"
GIVE_UP_S = 900.0  # without an answer from any server
MAX_REST_S = 8.0
UNLABELLED_REST_S = 0.5
MAX_NOTES = 1 << 18  # answers that nobody asked for yet
MAX_REQUEST = 64 << 20
SAMPLING = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")


class _Server:
    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.n_inflight = 0
        self.n_failures = 0
        self.rests_until = 0.0
        self.status = "was not asked"

    def failed(self, status: str, rest_s: float | None = None) -> None:
        self.status = status
        self.n_failures += 1
        if rest_s is None:
            rest_s = min(0.25 * 2 ** min(self.n_failures, 6), MAX_REST_S)
        self.rests_until = time.monotonic() + rest_s


class _Unusable(Exception):
    """An answer from weights without a version, or an empty one."""


class _Refused(Exception):
    """What no other server would answer."""

    def __init__(self, text: str, status: int = 500) -> None:
        super().__init__(text)
        self.status = status


def _key(tokens: Sequence[int], logprobs: Any) -> tuple[bytes, bytes]:
    return np.asarray(tokens, np.int64).tobytes(), np.asarray(logprobs, np.float32).tobytes()


def _oldest(choice: dict[str, Any], stream: str) -> int:
    """The oldest version that made a token of an answer. STREAM is the id of the trainer's stream;
    empty: not known yet."""
    if not choice.get("token_ids"):
        raise _Unusable("answers with no token")
    spans = choice.get("weight_versions")
    if not spans:
        raise _Refused("this vLLM does not say which weights made an answer; 0.32 does")
    found = [version_of(span["version"]) for span in spans]
    if None in found or any(stream not in ("", of) for of, _ in found):
        labels = ", ".join(sorted({repr(span["version"]) for span in spans}))
        raise _Unusable(f"calls its weights {labels}, which is no version of "
                        f"{f'the stream {stream}' if stream else 'a stream'}: see that its "
                        "follower runs, and read its log")
    return min(version for _, version in found)


class Gate:
    """An HTTP server on loopback, in a thread of its own. `url` is for TRL's
    `vllm_server_base_url`."""

    def __init__(self, servers: Sequence[str], stream: Callable[[], str]) -> None:
        """`stream` returns the id of the trainer's stream; empty: not known yet."""
        self._servers, self._stream = [_Server(url) for url in servers], stream
        self._notes: OrderedDict[tuple[bytes, bytes], int] = OrderedDict()
        self._lock = threading.Lock()
        self.n_unlabelled = 0
        """Answers that were discarded."""
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True,
                                        name="deltawire-trl-gate")
        self._thread.start()
        ready.wait()

    def _run(self, ready: threading.Event) -> None:
        self._loop.run_until_complete(self._serve(ready))
        self._loop.close()

    async def _serve(self, ready: threading.Event) -> None:
        app = web.Application(client_max_size=MAX_REQUEST)
        app.router.add_post(COMPLETIONS, self._complete)
        app.router.add_route("*", "/{path:.*}", self._forward)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1)
        async with aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0)) as self._session:
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            ready.set()
            await self._stop.wait()
            await runner.cleanup()

    def close(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def version(self, sample: Any) -> int | None:
        """The oldest version that made a trained token of one of TRL's samples; None if its
        answers did not come through here. Each turn of a conversation is one run of the mask."""
        mask = np.asarray(sample.completion_mask) == 1
        edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False]))))
        with self._lock:
            found = [self._notes.get(_key(sample.input_ids[a:b], sample.old_log_probs[a:b]))
                     for a, b in edges.reshape(-1, 2)]
        return None if not found or None in found else min(found)

    # ---- requests ---------------------------------------------------------------------

    async def _complete(self, request: web.Request) -> web.Response:
        """What TRL asks for, from the endpoint that names versions."""
        asked = await request.json()
        # no model name: a server may use another name than the trainer
        payload = {"token_ids": asked["prompt"], "sampling_params": {
            name: asked[name] for name in SAMPLING if asked.get(name) is not None}
            | {"n": 1, "logprobs": 0, "detokenize": False}}
        try:
            tokens, logprobs = await self._generate(payload)
        except _Refused as error:
            log.error("%s", error)
            return web.json_response({"error": str(error)}, status=error.status)
        return web.json_response({"choices": [{
            "index": 0, "text": "", "token_ids": tokens, "finish_reason": None,
            "logprobs": {"token_logprobs": logprobs}}]})

    async def _generate(self, payload: dict[str, Any]) -> tuple[list[int], list[float]]:
        deadline = time.monotonic() + GIVE_UP_S
        while True:
            server = await self._choose(deadline)
            server.n_inflight += 1
            try:
                choice = await self._ask(server, payload)
                version = _oldest(choice, self._stream())
                server.n_failures = 0
                tokens = choice["token_ids"]
                logprobs = [token["logprob"] for token in choice["logprobs"]["content"]]
                self._note(tokens, logprobs, version)
                return tokens, logprobs
            except _Unusable as error:
                self.n_unlabelled += 1
                server.failed(str(error), UNLABELLED_REST_S)
            except (aiohttp.ClientError, asyncio.TimeoutError, ConnectionError) as error:
                server.failed(f"does not generate: {error!r}")
            finally:
                server.n_inflight -= 1

    def _note(self, tokens: list[int], logprobs: list[float], version: int) -> None:
        key = _key(tokens, logprobs)
        with self._lock:  # the same answer of two versions counts as the older one
            self._notes[key] = min(version, self._notes.pop(key, version))
            if len(self._notes) > MAX_NOTES:
                self._notes.popitem(last=False)

    async def _choose(self, deadline: float) -> _Server:
        """The least busy working server."""
        while True:
            now = time.monotonic()
            if now >= deadline:
                faults = "; ".join(f"{server.url} {server.status}" for server in self._servers)
                raise _Refused(f"no answer to train on for {GIVE_UP_S:.0f} s: {faults}", 503)
            ready = [server for server in self._servers if server.rests_until <= now]
            if ready:
                return min(ready, key=lambda server: server.n_inflight)
            await asyncio.sleep(min(s.rests_until for s in self._servers) - now + 0.001)

    async def _ask(self, server: _Server, payload: dict[str, Any]) -> dict[str, Any]:
        async with self._session.post(server.url + GENERATE, json=payload,
                                      timeout=aiohttp.ClientTimeout(GIVE_UP_S)) as answer:
            if answer.status in (404, 405):
                raise _Refused(f"{server.url} has no {GENERATE}: start vLLM with "
                               "--enable-scale-out")
            if 400 <= answer.status < 500:
                raise _Refused(f"{server.url} refuses what it is asked for: status "
                               f"{answer.status}: {(await answer.text())[:500]}", answer.status)
            answer.raise_for_status()
            return (await answer.json())["choices"][0]

    async def _forward(self, request: web.Request) -> web.Response:
        """Anything else, to the first server that answers: TRL asks for its health and limits."""
        body, fault = await request.read(), ""
        for server in self._servers:
            try:
                async with self._session.request(
                        request.method, server.url + str(request.rel_url), data=body,
                        headers={"Content-Type": request.content_type}) as answer:
                    return web.Response(status=answer.status, body=await answer.read(),
                                        content_type=answer.content_type)
            except aiohttp.ClientError as error:
                fault = f"{server.url} does not answer: {error!r}"
        return web.json_response({"error": fault}, status=502)


class TaggedQueue:
    """TRL's queue of samples. Those that are taken from it carry their exact version."""

    def __init__(self, queue: Any, gate: Gate, number_of: Callable[[int], int]) -> None:
        self._queue, self._gate, self._number_of = queue, gate, number_of

    def get(self, *args: Any, **given: Any) -> Any:
        sample = self._queue.get(*args, **given)
        version = self._gate.version(sample)
        if version is not None:
            sample.model_version = self._number_of(version)
            sample.metrics["deltawire/version"] = float(version)
        return sample

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)
