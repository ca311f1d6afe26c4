"""Plain PyTorch: a model is trained in float32 and served in bfloat16, each step a version.

    train_torch.py [URL]
"""
import argparse
import sys

import torch

import deltawire.torch

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("url", nargs="?", default="mem:example")
url = parser.parse_args().url


def make():
    return torch.nn.Sequential(torch.nn.Linear(32, 256), torch.nn.GELU(),
                               torch.nn.Linear(256, 32))


torch.manual_seed(0)
model, served = make(), make().to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

with (deltawire.torch.Publisher(model, optimizer, url=url) as publisher,
      deltawire.torch.Follower(served, url) as follower):
    for step in range(10):
        x = torch.randn(64, 32)
        torch.nn.functional.mse_loss(model(x), x.flip(1)).backward()
        optimizer.step()  # publishes
        optimizer.zero_grad()
        report = publisher.wait()
        follower.sync()
        print(f"version {follower.version}: {report.n_changed} of "
              f"{sum(p.numel() for p in model.parameters())} weights, {report.n_bytes} bytes")

same = all(torch.equal(a.to(torch.bfloat16), b)
           for a, b in zip(model.parameters(), served.parameters()))
print(f"the served model is {'exactly' if same else 'NOT'} the trained one")
sys.exit(not same)
