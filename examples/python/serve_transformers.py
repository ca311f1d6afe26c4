"""transformers: a served model whose tensors are the files that a follower keeps.

    serve_transformers.py [URL]

In production the follower is its own process: `deltawire follow URL --into DIRECTORY`.
"""
import argparse
import os
import sys
import tempfile

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

import deltawire
import deltawire.torch
import deltawire.transformers

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("url", nargs="?", default="mem:example")
url = parser.parse_args().url

torch.manual_seed(0)
model = Qwen3ForCausalLM(Qwen3Config(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, tie_word_embeddings=True))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
prompt = torch.tensor([[1, 2, 3]])

with tempfile.TemporaryDirectory() as folder:
    url = url if ":" in url else f"file://{os.path.abspath(url)}"
    with (deltawire.torch.Publisher(model, optimizer, url=url) as publisher,
          deltawire.Follower(url, into=folder) as follower):
        follower.sync()
        served, weights = deltawire.transformers.load(folder, model.config)
        for step in range(6):
            tokens = (torch.randint(0, 64, (4, 1)) + torch.arange(16)) % 64  # to count
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()  # publishes
            optimizer.zero_grad()
            publisher.wait()
            follower.sync()  # now the served model has it
            with weights.reading() as version:
                said = served.generate(prompt, attention_mask=torch.ones_like(prompt),
                                       max_new_tokens=8, do_sample=False, pad_token_id=0)
            print(f"version {version}: {said[0].tolist()}")
        same = torch.equal(served.lm_head.weight, model.lm_head.weight.to(torch.bfloat16))
        weights.close()
print(f"the served model is {'exactly' if same else 'NOT'} the trained one")
sys.exit(not same)
