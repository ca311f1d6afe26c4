"""docs/FORMAT.md, decoder.py and the library agree.

The decoder reads what the library writes, both refuse altered bytes, and the document agrees with
both.
"""
import ast
import ctypes
import json
import os
import pathlib
import re
import struct
import subprocess
import sys

import numpy
import pytest
import safetensors
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import decoder
import dwlib
import make_example
from decoder import DTYPES, Tensor, apply_delta
from make_models import KINDS, ROW, change, pair, tensor, unit_type, weights

HERE = pathlib.Path(__file__).resolve().parent
DTYPE_NAMES = [row[0] for row in DTYPES]


@pytest.fixture
def random(request):
    return numpy.random.default_rng(list(request.node.name.encode()))


def check(base, new):
    """Encodes the change, and decodes it in every way; returns the delta."""
    content = dwlib.diff(base, new)
    assert dwlib.apply(base, content) == new
    assert apply_delta(base, content) == new
    assert {name for name, _ in safetensors.deserialize(content)} == {"index", "blocks"}
    return content


def modes(content):
    return dict(zip(("class", "packed", "stored"), dwlib.Delta(content).blocks()))


# ---- the decoder reads what the library writes ----

@pytest.mark.parametrize("dtype", DTYPE_NAMES)
@pytest.mark.parametrize("density", [0.0005, 0.01, 0.3, 1.0])
def test_every_type(random, dtype, density):
    for kind in KINDS:
        old, new = pair(random, dtype, (25, 80), density, kind)
        check({"w": old}, {"w": new})


@st.composite
def models(draw):
    random = numpy.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    names = draw(st.lists(st.one_of(
        st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=8),
        st.sampled_from(["a.b.weight", "a.b.bias", "a.c.weight"])), max_size=5, unique=True))
    base, new = {}, {}
    for name in names:
        if name == "__metadata__":
            continue
        dtype = draw(st.sampled_from(DTYPE_NAMES))
        shape = draw(st.lists(st.integers(0, 12), max_size=4))
        if ROW[dtype][1] < 8:  # whole bytes
            shape.append(8)
        density = draw(st.sampled_from([0, 0.01, 0.1, 0.5, 1]))
        base[name], new[name] = pair(random, dtype, tuple(shape), density,
                                     draw(st.sampled_from(KINDS)))
    return base, new


@given(models())
@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck),
          derandomize=True)
def test_random_models(model):
    check(*model)


def test_nothing_changed(random):
    old, _ = pair(random, "BF16", (10, 10), 0, "step")
    content = check({"w": old}, {"w": old})
    assert modes(content) == {"class": 0, "packed": 0, "stored": 0}
    assert check({}, {})


def test_scalars_and_empty_tensors(random):
    base, new = {}, {}
    for dtype in DTYPE_NAMES:
        if ROW[dtype][1] >= 8:
            base[dtype], new[dtype] = pair(random, dtype, (), 1, "sign")
        base[dtype + ".none"] = new[dtype + ".none"] = Tensor(dtype, (3, 0, 5), b"")
    check(base, new)


def test_dense_changes_are_packed_or_stored(random):
    for dtype in ("BF16", "F32", "F64", "F16"):
        old, new = pair(random, dtype, (70, 300), 1, "redraw")
        assert modes(check({"w": old}, {"w": new}))["packed"] == 1, dtype
    for dtype in ("BF16", "U8", "F8_E4M3", "I64", "C64", "F6_E3M2"):
        old, new = pair(random, dtype, (70, 304), 1, "any bits")
        assert modes(check({"w": old}, {"w": new}))["stored"] == 1, dtype


def test_several_blocks(random):
    """Blocks with few changes, many, all, and none: one tensor of each width."""
    n = (1 << 20) + 4321
    old = weights(random, "BF16", n)
    new = old.copy()
    new[[0, 5, 70_000, (1 << 20) - 1, 1 << 20, n - 1]] += 1
    long_old = weights(random, "F32", 3 << 19)
    long_new = long_old.copy()
    long_new[:1000] = change(random, "F32", long_old[:1000], 0.3, "few steps")
    long_new[-(1 << 19):] = change(random, "F32", long_old[-(1 << 19):], 1, "any bits")
    content = check({"a": tensor("BF16", old), "b": tensor("F32", long_old)},
                    {"a": tensor("BF16", new), "b": tensor("F32", long_new)})
    assert modes(content) == {"class": 3, "packed": 0, "stored": 1}


def test_blocks_of_eight_byte_units(random):
    old = weights(random, "F64", (1 << 18) + 100)
    new = change(random, "F64", old, 0.002, "few steps")
    new[-3:] = 0
    assert modes(check({"w": tensor("F64", old)}, {"w": tensor("F64", new)}))["class"] == 2


def test_changes_in_clusters(random):
    """Gaps far larger than their distribution expects: many FAR symbols."""
    old = weights(random, "BF16", 200_000)
    new = old.copy()
    for begin in (0, 61_234, 150_000, 199_500):
        new[begin:begin + 400] = change(random, "BF16", old[begin:begin + 400], 0.9, "few steps")
    check({"w": tensor("BF16", old)}, {"w": tensor("BF16", new)})


def test_one_class_changes_and_the_next_does_not(random):
    old = numpy.repeat(numpy.arange(0, 1 << 15, 1 << 7, dtype="<u2"), 40)
    new = old.copy()
    new[(old >> 7) % 3 == 0] += 2
    new[-1] += 1
    check({"w": tensor("BF16", old)}, {"w": tensor("BF16", new)})


@pytest.mark.parametrize("dtype", ["F16", "BF16", "F32", "F64", "F8_E4M3", "F8_E5M2", "C64",
                                   "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0"])
def test_special_values(dtype):
    """Every special pattern to every other: NaN payloads, infinities, both zeros."""
    bits = 8 * ROW[dtype][2]
    sign, most, top = 1 << bits - 1, (1 << bits) - 1, (1 << ROW[dtype][3]) - 1
    infinity = most & ~sign & ~top
    patterns = [0, sign, 1, sign | 1, infinity, sign | infinity, infinity | 1, most, most >> 1,
                infinity | top // 2 + 1, most - 1, sign | top]
    grid = numpy.array(patterns, unit_type(dtype))
    old, new = numpy.repeat(grid, len(grid)), numpy.tile(grid, len(grid))
    check({"w": tensor(dtype, old)}, {"w": tensor(dtype, new)})


def test_tied_duplicates(random):
    old, new = pair(random, "BF16", (64, 32), 0.02, "step")
    names = ("lm_head.weight", "model.embed_tokens.weight")
    check(dict.fromkeys(names, old), dict.fromkeys(names, new))


def test_names(random):
    old, new = pair(random, "F16", (9,), 0.5, "step")
    names = ["", "a", "aa", "ab", "a" * 1024, "\u00e9", "\u00ea", 'q"\\\n', '"seal":"0', "index"]
    check(dict.fromkeys(names, old), dict.fromkeys(names, new))


def test_command_line(tmp_path, random):
    """A sharded base in, a file that the stock library opens out."""
    arrays = {f"w.{i}": random.normal(0, 1, (40, 10)).astype(kind)
              for i, kind in enumerate(["float32", "float16", "float64", "int8"])}
    (tmp_path / "base").mkdir()
    weight_map = {}
    for i in range(2):
        file = f"model-{i + 1:05d}-of-00002.safetensors"
        shard = {name: a for name, a in arrays.items() if int(name[2:]) % 2 == i}
        safetensors.numpy.save_file(shard, tmp_path / "base" / file)
        weight_map.update(dict.fromkeys(shard, file))
    (tmp_path / "base/model.safetensors.index.json").write_text(json.dumps(
        {"metadata": {}, "weight_map": weight_map}))
    base = decoder.read_checkpoint(tmp_path / "base")
    arrays["w.1"][3:9, 2] *= -1
    arrays["w.3"] += 1
    new = decoder.read_safetensors(safetensors.numpy.save(arrays))[2]
    (tmp_path / "delta").write_bytes(dwlib.diff(base, new))
    command = [sys.executable, HERE / "decoder.py", tmp_path / "base", tmp_path / "delta"]
    subprocess.run([*command, tmp_path / "out"], check=True)
    loaded = safetensors.numpy.load_file(tmp_path / "out")
    assert loaded.keys() == arrays.keys()
    assert all(numpy.array_equal(loaded[name], array) for name, array in arrays.items())
    subprocess.run([*command, tmp_path], check=True)
    assert (tmp_path / "model.safetensors").read_bytes() == (tmp_path / "out").read_bytes()


# ---- both refuse altered bytes ----

def refused(base, content):
    with pytest.raises(dwlib.Failed):
        dwlib.apply(base, content)
    with pytest.raises(ValueError):
        apply_delta(base, content)


def mixed_model(random):
    """Class, packed, stored and unchanged blocks in one delta."""
    kinds = {"a.class": ("BF16", 0.05, "few steps"), "b.packed": ("F32", 1, "redraw"),
             "c.stored": ("U8", 1, "any bits"), "d.same": ("F16", 0, "step"),
             "e.class": ("F8_E5M2", 0.1, "step")}
    pairs = {name: pair(random, dtype, (30, 20), density, kind)
             for name, (dtype, density, kind) in kinds.items()}
    return tuple({name: p[i] for name, p in pairs.items()} for i in range(2))


def test_every_bit_of_a_small_delta():
    base, _ = make_example.models()
    content = bytearray(make_example.delta())
    for bit in range(8 * len(content)):
        content[bit >> 3] ^= 1 << (bit & 7)
        refused(base, bytes(content))
        content[bit >> 3] ^= 1 << (bit & 7)


def test_bits_of_a_larger_delta(random):
    base, new = mixed_model(random)
    content = bytearray(check(base, new))
    assert all(n > 0 for n in modes(bytes(content)).values())
    for bit in random.choice(8 * len(content), 600, replace=False):
        content[bit >> 3] ^= 1 << (bit & 7)
        refused(base, bytes(content))
        content[bit >> 3] ^= 1 << (bit & 7)


def test_cut_and_grown_files(random):
    base, new = mixed_model(random)
    content = check(base, new)
    for n in [*range(0, 600, 7), *range(600, len(content), 97), len(content) - 1]:
        refused(base, content[:n])
    refused(base, content + b"\0")
    refused(base, content + content)


def test_wrong_base(random):
    base, new = mixed_model(random)
    content = check(base, new)

    def code(weights_):
        with pytest.raises(ValueError):
            apply_delta(weights_, content)
        with pytest.raises(dwlib.Failed) as caught:
            dwlib.apply(weights_, content)
        return caught.value.code
    assert code(new) == "stale"
    for name in base:  # one bit in any tensor, changed by the delta or not
        data = bytearray(base[name].data)
        data[len(data) // 2] ^= 4
        assert code({**base, name: base[name]._replace(data=bytes(data))}) == "stale"
    t = base["a.class"]
    assert code({**base, "a.class": t._replace(shape=(20, 30))}) == "mismatch"
    assert code({**base, "a.class": t._replace(dtype="F16")}) == "mismatch"
    assert code({**base, "more": t}) == "mismatch"
    assert code({n: t for n, t in base.items() if n != "d.same"}) == "mismatch"
    assert code({n: t for n, t in base.items() if n != "a.class"}) == "mismatch"


def test_unknown_formats_are_refused_by_name():
    base, _ = make_example.models()
    content = make_example.delta().replace(b"deltawire/1", b"deltawire/2")
    with pytest.raises(ValueError, match="deltawire/2"):
        apply_delta(base, content)
    with pytest.raises(dwlib.Failed, match="deltawire/2") as caught:
        dwlib.Delta(content)
    assert caught.value.code == "unsupported"


def resealed(content, edit):
    """The delta with an edited index (or header), sealed anew."""
    header, metadata, parts = decoder.read_safetensors(content)
    entries = json.loads(header)
    index, blocks = edit(entries["__metadata__"], parts["index"].data, parts["blocks"].data)
    entries["index"].update(shape=[len(index)], data_offsets=[0, len(index)])
    entries["blocks"].update(shape=[len(blocks)],
                             data_offsets=[len(index), len(index) + len(blocks)])
    entries["__metadata__"]["seal"] = "0" * 16
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    seal = b"%016x" % decoder.xxh64(text + index)
    text = text.replace(b'"seal":"' + b"0" * 16, b'"seal":"' + seal)
    return struct.pack("<Q", len(text)) + text + index + blocks


def test_an_unknown_key_is_ignored():
    base, new = make_example.models()

    def edit(metadata, index, blocks):
        metadata["note"] = "hello"
        return index, blocks
    content = resealed(make_example.delta(), edit)
    assert apply_delta(base, content) == dwlib.apply(base, content) == new


INDEX_EDITS = {
    "another count": lambda i: i[:10] + b"\6" + i[11:],
    "no changes": lambda i: i[:10] + b"\0" + i[11:],
    "padded varint": lambda i: i[:10] + b"\x87\0" + i[11:],
    "another base digest": lambda i: i[:11] + bytes([i[11] ^ 1]) + i[12:],
    "another new digest": lambda i: i[:19] + bytes([i[19] ^ 1]) + i[20:],
    "a checksum that is wrong": lambda i: i[:27] + bytes([i[27] ^ 1]) + i[28:],
    "a class base that joins classes": lambda i: i[:35] + b"\x6a" + i[36:],
    "a class base too large": lambda i: i[:35] + b"\x80\2" + i[36:],
    "a block that is longer": lambda i: i[:36] + b"\x45" + i[37:],
    "mode same with bytes": lambda i: i[:36] + b"\x40" + i[37:],
    "mode packed": lambda i: i[:36] + b"\x42" + i[37:],
    "mode stored": lambda i: i[:36] + b"\x43" + i[37:],
    "an unknown dtype": lambda i: i[:6] + b"\x16" + i[7:],
    "another dtype": lambda i: i[:6] + b"\x09" + i[7:],
    "another shape": lambda i: i[:8] + b"\6\4" + i[10:],
    "a shared name where there is none": lambda i: b"\1\3roj" + i[6:],
    "another name": lambda i: i[:5] + b"k" + i[6:],
    "the entry twice": lambda i: i + i,
    "a byte more": lambda i: i + b"\0",
    "a byte less": lambda i: i[:-1],
    "nothing": lambda i: b"",
}


@pytest.mark.parametrize("edit", INDEX_EDITS.values(), ids=INDEX_EDITS)
def test_sealed_nonsense(edit):
    """A seal proves that the bytes are those that were written, not that they are valid."""
    base, _ = make_example.models()
    refused(base, resealed(make_example.delta(), lambda _, i, b: (edit(i), b)))


def test_an_empty_name_stands_once():
    base, new = ({"": m["proj"]} for m in make_example.models())

    def twice(metadata, index, blocks):
        metadata["changed"] = "14"
        return index + index, blocks + blocks
    refused(base, resealed(check(base, new), twice))


@pytest.mark.parametrize("key", ["base_version", "new_version", "base_digest", "new_digest",
                                 "changed", "tensors"])
def test_sealed_metadata(key):
    base, _ = make_example.models()

    def edit(value):
        def apply(metadata, index, blocks):
            metadata[key] = value
            return index, blocks
        return apply
    for value in ("", "-1", "seven"):
        with pytest.raises(dwlib.Failed):
            dwlib.apply(base, resealed(make_example.delta(), edit(value)))
    if "version" not in key:
        refused(base, resealed(make_example.delta(), edit("8")))


def test_sealed_blocks(random):
    """Class blocks with random bytes and valid checksums are never accepted as other weights."""
    base, _ = make_example.models()
    example = make_example.delta()

    def with_block(block):
        def edit(_, index, _blocks):
            checksum = struct.pack("<Q", decoder.xxh64(block))
            return index[:27] + checksum + index[35:36] + bytes([4 * len(block) + 1]), block
        return resealed(example, edit)
    block = decoder.read_safetensors(example)[2]["blocks"].data
    assert with_block(block) == example
    for bit in range(8 * len(block)):
        changed = bytearray(block)
        changed[bit >> 3] ^= 1 << (bit & 7)
        refused(base, with_block(bytes(changed)))
    for n in range(1, 31):
        refused(base, with_block(block[:n] if n < len(block) else block + bytes(n - 15)))
        refused(base, with_block(random.bytes(n)))


# ---- the document ----

def section(number):
    text = make_example.FORMAT.read_text()
    return re.search(rf"^## {number} .*?(?=^## |\Z)", text, re.M | re.S).group(0)


def test_the_example_is_what_the_library_writes():
    assert make_example.EXAMPLE.read_text() == make_example.example()


def test_the_hex_dump_decodes_to_the_stated_values():
    text = make_example.EXAMPLE.read_text()
    content = bytes.fromhex(text.split("reads this):\n\n")[1].split("\n\n")[0])
    rows = text.split("as bit patterns:\n\n")[1].split("\n\n")[0].split()
    old = [int(word, 16) for word in rows]
    new = list(old)
    for element, before, after in re.findall(r"^    (\d+) +(\w{4})  (\w{4})  ", text, re.M):
        assert old[int(element)] == int(before, 16)
        new[int(element)] = int(after, 16)
    norm = Tensor("F32", (2,), struct.pack("<2f", 1.0, 0.5))
    base, result = ({"norm": norm, "proj": Tensor("BF16", (4, 6), struct.pack("<24H", *units))}
                    for units in (old, new))
    assert apply_delta(base, content) == dwlib.apply(base, content) == result
    info = dwlib.Delta(content).info()
    assert (info.base_version, info.new_version, info.n_changed) == (41, 42, 7)


def test_constants_of_the_document():
    cells = re.findall(r"t = +(\d+): +(\d{6,})\b", section(6))
    stay = {int(t): int(value) for t, value in cells}
    assert [stay[t] for t in range(24)] == decoder.STAY
    for t, sizes in re.findall(r"t = +(\d+):  (\d[\d\s]+)(?=t =|```)", section(6).split("in full")[1]):
        slots = decoder.TABLES[int(t)]
        assert [int(n) for n in sizes.split()] == [
            sum(slot[0] == s for slot in slots) for s in range(32)]
    rows = re.findall(r"^ +(\d+)  (\w+) +(\d+) +(\d)(?: +(\d+))?$", section(2), re.M)
    assert [(name, int(b), int(w), int(m or 0)) for _, name, b, w, m in rows] == DTYPES
    assert [int(number) for number, *_ in rows] == list(range(22))
    assert f"{decoder.SEED:#x}" in section(1)
    for i, (name, *_) in enumerate(DTYPES):
        assert dwlib.lib.dw_dtype_name(i).decode() == name


def test_the_decoder_is_short_and_stands_alone():
    text = (HERE / "decoder.py").read_text()
    assert len(text.splitlines()) < 300
    for node in ast.walk(ast.parse(text)):
        names = ([a.name for a in node.names] if isinstance(node, ast.Import) else
                 [node.module] if isinstance(node, ast.ImportFrom) else [])
        for name in names:
            top = name.split(".")[0]
            assert top in sys.stdlib_module_names or top == "compression"


def test_digests(random):
    """The decoder's digests are the library's, for every length of the last chunk."""
    digest = dwlib.lib.dw_digest_bytes
    for n in [*range(0, 40), 4095, 4096, 4097, 8192, 12_345, 1 << 20]:
        data = random.bytes(n)
        assert decoder.digest(data) == digest(data, n)
    assert decoder.digest(b"\xff" * 70_000) == digest(b"\xff" * 70_000, 70_000)


# ---- the patch file ----

def write_patch(tensors, segments):
    """tensors: {name: Tensor}, all zeros; segments: (name, first, positions, values as bytes)"""
    def varint(n):
        return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)
    names, body = list(tensors), b"DWPATCH1"
    table = b"\0" + bytes(8) + varint(0) + varint(len(names))
    for name, t in tensors.items():
        table += varint(len(name.encode())) + name.encode()
        table += bytes([DTYPE_NAMES.index(t.dtype), len(t.shape)])
        table += b"".join(map(varint, t.shape))
    table += varint(len(segments))
    for name, first, positions, values in segments:
        segment = struct.pack(f"<{len(positions)}I", *positions)
        segment += bytes(-len(segment) % 8) + values + bytes(-len(values) % 8)
        segment += bytes(len(values)) + bytes(-len(values) % 8)
        table += b"".join(map(varint, (names.index(name), first, len(positions), len(body))))
        table += struct.pack("<Q", decoder.xxh64(segment))
        body += segment
    return body + table + struct.pack("<QQ", len(body), decoder.xxh64(table))


def recover(path):
    found = ctypes.c_bool()
    dwlib.call(dwlib.lib.dw_checkpoint_recover, os.fsencode(path), 0, ctypes.byref(found))
    return found.value


def test_a_patch_file_is_finished(tmp_path):
    tensors = {"a": Tensor("BF16", (50,), bytes(100)), "b": Tensor("F64", (2, 3), bytes(48))}
    file, own = tmp_path / "model.safetensors", tmp_path / ".deltawire"
    patch_file = own / "model.safetensors.patch"
    own.mkdir()
    decoder.write_safetensors(file, tensors)
    before = file.read_bytes()
    patch = write_patch(tensors, [("b", 1, [0, 4], struct.pack("<2d", 1.5, -2)),
                                  ("a", 0, [3, 4, 49], struct.pack("<3H", 1, 2, 3))])
    for bit in range(0, 8 * len(patch), 3):
        altered = bytearray(patch)
        altered[bit >> 3] ^= 1 << (bit & 7)
        patch_file.write_bytes(altered)
        with pytest.raises(dwlib.Failed):
            recover(file)
        assert file.read_bytes() == before
    patch_file.write_bytes(patch)
    replaced = {**tensors, "a": Tensor("BF16", (50,), bytes(6) + b"\7" + bytes(93))}
    decoder.write_safetensors(file, replaced)
    with pytest.raises(dwlib.Failed, match="replaced"):
        recover(file)
    assert decoder.read_checkpoint(file)["a"].data == replaced["a"].data
    decoder.write_safetensors(file, tensors)
    assert recover(file) and not patch_file.exists() and not recover(file)
    new = decoder.read_checkpoint(file)
    assert struct.unpack("<6d", new["b"].data) == (0, 1.5, 0, 0, 0, -2)
    assert [i for i, x in enumerate(struct.unpack("<50H", new["a"].data)) if x] == [3, 4, 49]
