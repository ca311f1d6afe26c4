"""A tiny Qwen3 of transformers."""
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

import deltawire.torch


def make(**changes):
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**{
        "vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "tie_word_embeddings": True, **changes}))


def train(model, optimizer, seed):
    torch.manual_seed(seed)
    tokens = (torch.randint(0, 96, (4, 1)) + torch.arange(12)) % 96  # to count
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


def rounded(model):
    """Its published weights."""
    return {name: tensor.detach().to(torch.bfloat16)
            for name, tensor in deltawire.torch.named_tensors(model).items()}


def counted(model):
    """Its greedy output."""
    prompt = torch.tensor([[3, 4, 5]])
    return model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=12,
                          do_sample=False, pad_token_id=0)[0].tolist()
