"""Makes tests/data/trace: the first rows of some tensors of the shared RL trace.

    python3 tests/data/make_slice.py ../shared/data/rl-trace tests/data/trace

    trace/base/                 2 shards and their index
    trace/deltas/step_N         TRL v1, the changes of each step in the slice
    trace/states.json           SHA-256 over all tensors in order of their names, after
                                each step, as in the whole trace

Rows are taken from the front, so positions stay the same. Standard library only;
the same input gives the same bytes.
"""
import hashlib
import json
import pathlib
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "format"))
from decoder import Tensor, read_checkpoint, read_safetensors, write_safetensors  # noqa: E402

LAYER = "model.layers.13."
ROWS = {"model.embed_tokens.weight": 64, LAYER + "self_attn.q_proj.weight": 128,
        LAYER + "self_attn.k_proj.weight": 64, LAYER + "self_attn.v_proj.weight": 64,
        LAYER + "self_attn.o_proj.weight": 32, LAYER + "mlp.gate_proj.weight": 64,
        LAYER + "mlp.up_proj.weight": 64, LAYER + "mlp.down_proj.weight": 24}


def cut(name, tensor):
    rows = ROWS.get(name, tensor.shape[0])  # norms whole
    shape = (rows, *tensor.shape[1:])
    n_bytes = len(tensor.data) // tensor.shape[0] * rows
    return Tensor(tensor.dtype, shape, tensor.data[:n_bytes])


def write_base(folder, base):
    shards = [{n: t for n, t in base.items() if ("mlp" in n) == mlp} for mlp in (False, True)]
    weight_map = {}
    folder.mkdir(parents=True)
    for i, tensors in enumerate(shards, 1):
        file = f"model-{i:05d}-of-{len(shards):05d}.safetensors"
        write_safetensors(folder / file, tensors, {"format": "pt"})
        weight_map.update(dict.fromkeys(tensors, file))
    total = sum(len(t.data) for t in base.values())
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def cut_step(content, base):
    """-> metadata, tensors of the file, {name: (indices, values)}"""
    _, metadata, tensors = read_safetensors(content)
    parts, changes, n_elems = {}, {}, 0
    for name in json.loads(metadata["changed_params"]):
        n = len(base[name].data) // 2
        indices = struct.unpack(f"<{tensors[name + '.indices'].shape[0]}i",
                                tensors[name + ".indices"].data)
        kept = sum(i < n for i in indices)  # they ascend
        if kept == 0:
            continue
        indices, values = indices[:kept], tensors[name + ".values"].data[:2 * kept]
        changes[name] = indices, values
        n_elems += n
        parts[name + ".indices"] = Tensor("I32", (kept,), struct.pack(f"<{kept}i", *indices))
        parts[name + ".values"] = Tensor("BF16", (kept,), values)
    n_changed = sum(len(indices) for indices, _ in changes.values())
    metadata.update(num_changed_params=str(len(changes)), changed_params=json.dumps(list(changes)),
                    total_changed_elements=str(n_changed), total_elements=str(n_elems),
                    sparsity=str(1 - n_changed / n_elems))
    return metadata, parts, changes


def sha256(data):
    state = hashlib.sha256()
    for name in sorted(data):
        state.update(data[name])
    return state.hexdigest()


def main(source, target):
    base = {n: cut(n, t) for n, t in sorted(read_checkpoint(source / "base").items())}
    write_base(target / "base", base)
    (target / "deltas").mkdir()
    data = {name: bytearray(t.data) for name, t in base.items()}
    states = {"0": sha256(data)}
    for file in sorted((source / "deltas").glob("step_*.safetensors")):
        metadata, parts, changes = cut_step(file.read_bytes(), base)
        write_safetensors(target / "deltas" / file.name, parts, metadata)
        for name, (indices, values) in changes.items():
            for k, i in enumerate(indices):
                data[name][2 * i:2 * i + 2] = values[2 * k:2 * k + 2]
        states[metadata["model_version"]] = sha256(data)
    text = {"digest": "sha256 over the bytes of all tensors in sorted name order, after step N",
            "states": states}
    (target / "states.json").write_text(json.dumps(text, indent=1) + "\n")


if __name__ == "__main__":
    main(*map(pathlib.Path, sys.argv[1:]))
