"""TRL's AsyncGRPOTrainer on Wordle; the weights travel through a stream.

    WORDLE_URL=http://env:8800 python train.py --model DIR --url s3://bucket/run-7 \\
        --servers http://gpu1:8000,http://gpu2:8000 [--tools] [--steps 100]
"""
from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import time
import urllib.request

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from datasets import Dataset
from transformers import TrainerCallback
try:
    from trl import AsyncGRPOConfig, AsyncGRPOTrainer
except ImportError:  # before 1.18
    from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

import deltawire.trl
import without_gpu
import wordle


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a name, or a directory")
    parser.add_argument("--url", required=True, help="the stream: s3://, hf://, file://")
    parser.add_argument("--servers", required=True, help="vLLM's URLs, with commas")
    parser.add_argument("--agents", default="", help="followers' --listen, for the table")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lr", type=float, default=1e-6)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--generations", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=1024, help="of a completion, at most")
    parser.add_argument("--tools", action="store_true", help="games of several turns")
    parser.add_argument("--out", default="out")
    return parser.parse_args()


def get(url: str, body: dict | None = None) -> dict:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


class Table(TrainerCallback):
    """One line a step."""

    def __init__(self, transfer: deltawire.trl.WeightTransfer, servers: list[str],
                 agents: list[str]) -> None:
        self.transfer, self.servers, self.agents = transfer, servers, agents
        self.rewards: list[float] = []
        self.n_bytes: list[int] = []
        self.stopped_ms: list[float] = []

    def on_train_begin(self, *_, **__) -> None:
        print("   step  reward  version  of each server     bytes   changed  stopped  sync",
              flush=True)

    def on_log(self, args, state, control, logs=None, **_) -> None:
        if not logs or "reward" not in logs:
            return
        transfer, report = self.transfer, self.transfer.report
        serves = " ".join(self._label(url) for url in self.servers)
        stopped = self._stopped(transfer.version)
        self.rewards.append(logs["reward"])
        self.n_bytes.append(report.n_bytes)
        self.stopped_ms += stopped
        total = sum(t.numel() for t in transfer.tensors.values())
        longest = f"{max(stopped):4.0f} ms" if stopped else f"{'-':>7s}"
        print(f"{state.global_step:7d}  {logs['reward']:6.3f}  {transfer.version:7d}  "
              f"{serves:>14s}  {report.n_bytes:8,d}  {report.n_changed / total:7.2%}  "
              f"{longest}  {sum(transfer.seconds):.2f} s", flush=True)

    @staticmethod
    def _label(url: str) -> str:
        try:
            return get(f"{url}/weight_info")["weight_version"].rpartition(":")[2]
        except OSError:
            return "-"

    def _stopped(self, version: int) -> list[float]:
        """How long each engine was paused for the version, from its follower. Leaves out a
        follower that has not reported it yet."""
        found = []
        for agent in self.agents:
            try:
                history = get(f"{agent}/status")["history"]
            except OSError:
                continue
            found += [row["stopped_ms"] for row in history
                      if row["version"] == version and row["stopped_ms"] is not None]
        return found


def prove(tensors: dict[str, torch.Tensor], servers: list[str]) -> int:
    """Compares vLLM's weights with the trainer's, bit for bit. vLLM keeps some of them fused
    under another name. Returns how many servers were checked."""
    def sha(*names: str) -> str:
        joined = torch.cat([tensors[name] for name in names])
        return hashlib.sha256(joined.view(-1).view(torch.uint8).numpy()).hexdigest()

    joined = {"qkv_proj": ("q_proj", "k_proj", "v_proj"),
              "gate_up_proj": ("gate_proj", "up_proj")}
    wrong, n_checked = [], 0
    for url in servers:
        try:
            served = get(f"{url}/weight_checker", {"action": "checksum"})["checksums"]
        except OSError as error:
            print(f"  {url}: not checked: {error}")
            continue
        n_checked += 1
        differ = []
        for key, digest in served.items():
            name = key.rsplit(":", 1)[-1]
            if name not in tensors and name == "lm_head.weight":
                name = "model.embed_tokens.weight"  # tied
            parts = [name]
            for whole, pieces in joined.items():
                if f".{whole}." in name:
                    parts = [name.replace(whole, piece) for piece in pieces]
            if digest != sha(*parts):
                differ.append(name)
        if differ:
            wrong.append(f"{url}: {len(differ)} tensors differ from the trainer's: "
                         f"{differ[0]} first")
        else:
            print(f"  {url}: all {len(served)} tensors in vLLM equal the trainer's bit for "
                  "bit")
    if wrong:
        raise SystemExit("\n".join(wrong))
    return n_checked


def main() -> None:
    given = arguments()
    servers = given.servers.split(",")
    without_gpu.prepare()
    transfer = deltawire.trl.WeightTransfer(given.url, engines=servers, away_after=2)
    table = Table(transfer, servers, [url for url in given.agents.split(",") if url])
    args = AsyncGRPOConfig(
        output_dir=given.out, max_steps=given.steps, learning_rate=given.lr,
        per_device_train_batch_size=given.batch, num_generations=given.generations,
        max_completion_length=given.tokens, logging_steps=1, report_to="none",
        save_strategy="no", disable_tqdm=True, vllm_server_base_url=transfer.gate(),
        **({} if torch.cuda.is_available() else {"use_cpu": True, "bf16": False}))
    prompt = wordle.TOOL_PROMPT if given.tools else wordle.PROMPT
    data = Dataset.from_dict({
        "prompt": [[{"role": "user", "content": prompt}]] * 512, "seed": list(range(512))})
    trainer = AsyncGRPOTrainer(
        given.model, None if given.tools else wordle.first_guess, args, data,
        environment_factory=wordle.Wordle if given.tools else None,
        callbacks=[table])
    transfer.attach(trainer)
    start = time.monotonic()
    trainer.train()
    if not trainer.accelerator.is_main_process:
        return
    seconds = time.monotonic() - start
    full = sum(t.numel() * t.element_size() for t in transfer.tensors.values())
    first, last = table.rewards[:5], table.rewards[-5:]
    print(f"\n  {len(table.rewards)} steps in {seconds:.0f} s; reward "
          f"{sum(first) / len(first):.3f} -> {sum(last) / len(last):.3f}")
    print(f"  {sum(table.n_bytes):,} bytes for {len(table.n_bytes)} versions to any number of "
          f"servers; full syncs: {full * len(table.n_bytes):,} to each")
    if table.stopped_ms:
        median = statistics.median(table.stopped_ms)
        print(f"  an engine stood still for {median:.1f} ms a version (median)")
    prove(transfer.tensors, servers)


if __name__ == "__main__":
    main()
