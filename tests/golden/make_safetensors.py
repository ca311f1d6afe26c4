#!/usr/bin/env python3
"""Makes golden/safetensors: small good files, files that must be refused, and
expected.txt, which has for each the result of the parser:

    FILE <tab> ok | corrupt | unsupported <tab> the exact error text

Among them are all malformed-file cases of the stock library's own tests.
"""
import json
import pathlib
import struct

FOLDER = pathlib.Path(__file__).parent / "safetensors"
EXPECTED = []


def emit(name, content, status="ok", text=""):
    assert len(content) < 1024, name
    (FOLDER / f"{name}.safetensors").write_bytes(content)
    EXPECTED.append(f"{name}.safetensors\t{status}\t{text}\n")


def framed(header, data=b""):
    if not isinstance(header, bytes):
        header = (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(header)) + header + data


def entry(dtype="U8", shape=(4,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def good(name, header, data=b""):
    emit(f"good_{name}", framed(header, data))


def bad(name, header, data, text, status="corrupt"):
    emit(f"bad_{name}", framed(header, data), status, text)


FOUR = bytes(range(4))

good("empty", "{}      ")
good("padded_with_white_space", "{}\r \t\n")
good("metadata_only", {"__metadata__": {"format": "pt", "b": ""}})
good("one", {"attn.0": entry("F32", (1, 2, 3), (0, 24))}, bytes(24))
good("scalar", {"test": entry("I32", (), (0, 4))}, FOUR)
good("zero_sized", {"test": entry("I32", (2, 0), (0, 0))})
good("zero_sized_between", {"a": entry(), "b": entry("F64", (0,), (4, 4)),
                            "c": entry("U8", (4,), (4, 8))}, FOUR + FOUR)
good("misordered_header", {"b": entry("U8", (4,), (4, 8)), "a": entry()}, FOUR + FOUR)
good("name_empty", {"": entry()}, FOUR)
good("name_utf8", '{"\u03b2.\\u00e9":' + json.dumps(entry()) + "}", FOUR)
good("odd_alignment", {"a": entry("U8", (1,), (0, 1)),
                       "b": entry("F32", (1,), (1, 5))}, FOUR + b"\0")
BITS = dict(BOOL=8, U8=8, I8=8, U16=16, I16=16, U32=32, I32=32, U64=64, I64=64, F16=16,
            BF16=16, F32=32, F64=64, F8_E4M3=8, F8_E5M2=8, F8_E8M0=8, F8_E4M3FNUZ=8,
            F8_E5M2FNUZ=8, F6_E2M3=6, F6_E3M2=6, F4=4, C64=64)
for half in range(2):
    names, offset, header = list(BITS)[half * 11:][:11], 0, {}
    for dtype in names:
        n_bytes = 4 * BITS[dtype] // 8
        header[dtype] = entry(dtype, (2, 2), (offset, offset + n_bytes))
        offset += n_bytes
    text = json.dumps(header, separators=(",", ":"))
    good(f"dtypes_{half}", text, bytes(offset))

# ---- the frame ----
emit("bad_no_bytes", b"", "corrupt", "0 bytes are too few for a safetensors file")
emit("bad_seven_bytes", bytes(7), "corrupt", "7 bytes are too few for a safetensors file")
emit("bad_header_too_large", b"<\0\0\0\0\xff\xff\xff" + b"{}", "corrupt",
     "a header of 18446742974197923900 bytes is over the limit of 100000000")
emit("bad_header_over_limit", struct.pack("<Q", 100_000_001) + b"{}", "corrupt",
     "a header of 100000001 bytes is over the limit of 100000000")
emit("bad_header_past_end", struct.pack("<Q", 60), "corrupt",
     "a header of 60 bytes does not fit a file of 8")
bad("header_empty", "", b"", "the header does not start with '{'")
bad("header_starts_with_space", " {}", b"", "the header does not start with '{'")
bad("header_is_list", "[]", b"", "the header does not start with '{'")

# ---- JSON ----
strict = "the header is not strict JSON: "
bad("not_utf8_at_start", b"\xff", b"", "the header does not start with '{'")
bad("not_utf8", b'{"\xff":1}', b"",
    strict + "a string is not UTF-8 (byte 2)")
bad("surrogate", '{"\\ud800":1}', b"",
    strict + "half of a surrogate pair (byte 8)")
bad("not_json", "{", b"",
    strict + "a key is expected (byte 1)")
bad("nul_in_name", '{"a\\u0000b":' + json.dumps(entry()) + "}", FOUR,
    strict + "a NUL in a string (byte 9)")
bad("nul_padding", b"{}\0\0", b"",
    strict + "there is text behind the value (byte 2)")
bad("text_after", "{}x", b"", strict + "there is text behind the value (byte 2)")
bad("duplicate_name", '{"a":%s,"a":%s}' % ((json.dumps(entry()),) * 2), FOUR,
    strict + "an object has a key twice (byte 117)")
bad("number_too_big", {"a": entry("I32", (2, 2**64 - 2), (0, 4))}, FOUR,
    strict + "an integer beyond 64 bits (byte 56)")

# ---- entries ----
for name, value in (("number", 1), ("list", ["U8", [4], [0, 4]])):
    bad(f"entry_is_{name}", {"a": value}, FOUR, "tensor 'a': its entry is not an object")
for key in ("dtype", "shape", "data_offsets"):
    broken = entry()
    del broken[key]
    bad(f"no_{key}", {"a": broken}, FOUR, f"tensor 'a': {key} is missing")
bad("unknown_key", {"a": entry() | {"z": 1}}, FOUR,
    "tensor 'a': it has keys other than dtype, shape and data_offsets")
bad("dtype_is_number", {"a": entry(8)}, FOUR, "tensor 'a': dtype is not a string")
bad("dtype_unknown", {"a": entry("F3")}, FOUR, "tensor 'a': unknown dtype 'F3'",
    "unsupported")
bad("dtype_lower_case", {"a": entry("u8")}, FOUR, "tensor 'a': unknown dtype 'u8'",
    "unsupported")
bad("shape_is_number", {"a": entry() | {"shape": 4}}, FOUR,
    "tensor 'a': shape is not an array")
for name, value in (("negative", -4), ("real", 4.0), ("text", "4"), ("null", None)):
    bad(f"shape_{name}", {"a": entry("U8", (1, value))}, FOUR,
        "tensor 'a': shape[1] is not a non-negative integer")
bad("shape_overflows", {"a": entry("U8", (2**62, 4))}, FOUR,
    "tensor 'a': its shape overflows 64 bits")
bad("size_overflows", {"a": entry("I32", (2, 2**62 - 1))}, FOUR,
    "tensor 'a': its shape overflows 64 bits")
bad("shape_overflows_before_zero", {"a": entry("U8", (2**62, 4, 0), (0, 0))}, b"",
    "tensor 'a': its shape overflows 64 bits")
bad("too_many_dims", {"a": entry("U8", (1,) * 65, (0, 1))}, FOUR[:1],
    "tensor 'a': 65 dimensions are more than 64", "unsupported")
bad("half_bytes", {"a": entry("F4", (3,), (0, 2))}, FOUR[:2],
    "tensor 'a': its F4 elements do not fill whole bytes")
bad("half_bytes_of_six", {"a": entry("F6_E2M3", (2,), (0, 2))}, FOUR[:2],
    "tensor 'a': its F6_E2M3 elements do not fill whole bytes")
for name, value in (("one", [0]), ("three", [0, 2, 4]), ("negative", [-4, 0]),
                    ("real", [0, 4.0]), ("object", {"0": 0, "1": 4})):
    bad(f"offsets_{name}", {"a": entry() | {"data_offsets": value}}, FOUR,
        "tensor 'a': data_offsets is not a pair of non-negative integers")
bad("offsets_reversed", {"a": entry("U8", (4,), (4, 0))}, FOUR,
    "tensor 'a': data_offsets begin at 4, after their end 0")
bad("shape_needs_more", {"a.b": entry("F32", (3,), (0, 8))}, bytes(8),
    "tensor 'a.b': shape needs 12 bytes but data_offsets span 8")
bad("shape_needs_less", {"test": entry("I32", (2, 2), (0, 32))}, bytes(32),
    "tensor 'test': shape needs 16 bytes but data_offsets span 32")

# ---- how the entries cover the data ----
bad("data_missing", {"test": entry("I32", (2, 2), (0, 16))}, bytes(14),
    "tensor 'test': data_offsets end at 16 but the file holds 14 bytes of data")
bad("data_left_over", {"test": entry("I32", (2, 2), (0, 16))},
    bytes(16) + b"extra_bogus_data_for_polyglot_file",
    "the last 34 bytes belong to no tensor")
bad("data_without_tensors", {}, FOUR, "the last 4 bytes belong to no tensor")
bad("hole_at_start", {"a": entry("U8", (4,), (4, 8))}, bytes(8),
    "tensor 'a': the 4 bytes before it belong to no tensor")
bad("hole_between", {"a": entry(), "b": entry("U8", (4,), (6, 10))}, bytes(10),
    "tensor 'b': the 2 bytes before it belong to no tensor")
bad("overlap", {"a": entry(), "b": entry("U8", (4,), (3, 7))}, bytes(7),
    "tensor 'b': it overlaps tensor 'a'")
bad("overlap_whole", {f"weight_{i}": entry("F32", (2, 2), (0, 16)) for i in range(10)},
    bytes(16), "tensor 'weight_1': it overlaps tensor 'weight_0'")
bad("overlap_empty", {"a": entry(), "b": entry("U8", (0,), (2, 2))}, FOUR,
    "tensor 'b': it overlaps tensor 'a'")

# ---- metadata ----
bad("metadata_null", {"__metadata__": None}, b"", "__metadata__ is not an object")
bad("metadata_number", {"__metadata__": {"a": 1}}, b"",
    "__metadata__ 'a' is not a string")
bad("metadata_nul", '{"__metadata__":{"a":"\\u0000"}}', b"",
    strict + "a NUL in a string (byte 28)")

# ---- names that would break a terminal ----
bad("name_control", {"a\x1b[31m\n": 1}, b"",
    "tensor 'a\\x1b[31m\\x0a': its entry is not an object")
bad("name_long", {"n" * 500: 1}, b"",
    "tensor '" + "n" * 120 + "...': its entry is not an object")

(FOLDER / "expected.txt").write_text("".join(EXPECTED))
