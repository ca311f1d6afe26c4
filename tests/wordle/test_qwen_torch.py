"""Compares the model of examples/wordle with transformers and PyTorch, from the same weights."""
import ctypes
import os
from ctypes import POINTER, byref, c_char, c_char_p, c_float, c_size_t, c_uint32, c_uint64, c_void_p

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

if not os.path.exists(os.environ["DW_WORDLE_LIB"]):
    pytest.skip("examples/wordle was not built", allow_module_level=True)
LIB = ctypes.CDLL(os.environ["DW_WORDLE_LIB"])
VOCAB, PARAMS, TENSORS = 32, 100736, 24
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)


class Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("where", c_char * 512), ("text", c_char * 1024)]


class Tensor(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("dtype", ctypes.c_int), ("n_dims", c_uint32),
                ("dims", POINTER(c_uint64)), ("n_bytes", c_uint64), ("data", c_void_p),
                ("first_byte", c_uint64), ("device", c_void_p)]


for name, kind in (("model_trainer_new", c_void_p), ("model_session_new", c_void_p),
                   ("model_trainer_weights", POINTER(Tensor)), ("model_trainer_step", c_float)):
    getattr(LIB, name).restype = kind


def pointer(array):
    return array.ctypes.data_as(c_void_p)


class Ours:
    """A trainer, and its weights by name."""

    def __init__(self, seed):
        self.at = c_void_p(LIB.model_trainer_new(c_uint64(seed)))

    def __del__(self):
        LIB.model_trainer_free(self.at)

    def forward(self, tokens):
        tokens = np.array(tokens, np.int32)
        logp, entropy = np.empty((2, len(tokens)), np.float32)
        LIB.model_trainer_forward(self.at, pointer(tokens), c_size_t(len(tokens)), pointer(logp),
                                  pointer(entropy))
        return logp, entropy

    def backward(self, coef):
        LIB.model_trainer_backward(self.at, pointer(np.asarray(coef, np.float32)))

    def step(self, lr):
        return LIB.model_trainer_step(self.at, c_float(lr))

    def call(self, name, path):
        err = Error()
        assert getattr(LIB, name)(self.at, str(path).encode(), byref(err)) == 0, err.text

    def weights(self):
        tensors = LIB.model_trainer_weights(self.at)
        found = {}
        for t in tensors[:TENSORS]:
            bits = np.frombuffer(ctypes.string_at(t.data, t.n_bytes), np.uint16)
            values = (bits.astype(np.uint32) << 16).view(np.float32)
            found[t.name.decode()] = torch.tensor(values.reshape(t.dims[:t.n_dims]))
        return found


@pytest.fixture(scope="module")
def theirs():
    """transformers' model with the same weights, in fp32."""
    config = transformers.Qwen3Config(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=192, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=128,
        rms_norm_eps=1e-6, rope_theta=10000.0, attention_bias=False, tie_word_embeddings=True)
    model = transformers.Qwen3ForCausalLM(config).float()
    weights = Ours(7).weights()
    assert model.load_state_dict(weights, strict=False) == (["lm_head.weight"], [])
    assert sum(p.numel() for p in model.parameters()) == PARAMS
    return model.eval()


def random_tokens(n, seed=0):
    return np.random.default_rng(seed).integers(0, VOCAB, n).tolist()


def their_logp(model, tokens):
    logits = model(torch.tensor([tokens])).logits[0]
    logp = torch.log_softmax(logits, -1)
    chosen = logp[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
    return chosen, -(logp.exp() * logp).sum(-1)[:-1]


def test_inference(theirs):
    """Prompts of several sequences in parts, then token by token; a sequence that is cut."""
    weights = (c_float * (2 * PARAMS))()
    ours = Ours(7)
    LIB.model_unpack(weights, c_void_p(LIB.model_trainer_weights(ours.at)[0].data))  # the first of all
    session = c_void_p(LIB.model_session_new(c_uint32(3)))

    def step(rows):
        seqs, tokens = (np.array(x, kind) for x, kind in zip(zip(*rows), (np.uint32, np.int32)))
        logits = np.empty((len(rows), VOCAB), np.float32)
        LIB.model_session_step(session, weights, pointer(seqs), pointer(tokens),
                               c_size_t(len(rows)), pointer(logits))
        return logits

    texts = [random_tokens(n, seed=n) for n in (128, 1, 57)]
    rows = [(seq, text[i]) for i in range(128) for seq, text in enumerate(texts) if i < len(text)]
    got = np.concatenate([step(rows[:100]), *(step([row]) for row in rows[100:110]),
                          step(rows[110:])])
    for seq, text in enumerate(texts):
        mine = got[[i for i, row in enumerate(rows) if row[0] == seq]]
        with torch.no_grad():
            want = theirs(torch.tensor([text])).logits[0].numpy()
        np.testing.assert_allclose(mine, want, rtol=1e-4, atol=1e-4)
    LIB.model_session_cut(session, c_uint32(2), c_uint32(20))
    np.testing.assert_allclose(step([(2, t) for t in texts[2][20:40]]),
                               got[[i for i, row in enumerate(rows) if row[0] == 2]][20:40],
                               rtol=1e-4, atol=1e-4)
    LIB.model_session_free(session)


def test_training(theirs, tmp_path):
    """Log-probabilities, gradients and steps of AdamW, over a restart."""
    ours = Ours(7)
    masters = {name: value.clone().requires_grad_() for name, value in ours.weights().items()}
    # ours are rounded from masters that only its state has
    ours.call("model_trainer_save", tmp_path / "state")
    import safetensors.torch
    flat = safetensors.torch.load_file(tmp_path / "state")["masters"]
    at = 0
    with torch.no_grad():
        for name, value in masters.items():
            value.copy_(flat[at:at + value.numel()].reshape(value.shape))
            at += value.numel()
    assert at == PARAMS
    adamw = torch.optim.AdamW(masters.values(), lr=3e-3, betas=(0.9, 0.95), eps=1e-8,
                              weight_decay=0)
    for step in range(4):
        weights = {name: value.detach().bfloat16().float().requires_grad_()
                   for name, value in masters.items()}
        loss = 0
        for n in (30, 1, 85, 128):
            tokens = random_tokens(n, seed=1000 * step + n)
            coef = np.random.default_rng(n).normal(size=n).astype(np.float32)
            logits = torch.func.functional_call(theirs, weights, (torch.tensor([tokens]),),
                                                tie_weights=True).logits[0]
            every = torch.log_softmax(logits, -1)
            logp = every[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
            entropy = -(every.exp() * every).sum(-1)[:-1]
            got, got_entropy = ours.forward(tokens)
            np.testing.assert_allclose(got[:-1], logp.detach(), rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(got_entropy[:-1], entropy.detach(), rtol=1e-4, atol=1e-4)
            assert got[-1] == 0 and got_entropy[-1] == 0
            ours.backward(coef)
            loss = loss + (torch.tensor(coef[:-1]) * logp).sum()
        loss.backward()
        for name, value in masters.items():
            value.grad = weights[name].grad
        norm = torch.nn.utils.clip_grad_norm_(masters.values(), 1.0)
        assert ours.step(3e-3) == pytest.approx(norm.item(), rel=1e-3)
        adamw.step()
        for name, value in ours.weights().items():
            close = (value - masters[name].detach().bfloat16().float()).abs() <= \
                1e-2 * value.abs() + 1e-4
            assert close.float().mean() > 0.995, (step, name)
        path = tmp_path / f"state-{step}"
        ours.call("model_trainer_save", path)
        if step == 0:  # the first moment is a tenth of the gradient
            want = 0.1 * torch.cat([value.grad.flatten() for value in masters.values()])
            got = safetensors.torch.load_file(path)["moment1"]
            torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4 * want.abs().max().item())
        ours = Ours(step)
        ours.call("model_trainer_load", path)
