"""Makes docs/format-example.txt, the worked example of docs/FORMAT.md, from the library's output.

    python3 tests/format/make_example.py [--update]

Prints the example, or writes the file. The bytes come from the library (DW_LIB, see dwlib.py);
every value is read from them again with the parts of decoder.py, and the result is compared with
the input.
"""
import struct
import sys

import decoder
import dwlib
from decoder import DTYPES, FAR, Bits, Bytes, Rans, Tensor

FORMAT = dwlib.ROOT / "docs" / "FORMAT.md"
EXAMPLE = dwlib.ROOT / "docs" / "format-example.txt"

OLD = [0x3C12, 0xBC90, 0x3D04, 0x3C85, 0xBC33, 0x3D11, 0x3C07, 0xBD20, 0x3CF1, 0xBC4E, 0x3C9A,
       0x3C60, 0xBD3C, 0x3C22, 0x3CA7, 0xBC01, 0x3D48, 0x3C5B, 0xBCC3, 0x3C19, 0x3D09, 0xBC77,
       0x3CB0, 0x3C0E]
CHANGES = {0: 0x3C13, 4: 0xBC32, 10: 0x3C9B, 13: 0x3C25, 17: 0x3C5A, 21: 0x3C77, 23: 0x3C0F}


def models():
    new = [CHANGES.get(i, x) for i, x in enumerate(OLD)]
    norm = Tensor("F32", (2,), struct.pack("<2f", 1.0, 0.5))
    return tuple({"norm": norm, "proj": Tensor("BF16", (4, 6), struct.pack("<24H", *units))}
                 for units in (OLD, new))


def delta():
    return dwlib.diff(*models(), base_version=41, new_version=42)


def table(head, rows):
    """Aligned columns."""
    lines = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    for line in lines:
        yield "    " + "  ".join(map(str.ljust, line, widths)).rstrip() + "\n"
    yield "\n"


def hex_dump(content):
    """What `xxd -p` prints, 32 bytes a line."""
    for at in range(0, len(content), 32):
        yield "    " + content[at:at + 32].hex() + "\n"


def index_fields(content, first):
    """Rows of the index table: offset, bytes, field, value."""
    r, rows = Bytes(content), []

    def field(name, read, show=str):
        start = r.at
        value = read()
        spelled = content[start:r.at].hex(" ")
        rows.append((f"{first + start:04x}", spelled, name, show(value)))
        return value
    field("bytes shared with the name before", r.varint)
    n = field("further bytes", r.varint)
    field("name", lambda: r.take(n), bytes.decode)
    field("dtype", lambda: r.number(1), lambda v: f"{v}: {DTYPES[v][0]}")
    for d in range(field("dimensions", r.varint)):
        field(f"dimension {d}", r.varint)
    field("changed units", r.varint)
    for name in "base digest", "new digest", "XXH64 of its blocks":
        field(name, lambda: r.number(8), lambda v: f"{v:016x}")
    base = field("base of the class map", r.varint)
    head = field("block 0", r.varint, lambda v: f"{v >> 2} bytes, mode {v & 3}")
    assert r.done() and head & 3 == 1
    return rows, base


class Trace:
    """Decodes a class block and prints each step."""

    def __init__(self, data, old, base):
        block = Bytes(data)
        n_ans = block.varint()
        self.rans, self.bits = Rans(block.take(n_ans)), Bits(data[block.at:])
        self.split = (n_ans, self.rans.words.data, self.bits.data)
        self.bit_rows, self.rans_rows, self.changes = [], [], {}
        self.members = [[i for i, x in enumerate(old)
                         if min(max(((x & 0x7FFF) >> 7) - base, 0), 15) == c]
                        for c in range(16)]
        self.old, self.models = old, []
        self.read_parameters()
        for model in self.models:
            self.read_class(*model)
        assert self.rans.done()
        self.left = 8 * len(self.bits.data) - self.bits.bit
        assert self.bits.done()

    def get_bits(self, what, read, show=str):
        first = self.bits.bit
        value = read()
        n = self.bits.bit - first
        word = int.from_bytes(self.bits.data, "little")
        order = "".join(str(word >> b & 1) for b in range(first, first + n))
        self.bit_rows.append((first, order, what, show(value)))
        return value

    def get_symbol(self, what, q):
        before, at = self.rans.states[0], self.rans.words.at
        slots, _ = decoder.distribution(q)
        symbol, size, place = slots[before & 4095]
        got = self.rans.get(slots)
        assert got == symbol
        word = self.rans.words.data[at:self.rans.words.at]
        inner = size * (before >> 12) + place
        self.rans_rows.append((f"{before:08x}", q, before & 4095,
                               "FAR" if symbol == FAR else symbol,
                               (before & 4095) - place, size, f"{inner:08x}",
                               word.hex(" "), what))
        return symbol

    def read_parameters(self):
        gap_q = move_q = 20
        for c, inside in enumerate(self.members):
            if not inside or not self.get_bits(f"class {c}: any changes", lambda: self.bits.get(1)):
                continue
            predicted = gap_q + 4
            gap_q = predicted + self.get_bits(f"class {c}: q of gaps", self.bits.signed,
                                              lambda v: f"{predicted} {v:+} = {predicted + v}")
            if self.get_bits(f"class {c}: any move beyond one step", lambda: self.bits.get(1)):
                guess = move_q - 4
                move_q = guess + self.get_bits(f"class {c}: q of moves", self.bits.signed,
                                               lambda v: f"{guess} {v:+} = {guess + v}")
                self.models.append((c, inside, gap_q, move_q))
            else:
                self.models.append((c, inside, gap_q, None))

    def read_class(self, c, inside, gap_q, move_q):
        assert decoder.distribution(gap_q)[1] == 0, "the example keeps buckets of one"
        left, gaps, gap = len(inside), [], 0
        while left > 0:
            symbol = self.get_symbol("", gap_q)
            gap += symbol
            ends = gap >= left
            row = self.rans_rows.pop()
            what = f"class {c}: ends, {left} left" if ends else f"class {c}: gap {gap}"
            self.rans_rows.append((*row[:-1], what))
            if ends:
                break
            if symbol != FAR:
                gaps.append(gap)
                left, gap = left - gap - 1, 0
        at = -1
        for gap in gaps:
            at += gap + 1
            i = inside[at]
            if move_q is None:
                move = self.get_bits(f"element {i}: move", lambda: self.bits.get(1))
            else:
                assert decoder.distribution(move_q)[1] == 0
                symbol = self.get_symbol(f"element {i}: size of its move", move_q)
                if symbol == FAR:
                    move = self.get_bits(f"element {i}: whole move", lambda: self.bits.get(16))
                else:
                    move = 2 * symbol + self.get_bits(f"element {i}: sign", lambda: self.bits.get(1))
            self.changes[i] = move, decoder.moved(self.old[i], move, 2, True)


def rank(x):
    return x ^ 0xFFFF if x & 0x8000 else x | 0x8000


def example():
    base, new = models()
    content = delta()
    header, metadata, parts = decoder.read_safetensors(content)
    index, blocks = parts["index"].data, parts["blocks"].data
    n_header = 8 + len(header)
    rows, class_base = index_fields(index, n_header)
    t = Trace(blocks, OLD, class_base)
    assert {i: x for i, (_, x) in t.changes.items()} == CHANGES
    assert decoder.apply_delta(base, content) == new == dwlib.apply(base, content)
    used = [c for c in range(16) if t.members[c]]

    out = [
        "The worked example of FORMAT.md, made by tests/format/make_example.py\n\n"
        "A model of two tensors: norm, F32 [2], holds 1.0 and 0.5 in both versions; proj,\n"
        f"BF16 [4, 6], has {len(CHANGES)} changes in 24 elements. Versions 41 -> 42.\n\n"
        "proj before, as bit patterns:\n\n",
        *("    " + "  ".join(f"{x:04x}" for x in OLD[r:r + 6]) + "\n" for r in range(0, 24, 6)),
        "\nChanges:\n\n",
        *table(("element", "old", "new", "class", "rank old", "rank new", "move as coded"),
               [(i, f"{OLD[i]:04x}", f"{x:04x}",
                 next(c for c in used if i in t.members[c]), f"{rank(OLD[i]):04x}",
                 f"{rank(x):04x}", t.changes[i][0]) for i, x in CHANGES.items()]),
        f"The whole delta, {len(content)} bytes (xxd -r -p reads this):\n\n",
        *hex_dump(content), "\n",
        f"Header. {content[:8].hex(' ')} is the length of the JSON header, {len(header)}. It is\n"
        f"padded with spaces:\n\n    {header.decode().rstrip()}\n\n",
        "Seal. XXH64 over the JSON header with sixteen 0 in place of the digits, then the\n"
        f"index: {metadata['seal']}.\n\nIndex.\n\n",
        *table(("offset", "bytes", "field", "value"), rows),
        "State digests. A term is weight x (digest + 1) modulo p; the sum of the terms is the\n"
        "state.\n\n",
    ]
    digests = [{n: decoder.digest(x.data) for n, x in m.items()} for m in (base, new)]
    out += table(("tensor", "weight", "base digest", "base term", "new digest", "new term"), [
        (n, f"{decoder.weight(n, x):016x}",
         *(f"{v:016x}" for d in digests
           for v in (d[n], decoder.weight(n, x) * (d[n] + 1) % decoder.PRIME)))
        for n, x in base.items()] + [("state", "", "", f"{metadata['base_digest']}", "",
                                      f"{metadata['new_digest']}")])
    n_ans, a, b = t.split
    out += [
        f"Classes. base = {class_base}: exponent field {class_base} and below is class 0.\n\n",
        *table(("class", "exponent field", "elements"),
               [(c, class_base + c, ", ".join(map(str, t.members[c]))) for c in used]),
        f"Block, at {n_header + len(index):04x}: {blocks[:1].hex()} says that A takes {n_ans} bytes.\n"
        f"A: {a.hex(' ')}. B: {b.hex(' ')}.\n\n",
        "B, bits in the order they are read:\n\n",
        *table(("bit", "bits", "meaning", "value"), t.bit_rows),
        f"The last {t.left} bits are zeros that fill the byte.\n\n" if t.left else
        "No bit is left over.\n\n",
        "A begins with the two states, little-endian, which take turns; each further 16-bit\n"
        "word is taken when a state falls below 2^16:\n\n",
        *table(("state", "q", "slot", "symbol", "start", "size", "next state", "word taken",
                "meaning"), t.rans_rows),
        f"After the last symbol both states are {t.rans.states[0]:08x} = 2^16 and A is used up, as\n"
        "it must be.\n",
    ]
    return "".join(out)


def main(update):
    if update:
        EXAMPLE.write_text(example())
    else:
        print(example(), end="")


if __name__ == "__main__":
    main(sys.argv[1:] == ["--update"])
