#!/usr/bin/env python3
"""Measures how long the quantised weights of a vLLM take to get to the next version: by a patch
through `deltawire.vllm`, and by vLLM's own reload of the same layers from memory.

    vllm_quantised.py [--scheme int8|fp8] [--layers N] [--density X] [--rounds N]

Without AMX, vLLM loads and packs fp8 blocks, but does not serve them: that is not needed here. A
step changes that share of the elements by one, and half of it of the scales (as measured on a
training run: docs/FIGURES.md). Needs vLLM for CPUs (scripts/venv.sh vllm) and the package on
PYTHONPATH (scripts/package.sh: build-python/site).
"""
import argparse
import os
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests/peers")]
from vllm_apply import load_average, make_model, milliseconds, print_times, start  # noqa: E402

import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

import deltawire  # noqa: E402
import quantiser  # noqa: E402


def quantise(directory, scheme):
    path = directory / "model.safetensors"
    save_file(quantiser.quantise(load_file(path), scheme), path, metadata={"format": "pt"})
    quantiser.add_config(directory, scheme)


def is_scale(name):
    return name.endswith(("_scale", "_scale_inv"))


def change(tensors, density):
    """Changes elements by one, and the last bit of scales. Returns how many."""
    n_changed = 0
    for name, tensor in tensors.items():
        if not is_scale(name) and tensor.itemsize != 1:
            continue
        n = max(1, round(tensor.numel() * density * (0.5 if is_scale(name) else 1)))
        at = torch.randint(tensor.numel(), (n,)).unique()
        tensor.view(-1).view(torch.int32 if is_scale(name) else torch.int8)[at] ^= 1
        n_changed += len(at)
    return n_changed


def reload(worker, tensors):
    """As vLLM's own back ends do, for the layers that have quantised weights."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.reload import (
        finalize_layerwise_reload,
        initialize_layerwise_reload,
    )

    model = worker.get_model()
    with set_current_vllm_config(worker.vllm_config):
        initialize_layerwise_reload(model.model.layers)
        model.load_weights((name, w) for name, w in tensors.items() if ".layers." in name)
        finalize_layerwise_reload(model.model.layers, worker.model_config)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--scheme", default="int8", choices=list(quantiser.SCHEMES))
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--density", type=float, default=0.0011)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    torch.manual_seed(1)
    load_before = load_average()
    with tempfile.TemporaryDirectory(prefix="deltawire-bench-") as where:
        where = Path(where)
        make_model(where / "model", args.layers)
        quantise(where / "model", args.scheme)
        if args.scheme == "fp8":
            torch.cpu._is_amx_tile_supported = lambda: True
        llm, worker = start(where / "model")
        weights = worker.weight_transfer_engine._weights
        learn = milliseconds(lambda: worker.weight_transfer_engine._learn(weights.table))
        weights = worker.weight_transfer_engine._weights
        live = {name: torch.from_dlpack(w).clone()
                for name, w in deltawire.Checkpoint(where / "model").items()}
        publisher = deltawire.Publisher(f"file://{where}/run", live)
        follower = deltawire.Follower(f"file://{where}/run", into=where / "dir", report=False)
        follower.sync()
        ours, theirs, n_changed = [], [], 0
        for _ in range(args.rounds):
            n_changed = change(live, args.density)
            publisher.wait(publisher.publish())
            base = follower.state
            follower.stage()
            follower.prepare()
            path = follower.staged_path
            ours.append(milliseconds(lambda: weights.apply(path, base)))
            follower.apply()
            follower.finish()
            if weights.compare(live):
                sys.exit("vllm_quantised: the weights are not those of the version")
            theirs.append(milliseconds(lambda: reload(worker, live)))
        follower.close()
        publisher.close()
    n = sum(w.numel() for w in live.values() if w.itemsize == 1)
    print(f"vLLM, {n / 1e6:.0f} M {args.scheme} weights, {n_changed} values changed "
          f"({100 * n_changed / n:.2f} %), medians of {args.rounds}, "
          f"{os.cpu_count()} processors, load average {load_before} -> {load_average()}")
    print_times(ours, theirs, "vLLM's reload of the same layers", learn)


if __name__ == "__main__":
    main()
