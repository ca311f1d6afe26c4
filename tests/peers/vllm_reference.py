"""Starts a vLLM on each checkpoint DIR, and prints a line of JSON with the checksums of its
weights and its tokens for each prompt.

    vllm_reference.py PROMPTS N-TOKENS DIR...

Importing vLLM takes longest, so it is done once; each checkpoint then gets its own process, two
at a time.
"""
import gc
import json
import os
import sys

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import vllm.v1.worker.cpu_worker  # noqa: E402, F401 - as is done in each process otherwise
from vllm import LLM, SamplingParams  # noqa: E402

from vllm_server import MAX_TOKENS  # noqa: E402


def serve(directory, prompts, n_tokens):
    """Ends the process with the engine: an orderly shutdown would take longer."""
    engine = LLM(model=directory, dtype="bfloat16", enforce_eager=True,
                 max_model_len=MAX_TOKENS, skip_tokenizer_init=True,
                 num_gpu_blocks_override=64,  # of the cache: small models, short prompts
                 weight_transfer_config={"backend": "deltawire"})  # weights stay plain
    sampling = SamplingParams(temperature=0, max_tokens=n_tokens, ignore_eos=True,
                              detokenize=False)
    tokens = []
    for prompt in prompts:  # one by one, like the server, so that sums round alike
        done = engine.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
        tokens.append(list(done[0].outputs[0].token_ids))
    [checksums] = engine.llm_engine.collective_rpc("compute_weight_checksums")
    return {"checksums": checksums, "tokens": tokens}, engine


def begin(directory, prompts, n_tokens):
    """A process that serves, and the pipe for its line."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        found, _engine = serve(directory, prompts, n_tokens)
        with os.fdopen(writes, "w") as out:
            out.write(json.dumps(found) + "\n")
        os._exit(0)
    os.close(writes)
    return child, os.fdopen(reads)


def main():
    prompts, n_tokens, directories = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM talks on stdout too
    gc.freeze()  # collections need not scan imported objects again
    under_way = [begin(d, prompts, n_tokens) for d in directories[:2]]
    for i, directory in enumerate(directories):
        child, pipe = under_way.pop(0)
        line = pipe.read()
        if os.waitpid(child, 0)[1] != 0:
            sys.exit(f"no reference for {directory}")
        out.write(line)
        out.flush()
        under_way += [begin(d, prompts, n_tokens) for d in directories[i + 2:i + 3]]


if __name__ == "__main__":
    main()
