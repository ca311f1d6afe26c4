"""The SHA-256 that identifies a base which is not in its stream, written from PROTOCOL.md,
section 2. Tensors are those of decoder.py."""
import hashlib
import struct


def number(n):
    return struct.pack("<Q", n)


def text(s):
    return number(len(s.encode())) + s.encode()


def base_sha256(tensors):
    parts = [b"deltawire-base/1\n", number(len(tensors))]
    for name, t in sorted(tensors.items(), key=lambda item: item[0].encode()):
        parts += [text(name), text(t.dtype), number(len(t.shape)), *map(number, t.shape),
                  number(len(t.data)), hashlib.sha256(t.data).digest()]
    return hashlib.sha256(b"".join(parts)).hexdigest()
