"""A vLLM whose tensors are split among two ranks applies UPDATE, a patch, and then loads DIR, the
checkpoint of that version, by itself. Prints one line of JSON: the checksums of each rank after
either, and how many elements of the checkpoint each rank holds.

    vllm_two_ranks.py START-DIR START-UPDATE UPDATE DIR
"""
import json
import os
import sys

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # functions go to the workers

from vllm_server import MAX_TOKENS  # noqa: E402


def load(worker, directory):
    """Loads like vLLM at the start, over zeros."""
    import torch
    from vllm.model_executor.model_loader.weight_utils import safetensors_weights_iterator

    model = worker.get_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    model.load_weights(safetensors_weights_iterator([directory + "/model.safetensors"], False))


def held(worker):
    return sum(worker.weight_transfer_engine._weights.layout.held.values())


def main():
    from vllm import LLM

    start, first, update, directory = sys.argv[1:]
    out = os.dup(1)
    os.dup2(2, 1)  # vLLM talks on stdout too
    engine = LLM(model=start, dtype="bfloat16", enforce_eager=True, max_model_len=MAX_TOKENS,
                 skip_tokenizer_init=True, num_gpu_blocks_override=64,
                 tensor_parallel_size=2, distributed_executor_backend="mp",
                 weight_transfer_config={"backend": "deltawire"})
    call = engine.llm_engine.collective_rpc
    for info in (first, update):
        call("start_weight_update")
        call("update_weights", args=(json.loads(info),))
        call("finish_weight_update")
    answer = {"held": call(held), "patched": call("compute_weight_checksums")}
    call(load, args=(directory,))
    answer["loaded"] = call("compute_weight_checksums")
    os.write(out, (json.dumps(answer) + "\n").encode())


if __name__ == "__main__":
    main()
