"""Measures how long an engine is paused if it takes new weights over in other ways.

    pause_peers.py OLD-CHECKPOINT RAW-DELTA NEW-CHECKPOINT ROUNDS

Two ways, each in PyTorch on all cores, with everything fetched and in the page cache
before the pause begins:

- TRL's: the sparse file is read, each tensor that changed is patched in a full copy of
  the checkpoint, and loaded whole into the engine's own tensor.
- A reload of the whole file: safetensors' load_file, and every tensor into the engine's.

One line of JSON each: seconds of every round, and whether the weights came out right.
"""
import json
import sys
import time
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file


def load_checkpoint(path):
    tensors = {}
    for file in sorted(Path(path).glob("*.safetensors")):
        tensors.update(load_file(file))
    return tensors


def full_tensors(engine, snapshot, delta):
    """The work during the pause."""
    with safe_open(delta, "pt") as file:
        keys = set(file.keys())
        for name, target in engine.items():
            if f"{name}.idx" not in keys:
                continue
            indices = file.get_tensor(f"{name}.idx")
            values = file.get_tensor(f"{name}.val")
            snapshot[name].view(-1)[indices.long()] = values
            target.copy_(snapshot[name])


def whole_file(engine, path):
    for name, tensor in load_checkpoint(path).items():
        engine[name].copy_(tensor)


def is_equal(engine, wanted):
    return all(torch.equal(engine[name].view(torch.int16), tensor.view(torch.int16))
               for name, tensor in wanted.items())


def main():
    old_path, delta, new_path, rounds = *sys.argv[1:4], int(sys.argv[4])
    old, new = load_checkpoint(old_path), load_checkpoint(new_path)
    engine = {name: tensor.clone() for name, tensor in old.items()}
    snapshot = {name: tensor.clone() for name, tensor in old.items()}
    ways = {
        "TRL's way: full tensors": lambda: full_tensors(engine, snapshot, delta),
        "the whole file reloaded": lambda: whole_file(engine, new_path),
    }
    seconds = {way: [] for way in ways}
    equal = dict.fromkeys(ways, True)
    for _ in range(rounds):  # in turns
        for way, run in ways.items():
            for name, tensor in old.items():
                engine[name].copy_(tensor)
                snapshot[name].copy_(tensor)
            start = time.perf_counter()
            run()
            seconds[way].append(time.perf_counter() - start)
            equal[way] = equal[way] and is_equal(engine, new)
    for way in ways:
        print(json.dumps({"way": way, "seconds": seconds[way], "equal": equal[way]}))


if __name__ == "__main__":
    main()
