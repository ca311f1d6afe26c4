"""Compresses a whole checkpoint with zipnn: the cost of shipping the compressed model."""
import pathlib
import sys
import time

from zipnn import ZipNN


def tensor_bytes(path):
    data = path.read_bytes()
    return data[8 + int.from_bytes(data[:8], "little"):]


data = bytearray(b"".join(tensor_bytes(p) for p in sorted(pathlib.Path(sys.argv[1]).glob("*.safetensors"))))
zipnn = ZipNN(bytearray_dtype="bfloat16", input_format="byte", threads=2)
best = [float("inf")] * 2
for _ in range(5):
    start = time.perf_counter()
    packed = zipnn.compress(bytearray(data))
    middle = time.perf_counter()
    plain = zipnn.decompress(packed)
    end = time.perf_counter()
    best = [min(best[0], middle - start), min(best[1], end - middle)]
print(f"zipnn, whole checkpoint: {len(data):,} -> {len(packed):,} bytes "
      f"({len(packed) / len(data):.3f}), compress {len(data) / best[0] / 1e9:.2f} GB/s, "
      f"decompress {len(data) / best[1] / 1e9:.2f} GB/s, "
      f"equal: {'yes' if bytes(plain) == bytes(data) else 'NO'}")
