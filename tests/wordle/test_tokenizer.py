"""Compares the tokenizer of examples/wordle with the `tokenizers` library, from the same file."""
import json
import pathlib
import random

import pytest

tokenizers = pytest.importorskip("tokenizers")

from hypothesis import given, settings, strategies as st  # noqa: E402
from tokenizers import AddedToken, Regex, decoders, models, normalizers  # noqa: E402
from tokenizers import pre_tokenizers, processors, trainers  # noqa: E402

import qwen_lib as lib  # noqa: E402

PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
           r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im|>"]
TEXTS = [
    "", " ", "a", "hello world", "  two  spaces ", "it's we'RE I'll 'Ss don't",
    "line\nline\r\n\r\n  \n\tindented\n   ", "1234567 3.14 x2y3", "WORDLE\ncrane .gy..\n",
    "naïve café – “quotes” … €", "日本語の文章です。漢字", "Привет, мир!", "emoji 👩‍👩‍👧‍👦 🎉🎉 ✌🏽",
    "e\u0301 A\u030a \u1112\u1161\u11ab", "\u00a0nbsp\u2003em\u3000wide \u0085next",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>", "<|im_start|", "<|im|><|im_endoftext|>",
    "e<|im_end|>\u0301", "\0nul\x01\x7f", "a" * 3000, " " * 2000 + "x", "ab" * 1500,
    "def f(x):\n    return x ** 2  # comment\n",
]


def qwen_tokenizer(n_vocab=700):
    tok = tokenizers.Tokenizer(models.BPE())
    tok.normalizer = normalizers.NFC()
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    tok.decoder = decoders.ByteLevel()
    own = pathlib.Path(__file__).read_text()
    tok.train_from_iterator(
        [own, *TEXTS] * 2,
        trainers.BpeTrainer(vocab_size=n_vocab, show_progress=False,
                            initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tok.add_special_tokens([AddedToken(s, normalized=False) for s in SPECIAL])
    tok.add_tokens([AddedToken("<tool>", normalized=False)])
    return tok


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer")
    theirs = qwen_tokenizer()
    theirs.save(str(path / "tokenizer.json"))
    return theirs, lib.Tokenizer(path)


def expect_equal(pair, text):
    theirs, ours = pair
    expected = theirs.encode(text, add_special_tokens=False).ids
    assert ours.encode(text) == expected, repr(text)
    assert ours.decode(expected).decode("utf8", "replace") == theirs.decode(
        expected, skip_special_tokens=False)


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_texts(pair, text):
    expect_equal(pair, text)


# characters that the pattern distinguishes, and others; U+180E was a space once
PIECES = st.sampled_from(list("aZé ñ漢1٣\t\n\r'’.,!<|>") +
                         ["'s", "'LL", " ", "\r\n", "e\u0301", *SPECIAL, "<tool>", "the "])
OTHERS = st.characters(exclude_categories=["Cs", "Cn"], exclude_characters="\u180e")


@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES | OTHERS, max_size=30).map("".join))
def test_any_text(pair, text):
    expect_equal(pair, text)


def test_older_merges(pair, tmp_path):
    """Merges as "left right", as in files of older versions."""
    theirs, _ = pair
    root = json.loads(theirs.to_str())
    root["model"]["merges"] = [" ".join(m) for m in root["model"]["merges"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(root))
    ours = lib.Tokenizer(tmp_path)
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text).ids


def ascii_tokenizer():
    """Only bytes, some of them missing: the tokenizer of the example's own model."""
    letters = [bytes([b]) for b in range(32, 127)] + [b"\n"]
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    vocab = {spelled.pre_tokenize_str(c.decode())[0][0]: i + 2
             for i, c in enumerate(letters)}
    tok = tokenizers.Tokenizer(models.BPE(vocab, []))
    tok.pre_tokenizer = spelled
    tok.decoder = decoders.ByteLevel()
    return tok


def test_no_merges(tmp_path):
    tok = ascii_tokenizer()
    tok.save(str(tmp_path / "tokenizer.json"))
    ours = lib.Tokenizer(tmp_path)
    for text in TEXTS:
        assert ours.encode(text) == tok.encode(text).ids
    assert ours.decode(ours.encode("WORDLE\ncrane")) == b"WORDLE\ncrane"
    assert ours.decode([-1, 0, 1, 5000]) == b""


def test_bytes_that_are_no_text(pair):
    """Every byte is restored."""
    _, ours = pair
    rng = random.Random(0)
    for _ in range(50):
        data = bytes(rng.choice([rng.randrange(256), 0xe2, 0x80, 0x20, 0x61])
                     for _ in range(rng.randrange(200)))
        assert ours.decode(ours.encode(data)) == data


def test_long_piece(pair):
    """A piece with many merges takes n log n steps, not n^2."""
    expect_equal(pair, "abcdefgh" * 40000)
