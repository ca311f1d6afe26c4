"""The models of the tests with PyTorch on a GPU."""
import hashlib
import json
import os
import pathlib

import torch


def qwen3(seed=0):
    """A small Qwen3 of transformers, with random weights in float32."""
    from transformers import Qwen3Config, Qwen3ForCausalLM
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(Qwen3Config(
        vocab_size=2048, hidden_size=256, intermediate_size=768, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=2, head_dim=32, tie_word_embeddings=True))


def qwen3_loss(model, step):
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, 2048, (4, 64), generator=generator).cuda()
    return model(input_ids=tokens, labels=tokens).loss


def plain(seed=0):
    """Starts faster than transformers does. It has a buffer, and bfloat16 beside float32."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 2048),
        torch.nn.BatchNorm1d(2048), torch.nn.Linear(2048, 512))
    model.register_parameter("extra", torch.nn.Parameter(
        torch.randn(300, 700, dtype=torch.bfloat16)))
    return model


def plain_loss(model, step):
    generator = torch.Generator().manual_seed(step)
    batch = torch.randn(64, 512, generator=generator).cuda()
    return model(batch).square().mean() + model.extra.float().square().mean()


MODELS = {"qwen3": (qwen3, qwen3_loss), "plain": (plain, plain_loss)}


def published(model):
    """Copies of the tensors as a stream has them, on their device, without waiting."""
    import deltawire.torch
    return {name: tensor.detach().to(torch.bfloat16, copy=True)
            if tensor.dtype == torch.float32 else tensor.detach().clone()
            for name, tensor in deltawire.torch.named_tensors(model).items()}


def hash_of(tensors):
    """Of names and bytes; not the library's own digest."""
    state = hashlib.sha256()
    for name in sorted(tensors):
        state.update(name.encode())
        state.update(tensors[name].detach().contiguous().cpu().reshape(-1).view(torch.uint8)
                     .numpy().tobytes())
    return state.hexdigest()


def write(path, value):
    """A reader sees the whole file or none."""
    path = pathlib.Path(path)
    path.with_suffix(".tmp").write_text(json.dumps(value))
    os.replace(path.with_suffix(".tmp"), path)
