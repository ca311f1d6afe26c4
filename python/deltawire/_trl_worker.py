"""TRL's rollout worker, over several vLLM servers, with samples that carry the version that
made them.

TRL tags a group of samples with its counter at the time of the first request. When the samples
are generated, an engine may already serve a newer version, one of several may be behind, and a
restarted one may serve any weights. vLLM knows better: each answer of its endpoint for tokens
names the version of every token. This worker tags a sample with the oldest of them, and discards
samples of weights without a version.
"""
from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
import time
from typing import Any

import aiohttp
from trl.experimental.async_grpo.async_rollout_worker import (
    AsyncRolloutWorker,
    _AsyncRolloutLoop,
)

from ._engines import version_of
from .trl import WeightTransfer

GENERATE = "/inference/v1/generate"
GIVE_UP_S = 900.0  # without an answer from any server
MAX_REST_S = 8.0
UNLABELLED_REST_S = 0.5

_turns: contextvars.ContextVar[list[int]] = contextvars.ContextVar("deltawire_turns")


class _Versions:
    """Replaces TRL's shared counter, and maps each number to a version of the stream. Keeps the
    last N: older samples are dropped anyway."""

    N = 4096

    def __init__(self, context: Any) -> None:
        self._cells = context.RawArray("q", [0] + [-1] * self.N)
        self._stream = context.RawArray("c", 32)

    @property
    def value(self) -> int:
        return self._cells[0]

    @value.setter
    def value(self, number: int) -> None:
        self._cells[0] = number

    def get_lock(self) -> Any:
        """TRL wants one. Cells are words, which need none, and an interrupt may leave a lock of
        multiprocessing taken for good."""
        return contextlib.nullcontext()

    @property
    def stream(self) -> str:
        """The stream's id; empty before the first sync."""
        return self._stream.value.decode()

    def note(self, number: int, version: int, stream: str) -> None:
        """Called before the counter is raised to NUMBER."""
        self._stream.value = stream.encode()
        self._cells[1 + number % self.N] = version

    def number_of(self, version: int) -> int:
        """TRL's number of the stream's VERSION. Only one sync runs at a time, so a version newer
        than all known ones gets the next number. A version older than all is as far back as it is
        in the stream."""
        number = self.value
        known = self._version_of(number)
        if known < 0 or known < version:
            return number + 1
        last = max(number - self.N + 2, 1)  # the next note() replaces the one before
        while known > version and number > last and self._version_of(number - 1) >= 0:
            number -= 1
            known = self._version_of(number)
        return number - max(known - version, 0)

    def _version_of(self, number: int) -> int:
        return self._cells[1 + number % self.N]


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


class _Loop(_AsyncRolloutLoop):
    def __init__(self, *, servers: list[str], **given: Any) -> None:
        super().__init__(**given)
        self._servers = [_Server(url) for url in servers]
        self._made_by: dict[str, int] = {}

    # ---- tags -------------------------------------------------------------------------

    async def _generate_one(self, *args: Any, **given: Any) -> Any:
        """Runs in its own task, so values that are set here belong only to this conversation."""
        versions: list[int] = []
        _turns.set(versions)
        result = await super()._generate_one(*args, **given)
        for sequence in result[2]:
            self._made_by[sequence.rollout_id] = min(versions)
        return result

    async def _score_group(self, group: Any) -> Any:
        made_by = [self._made_by[sequence.rollout_id]
                   for sequences in group.completions_sequences for sequence in sequences]
        for sequences in group.completions_sequences:
            for sequence in sequences:
                self._made_by.pop(sequence.rollout_id, None)
        samples = await super()._score_group(group)
        for sample, version in zip(samples, made_by, strict=True):
            sample.model_version = self._model_version_value.number_of(version)
            sample.metrics["deltawire/version"] = float(version)
        return samples

    # ---- requests ---------------------------------------------------------------------

    def _sampling(self) -> dict[str, Any]:
        sampling = {
            "max_tokens": self.max_tokens, "temperature": self.temperature,
            "top_p": self.top_p, "top_k": self.top_k,
            "repetition_penalty": self.repetition_penalty, "n": 1, "logprobs": 0,
            "seed": random.getrandbits(63), "detokenize": False,
        }
        if self.min_p is not None:
            sampling["min_p"] = self.min_p
        return sampling

    async def _generate_one_turn(self, prompt_ids: list[int]) -> tuple[list[int], list[float]]:
        # no model name: a server may use another name than the trainer
        payload = {"token_ids": prompt_ids, "sampling_params": self._sampling()}
        deadline = time.monotonic() + GIVE_UP_S
        while True:
            server = await self._choose(deadline)
            server.n_inflight += 1
            try:
                choice = await self._ask(server, payload)
                version = _oldest(choice, self._model_version_value.stream)
                server.n_failures = 0
                _turns.get().append(version)
                logprobs = [token["logprob"] for token in choice["logprobs"]["content"]]
                return choice["token_ids"], logprobs
            except _Unusable as error:
                self._counters["rollout/unlabelled_total"] += 1
                server.failed(str(error), UNLABELLED_REST_S)
            except (aiohttp.ClientError, asyncio.TimeoutError, ConnectionError) as error:
                self._counters["rollout/vllm_retry_total"] += 1
                server.failed(f"does not generate: {error!r}")
            finally:
                server.n_inflight -= 1

    async def _choose(self, deadline: float) -> _Server:
        """The least busy working server."""
        while True:
            now = time.monotonic()
            if now >= deadline:
                faults = "; ".join(f"{server.url} {server.status}" for server in self._servers)
                raise RuntimeError(f"no answer to train on for {GIVE_UP_S:.0f} s: {faults}")
            ready = [server for server in self._servers if server.rests_until <= now]
            if ready:
                return min(ready, key=lambda server: server.n_inflight)
            await asyncio.sleep(min(s.rests_until for s in self._servers) - now + 0.001)

    async def _ask(self, server: _Server, payload: dict[str, Any]) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=self.request_timeout)
        async with self.session.post(
                server.url + GENERATE, json=payload, timeout=timeout) as answer:
            if answer.status in (404, 405):
                raise RuntimeError(f"{server.url} has no {GENERATE}: start vLLM with "
                                   "--enable-scale-out")
            if 400 <= answer.status < 500:
                raise RuntimeError(f"{server.url} refuses what it is asked for: status "
                                   f"{answer.status}: {(await answer.text())[:500]}")
            answer.raise_for_status()
            return (await answer.json())["choices"][0]


def _oldest(choice: dict[str, Any], stream: str) -> int:
    """The oldest version that made a token of an answer. STREAM is the id of the trainer's stream;
    empty: not known yet."""
    if not choice.get("token_ids"):
        raise _Unusable("answers with no token")
    spans = choice.get("weight_versions")
    if not spans:
        raise RuntimeError("this vLLM does not say which weights made an answer; 0.32 does")
    found = [version_of(span["version"]) for span in spans]
    if None in found or any(stream not in ("", of) for of, _ in found):
        labels = ", ".join(sorted({repr(span["version"]) for span in spans}))
        raise _Unusable(f"calls its weights {labels}, which is no version of "
                        f"{f'the stream {stream}' if stream else 'a stream'}: see that its "
                        "follower runs, and read its log")
    return min(version for _, version in found)


class RolloutWorker(AsyncRolloutWorker):
    """TRL's worker with several servers and exact tags. It takes the arguments of TRL's worker
    and the WeightTransfer. RolloutWorker.replace(trainer) replaces the worker of a trainer."""

    _loop_cls = _Loop

    def __init__(
        self, *, transfer: WeightTransfer, servers: list[str] | None = None, **given: Any
    ) -> None:
        servers = [servers] if isinstance(servers, str) else list(servers or ())
        super().__init__(servers=servers or [given["vllm_server_url"]], **given)
        self._transfer = transfer
        self._model_version_value = _Versions(self._mp_ctx)

    def update_model_version(self, model_version: int) -> None:
        self._transfer.model_version = model_version
        if self._transfer.version is not None:
            self._model_version_value.note(model_version, self._transfer.version,
                                           self._transfer.publisher.stream_id)
        super().update_model_version(model_version)

    @classmethod
    def replace(cls, trainer: Any, servers: list[str] | None = None) -> RolloutWorker | None:
        """Call it before train(). Only the first rank has a worker; others get None."""
        old = trainer.rollout_worker
        if old is None:
            return None
        if not isinstance(trainer.weight_transfer, WeightTransfer):
            raise ValueError("the trainer has another weight_transfer: make it with "
                             "weight_transfer=deltawire.trl.WeightTransfer(url)")
        trainer.weight_transfer.trainer = trainer
        given = {key: value for key, value in old._loop_kwargs.items()}
        trainer.rollout_worker = cls(transfer=trainer.weight_transfer, servers=servers, **given)
        trainer.rollout_queue = trainer.rollout_worker.rollout_buffer
        return trainer.rollout_worker
