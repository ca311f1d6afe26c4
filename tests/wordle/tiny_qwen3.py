"""A tiny Qwen3 in plain Python: its files, its versions and its results.

Written from the architecture, with doubles and loops, so that a server in C can be compared with
it without PyTorch.
"""
import json
import math
import random
import struct

CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 98,
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
    "max_position_embeddings": 512, "rope_theta": 10000.0, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True, "hidden_act": "silu", "attention_bias": False,
    "torch_dtype": "bfloat16", "eos_token_id": 97, "bos_token_id": None,
}
H, I, V = CONFIG["hidden_size"], CONFIG["intermediate_size"], CONFIG["vocab_size"]
HEADS, KV, D = 2, 1, CONFIG["head_dim"]
EOS = CONFIG["eos_token_id"]
# byte-level spelling of a newline and a space
LETTERS = ["\u010a", "\u0120"] + [chr(c) for c in range(33, 127)]
IDS = {letter: i for i, letter in enumerate(LETTERS)}


def encode(text):
    return [IDS[{"\n": "\u010a", " ": "\u0120"}.get(c, c)] for c in text]


def decode(ids):
    letters = "".join(LETTERS[i] for i in ids if i < len(LETTERS))
    return letters.replace("\u010a", "\n").replace("\u0120", " ")


def shapes():
    out = {"model.embed_tokens.weight": (V, H), "model.norm.weight": (H,)}
    for i in range(CONFIG["num_hidden_layers"]):
        for name, shape in (("input_layernorm", (H,)), ("post_attention_layernorm", (H,)),
                            ("self_attn.q_norm", (D,)), ("self_attn.k_norm", (D,)),
                            ("self_attn.q_proj", (HEADS * D, H)),
                            ("self_attn.k_proj", (KV * D, H)),
                            ("self_attn.v_proj", (KV * D, H)),
                            ("self_attn.o_proj", (H, HEADS * D)), ("mlp.gate_proj", (I, H)),
                            ("mlp.up_proj", (I, H)), ("mlp.down_proj", (H, I))):
            out[f"model.layers.{i}.{name}.weight"] = shape
    return out


def bf16(x):
    return struct.unpack("<I", struct.pack("<f", x))[0] >> 16


def new_weights(seed):
    """{name: list of bf16 as integers}"""
    rng = random.Random(seed)
    return {name: [bf16(rng.gauss(1, 0.2) if len(shape) == 1 else rng.gauss(0, 0.5))
                   for _ in range(math.prod(shape))] for name, shape in shapes().items()}


def changed(weights, seed):
    """The next version: a twentieth of the weights changes."""
    rng = random.Random(seed)
    return {name: [bf16(rng.gauss(0.5, 0.5)) if rng.random() < 0.05 else w for w in values]
            for name, values in weights.items()}


def write_model(folder):
    """config.json and tokenizer.json"""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    added = [{"id": i, "content": text, "single_word": False, "lstrip": False,
              "rstrip": False, "normalized": False, "special": True}
             for i, text in ((96, "<|pad|>"), (97, "<|endoftext|>"))]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
                  "use_regex": False}
    pattern = {"type": "Split", "pattern": {"Regex": "[^\\n]|\\n"}, "behavior": "Isolated",
               "invert": False}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [pattern, byte_level]},
        "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": "", "end_of_word_suffix": "",
                  "fuse_unk": False, "byte_fallback": False, "vocab": IDS, "merges": []}}))


def write_checkpoint(folder, weights):
    folder.mkdir(parents=True, exist_ok=True)
    header, data = {}, b""
    for name, values in weights.items():
        part = struct.pack(f"<{len(values)}H", *values)
        header[name] = {"dtype": "BF16", "shape": list(shapes()[name]),
                        "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


class Model:
    """Log-probabilities, token by token; a cache of one text."""

    def __init__(self, weights):
        self.w = {}
        for name, values in weights.items():
            numbers = struct.unpack(f"<{len(values)}f",
                                    b"".join(struct.pack("<I", v << 16) for v in values))
            shape = shapes()[name]
            if len(shape) == 2:
                numbers = [numbers[i:i + shape[1]] for i in range(0, len(numbers), shape[1])]
            self.w[name] = numbers
        self.text, self.keys, self.logps = [], [], []

    def after(self, ids):
        """The log-probabilities of what follows IDS."""
        n = 0
        while n < min(len(ids), len(self.text)) and ids[n] == self.text[n]:
            n += 1
        del self.text[n:], self.keys[n:], self.logps[n:]
        for i in ids[n:]:
            self.append(i)
        return self.logps[len(ids) - 1]

    def append(self, token):
        place, kept = len(self.text), []
        self.text.append(token)
        self.keys.append(kept)
        x = list(self.w["model.embed_tokens.weight"][token])
        for layer in range(CONFIG["num_hidden_layers"]):
            def w(name, layer=layer):
                return self.w[f"model.layers.{layer}.{name}.weight"]
            y = norm(x, w("input_layernorm"))
            q = heads(times(w("self_attn.q_proj"), y), w("self_attn.q_norm"), place)
            k = heads(times(w("self_attn.k_proj"), y), w("self_attn.k_norm"), place)
            v = cut(times(w("self_attn.v_proj"), y))
            kept.append((k, v))
            mixed = []
            for head in range(HEADS):
                past = [(at[layer][0][head * KV // HEADS], at[layer][1][head * KV // HEADS])
                        for at in self.keys]
                scores = softmax([dot(q[head], key) / math.sqrt(D) for key, _ in past])
                mixed += [sum(p * value[i] for p, (_, value) in zip(scores, past))
                          for i in range(D)]
            x = plus(x, times(w("self_attn.o_proj"), mixed))
            y = norm(x, w("post_attention_layernorm"))
            gate = [g / (1 + math.exp(-g)) for g in times(w("mlp.gate_proj"), y)]
            up = times(w("mlp.up_proj"), y)
            x = plus(x, times(w("mlp.down_proj"), [a * b for a, b in zip(gate, up)]))
        logits = times(self.w["model.embed_tokens.weight"], norm(x, self.w["model.norm.weight"]))
        self.logps.append([math.log(p) if p > 0 else -math.inf for p in softmax(logits)])


def dot(a, b):
    return sum(x * y for x, y in zip(a, b))


def times(matrix, x):
    return [dot(row, x) for row in matrix]


def plus(a, b):
    return [x + y for x, y in zip(a, b)]


def norm(x, weight):
    scale = 1 / math.sqrt(dot(x, x) / len(x) + CONFIG["rms_norm_eps"])
    return [a * scale * w for a, w in zip(x, weight)]


def cut(x):
    return [x[i:i + D] for i in range(0, len(x), D)]


def heads(x, weight, place):
    """Splits into heads, normalizes, and rotates by position."""
    out = []
    for head in cut(x):
        y = norm(head, weight)
        turned = [0.0] * D
        for i in range(D // 2):
            angle = place * CONFIG["rope_theta"] ** (-2 * i / D)
            c, s = math.cos(angle), math.sin(angle)
            turned[i] = y[i] * c - y[i + D // 2] * s
            turned[i + D // 2] = y[i + D // 2] * c + y[i] * s
        out.append(turned)
    return out


def softmax(x):
    top = max(x)
    e = [math.exp(a - top) for a in x]
    total = sum(e)
    return [a / total for a in e]
