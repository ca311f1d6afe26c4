"""Compares the model of examples/wordle with transformers and PyTorch, from the same files."""
import json
import os
import subprocess

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import qwen_lib as lib  # noqa: E402
from test_tokenizer import ascii_tokenizer  # noqa: E402

# heads, kv heads, head_dim, tied, rope_theta: every ratio of heads, widths that fill no
# vector, and heads that together are wider or narrower than the hidden state.
SHAPES = {
    "tied": dict(heads=4, kv=2, dim=32, tied=True, theta=1e6, hidden=128, inter=384),
    "untied": dict(heads=4, kv=4, dim=16, tied=False, theta=1e4, hidden=64, inter=160),
    "one-kv-head": dict(heads=6, kv=1, dim=8, tied=True, theta=5e5, hidden=40, inter=104),
    "wide-heads": dict(heads=4, kv=2, dim=64, tied=False, theta=1e6, hidden=72, inter=50),
}
VOCAB = 103


transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)


def make(path, shape, shard=False):
    """A random Qwen3 in that directory; returns transformers' own, in fp32."""
    config = transformers.Qwen3Config(
        vocab_size=VOCAB, hidden_size=shape["hidden"], intermediate_size=shape["inter"],
        num_hidden_layers=3, num_attention_heads=shape["heads"],
        num_key_value_heads=shape["kv"], head_dim=shape["dim"], rms_norm_eps=1e-6,
        rope_theta=shape["theta"], tie_word_embeddings=shape["tied"],
        max_position_embeddings=512, eos_token_id=3,
        rope_parameters={"rope_type": "default", "rope_theta": shape["theta"]})
    torch.manual_seed(shape["hidden"])
    model = transformers.Qwen3ForCausalLM(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(1 + torch.randn_like(p) * .2 if "norm" in name
                    else torch.randn_like(p) * p.shape[-1] ** -.5)
    model = model.to(torch.bfloat16)
    model.save_pretrained(path, max_shard_size="50KB" if shard else "1GB")
    return transformers.Qwen3ForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


@pytest.fixture(scope="module", params=SHAPES)
def pair(request, tmp_path_factory):
    path = tmp_path_factory.mktemp(request.param)
    theirs = make(path, SHAPES[request.param], shard=request.param == "untied")
    return theirs, lib.Model(path)


def random_tokens(n, seed=0):
    return np.random.default_rng(seed).integers(0, VOCAB, n).tolist()


def their_logits(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].numpy()


@pytest.mark.parametrize("n_tokens", [1, 5, 64, 300])
def test_logits(pair, n_tokens):
    theirs, ours = pair
    tokens = random_tokens(n_tokens)
    got = lib.Session(ours, 1, n_tokens, 2).step([(0, t) for t in tokens])
    np.testing.assert_allclose(got, their_logits(theirs, tokens), rtol=1e-4, atol=1e-4)


def test_logits_of_mixed_sequences(pair):
    theirs, ours = pair
    texts = [random_tokens(n, seed=n) for n in (3, 1, 17, 9)]
    session = lib.Session(ours, len(texts), 20)
    rows = [(seq, text[i]) for i in range(17) for seq, text in enumerate(texts)
            if i < len(text)]
    got = np.concatenate([session.step(rows[:11]), session.step(rows[11:])])
    for seq, text in enumerate(texts):
        mine = got[[i for i, row in enumerate(rows) if row[0] == seq]]
        np.testing.assert_allclose(mine, their_logits(theirs, text), rtol=1e-4, atol=1e-4)


def test_older_config(tmp_path):
    """rope_theta beside null rope_scaling, as transformers 4 wrote it."""
    theirs = make(tmp_path, SHAPES["tied"])
    config = json.loads((tmp_path / "config.json").read_text())
    theta = config.pop("rope_parameters")["rope_theta"]
    config |= {"rope_theta": theta, "rope_scaling": None, "torch_dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tokens = random_tokens(40)
    got = lib.Session(lib.Model(tmp_path), 1, 40).step([(0, t) for t in tokens])
    np.testing.assert_allclose(got, their_logits(theirs, tokens), rtol=1e-4, atol=1e-4)


def test_config_for_transformers(tmp_path):
    """transformers reads the output of qwen_config_write as the same model."""
    make(tmp_path, SHAPES["one-kv-head"])
    ours = lib.Model(tmp_path)
    before = transformers.AutoConfig.from_pretrained(tmp_path)
    lib.call("qwen_config_write", lib.byref(ours.config), str(tmp_path).encode())
    after = transformers.AutoConfig.from_pretrained(tmp_path)
    same = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
            "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps",
            "tie_word_embeddings", "max_position_embeddings", "eos_token_id")
    assert {k: getattr(before, k) for k in same} == pytest.approx(
        {k: getattr(after, k) for k in same})
    assert after.rope_parameters["rope_theta"] == before.rope_parameters["rope_theta"]


def sample(path, *args):
    done = subprocess.run([os.environ["DW_QWEN_SAMPLE"], path, *args], capture_output=True,
                          text=True)
    return done.returncode, done.stdout, done.stderr


def test_qwen_sample(tmp_path):
    """The program chooses the same tokens as transformers."""
    theirs = make(tmp_path, SHAPES["wide-heads"])
    tok = ascii_tokenizer()
    tok.save(str(tmp_path / "tokenizer.json"))
    prompt = torch.tensor([tok.encode("WORDLE\n").ids])
    expected = theirs.generate(prompt, attention_mask=torch.ones_like(prompt),
                               max_new_tokens=40, do_sample=False, eos_token_id=None,
                               pad_token_id=0)
    status, text, speed = sample(tmp_path, "WORDLE\n", "--tokens", "40", "--ignore-eos")
    assert status == 0, speed
    assert text == tok.decode(expected[0].tolist(), skip_special_tokens=False) + "\n"
    assert "40 tokens" in speed
    drawn = [sample(tmp_path, "a", "--temperature", "1", "--seed", str(i))[1]
             for i in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert sample(tmp_path, "a", "--top-p", "2")[0] == 2
    status, _, message = sample(tmp_path / "none", "a")
    assert status == 1 and "config.json" in message


# ---- training ------------------------------------------------------------------------

LENGTHS = (7, 1, 2, 70, 33)


def batch():
    sequences = [random_tokens(n, seed=100 + n) for n in LENGTHS]
    coef = np.random.default_rng(1).normal(size=sum(LENGTHS)).astype(np.float32)
    coef[::5] = 0
    return sequences, coef


def their_scores(model, sequences):
    """logp and entropy like the trainer's, with PyTorch's graph."""
    logps, entropies = [], []
    for tokens in sequences:
        rows = torch.log_softmax(model(torch.tensor([tokens])).logits[0], -1)
        chosen = rows[:-1].gather(-1, torch.tensor(tokens[1:], dtype=torch.long)[:, None])
        logps += [chosen[:, 0], torch.zeros(1)]
        entropies += [-(rows.exp() * rows).sum(-1)[:-1], torch.zeros(1)]
    return torch.cat(logps), torch.cat(entropies)


def state_of(trainer, path):
    """Masters and moments by kind and name."""
    from safetensors.numpy import load_file
    trainer.save_state(path)
    return load_file(path)


def test_gradients(pair, tmp_path):
    theirs, ours = pair
    sequences, coef = batch()
    trainer = lib.Trainer(ours, 2)
    logp, entropy = trainer.forward(sequences)
    expected, their_entropy = their_scores(theirs, sequences)
    np.testing.assert_allclose(logp, expected.detach().numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(entropy, their_entropy.detach().numpy(), rtol=1e-4,
                               atol=1e-4)
    trainer.backward(coef)
    theirs.zero_grad()
    (expected * torch.from_numpy(coef)).sum().backward()
    # a step with beta1 = 0 leaves the gradient in the first moment
    norm = trainer.step(lib.Adamw(0, 0, 0, 1, 0, 0))
    state = state_of(trainer, tmp_path / "state.safetensors")
    for name, p in theirs.named_parameters():
        grad = p.grad.numpy()
        np.testing.assert_allclose(state["moment1." + name], grad, rtol=2e-3,
                                   atol=2e-5 * np.abs(grad).max(), err_msg=name)
    everything = torch.cat([p.grad.flatten() for p in theirs.parameters()])
    assert norm == pytest.approx(everything.norm().item(), rel=1e-4)


def copy_into(model, tensors):
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(tensors[name])


@pytest.mark.parametrize("shape, max_grad_norm", [("tied", 0), ("untied", .5)])
def test_adamw(tmp_path, shape, max_grad_norm):
    """Three steps: masters in fp32, and the model, which has them rounded."""
    theirs, ours = make(tmp_path, SHAPES[shape]), lib.Model(tmp_path)
    sequences, coef = batch()
    trainer = lib.Trainer(ours)
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in theirs.parameters() if p.dim() == 2], "weight_decay": 2},
         {"params": [p for p in theirs.parameters() if p.dim() == 1], "weight_decay": 0}],
        lr=1e-3, betas=(.9, .95), eps=1e-6)
    how = lib.Adamw(1e-3, .9, .95, 1e-6, 2, max_grad_norm)
    masters = {name: p.detach().clone() for name, p in theirs.named_parameters()}
    for _ in range(3):
        trainer.forward(sequences)
        trainer.backward(coef)
        trainer.step(how)
        optimizer.zero_grad()
        (their_scores(theirs, sequences)[0] * torch.from_numpy(coef)).sum().backward()
        if max_grad_norm:
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), max_grad_norm)
        copy_into(theirs, masters)
        optimizer.step()
        masters = {name: p.detach().clone() for name, p in theirs.named_parameters()}

        state = state_of(trainer, tmp_path / "state.safetensors")
        weights = {name: torch.from_numpy(bits.copy()).view(torch.bfloat16)
                   for name, bits in trainer.weights().items()}
        for name, expected in masters.items():
            master = torch.from_numpy(state["master." + name])
            # if a gradient is nearly zero, rounding determines its sign
            near = torch.isclose(master, expected, rtol=1e-4, atol=2e-5)
            assert near.float().mean() > .999, name
            assert torch.equal(master.to(torch.bfloat16), weights[name]), name
        copy_into(theirs, weights)


def test_resume(pair, tmp_path):
    """A trainer that was saved and loaded continues bit for bit like the first."""
    _, ours = pair
    sequences, coef = batch()
    how = lib.Adamw(1e-3, .9, .95, 1e-8, .01, 1)

    def steps(trainer, n):
        for _ in range(n):
            trainer.forward(sequences)
            trainer.backward(coef)
            trainer.step(how)

    first, second = lib.Trainer(ours), lib.Trainer(ours, 2)
    steps(first, 2)
    first.save_state(tmp_path / "state.safetensors")
    steps(first, 2)
    second.load_state(tmp_path / "state.safetensors")
    steps(second, 2)
    a, b = first.weights(), second.weights()
    assert all(np.array_equal(a[k], b[k]) for k in a)


def test_state_of_another_model(tmp_path):
    make(tmp_path / "a", SHAPES["tied"])
    make(tmp_path / "b", SHAPES["wide-heads"])
    lib.Trainer(lib.Model(tmp_path / "a")).save_state(tmp_path / "state.safetensors")
    other = lib.Trainer(lib.Model(tmp_path / "b"))
    with pytest.raises(lib.Failed, match="another model"):
        other.load_state(tmp_path / "state.safetensors")
