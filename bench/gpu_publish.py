"""Publishing and following tensors on a GPU with deltawire.torch, beside torch's own methods:
scripts/bench-gpu.sh runs it. gpu_publish.py [--rounds N] [--json FILE] MODEL...

Random bfloat16 weights, of which 1.1 % change by one unit in the last place. Medians.
"""
import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time

try:
    import torch
except ImportError:
    sys.exit(77)
if not torch.cuda.is_available():
    sys.exit(77)

import deltawire
import deltawire.torch

CHANGED = 0.011
# layers, vocabulary, hidden, heads, kv, inner: the shapes of bench/gpu_model.c
MODELS = {"0.6b": (28, 151936, 1024, 2048, 1024, 3072),
          "7.6b": (36, 151936, 4096, 4096, 1024, 12288),
          "tiny": (1, 500, 128, 128, 128, 160)}


def shapes_of(name):
    n_layers, vocabulary, hidden, heads, kv, inner = MODELS[name]
    yield "embed", (vocabulary, hidden)
    for i in range(n_layers):
        for part, shape in {"q": (heads, hidden), "k": (kv, hidden), "v": (kv, hidden),
                            "o": (hidden, heads), "gate": (inner, hidden), "up": (inner, hidden),
                            "down": (hidden, inner), "norm": (hidden,), "norm2": (hidden,)}.items():
            yield f"layers.{i}.{part}", shape
    yield "norm", (hidden,)


def step(tensors):
    """One unit in the last place, up or down, at random places."""
    for tensor in tensors.values():
        bits = tensor.view(torch.int16).view(-1)
        where = torch.randint(bits.numel(), (max(1, int(bits.numel() * CHANGED)),), device="cuda")
        bits[where] = bits[where] ^ 1


def host_bytes():
    """Memory of this process on the host, without files."""
    with open("/proc/self/status") as file:
        lines = dict(line.split(":", 1) for line in file)
    return sum(int(lines[key].split()[0]) * 1024 for key in ("RssAnon", "RssShmem"))


def timed(work, times):
    """Runs WORK; its time on the device, by events around it."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    result = work()
    end.record()
    end.synchronize()
    times.append(begin.elapsed_time(end))
    return result


def torch_find(live, old):
    """TRL's way on a device: positions and values of what changed, per tensor, on the host."""
    found = []
    for name, tensor in live.items():
        where = torch.ne(tensor, old[name]).view(-1).nonzero().view(-1)
        found.append((where, tensor.view(-1)[where]))
    return found, [(where.cpu(), values.cpu()) for where, values in found]


def torch_store(old, found):
    for tensor, (where, values) in zip(old.values(), found):
        tensor.view(-1).index_copy_(0, where, values)


def device_bytes():
    """Memory of the GPU that is in use, without PyTorch's."""
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


def measure(name, baseline, rounds, directory):
    torch.manual_seed(0)
    live = {key: (torch.randn(shape, device="cuda") * 0.02).to(torch.bfloat16)
            for key, shape in shapes_of(name)}
    followed = {key: tensor.clone() for key, tensor in live.items()}
    torch.cuda.synchronize()
    figures = {key: [] for key in ("held_ms", "publish_ms", "captured_ms", "committed_ms", "stage_ms",
                                   "apply_ms", "torch_find_ms", "torch_store_ms")}
    url = f"file://{directory}/{name}"
    before, device_before = host_bytes(), device_bytes()
    publisher = deltawire.torch.Publisher(live, url=url, baseline=baseline, base_name="bench",
                                          fold_every=0, anchor_factor=0, sweep_every=0)
    follower = deltawire.torch.Follower(followed, url, report=False, sweep_every=0)
    again = []
    for _ in range(3):
        step(live)
        torch.cuda.synchronize()
        publisher.publish()
        publisher.wait()
        start = time.perf_counter()
        publisher.publish()  # the baseline is still on its way to the version before
        again.append((time.perf_counter() - start) * 1e3)
        publisher.wait()
    follower.sync()
    most = device_most = bytes_ = 0
    for round_ in range(rounds + 1):
        if round_ == 1:  # the first one warms up
            figures = {key: [] for key in figures}
        step(live)
        publisher.drain()  # a real step takes longer than what follows a commit
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        start = time.perf_counter()
        publisher.publish()
        called = time.perf_counter()
        end.record()
        end.synchronize()  # the stream waits until the weights are read
        figures["publish_ms"].append((called - start) * 1e3)
        figures["held_ms"].append(begin.elapsed_time(end))
        publisher.captured()
        figures["captured_ms"].append((time.perf_counter() - start) * 1e3)
        report = publisher.wait()
        bytes_ = report.n_bytes
        figures["committed_ms"].append((time.perf_counter() - start) * 1e3)
        for moment, ms in report.times.items():
            figures.setdefault(f"{moment}_at_ms", []).append(ms)
        most = max(most, host_bytes())
        goal = follower.native.poll()
        start = time.perf_counter()
        follower.native.stage(goal)
        figures["stage_ms"].append((time.perf_counter() - start) * 1e3)
        if follower.native.staged is not None:
            start = time.perf_counter()
            follower.native.apply()
            figures["apply_ms"].append((time.perf_counter() - start) * 1e3)
            follower.native.finish()
        most, device_most = max(most, host_bytes()), max(device_most, device_bytes())
    same = all(torch.equal(live[key], followed[key]) for key in live)
    publisher.close()
    follower.close()
    figures["again_ms"] = again
    torch_bytes = 0
    for _ in range(rounds if baseline == "device" else 0):
        step(live)
        torch.cuda.synchronize()
        found, copied = timed(lambda: torch_find(live, followed), figures["torch_find_ms"])
        torch_bytes = sum(w.nbytes + v.nbytes for w, v in copied)
        timed(lambda: torch_store(followed, found), figures["torch_store_ms"])
    result = {key: round(statistics.median(values), 3) for key, values in figures.items() if values}
    if torch_bytes:
        result["torch_bytes"] = torch_bytes
    return {"model": name, "baseline": baseline,
            "n_elems": sum(t.numel() for t in live.values()), "is_same": same, "n_bytes": bytes_,
            "host_mib": round((most - before) / 2**20, 1),
            "device_mib": round((device_most - device_before) / 2**20, 1), **result}


ROWS = [("training stream held by a publish", "held_ms", "ms"),
        ("publish() call on the host", "publish_ms", "ms"),
        ("publish() right after the commit before", "again_ms", "ms"),
        ("publish() to captured, seen from the host", "captured_ms", "ms"),
        ("publish() to committed, in a directory", "committed_ms", "ms"),
        *((f"  {moment} at, by the report", f"{moment}_at_ms", "ms") for moment in
          ("captured", "encoded", "proven", "hashed", "uploaded", "committed")),
        ("follower: fetch, decode, prove (stage)", "stage_ms", "ms"),
        ("follower: apply() call", "apply_ms", "ms"),
        ("torch: ne, nonzero, gather, copy to the host", "torch_find_ms", "ms"),
        ("torch: index_copy_, unchecked", "torch_store_ms", "ms"),
        ("additional host memory, both", "host_mib", "MiB"),
        ("additional device memory, both", "device_mib", "MiB"),
        ("bytes of a version", "n_bytes", ""), ("bytes of torch's lists", "torch_bytes", "")]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json")
    parser.add_argument("--dir", help="for the stream (default: /dev/shm)", default="/dev/shm")
    parser.add_argument("--baselines", nargs="+", choices=("device", "host"),
                        default=("device", "host"), help="where the publisher keeps its baseline")
    parser.add_argument("models", nargs="+", choices=MODELS)
    options = parser.parse_args()
    results = []
    for name, baseline in itertools.product(options.models, options.baselines):
        with tempfile.TemporaryDirectory(dir=options.dir, prefix="gpu-publish-") as directory:
            results.append(measure(name, baseline, options.rounds, directory))
        torch.cuda.empty_cache()
        assert results[-1]["is_same"], "the follower has other weights"
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, 1.1 % changed, medians of "
          f"{options.rounds}")
    print(f"{'':46}" + "".join(f"{r['model']:>14}" for r in results))
    print(f"{'baseline on the':46}" + "".join(f"{r['baseline']:>14}" for r in results))
    for text, key, unit in ROWS:
        print(f"{text:46}" + "".join(
            f"{r.get(key, '-'):>14,}" if key in r else f"{'-':>14}" for r in results), unit)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)


main()
