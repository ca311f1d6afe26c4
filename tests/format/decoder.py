"""Decoder of deltawire/1 deltas, written from docs/FORMAT.md with the standard library.

    python3 decoder.py BASE DELTA OUT

BASE is a safetensors file or a directory of them; OUT becomes a file of the new tensors.
A violation of the format raises ValueError. Sections are numbered as in FORMAT.md.
"""
import collections, json, math, operator, pathlib, struct, subprocess, sys
try:
    from compression.zstd import decompress as unzstd  # Python 3.14
except ImportError:
    def unzstd(frame):
        return subprocess.run(["zstd", "-dcq"], input=frame, capture_output=True).stdout

Tensor = collections.namedtuple("Tensor", "dtype shape data")
def need(condition, text):
    if not condition:
        raise ValueError(text)

# ---- 1 bytes and bits ----
class Bytes:
    def __init__(self, data): self.data, self.at = data, 0
    def take(self, n):
        need(n <= len(self.data) - self.at, "a field passes the end")
        self.at += n
        return self.data[self.at - n:self.at]
    def number(self, n_bytes): return int.from_bytes(self.take(n_bytes), "little")
    def varint(self):
        value, n, byte = 0, 0, 128
        while byte >= 128:
            byte = self.number(1)
            value |= (byte & 127) << 7 * n
            n += 1
        need(value <= MASK64 and n <= 10 and (byte or n == 1), "malformed varint")
        return value
    def done(self): return self.at == len(self.data)
class Bits:
    def __init__(self, data): self.data, self.bit = data, 0
    def get(self, n):
        first, self.bit = self.bit, self.bit + n
        need(self.bit <= 8 * len(self.data), "the bits end early")
        word = int.from_bytes(self.data[first >> 3:self.bit + 7 >> 3], "little")
        return word >> (first & 7) & (1 << n) - 1
    def signed(self):  # an Exp-Golomb code of order 0, zigzag
        n = 0
        while not self.get(1):
            n += 1
        value = (1 << n) + self.get(n) - 1
        return value >> 1 ^ -(value & 1)
    def done(self):
        left = 8 * len(self.data) - self.bit
        return left < 8 and self.get(left) == 0

# ---- 2 safetensors ----
# by number: name, bits of an element, bytes of a unit, mantissa bits (0: not a float)
ROWS = ("BOOL:8:1:0 U8:8:1:0 I8:8:1:0 U16:16:2:0 I16:16:2:0 U32:32:4:0 I32:32:4:0 U64:64:8:0 "
        "I64:64:8:0 F16:16:2:10 BF16:16:2:7 F32:32:4:23 F64:64:8:52 F8_E4M3:8:1:3 "
        "F8_E5M2:8:1:2 F8_E8M0:8:1:0 F8_E4M3FNUZ:8:1:3 F8_E5M2FNUZ:8:1:2 F6_E2M3:6:1:0 "
        "F6_E3M2:6:1:0 F4:4:1:0 C64:64:4:23")
DTYPES = [(n, int(b), int(w), int(m)) for n, b, w, m in (r.split(":") for r in ROWS.split())]
BITS = {row[0]: row[1] for row in DTYPES}
def unique(pairs):
    need(len(dict(pairs)) == len(pairs), "a JSON key is duplicated")
    return dict(pairs)

def read_safetensors(content):
    """-> JSON header as bytes, metadata, {name: Tensor}"""
    n = Bytes(content).number(8)
    need(n <= min(100_000_000, len(content) - 8), "the header does not fit")
    header, data = content[8:8 + n], content[8 + n:]
    try:
        entries = json.loads(header.decode("utf-8"), object_pairs_hook=unique)
        metadata = entries.pop("__metadata__", {})
        spans = sorted(e["data_offsets"] for e in entries.values())
        need([b for b, _ in spans] + [len(data)] == [0] + [e for _, e in spans], "offsets")
        tensors = {name: Tensor(e["dtype"], tuple(e["shape"]), data[slice(*e["data_offsets"])])
                   for name, e in entries.items()}
        for name, t in tensors.items():
            need(math.prod(t.shape) * BITS[t.dtype] == 8 * len(t.data), f"{name}: its shape")
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"the header is malformed: {error}")
    return header, metadata, tensors

def write_safetensors(path, tensors, metadata=None):
    entries, body = {"__metadata__": metadata} if metadata else {}, b""
    for name, t in sorted(tensors.items(), key=lambda item: -BITS[item[1].dtype]):
        span = [len(body), len(body) + len(t.data)]
        entries[name] = {"dtype": t.dtype, "shape": list(t.shape), "data_offsets": span}
        body += t.data
    header = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(header)) + header + body)

def read_checkpoint(path):
    files = path.glob("*.safetensors") if path.is_dir() else [path]
    return {k: t for file in files for k, t in read_safetensors(file.read_bytes())[2].items()}

# ---- 3 hashes and digests ----
P1, P2, P3, P4, P5 = (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9,
                      0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)
def rotl(x, r): return (x << r | x >> (64 - r)) & MASK64
def mix(lane, word): return rotl((lane + word * P2) & MASK64, 31) * P1 & MASK64
def xxh64(data, seed=0):
    at, h = len(data) & ~31, seed + P5
    if at:
        lanes = [seed + P1 + P2, seed + P2, seed, seed - P1]
        for words in struct.iter_unpack("<4Q", data[:at]):
            lanes = [mix(lane, word) for lane, word in zip(lanes, words)]
        h = sum(rotl(lane, r) for lane, r in zip(lanes, (1, 7, 12, 18)))
        for lane in lanes:
            h = (h & MASK64 ^ mix(0, lane)) * P1 + P4
    h, tail = h + len(data) & MASK64, Bytes(data[at:])
    for _ in range(len(tail.data) // 8):
        h = rotl(h ^ mix(0, tail.number(8)), 27) * P1 + P4 & MASK64
    if len(data) & 4:
        h = rotl(h ^ tail.number(4) * P1 & MASK64, 23) * P2 + P3 & MASK64
    for byte in tail.take(len(data) & 3):
        h = rotl(h ^ byte * P5 & MASK64, 11) * P1 & MASK64
    h = (h ^ h >> 33) * P2 & MASK64
    h = (h ^ h >> 29) * P3 & MASK64
    return h ^ h >> 32

PRIME, SEED, LOW30, MASK64 = (1 << 61) - 1, 0x64656C7461776972, (1 << 30) - 1, (1 << 64) - 1
def splitmix64(i):
    z = SEED + (i + 1) * 0x9E3779B97F4A7C15 & MASK64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & MASK64
    z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK64
    return z ^ z >> 31
A = [(r & LOW30) | (r >> 32 & LOW30) << 30 for r in map(splitmix64, range(1024))]
G = splitmix64(1024) >> 4
def digest(data):
    total, power = 0, 1
    for begin in range(0, len(data), 4096):
        words = struct.unpack("<1024I", data[begin:begin + 4096].ljust(4096, b"\0"))
        total += sum(map(operator.mul, words, A)) % PRIME * power
        power = power * G % PRIME
    return total % PRIME

def weight(name, t):
    text = f"{name}\0{t.dtype}\0".encode() + struct.pack(f"<{len(t.shape)}Q", *t.shape)
    return xxh64(text, SEED) >> 4 | 1
def state_digest(tensors, digests):
    return sum(weight(name, t) * (digests[name] + 1) for name, t in tensors.items()) % PRIME

# ---- 6 rANS ----
FAR = 31
STAY = [16777216, 40539604, 85128906, 158858995, 268435456, 417272424, 604670047, 826011010,
        1073741824, 1338720065, 1611532835, 1883531330, 2147483648, 2397865488, 2630870735,
        2844240754, 3037000500, 3209167158, 3361473452, 3495128183, 3611622603, 3712582389,
        3799660319, 3874462704]
def make_table(stay):
    slots, survive = [], 1 << 32  # of each slot: symbol, size, place among the symbol's slots
    for symbol in range(32):
        survive = survive * stay >> 32
        end = 4096 if symbol == FAR else min(4096 - (survive >> 20), 4096 - 31 + symbol)
        size = max(end - len(slots), 1)
        slots += [(symbol, size, place) for place in range(size)]
    return slots
TABLES = [make_table(stay) for stay in STAY]
def distribution(q):  # -> table, bits inside a bucket
    need(0 <= q <= 127, "q out of range")
    return (TABLES[q], 0) if q < 24 else (TABLES[20 + q % 4], (q - 20) // 4)

class Rans:
    def __init__(self, data):
        self.words = Bytes(data)
        self.states = [self.words.number(4), self.words.number(4)]  # used in turns
    def get(self, table):
        state = self.states.pop(0)
        symbol, size, place = table[state & 4095]
        state = size * (state >> 12) + place
        self.states.append(state if state >> 16 else state << 16 | self.words.number(2))
        return symbol
    def done(self): return self.words.done() and self.states == [1 << 16, 1 << 16]

# ---- 5, 7 and 8 blocks ----
def read_gaps(rans, bits, table, k, left):
    gaps, gap = [], 0
    while left > 0:
        symbol = rans.get(table)
        gap += symbol << k
        if gap >= left:
            break
        if symbol != FAR:
            gap += bits.get(k)
            need(gap < left, "a gap passes its class")
            gaps.append(gap)
            left, gap = left - gap - 1, 0
    return gaps

def read_move(rans, bits, table, k, width):
    symbol = rans.get(table)
    move = bits.get(8 * width) if symbol == FAR else (symbol << k + 1) + bits.get(k + 1)
    need(move < 1 << 8 * width, "a move larger than its type")
    return move

def moved(x, move, width, is_float):
    sign, mask = 1 << 8 * width - 1, (1 << 8 * width) - 1
    rank = x if not is_float else x ^ mask if x & sign else x | sign
    rank = rank + (-(move >> 1) - 1 if move & 1 else (move >> 1) + 1) & mask
    return rank if not is_float else rank ^ sign if rank & sign else rank ^ mask

def decode_class(data, units, width, mantissa, base):
    block = Bytes(data)
    rans, bits = Rans(block.take(block.varint())), Bits(data[block.at:])
    members, models, gap_q, move_q = [[] for _ in range(16)], [], 20, 20
    magnitude = (1 << 8 * width - 1) - 1 if mantissa else 0
    for i, x in enumerate(units):
        members[min(max(((x & magnitude) >> mantissa) - base, 0), 15)].append(i)
    for inside in members:
        if inside and bits.get(1):
            gap_q += 4 + bits.signed()
            if far_moves := bits.get(1):
                move_q += -4 + bits.signed()
            models.append((inside, distribution(gap_q), far_moves and distribution(move_q)))
    for inside, gap_model, move_model in models:
        at = -1
        for gap in read_gaps(rans, bits, *gap_model, len(inside)):
            at += gap + 1
            move = read_move(rans, bits, *move_model, width) if move_model else bits.get(1)
            units[inside[at]] = moved(units[inside[at]], move, width, mantissa > 0)
    need(rans.done() and bits.done(), "a class block is not used up")
    return units

def decode_packed(data, n, width, is_float):
    block, values = Bytes(data), [0] * n
    for _ in range(width):
        head = block.varint()
        plane = block.take(head >> 1)
        plane = unzstd(plane) if head & 1 else plane
        need(len(plane) == n, "a plane of another length, or no zstd frame")
        values = [value << 8 | byte for value, byte in zip(values, plane)]
    need(block.done(), "a packed block is not used up")
    return [v >> 1 | (v & 1) << 8 * width - 1 for v in values] if is_float else values

def code_of(n_units, width): return f"<{n_units}{' BH I   Q'[width]}"
def units_of(data, width): return list(struct.unpack(code_of(len(data) // width, width), data))
def decode_block(mode, data, old, width, mantissa, base):
    need((mode == 0) == (len(data) == 0), "mode and size of a block do not agree")
    if mode == 1:
        return decode_class(data, old, width, mantissa, base)
    if mode == 2:
        return decode_packed(data, len(old), width, mantissa > 0)
    need(mode == 0 or len(data) == len(old) * width, "a stored block of another size")
    return units_of(data, width) if mode == 3 else old

# ---- 4 the container ----
def decode_entry(index, blocks, previous, tensors, digests):
    """-> name as bytes, new Tensor, changed units; brings DIGESTS up to date"""
    shared, n_rest = index.varint(), index.varint()
    raw = previous[:shared] + index.take(n_rest)
    need(len(raw) == shared + n_rest <= 1024 and b"\0" not in raw, "malformed name")
    name, number = raw.decode("utf-8"), index.number(1)
    shape = tuple(index.varint() for _ in range(index.varint()))
    need(name in tensors and number < len(DTYPES), f"{name}: not in the base, or of no type")
    old, (dtype, _, width, mantissa) = tensors[name], DTYPES[number]
    need((dtype, shape) == (old.dtype, old.shape), f"{name}: another type or shape")
    n_changed, base_digest, new_digest, checksum, base = (
        index.varint(), index.number(8), index.number(8), index.number(8), index.varint())
    need(digests[name] == base_digest, f"{name}: not the base of this delta")
    need(base < (1 << 8 * width - 1 - mantissa if mantissa else 1), f"{name}: bad class base")
    units, n_block = units_of(old.data, width), min(1 << 20, (2 << 20) // width)
    parts = [slice(first, first + n_block) for first in range(0, len(units), n_block)]
    heads = [index.varint() for _ in parts]
    code = Bytes(blocks.take(sum(head >> 2 for head in heads)))
    need(xxh64(code.data) == checksum, f"{name}: the checksum does not match")
    for at, head in zip(parts, heads):
        units[at] = decode_block(head & 3, code.take(head >> 2), units[at], width, mantissa, base)
    n_seen = sum(map(operator.ne, units_of(old.data, width), units))
    new = old._replace(data=struct.pack(code_of(len(units), width), *units))
    digests[name] = digest(new.data)
    need(0 < n_changed == n_seen and digests[name] == new_digest, f"{name}: decodes wrongly")
    return raw, new, n_changed

def apply_delta(tensors, content):
    """-> the new tensors, from those of the base and the bytes of a delta"""
    header, metadata, parts = read_safetensors(content)
    need(metadata.get("format") == "deltawire/1", f"format {metadata.get('format')!r} is unknown")
    need({n: t.dtype for n, t in parts.items()} == {"index": "U8", "blocks": "U8"}, "tensors")
    index, blocks = Bytes(parts["index"].data), Bytes(parts["blocks"].data)
    at = header.find(b'"seal":"') + 8
    seal = xxh64(header[:at] + b"0" * 16 + header[at + 16:] + index.data)
    need(at >= 8 and header[at:at + 17] == b'%016x"' % seal, "the seal does not match")
    digests = {name: digest(t.data) for name, t in tensors.items()}
    need(int(metadata["tensors"]) == len(tensors), "a delta for another model")
    need(int(metadata["base_digest"], 16) == state_digest(tensors, digests), "another base")
    result, previous, n_changed = dict(tensors), None, 0
    while not index.done():
        raw, new, n = decode_entry(index, blocks, previous or b"", tensors, digests)
        need(previous is None or previous < raw, "names do not ascend")
        previous, n_changed, result[raw.decode()] = raw, n_changed + n, new
    need(blocks.done() and n_changed == int(metadata["changed"]), "counts do not agree")
    need(int(metadata["new_digest"], 16) == state_digest(result, digests), "decodes wrongly")
    return result

if __name__ == "__main__":
    base, delta, out = map(pathlib.Path, sys.argv[1:])
    out = out / "model.safetensors" if out.is_dir() else out
    write_safetensors(out, apply_delta(read_checkpoint(base), delta.read_bytes()))
