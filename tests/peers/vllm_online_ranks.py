"""A vLLM that quantises a bf16 checkpoint, with its tensors split among two ranks, is told to load
START, of which rank 1 finds nothing. It loads START, applies UPDATE, a patch, and then another one
is started on DIR, the checkpoint of that version.
Prints one line of JSON: for each rank the hashes of all parameters of either, and what was done.

    vllm_online_ranks.py SCHEME START-DIR START-UPDATE UPDATE DIR

The environment variable HIDDEN is a part of the names of weights in which rank 1 finds a wrong
element when it compares them.
"""
import hashlib
import json
import os
import sys

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # functions go to the workers

import torch  # noqa: E402
from quantised_by_torch import scaled_fp8_quant  # noqa: E402
from vllm import _custom_ops  # noqa: E402
from vllm_server import MAX_TOKENS  # noqa: E402

_custom_ops.scaled_fp8_quant = scaled_fp8_quant
torch.cpu._is_amx_tile_supported = lambda: False
if os.environ.get("HIDDEN"):
    from deltawire.vllm import online

    compare = online.OnlineWeight.compare

    def compare_but(weight, *args):
        is_hidden = os.environ["HIDDEN"] in weight.target and torch.distributed.get_rank() == 1
        return compare(weight, *args) + is_hidden

    online.OnlineWeight.compare = compare_but


def forget(worker):
    worker.weight_transfer_engine._weights = None


class Extension:
    """Of vLLM's worker: so that workers import this file."""


def watch(worker):
    weights = worker.weight_transfer_engine._weights
    worker.done = []
    for method in ("apply", "redo"):
        original = getattr(weights, method)
        setattr(weights, method, lambda *args, original=original: (
            worker.done.append(original(*args)) or worker.done[-1]))


def look(worker):
    hashes = {}
    for name, p in worker.get_model().named_parameters():
        flat = torch.empty(p.shape, dtype=p.dtype).copy_(p.detach()).view(-1)
        hashes[name] = hashlib.sha256(flat.view(torch.uint8).numpy().tobytes()).hexdigest()
    return hashes


def tell(worker):
    weights = worker.weight_transfer_engine._weights
    report, redone = [*worker.done, 0][:2]
    return {"reasons": weights.reasons, "online": sorted(weights._online),
            "shared": sorted(weights._shared), "redone": redone, "stored": report.n_stored,
            "forgotten": sorted(report.forgotten),
            "units": sum(weight.n_units for weight in weights._online.values())}


def start(scheme, path):
    from vllm import LLM

    engine = LLM(model=path, dtype="bfloat16", enforce_eager=True, max_model_len=MAX_TOKENS,
                 skip_tokenizer_init=True, num_gpu_blocks_override=64, quantization=scheme,
                 tensor_parallel_size=2, distributed_executor_backend="mp",
                 worker_extension_cls="vllm_online_ranks.Extension",
                 weight_transfer_config={"backend": "deltawire"})
    return engine.llm_engine.collective_rpc


def main():
    scheme, path, first, update, directory = sys.argv[1:]
    out = os.dup(1)
    os.dup2(2, 1)  # vLLM talks on stdout too
    call = start(scheme, path)
    answer = {"first": call(look)}
    call(forget)  # the layout is learnt again, which ranks end together
    call("start_weight_update")
    try:
        call("update_weights", args=([json.loads(first), json.loads(first) | {"dir": "/away"}],))
    except RuntimeError as error:
        answer |= {"refused": str(error), "then": call(look)}
    for info in (first, update):
        if info is update:
            call(watch)
        call("start_weight_update")
        call("update_weights", args=(json.loads(info),))
        call("finish_weight_update")
    answer |= {"patched": call(look), "done": call(tell)}
    answer["fresh"] = start(scheme, directory)(look)
    os.write(out, (json.dumps(answer) + "\n").encode())


if __name__ == "__main__":
    main()
