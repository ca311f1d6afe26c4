"""One of two ranks of an engine, for vllm_check.py: the back end in a process of its own, with the
model that stands in for vLLM's.

    vllm_rank.py DEVICE RANK DIR MEETING TIED

Each line of stdin is a call in JSON; the answer has its error and hashes of all parameters.
"""
import hashlib
import json
import sys

import stand_in
import torch

stand_in.install()

import deltawire as dw
from deltawire.vllm import backend


def hashes(model):
    return {name: hashlib.sha256(p.detach().cpu().contiguous().view(torch.int16).numpy())
            .hexdigest() for name, p in model.named_parameters()}


def do(engine, call, values):
    if call == "flip":
        for name in values:
            engine.model.get_parameter(name).data.view(torch.int16).bitwise_xor_(1)
    elif call == "init":
        engine.init_transfer_engine(backend.InitInfo(**values))
    elif call == "update":
        engine.start_weight_update()
        engine.receive_weights(backend.UpdateInfo(**values))
        engine.finish_weight_update()


def main():
    device, rank, directory, meeting, tied = sys.argv[1:]
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}",
                                         rank=int(rank), world_size=2)
    model = stand_in.Model(int(rank), device, tied=tied == "tied")
    with dw.Checkpoint(directory) as checkpoint:
        model.load_weights((name, torch.from_dlpack(t)) for name, t in checkpoint.items())
    config = stand_in.config(directory, int(rank))
    config.parallel_config.tensor_parallel_size = 2
    engine = backend.DeltawireEngine(None, config, torch.device(device), model)
    for line in sys.stdin:
        error = None
        try:
            do(engine, *json.loads(line))
        except Exception as failure:
            error = str(failure)
        print(json.dumps({"error": error, "hashes": hashes(model)}), flush=True)
    engine.shutdown()


if __name__ == "__main__":
    main()
