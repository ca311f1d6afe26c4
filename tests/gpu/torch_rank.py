"""One of two ranks on the same GPU: torch_rank.py RANK URL DIR. Each has half of the rows of some
tensors, as DTensors. Rank 0 writes the whole tensors of each version to DIR. Its baseline is on the
GPU, that of rank 1 on the host."""
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import deltawire.torch

rank, url, directory = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", rank=rank, world_size=2)
mesh = init_device_mesh("cuda", (2,))
SHAPES = {"a": ((64, 33), torch.float32), "b": ((10, 128), torch.bfloat16)}


def whole(version):
    """The same on both ranks."""
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(shape, generator=generator).to(dtype)
               for name, (shape, dtype) in SHAPES.items()}
    for tensor in tensors.values():
        tensor[::version + 2].mul_(version + 1)
    return tensors


def mine(tensor):
    half = tensor.shape[0] // 2
    return tensor[rank * half:(rank + 1) * half].cuda()


live = {name: DTensor.from_local(mine(tensor), mesh, [Shard(0)], run_check=False)
        for name, tensor in whole(0).items()}
baseline = ("device", "host")[rank]
with deltawire.torch.Publisher(live, url=url, baseline=baseline, rank_timeout=60) as publisher:
    for version in range(4):
        full = whole(version)
        if version:
            for name, tensor in live.items():
                tensor.to_local().copy_(mine(full[name]))
            publisher.publish(step=version)
            assert publisher.wait().version == version
        if rank == 0:
            torch.save({name: tensor.to(torch.bfloat16) for name, tensor in full.items()},
                       f"{directory}/{version}.pt")
dist.barrier()
dist.destroy_process_group()
