"""FSDP2: every rank publishes its own shards, and all of them become one version.

    torchrun --nproc-per-node 2 train_fsdp2.py [URL]
    train_fsdp2.py [URL]                                 starts two ranks itself
"""
import argparse
import os
import sys
import tempfile

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import deltawire.torch

STEPS = 5


def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(32, 255), torch.nn.GELU(),
                               torch.nn.Linear(255, 32))


def train(url):
    model = make()
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    # on every rank: it finds the rank's shards by itself
    with deltawire.torch.Publisher(model, optimizer, url=url, rank_timeout=120) as publisher:
        for _ in range(STEPS):
            x = torch.randn(64, 32)
            torch.nn.functional.mse_loss(model(x), x.flip(1)).backward()
            optimizer.step()  # publishes
            optimizer.zero_grad()
        report = publisher.wait()
    return {name: tensor.full_tensor().detach() for name, tensor in model.state_dict().items()}, \
        report


def serve(url, trained):
    """A whole model that follows, on any machine."""
    served = make().to(torch.bfloat16)
    with deltawire.torch.Follower(served, url) as follower:
        follower.sync()
        same = all(torch.equal(tensor, trained[name].to(torch.bfloat16))
                   for name, tensor in served.state_dict().items())
        print(f"version {follower.version}: the served model is "
              f"{'exactly' if same else 'NOT'} the trained one")
    return same


def rank_of(rank, ranks, meeting, url):
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    folder = tempfile.TemporaryDirectory()  # without a URL all ranks use that of rank 0
    urls = [url or f"file://{folder.name}/stream"]
    dist.broadcast_object_list(urls, src=0)
    url = urls[0]
    trained, report = train(url)
    good = rank != 0 or serve(url, trained)
    if rank == 0:
        print(f"{report.n_changed} weights in {report.n_objects} objects of {ranks} ranks, "
              f"{report.n_bytes} bytes")
    dist.barrier()  # a rank that ends early can make Gloo abort the others
    dist.destroy_process_group()
    sys.exit(not good)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url", nargs="?", default="")
    place = parser.parse_args().url
    with tempfile.TemporaryDirectory() as folder:
        if place and "://" not in place:
            place = f"file://{os.path.abspath(place)}"
        if "RANK" in os.environ:  # torchrun
            rank_of(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://", place)
        torch.multiprocessing.spawn(rank_of, (2, f"file://{folder}/meeting", place), nprocs=2)
