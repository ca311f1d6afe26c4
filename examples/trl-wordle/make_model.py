"""Makes a tiny Qwen3 with random weights and a tokenizer of bytes, in a second and without a
download: enough to run the whole loop on a laptop.

    python make_model.py DIR [--seed N]
"""
from __future__ import annotations

import argparse
from pathlib import Path

import torch
import trl
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A token for each byte: BPE with no merges. The chat template is Qwen3's own."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    template = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, chat_template=template.read_text(),
        eos_token="<|im_end|>", pad_token="<|endoftext|>")


def make_model(directory: str | Path, seed: int = 1, spread: float = 0.1) -> None:
    tokenizer = make_tokenizer()
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=320, hidden_size=96, intermediate_size=256, head_dim=32,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=2048, tie_word_embeddings=True, initializer_range=spread,
        bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id)
    model = Qwen3ForCausalLM(config).to(torch.bfloat16)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    n = sum(p.numel() for p in model.parameters())
    print(f"{directory}: Qwen3 with {n:,} weights, {len(tokenizer)} tokens")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    make_model(given.directory, given.seed)
