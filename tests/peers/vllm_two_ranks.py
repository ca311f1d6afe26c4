"""A vLLM of two ranks takes UPDATES, a list in JSON: each is an update, or a list of one for each
rank. Then it loads each DIR by itself. Prints one line of JSON: the error of each update and the
checksums of each rank after it, those after each load, and how many elements of the checkpoint each
rank holds.

    vllm_two_ranks.py OPTIONS START-DIR UPDATES DIR...
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


def take(call, update):
    """As an agent does it. Returns the error."""
    call("start_weight_update")
    try:
        call("update_weights", args=(update,))
    except RuntimeError as error:
        return str(error)
    call("finish_weight_update")
    return None


def main():
    from vllm import LLM

    options, start, updates, *directories = sys.argv[1:]
    out = os.dup(1)
    os.dup2(2, 1)  # vLLM talks on stdout too
    engine = LLM(model=start, dtype="bfloat16", enforce_eager=True, max_model_len=MAX_TOKENS,
                 skip_tokenizer_init=True, num_gpu_blocks_override=64,
                 distributed_executor_backend="mp",
                 weight_transfer_config={"backend": "deltawire"}, **json.loads(options))
    call = engine.llm_engine.collective_rpc
    answer = {"steps": [], "loaded": []}
    for update in json.loads(updates):
        error = take(call, update)
        answer["steps"].append({"error": error, "has": call("compute_weight_checksums")})
    answer["held"] = call(held)
    for directory in directories:
        call(load, args=(directory,))
        answer["loaded"].append(call("compute_weight_checksums"))
    os.write(out, (json.dumps(answer) + "\n").encode())


if __name__ == "__main__":
    main()
