"""A real vLLM server on a checkpoint directory, with the back end of watched.py."""
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve().parent
MAX_TOKENS = 256  # of a prompt and its answer
START_S = 400  # importing it takes minutes on a busy machine


def install_watched(target):
    """Makes TARGET, for PYTHONPATH, with a copy of watched.py that vLLM loads as a plugin."""
    shutil.copytree(HERE, target, ignore=lambda _, names: set(names) - {"watched.py"})
    information = target / "watched-0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: watched\nVersion: 0\n")
    (information / "entry_points.txt").write_text(
        "[vllm.general_plugins]\nwatched = watched:register\n")


def environment(plugin, **more):
    """For processes that run vLLM. The package deltawire is on the path already."""
    path = [str(plugin), str(HERE), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(path).rstrip(os.pathsep),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_CACHE_ROOT": os.path.join(sys.prefix, "vllm-cache"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    } | more


def wait_until(condition, what, limit_s=300):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        time.sleep(0.05)


def free_port():
    script = HERE.parents[1] / "scripts" / "free-ports.py"
    return int(subprocess.check_output([sys.executable, script]))


def version_of(label):
    """The number of a label STREAM:NUMBER; other labels as they are."""
    return label.rpartition(":")[2]


class Server:
    def __init__(self, directory, plugin, log, backend="watched", options=()):
        self.directory, self.plugin, self.backend = directory, plugin, backend
        self.options = options
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = open(log, "ab")
        self.process = None

    def start(self):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server",
             "--model", self.directory, "--served-model-name", "m",
             "--host", "127.0.0.1", "--port", str(self.port),
             "--dtype", "bfloat16", "--enforce-eager", "--skip-tokenizer-init",
             "--max-model-len", str(MAX_TOKENS), "--enable-scale-out",
             "--weight-transfer-config", json.dumps({"backend": self.backend}), *self.options],
            env=environment(self.plugin, VLLM_SERVER_DEV_MODE="1"),
            stdout=self.log, stderr=self.log, start_new_session=True)

    def wait(self):
        def is_up():
            if self.process.poll() is not None:
                raise AssertionError(f"vLLM ended: see {self.log.name}")
            try:
                self.call("GET", "/health")
                return True
            except OSError:
                return False

        wait_until(is_up, f"vLLM is up; see {self.log.name}", START_S)

    def kill(self):
        """All its processes at once, as when the machine dies."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def call(self, method, path, body=None):
        request = urllib.request.Request(self.url + path, method=method)
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=300) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def label(self):
        """The version that it reports, without its stream, or None while it does not answer."""
        try:
            return version_of(self.call("GET", "/weight_info")["weight_version"])
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return None

    def is_paused(self):
        return self.call("GET", "/is_paused")["is_paused"]

    def generate(self, prompt, n_tokens):
        sampling = {"temperature": 0, "max_tokens": n_tokens, "ignore_eos": True,
                    "detokenize": False}
        answer = self.call("POST", "/inference/v1/generate", {
            "model": "m", "token_ids": prompt, "sampling_params": sampling})
        return answer["choices"][0]

    def serves(self, prompts, n_tokens):
        """In the form of vllm_reference.py."""
        checked = self.call("POST", "/weight_checker", {"action": "checksum"})
        return checked | {"tokens": [self.generate(p, n_tokens)["token_ids"]
                                     for p in prompts]}
