"""What a vLLM that is started on a checkpoint serves: prints one line of JSON for each
DIR, with the checksums of its weights and the tokens it generates from each prompt.

    vllm_reference.py PROMPTS N-TOKENS DIR...

Importing vLLM takes longer than all the rest, so it is done once; each checkpoint then
gets a process of its own.
"""
import json
import os
import sys

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

from vllm import LLM, SamplingParams  # noqa: E402

from vllm_server import MAX_TOKENS  # noqa: E402


def serve(directory, prompts, n_tokens):
    engine = LLM(model=directory, dtype="bfloat16", enforce_eager=True,
                 max_model_len=MAX_TOKENS, skip_tokenizer_init=True,
                 num_gpu_blocks_override=64,  # of the cache: small models, short prompts
                 weight_transfer_config={"backend": "deltawire"})  # weights stay plain
    sampling = SamplingParams(temperature=0, max_tokens=n_tokens, ignore_eos=True,
                              detokenize=False)
    tokens = []
    for prompt in prompts:  # one by one, as the server is asked: sums round alike
        done = engine.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
        tokens.append(list(done[0].outputs[0].token_ids))
    [checksums] = engine.llm_engine.collective_rpc("compute_weight_checksums")
    return {"checksums": checksums, "tokens": tokens}


def main():
    prompts, n_tokens = json.loads(sys.argv[1]), int(sys.argv[2])
    out = os.dup(1)
    os.dup2(2, 1)  # vLLM talks on stdout too
    for directory in sys.argv[3:]:
        child = os.fork()
        if child == 0:
            line = json.dumps(serve(directory, prompts, n_tokens)) + "\n"
            os.write(out, line.encode())
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            sys.exit(f"no reference for {directory}")


if __name__ == "__main__":
    main()
