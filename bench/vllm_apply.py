#!/usr/bin/env python3
"""Measures how long vLLM's weights take to get to the next version: by a patch through the layout
that `deltawire.vllm` learns, and by vLLM's own load_checkpoint_weight_patches() with the same
changes.

    vllm_apply.py [--layers N] [--density X] [--rounds N]

Needs vLLM for CPUs (scripts/venv.sh vllm) and the package on PYTHONPATH (scripts/package.sh:
build-python/site). Prints one line for each way, in milliseconds: wall time, and processor time,
which a busy machine changes less.
"""
import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_NO_USAGE_STATS="1", HF_HUB_OFFLINE="1",
    VLLM_LOGGING_LEVEL="ERROR", VLLM_CACHE_ROOT=os.path.join(sys.prefix, "vllm-cache"))

import torch  # noqa: E402

import deltawire  # noqa: E402


def make_model(where, n_layers):
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=32768, hidden_size=768, intermediate_size=2304, head_dim=64,
        num_hidden_layers=n_layers, num_attention_heads=12, num_key_value_heads=4,
        max_position_embeddings=512, tie_word_embeddings=True, bos_token_id=None,
        eos_token_id=None, pad_token_id=None)
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(where)


def start(path):
    from vllm import LLM

    llm = LLM(model=str(path), dtype="bfloat16", enforce_eager=True, max_model_len=256,
              skip_tokenizer_init=True, weight_transfer_config={"backend": "deltawire"})
    [worker] = llm.llm_engine.collective_rpc(lambda worker: worker)
    return llm, worker


def change(tensors, density):
    """Changes that share of the elements by one step each. Returns the list in vLLM's form."""
    from vllm.model_executor.model_loader.checkpoint_weight_patch import (
        CheckpointWeightPatch,
    )

    patches = []
    for name, tensor in tensors.items():
        n = max(1, round(tensor.numel() * density))
        at = torch.randint(tensor.numel(), (n,)).unique()
        words = tensor.view(-1).view(torch.int16)
        words[at] ^= 1
        patches.append(CheckpointWeightPatch(name, tuple(tensor.shape), tensor.dtype,
                                             tensor.view(-1)[at], at.to(torch.int32)))
    return patches


def milliseconds(function):
    """Wall time and processor time."""
    t, cpu = time.perf_counter(), time.process_time()
    function()
    return 1e3 * (time.perf_counter() - t), 1e3 * (time.process_time() - cpu)


def load_average():
    return "%.1f %.1f %.1f" % os.getloadavg()


def print_times(ours, theirs, rival, learn):
    """OURS and THEIRS are lists of milliseconds(); RIVAL names theirs, LEARN is one time."""
    medians = []
    for what, times in (("deltawire.vllm, checked and read back", ours),
                        (rival, theirs)):
        passed, cpu = zip(*times)
        medians.append((statistics.median(passed), statistics.median(cpu)))
        print(f"  {what:40} {medians[-1][0]:9.1f} ms  ({min(passed):.1f} to "
              f"{max(passed):.1f}); processors {medians[-1][1]:.1f} ms")
    (own, own_cpu), (other, other_cpu) = medians
    print(f"  {'ratio':40} {other / own:9.1f};  of processors {other_cpu / own_cpu:.1f}")
    print(f"  {'learning the layout, once':40} {learn[0]:9.1f} ms; processors "
          f"{learn[1]:.1f} ms")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--density", type=float, default=0.011)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.manual_seed(1)
    load_before = load_average()
    with tempfile.TemporaryDirectory(prefix="deltawire-bench-") as where:
        where = Path(where)
        make_model(where / "model", args.layers)
        llm, worker = start(where / "model")
        from vllm.model_executor.model_loader.checkpoint_weight_patch import (
            load_checkpoint_weight_patches,
        )

        weights = worker.weight_transfer_engine._weights
        learn = milliseconds(lambda: worker.weight_transfer_engine._learn(weights.table))
        live = {name: torch.from_dlpack(w).clone()
                for name, w in deltawire.Checkpoint(where / "model").items()}
        publisher = deltawire.Publisher(f"file://{where}/run", live)
        follower = deltawire.Follower(f"file://{where}/run", into=where / "dir")
        follower.sync()
        ours, theirs, n_changed = [], [], 0
        for _ in range(args.rounds):
            patches = change(live, args.density)
            n_changed = sum(p.values.numel() for p in patches)
            publisher.wait(publisher.publish())
            base = follower.state
            follower.stage()
            follower.prepare()
            path = follower.staged_path
            ours.append(milliseconds(lambda: weights.apply(path, base)))
            theirs.append(milliseconds(
                lambda: load_checkpoint_weight_patches(worker.get_model(), patches)))
            follower.apply()
            follower.finish()
            if weights.compare(live):
                sys.exit("vllm_apply: the weights are not those of the version")
        follower.close()
        publisher.close()
    n = sum(w.numel() for w in live.values())
    print(f"vLLM, {n / 1e6:.0f} M bf16 parameters, {n_changed} changed "
          f"({100 * n_changed / n:.2f} %), medians of {args.rounds}, "
          f"{os.cpu_count()} processors, load average {load_before} -> {load_average()}")
    print_times(ours, theirs, "vLLM's load_checkpoint_weight_patches", learn)


if __name__ == "__main__":
    main()
