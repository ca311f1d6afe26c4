"""The size that NeMo-RL's sparse refit would have: bench/nemo_refit.py OLD NEW

OLD and NEW are checkpoints in bf16: directories of safetensors files. The format is rebuilt from
NeMo-RL's design document (sparse-delta-refit.md). For each tensor: differences of ascending positions
in the narrowest of u16, u32 and u64; XOR of old and new bits. Then zstd level 1 over all of it. Headers
and tensor metadata are left out."""
import json
import pathlib
import subprocess
import sys

import numpy as np


def tensors(directory):
    for path in sorted(pathlib.Path(directory).glob("*.safetensors")):
        data = np.memmap(path, np.uint8, "r")
        start = 8 + int.from_bytes(data[:8].tobytes(), "little")
        for name, entry in json.loads(data[8:start].tobytes()).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                yield name, data[start + begin:start + end].view(np.uint16)


def narrowest(gaps):
    largest = int(gaps.max())
    return gaps.astype(np.uint16 if largest < 1 << 16 else np.uint32 if largest < 1 << 32 else np.uint64)


old, n_elements, n_changed, locations, values = dict(tensors(sys.argv[1])), 0, 0, [], []
for name, new in tensors(sys.argv[2]):
    moves = old[name] ^ new
    positions = np.flatnonzero(moves)
    n_elements += new.size
    n_changed += positions.size
    if positions.size:
        locations.append(narrowest(np.diff(positions, prepend=0)).tobytes())
        values.append(moves[positions].tobytes())
packed = subprocess.run(["zstd", "-1", "-c"], input=b"".join(locations + values),
                        stdout=subprocess.PIPE, check=True).stdout
print(f"{n_changed:,} of {n_elements:,} changed ({100 * n_changed / n_elements:.3f} %): "
      f"{len(packed):,} bytes, {8 * len(packed) / n_changed:.2f} bits a change")
