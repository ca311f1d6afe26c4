"""A follower on the GPU: torch_follower.py MODEL URL LAST OUT SEED

Goes to each version up to LAST, one by one, and hashes its weights after each; OUT gets the hashes
by version. The model starts with the weights of SEED; if those are no version, it goes to the newest
one first.
"""
import sys

import torch

import deltawire.torch
from torch_model import MODELS, hash_of, write

name, url, last, out, seed = sys.argv[1:]
model = MODELS[name][0](int(seed)).cuda()
for module in model.modules():  # a follower takes the types of the stream
    for key, tensor in list(module._parameters.items()):
        if tensor is not None:
            module._parameters[key] = torch.nn.Parameter(tensor.detach().to(torch.bfloat16),
                                                         requires_grad=False)
    for key, tensor in list(module._buffers.items()):
        if tensor is not None and tensor.dtype == torch.float32:
            module._buffers[key] = tensor.to(torch.bfloat16)
if hasattr(model, "tie_weights"):
    model.tie_weights()
places = {key: tensor.data_ptr() for key, tensor
          in deltawire.torch.named_tensors(model).items()}
found = {}


def note(version):
    found[version] = hash_of(deltawire.torch.named_tensors(model))
    write(out, found)
    print("version", version, flush=True)


with deltawire.torch.Follower(model, url) as follower:
    allocated = torch.cuda.memory_allocated()
    if follower.version is not None:
        note(follower.version)
    while follower.version is None or follower.version < int(last):
        head = follower.wait(timeout=1)
        if head is not None:
            note(follower.sync(head if follower.version is None else follower.version + 1))
    assert torch.cuda.memory_allocated() == allocated
now = {key: tensor.data_ptr() for key, tensor in deltawire.torch.named_tensors(model).items()}
assert now == places, "a tensor moved"
