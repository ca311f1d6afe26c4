"""The weights that a round publishes, computed without the program under test.

A step is a number. A version carries its step as a label, so that it can be compared with the
truth. A version that was torn has the label `A~B`: each byte is that of step A or that of step B.
"""

import json
import os
import struct

SHAPES = {
    "embed.weight": ("BF16", [96, 64]),
    "layers.0.mlp.weight": ("BF16", [64, 80]),
    "layers.0.norm": ("F32", [900]),
    "layers.1.mlp.weight": ("F8_E4M3", [70, 50]),
    "lm_head.weight": ("F16", [64, 32]),
    "tokens.seen": ("I64", [101]),
}
WIDTHS = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "I64": 8}


class Truth:
    def __init__(self, rng, directory, large):
        self.rng = rng
        self.directory = directory
        self.shapes = dict(SHAPES)
        if large:
            self.shapes["embed.weight"] = ("BF16", [4096, 64])
        header, at = {}, 0
        for name, (dtype, shape) in sorted(self.shapes.items()):
            n = WIDTHS[dtype]
            for dim in shape:
                n *= dim
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + n]}
            at += n
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self.header = struct.pack("<Q", len(text)) + text
        self.states = [rng.randbytes(at)]

    def state(self, step):
        """All bytes in order of the tensors' names. One in a hundred changes at each step."""
        while len(self.states) <= step:
            new = bytearray(self.states[-1])
            for _ in range(len(new) // 100):
                new[self.rng.randrange(len(new))] = self.rng.randrange(256)
            self.states.append(bytes(new))
        return self.states[step]

    def file(self, step):
        return self.header + self.state(step)

    def checkpoint(self, step):
        path = f"{self.directory}/{step}"
        if not os.path.exists(path):
            os.makedirs(path)
            with open(f"{path}/model.safetensors", "wb") as f:
                f.write(self.file(step))
        return path

    def is_label(self, data, label):
        if "~" not in label:
            return data == self.state(int(label))
        a, b = (self.state(int(x)) for x in label.split("~"))
        return len(data) == len(a) and all(d in (x, y) for d, x, y in zip(data, a, b))


def parse_safetensors(blob):
    """The tensors' bytes in order of their names; None if it is no such file."""
    try:
        n = struct.unpack("<Q", blob[:8])[0]
        header = json.loads(blob[8 : 8 + n])
        header.pop("__metadata__", None)
        spans = (header[name]["data_offsets"] for name in sorted(header))
        return b"".join(blob[8 + n + a : 8 + n + b] for a, b in spans)
    except (ValueError, KeyError, TypeError, struct.error):
        return None
