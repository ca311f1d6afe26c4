"""A trainer on the GPU: torch_trainer.py MODEL URL STEPS DIR MODE BASELINE

MODE hooks: the optimizer's steps publish, and nothing waits for the GPU. DIR/expected.json gets the
hash of each version at the end.
MODE notes: each version has the hash of its weights as its notes, so that the check needs nothing
of a trainer that was killed. It goes on from DIR/state.pt, which it writes after every step.
"""
import os
import pathlib
import sys

import torch

import deltawire.torch
from torch_model import MODELS, hash_of, published, write

name, url, n_steps, directory, mode, baseline = sys.argv[1:]
make, loss_of = MODELS[name]
model = make().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)  # about 1 % change
state = pathlib.Path(directory, "state.pt")


def train(step):
    loss_of(model, step).backward()
    optimizer.step()
    optimizer.zero_grad()


def with_hooks():
    with deltawire.torch.Publisher(model, optimizer, url=url, baseline=baseline) as publisher:
        versions = [published(model)]
        for step in range(int(n_steps)):
            train(step)
            versions.append(published(model))
        assert publisher.wait().version == int(n_steps)
    write(f"{directory}/expected.json", [hash_of(tensors) for tensors in versions])


def with_notes():
    first = 0
    if state.exists():
        loaded = torch.load(state)
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
        first = loaded["step"]
    with deltawire.torch.Publisher(model, url=url, baseline=baseline, start_step=first,
                                   notes=hash_of(published(model))) as publisher:
        for step in range(first, int(n_steps)):
            train(step)
            publisher.publish(step=step + 1, notes=hash_of(published(model)))
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                        "step": step + 1}, f"{state}.tmp")
            os.replace(f"{state}.tmp", state)
            print("step", step + 1, flush=True)


{"hooks": with_hooks, "notes": with_notes}[mode]()
