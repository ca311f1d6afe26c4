"""A rank of test_trl_callback.py: callback_rank.py URL DIRECTORY, with torchrun's variables.
Trains a model that FSDP2 has sharded, and calls the callback like a trainer."""
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from transformers import Qwen3Config, Qwen3ForCausalLM, TrainerControl, TrainerState
from transformers import TrainingArguments

import deltawire.trl

url, directory = sys.argv[1], Path(sys.argv[2])
# by a file, because a server of keys asks name servers who its clients are
dist.init_process_group("gloo", init_method=f"file://{directory}/meeting",
                        rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
torch.manual_seed(0)
model = Qwen3ForCausalLM(Qwen3Config(
    vocab_size=67, hidden_size=24, intermediate_size=35, num_hidden_layers=2,
    num_attention_heads=3, num_key_value_heads=1, head_dim=8, tie_word_embeddings=True))
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

arguments = TrainingArguments(output_dir=str(directory / "out"), use_cpu=True)
state = TrainerState(is_world_process_zero=dist.get_rank() == 0)
callback = deltawire.trl.PublishCallback(url, rank_timeout=300)


def send(event):
    getattr(callback, event)(arguments, state, TrainerControl(), model=model)


send("on_train_begin")
for step in range(3):
    torch.manual_seed(2 * step + dist.get_rank())
    tokens = torch.randint(0, 67, (2, 8))
    model(input_ids=tokens, labels=tokens).loss.backward()
    send("on_pre_optimizer_step")
    optimizer.step()
    optimizer.zero_grad()
    state.global_step += 1
    send("on_step_end")
send("on_train_end")
whole = {name: p.full_tensor().detach().to(torch.bfloat16)
         for name, p in model.named_parameters()}
if dist.get_rank() == 0:
    torch.save(whole, directory / "trained.pt")
dist.barrier()
dist.destroy_process_group()
# FSDP2 keeps its group, whose threads may still release tensors. If that happens while the
# interpreter ends, PyTorch calls std::terminate (pytorch#179291).
sys.stdout.flush()
os._exit(0)
