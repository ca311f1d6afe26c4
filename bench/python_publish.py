"""The table of `make bench-python`: the cost of a publish in a training process.

The model has the shapes of Qwen3-0.6B and random weights in bfloat16. 1.1 % of the elements
change from version to version. The methods alternate in one process, with the same versions:

    deltawire   deltawire.torch.Publisher: from publish() to the commit
    trl         TRL's way in PyTorch: compare, nonzero, gather, save_file
    xor         slime's way: XOR, zstd -1 and a checksum, on two threads

    python_publish.py --out DIRECTORY [--rounds N] [--layers N] [--json FILE]
"""
import argparse
import concurrent.futures
import ctypes
import ctypes.util
import json
import os
import pathlib
import statistics
import time
import zlib

import safetensors.torch
import torch

import deltawire.torch

PERCENT = 1.1


def shapes(layers):
    """Of Qwen3-0.6B: 596 million elements with 28 layers."""
    yield "model.embed_tokens.weight", (151936, 1024)
    for i in range(layers):
        for name, shape in [
            ("self_attn.q_proj", (2048, 1024)), ("self_attn.k_proj", (1024, 1024)),
            ("self_attn.v_proj", (1024, 1024)), ("self_attn.o_proj", (1024, 2048)),
            ("self_attn.q_norm", (128,)), ("self_attn.k_norm", (128,)),
            ("mlp.gate_proj", (3072, 1024)), ("mlp.up_proj", (3072, 1024)),
            ("mlp.down_proj", (1024, 3072)), ("input_layernorm", (1024,)),
            ("post_attention_layernorm", (1024,)),
        ]:
            yield f"model.layers.{i}.{name}.weight", shape
    yield "model.norm.weight", (1024,)


def make(layers):
    torch.manual_seed(0)
    return {name: torch.randn(shape).mul_(0.02).to(torch.bfloat16) for name, shape in
            shapes(layers)}


def moves(bits, step, generator):
    """How many bf16 steps each weight moves, if its master is anywhere between two bf16 numbers
    and takes a normal step: the effect of a small update after rounding."""
    ulp = torch.exp2(((bits & 0x7fff) >> 7).clamp_(min=1).float() - (127 + 7))
    away = torch.randn(bits.shape, generator=generator).mul_(step).div_(ulp)
    away.add_(torch.rand(bits.shape, generator=generator).sub_(0.5))
    return away.round_().clamp_(-64, 64).to(torch.int16)


def step_for(model):
    """The size of step with which PERCENT of the elements change."""
    generator = torch.Generator().manual_seed(1)
    bits = next(iter(model.values())).view(-1)[:1 << 20].view(torch.int16)
    low, high = 1e-9, 1e-3
    while high / low > 1.01:
        step = (low * high) ** 0.5
        changed = moves(bits, step, generator).count_nonzero().item() / bits.numel()
        low, high = (step, high) if changed < PERCENT / 100 else (low, step)
    return step


@torch.no_grad()
def change(model, step, seed):
    generator = torch.Generator().manual_seed(seed)
    for tensor in model.values():
        for bits in tensor.view(-1).view(torch.int16).split(1 << 20):
            away = moves(bits, step, generator)
            away[(bits & 0x7fff) < 64] = 0  # next to zero, where a step could change the sign
            bits.add_(torch.where(bits < 0, -away, away))


class Ours:
    def __init__(self, model, out):
        self.out = out / "stream"
        self.publisher = deltawire.torch.Publisher(
            model, url=f"file://{self.out}", fold_every=0, anchor_factor=0)

    def publish(self, model):
        report = self.publisher.wait(self.publisher.publish())
        self.changed = report.n_changed
        return report.n_bytes

    def settle(self):
        self.publisher.drain()


class Trl:
    """A `raw` delta as TRL 1.16 writes it: indices and values of the changes."""

    def __init__(self, model, out):
        self.path = out / "trl.safetensors"
        self.old = {name: tensor.clone() for name, tensor in model.items()}

    def publish(self, model):
        found = {}
        for name, tensor in model.items():
            flat = tensor.view(-1)
            at = (flat != self.old[name].view(-1)).nonzero(as_tuple=True)[0]
            if len(at):
                found[f"{name}.indices"] = at.to(torch.int32)
                found[f"{name}.values"] = flat[at]
        safetensors.torch.save_file(found, self.path)
        return self.path.stat().st_size

    def settle(self, model):
        for name, tensor in model.items():
            self.old[name].copy_(tensor)


class Xor:
    """XOR with the version before, compressed, and a checksum of the new one."""

    def __init__(self, model, out):
        self.path = out / "xor"
        self.old = {name: tensor.clone() for name, tensor in model.items()}
        self.zstd = ctypes.CDLL(ctypes.util.find_library("zstd") or "libzstd.so.1")
        self.zstd.ZSTD_compressBound.restype = ctypes.c_size_t
        self.zstd.ZSTD_compress.restype = ctypes.c_size_t
        self.zstd.ZSTD_compress.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p,
                                            ctypes.c_size_t, ctypes.c_int]

    def one(self, name, tensor):
        new = tensor.view(-1).view(torch.int16)
        moved = new ^ self.old[name].view(-1).view(torch.int16)
        checksum = zlib.adler32(memoryview(new.numpy()).cast("B"))
        room = self.zstd.ZSTD_compressBound(ctypes.c_size_t(moved.nbytes))
        packed = torch.empty(room, dtype=torch.uint8)
        n = self.zstd.ZSTD_compress(packed.data_ptr(), room, moved.data_ptr(), moved.nbytes, 1)
        return name, checksum, memoryview(packed[:n].numpy())

    def publish(self, model):
        with concurrent.futures.ThreadPoolExecutor(2) as pool, open(self.path, "wb") as file:
            for _, checksum, packed in pool.map(lambda item: self.one(*item), model.items()):
                file.write(checksum.to_bytes(4, "little"))
                file.write(packed)
        return self.path.stat().st_size

    settle = Trl.settle


def idle_hook_us():
    """The time that an attached publisher adds to optimizer.step() if it has nothing to do at
    this step."""
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)

    def step_us(n=2000):
        start = time.perf_counter()
        for _ in range(n):
            optimizer.step()
        return (time.perf_counter() - start) / n * 1e6

    step_us()
    times = {True: [], False: []}
    for _ in range(9):
        times[False].append(step_us())
        with deltawire.torch.Publisher(model, optimizer, url="mem:idle", publish_every=10**9):
            times[True].append(step_us())
    return statistics.median(times[True]) - statistics.median(times[False])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--json", type=pathlib.Path)
    a = parser.parse_args()
    model = make(a.layers)
    step = step_for(model)
    n_elems = sum(tensor.numel() for tensor in model.values())
    ways = {"deltawire": Ours(model, a.out), "trl": Trl(model, a.out), "xor": Xor(model, a.out)}
    seconds, sizes = {way: [] for way in ways}, {way: [] for way in ways}
    for turn in range(a.rounds):
        change(model, step, turn)
        order = list(ways)[turn % 3:] + list(ways)[:turn % 3]
        for way in order:
            start = time.perf_counter()
            sizes[way].append(ways[way].publish(model))
            seconds[way].append(time.perf_counter() - start)
        ways["deltawire"].settle()
        ways["trl"].settle(model)
        ways["xor"].settle(model)
    ours = ways["deltawire"]
    print(f"{n_elems / 1e6:.0f} M elements, {ours.changed / n_elems:.2%} changed, "
          f"{torch.get_num_threads()} threads of PyTorch, medians of {a.rounds}")
    print(f"{'':12}{'seconds':>10}{'MB':>10}{'slower':>10}{'larger':>10}")
    result = {}
    for way in ways:
        t, n = statistics.median(seconds[way]), statistics.median(sizes[way])
        result[way] = {"seconds": t, "bytes": n, "all_seconds": seconds[way]}
        print(f"{way:12}{t:10.3f}{n / 1e6:10.2f}"
              f"{t / result['deltawire']['seconds']:9.1f}x{n / result['deltawire']['bytes']:9.1f}x")
    result["idle_hook_us"] = idle_hook_us()
    print(f"an idle hook: {result['idle_hook_us']:.1f} us a step")
    ours.publisher.close()
    if a.json:
        a.json.write_text(json.dumps({**result, "cpus": os.cpu_count(),
                                      "load": os.getloadavg()}, indent=1) + "\n")


main()
