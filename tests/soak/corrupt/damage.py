"""Ways to damage a file. Each takes the path and returns a description. A Damage can be undone,
like an operator with a copy does."""

import os
import shutil


def flip_bit(path, rng, _others, _outside):
    return edit(path, lambda b: flipped(b, rng, 1))


def flip_many(path, rng, _others, _outside):
    return edit(path, lambda b: flipped(b, rng, 1 + len(b) // 50))


def truncate(path, rng, _others, _outside):
    size = os.path.getsize(path)
    os.truncate(path, rng.choice([0, size // 2, max(0, size - 1)]))


def extend(path, rng, _others, _outside):
    with open(path, "ab") as f:
        f.write(rng.randbytes(rng.choice([1, 100, 5000])))


def zero_page(path, rng, _others, _outside):
    def zeroed(b):
        at = rng.randrange(0, len(b), 4096) if b else 0
        b[at : at + 4096] = bytes(len(b[at : at + 4096]))
        return b

    return edit(path, zeroed)


def replace_by_other(path, rng, others, _outside):
    swap(path, rng.choice(others))


def remove(path, _rng, _others, _outside):
    os.unlink(path)


def hard_link(path, _rng, _others, outside):
    os.link(path, outside)


def symbolic_link(path, _rng, _others, outside):
    os.rename(path, outside)
    os.symlink(outside, path)


def dangling_link(path, _rng, _others, _outside):
    os.unlink(path)
    os.symlink("/nonexistent/file", path)


def directory(path, _rng, _others, _outside):
    os.unlink(path)
    os.mkdir(path)


def fifo(path, _rng, _others, _outside):
    os.unlink(path)
    os.mkfifo(path)


def no_rights(path, _rng, _others, _outside):
    os.chmod(path, 0)


def edit(path, change):
    with open(path, "r+b") as f:  # in place, so that processes that have mapped the file see it
        b = change(bytearray(f.read()))
        f.seek(0)
        f.write(b)


def flipped(b, rng, n):
    for _ in range(n if b else 0):
        at = rng.randrange(len(b))
        b[at] ^= 1 << rng.randrange(8)
    return b


def swap(path, source):
    shutil.copyfile(source, path + ".swap")
    os.replace(path + ".swap", path)


IN_PLACE = [flip_bit, flip_bit, flip_many, truncate, extend, zero_page]
HEALED = IN_PLACE + [remove]  # in a follower's directory
KINDS = IN_PLACE + [replace_by_other, remove, hard_link, symbolic_link, dangling_link,
                    directory, fifo, no_rights]  # fmt: skip


def content(path):
    """The bytes that a reader of the path gets; None if it gets nothing."""
    try:
        if os.path.isfile(path):
            with open(path, "rb") as f:
                return f.read()
    except OSError:
        pass
    return None


def files_below(root):
    found = []
    for directory_, _, names in os.walk(root):
        found += [os.path.join(directory_, name) for name in names]
    return sorted(x for x in found if os.path.isfile(x) and not os.path.islink(x))


class Damage:
    """Some damage to PATH. OTHERS are files to replace it by, OUTSIDE is a free path."""

    def __init__(self, path, kind, rng, others, outside, older=None):
        self.path = path
        self.before = content(path)
        self.mode = os.stat(path).st_mode & 0o7777
        self.outside = outside
        os.chmod(path, self.mode | 0o600)
        if older:
            swap(path, older)
        else:
            kind(path, rng, others, outside)
        self.kind = "older_copy" if older else kind.__name__
        if self.kind not in ("remove", "no_rights") and os.path.isfile(path):
            os.chmod(path, self.mode)
        self.after = content(path)
        self.linked = content(self.outside)

    def changed(self):
        return self.after != self.before

    def outside_was_written(self):
        """Whether somebody wrote through a link to a foreign file. A follower may write the
        control block that it has open, because it marks its end there for its readers."""
        if self.path.endswith("/.deltawire/control"):
            return False
        return self.linked is not None and content(self.outside) != self.linked

    def is_still_there(self):
        return content(self.path) == self.after

    def undo(self):
        if not self.is_still_there():
            return  # somebody made it again
        if os.path.isdir(self.path) and not os.path.islink(self.path):
            shutil.rmtree(self.path)
        elif os.path.lexists(self.path):
            os.unlink(self.path)
        with open(self.path, "wb") as f:
            f.write(self.before)
        os.chmod(self.path, self.mode)
