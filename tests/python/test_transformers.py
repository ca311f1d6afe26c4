"""Models of transformers on a follower's files, and one that is trained and followed."""
import pathlib
import subprocess
import sys
import threading
import types
import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed (DW_TEST_TORCH=0)")
pytest.importorskip("transformers")

import deltawire as dw  # noqa: E402
import deltawire.torch  # noqa: E402
import deltawire.transformers  # noqa: E402
import qwen3  # noqa: E402
from deltawire._publish_callback import PublishCallback  # noqa: E402
from hanging_s3 import HangingS3  # noqa: E402
import transformers  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

TOKENS = torch.arange(20).reshape(2, 10)


def logits(model):
    with torch.no_grad():
        return model(input_ids=TOKENS).logits


def mapped_ranges(dir):
    """The addresses at which this process has mapped files of the directory."""
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        if str(dir) in line:
            first, end = line.split()[0].split("-")
            yield int(first, 16), int(end, 16)


@pytest.mark.parametrize("tied", [True, False])
def test_a_model_on_a_followers_files(url, tmp_path, tied):
    trained = qwen3.make(tie_word_embeddings=tied)
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-2)
    into = tmp_path / "live"
    with (deltawire.torch.Publisher(trained, optimizer, url=url) as publisher,
          dw.Follower(url, into=into) as follower):
        follower.sync()
        trained.config.save_pretrained(into)
        model, weights = deltawire.transformers.load(into)
        seen = []
        for version in range(4):
            if version:
                qwen3.train(trained, optimizer, version)
                publisher.wait()
                follower.sync()
            # the same weights from a checkpoint, as a server would load them
            reference = qwen3.make(tie_word_embeddings=tied).to(torch.bfloat16)
            reference.load_state_dict(qwen3.rounded(trained), strict=not tied)
            reference.save_pretrained(tmp_path / f"checkpoint-{version}")
            reference = AutoModelForCausalLM.from_pretrained(
                tmp_path / f"checkpoint-{version}", dtype=torch.bfloat16)
            with weights.reading() as read:
                assert read == version == weights.version
                seen.append(logits(model))
                assert torch.equal(seen[-1], logits(reference))
                assert qwen3.counted(model) == qwen3.counted(reference)
                ranges = list(mapped_ranges(into))
                for name, parameter in model.named_parameters():
                    assert any(first <= parameter.data_ptr() < end for first, end in ranges), name
                    assert not parameter.requires_grad
                assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
            if version:  # the model has changed without any call
                assert not torch.equal(seen[-1], seen[-2])
        weights.close()
        assert torch.equal(logits(model), seen[-1])  # it keeps the mapping
    assert len({t.numpy(force=True).tobytes() for t in map(torch.Tensor.float, seen)}) == 4


def test_readers_keep_a_version(url, tmp_path):
    trained = qwen3.make()
    into = tmp_path / "live"
    with (deltawire.torch.Publisher(trained, url=url) as publisher,
          dw.Follower(url, into=into, reader_wait=0.2) as follower):
        follower.sync()
        model, weights = deltawire.transformers.load(into, trained.config)
        before = logits(model)
        with weights.reading() as version:
            with torch.no_grad():
                trained.model.norm.weight.mul_(2)
            publisher.wait(publisher.publish())
            follower.stage()
            with pytest.raises(dw.Unavailable):
                follower.apply()

            def read():
                with weights.reading() as same:
                    inner.append([same, logits(model)])

            inner = []
            thread = threading.Thread(target=read)
            thread.start()
            thread.join()
            assert inner[0][0] == version == 0 == weights.version
            assert torch.equal(inner[0][1], before) and torch.equal(logits(model), before)
        follower.apply()
        follower.finish()
        with weights.reading() as version:
            assert version == 1 and not torch.equal(logits(model), before)


def test_a_read_that_could_not_begin(url, tmp_path):
    """It does not block the follower, and the next reader gets whole weights."""
    trained, into = qwen3.make(), tmp_path / "live"
    with (deltawire.torch.Publisher(trained, url=url) as publisher,
          dw.Follower(url, into=into, reader_wait=0.2) as follower):
        def publish():
            with torch.no_grad():
                for parameter in trained.parameters():
                    parameter.add_(1)
            publisher.wait(publisher.publish())
            follower.sync()

        follower.sync()
        model, weights = deltawire.transformers.load(into, trained.config)
        publish()
        targets = weights._targets
        weights._targets = targets[:5] + [(targets[5][0], "is not there")] + targets[6:]
        weights._place = None  # as if the files were others
        with pytest.raises(KeyError):
            weights._hold(1)
        weights._targets = targets
        publish()  # would fail if it were held
        with weights.reading() as version:
            assert version == 2
            state = dw.digest({n: p.detach() for n, p in model.named_parameters()}).state
            assert state == dw.digest(qwen3.rounded(trained)).state


def test_what_does_not_fit_is_named(url, tmp_path):
    small, into = qwen3.make(), tmp_path / "live"
    with deltawire.torch.Publisher(small, url=url), dw.Follower(url, into=into) as follower:
        follower.sync()
    for changes, text in [({"num_hidden_layers": 3}, "layers.2"), ({"hidden_size": 64}, "shape"),
                          ({"num_hidden_layers": 1}, "layers.1"),
                          ({"tie_word_embeddings": False}, "lm_head")]:
        with pytest.raises(ValueError, match=text):
            deltawire.transformers.load(into, qwen3.make(**changes).config)
    with pytest.raises(ValueError, match="config.json"):
        deltawire.transformers.load(into)  # it has no configuration
    with pytest.raises(dw.NotFound):
        deltawire.transformers.load(tmp_path, small.config)


def test_the_best_model_is_not_loaded_into_a_publish(url):
    """A trainer loads it in place after the last epoch."""
    model = torch.nn.Linear(3000, 1000).to(torch.bfloat16)
    arguments = types.SimpleNamespace(load_best_model_at_end=True)
    state = types.SimpleNamespace(is_world_process_zero=True, global_step=0)
    callback, states = PublishCallback(url, threads=1), []
    best = {name: torch.full_like(tensor, 2) for name, tensor in model.state_dict().items()}

    def send(event):
        getattr(callback, event)(arguments, state, None, model=model)

    send("on_train_begin")
    for _ in range(4):
        send("on_pre_optimizer_step")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(1)
        state.global_step += 1
        states.append(dw.digest(model.state_dict()).state)
        send("on_step_end")
        send("on_epoch_end")
        model.load_state_dict(best)
    send("on_train_end")
    states.append(dw.digest(best).state)
    assert [v.state for v in dw.Stream(url).versions(1)] == states


def test_the_last_step_is_published_even_if_it_was_merged(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    model = torch.nn.Linear(30, 10).to(torch.bfloat16)
    arguments = types.SimpleNamespace(load_best_model_at_end=False)
    state = types.SimpleNamespace(is_world_process_zero=True, global_step=0)
    with HangingS3() as server, warnings.catch_warnings():
        warnings.simplefilter("ignore", dw.PublishWarning)
        store = dw.Store("s3://bucket/run", endpoint=server.endpoint)
        callback = PublishCallback(store, max_wait=0.05)
        callback.on_train_begin(arguments, state, None, model=model)
        server.hangs.set()
        for step in 1, 2:
            callback.on_pre_optimizer_step(arguments, state, None)
            with torch.no_grad():
                model.weight.fill_(step)
            state.global_step = step
            callback.on_step_end(arguments, state, None)
            assert server.reached.wait(300)
        server.hangs.clear()  # the version of step 1 fails, and step 2 was merged
        server.ended.set()
        callback.on_train_end(arguments, state, None)
        versions = list(dw.Stream(store).versions(1))
        assert [v.step for v in versions] == ["2"]
        assert versions[0].state == dw.digest(model.state_dict()).state


def test_the_trainers_log_knows_of_publishing(url):
    """Reporters, which transformers calls first, see it too."""
    model = torch.nn.Linear(30, 10).to(torch.bfloat16)
    seen = []

    class Reporter(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **given):
            seen.append(dict(logs))

    callback = PublishCallback(url)
    handler = transformers.trainer_callback.CallbackHandler(
        [Reporter(), callback], model, None, None, None)
    arguments = types.SimpleNamespace(load_best_model_at_end=False)
    state = transformers.TrainerState(is_world_process_zero=True)
    control = transformers.TrainerControl()
    handler.on_train_begin(arguments, state, control)
    for step in 1, 2, 3:
        with torch.no_grad():
            model.weight[0] = step
        state.global_step = step
        handler.on_step_end(arguments, state, control)
        callback.publisher.wait()
    handler.on_log(arguments, state, control, {"loss": 1.0})
    handler.on_train_end(arguments, state, control)
    assert seen[0]["loss"] == 1.0 and seen[0]["deltawire/lag"] == 1
    assert seen[0]["deltawire/changed"] == 30 / 310 and seen[0]["deltawire/bytes"] > 0
    assert seen[0]["deltawire/seconds"] > 0 and seen[0]["deltawire/outages"] == 0


FOLLOW = """
import sys
sys.path.insert(0, sys.argv[2])
import deltawire.torch, qwen3, torch
model = qwen3.make().to(torch.bfloat16)
with deltawire.torch.Follower(model, sys.argv[1]) as follower:
    for line in sys.stdin:
        follower.sync(int(line))
        said = qwen3.counted(model) if follower.version % 10 == 0 else []
        print(follower.version, deltawire.digest(qwen3.rounded(model)).state, said, flush=True)
"""


def test_fifty_steps_of_a_real_model(url):
    """Trained here, served in another process: the same bits at every version, and the same
    answers, token for token."""
    model, twin = qwen3.make(), qwen3.make().to(torch.bfloat16)
    optimizer = torch.optim.AdamW(
        [{"params": model.model.embed_tokens.parameters(), "lr": 3e-3},
         {"params": model.model.layers.parameters(), "lr": 1e-2},
         {"params": model.model.norm.parameters(), "lr": 1e-3}])
    child = subprocess.Popen(
        [sys.executable, "-c", FOLLOW, url, str(pathlib.Path(__file__).parent)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    losses, answers = [], set()
    with deltawire.torch.Publisher(model, optimizer, url=url) as publisher:
        for step in range(1, 51):
            losses.append(qwen3.train(model, optimizer, step))
            report = publisher.wait()
            print(report.version, file=child.stdin, flush=True)
            wanted = qwen3.rounded(model)
            twin.load_state_dict(wanted, strict=False)
            said = qwen3.counted(twin) if step % 10 == 0 else []
            answers.add(str(said))
            assert report.state == dw.digest(wanted).state
            assert child.stdout.readline() == f"{step} {report.state} {said}\n"
    child.stdin.close()
    assert child.wait(60) == 0
    assert losses[-1] < losses[0] - 1 and len(answers) > 2  # it was trained
