"""The model of examples/wordle in plain Python: its files, its versions and its results.

Written from the architecture, with doubles and loops, so that a server in C can be compared with
it without PyTorch.
"""
import json
import math
import random
import struct

H, I, V, LAYERS = 64, 192, 32, 2
HEADS, KV, D = 4, 2, 16
LETTERS = "\n !.?abcdefghijklmnopqrstuvwxyz"


def encode(text):
    return [LETTERS.index(c) for c in text.lower()]


def decode(ids):
    return "".join(LETTERS[i] if i < len(LETTERS) else "?" for i in ids)


def shapes():
    out = {"model.embed_tokens.weight": (V, H), "model.norm.weight": (H,)}
    for i in range(LAYERS):
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
    return {name: [bf16(rng.gauss(1, 0.2) if len(shape) == 1 else rng.gauss(0, 0.2))
                   for _ in range(math.prod(shape))] for name, shape in shapes().items()}


def changed(weights, seed):
    """The next version: a twentieth of the weights changes."""
    rng = random.Random(seed)
    return {name: [bf16(rng.gauss(0.1, 0.2)) if rng.random() < 0.05 else w for w in values]
            for name, values in weights.items()}


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
        for layer in range(LAYERS):
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
    scale = 1 / math.sqrt(dot(x, x) / len(x) + 1e-6)
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
            angle = place * 10000.0 ** (-2 * i / D)
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
