"""A stand-in for TRL 1.18, by its release notes: the trainer is imported from `trl`, its constructor
takes no weight transfer and no rollout worker, and no submodule of trl.experimental is needed. A
client talks to vLLM, and weights go over NCCL, which does not exist here."""
import json
import queue
import types
import urllib.request

import numpy as np
import torch
import transformers

__version__ = "1.18.0"


class AsyncVLLMClient:
    """trl.generation.async_vllm_client."""

    def __init__(self, url):
        self.url = url

    def complete(self, prompt):
        request = urllib.request.Request(
            self.url + "/v1/completions", json.dumps({"prompt": prompt, "max_tokens": 4}).encode(),
            {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)["choices"][0]


class _Rollouts:
    """The rollout loop of trl.trainer.async_grpo_trainer, here in the trainer's thread."""

    def __init__(self, client, samples):
        self.client, self.samples, self.version = client, samples, 0

    def update_model_version(self, number):
        self.version = number

    def roll(self):
        choice = self.client.complete([1, 2])
        tokens, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        self.samples.put(types.SimpleNamespace(
            input_ids=np.array([1, 2, *tokens]), completion_mask=np.array([0, 0] + [1] * len(tokens)),
            old_log_probs=np.array([0, 0, *logprobs], np.float32), model_version=-1, metrics={}))


class _EachStep(transformers.TrainerCallback):
    def __init__(self, sync, trainer):
        self.sync, self.trainer = sync, trainer

    def on_train_begin(self, *_, **__):
        self.trainer._sync_weight()
        self.trainer.roll()

    def on_step_end(self, *_, **__):
        self.sync()
        self.trainer.roll()


class AsyncGRPOTrainer(transformers.Trainer):
    def __init__(self, where, vllm_server_base_url):
        torch.manual_seed(0)
        model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
            vocab_size=64, hidden_size=32, intermediate_size=64, head_dim=16, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True))
        rows = [{"input_ids": [i, 1, 2, 3], "labels": [i, 1, 2, 3]} for i in range(16)]
        super().__init__(model, transformers.TrainingArguments(
            output_dir=str(where / "out"), max_steps=3, per_device_train_batch_size=2,
            learning_rate=1e-2, report_to="none", use_cpu=True, save_strategy="no",
            disable_tqdm=True, logging_strategy="no"), train_dataset=rows)
        self.model_version, self.samples = 0, []
        self.rollout_queue = queue.Queue()
        self._rollouts = _Rollouts(AsyncVLLMClient(vllm_server_base_url), self.rollout_queue)
        self.add_callback(_EachStep(self._sync_weight, self))

    @property
    def worker_version(self):
        return self._rollouts.version

    def roll(self):
        self._rollouts.roll()
        self.samples.append(self.rollout_queue.get())

    def _sync_weight(self):
        raise RuntimeError("NCCL needs GPUs")
