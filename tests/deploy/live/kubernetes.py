#!/usr/bin/env python3
"""The pod of deploy/kubernetes/sidecar.yaml, run by podman as a kubelet would.

It takes from the file: the order of the containers, their arguments, environment, users, rights, mounts and probes. It replaces: the images are those built here, the engine is engine.py beside this, the stream is in a directory, and there are no limits on memory and no GPU. So it shows nothing about a cluster, its network policy or its monitoring.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from lib import DEPLOY, documents  # noqa: E402

PODMAN = os.environ["DW_PODMAN"]
SECRETS = {"deltawire": {"token": "secret-of-the-test"}, "deltawire-keys": {}, "deltawire-tls": {}}
HOLDER = "holder"  # keeps the network, like a pod's own container


def it(sentence):
    print("-", sentence, flush=True)


def podman(*words, check=True):
    done = subprocess.run([PODMAN, *map(str, words)], capture_output=True, text=True)
    if check and done.returncode != 0:
        raise AssertionError(f"podman {' '.join(map(str, words))}: {done.stderr}")
    return done


def wait_until(what, condition, seconds=90):
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"waited in vain until {what}"
        time.sleep(0.2)
    return value


class Pod:
    def __init__(self, docs, scratch, bucket):
        self.scratch, self.bucket = scratch, bucket
        self.settings = {d["metadata"]["name"]: d["data"] for d in docs if d["kind"] == "ConfigMap"}
        self.settings["deltawire"]["STREAM_URL"] = "file:///bucket/run"
        self.spec = next(d for d in docs if d["kind"] == "Deployment")["spec"]["template"]["spec"]
        self.group = self.spec["securityContext"]["fsGroup"]
        self.sources = {v["name"]: self.make_volume(v) for v in self.spec["volumes"]}
        podman("run", "-d", "--name", HOLDER, "--network", "none", "--entrypoint", "sleep",
               "localhost/deltawire-agent", "3600")

    def make_volume(self, volume):
        folder = self.scratch / volume["name"]
        folder.mkdir(mode=0o755)
        if "emptyDir" in volume:
            size = volume["emptyDir"]["sizeLimit"].rstrip("i")
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},gid={self.group},mode=2777",
                            "tmpfs", folder], check=True)
            return folder
        secret = volume["secret"]
        keys = SECRETS[secret["secretName"]]
        names = {i["key"]: i["path"] for i in secret.get("items", [])} or {k: k for k in keys}
        for key, name in names.items():
            (folder / name).write_text(keys[key])
            os.chown(folder / name, 0, self.group)
            os.chmod(folder / name, secret["defaultMode"])
        return folder

    def environment(self, c):
        values = {}
        for source in c.get("envFrom", []):
            if "configMapRef" in source:
                values |= self.settings[source["configMapRef"]["name"]]
            else:
                values |= SECRETS[source["secretRef"]["name"]]
        for entry in c.get("env", []):
            if "value" in entry:
                values[entry["name"]] = entry["value"]
            else:
                assert entry["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.name"}}
                values[entry["name"]] = "vllm-7d4b9c-x2x8p"
        return values

    def start(self, c, *words):
        values, security = self.environment(c), c.get("securityContext", {})
        command = ["run", *words, "--name", c["name"], "--network", f"container:{HOLDER}",
                   "--group-add", self.group, "-v", f"{self.bucket}:/bucket"]
        for name, value in values.items():
            command += ["-e", f"{name}={value}"]
        for mount in c["volumeMounts"]:
            rights = ":ro" if mount.get("readOnly") else ""
            command += ["-v", f"{self.sources[mount['name']]}:{mount['mountPath']}{rights}"]
        if security:
            command += ["--user", f"{security['runAsUser']}:{security['runAsGroup']}"]
        if security.get("readOnlyRootFilesystem"):
            command += ["--read-only", "--read-only-tmpfs=false"]
        if security.get("allowPrivilegeEscalation") is False:
            command += ["--security-opt", "no-new-privileges"]
        for capability in security.get("capabilities", {}).get("drop", []):
            command += ["--cap-drop", capability]
        if "deltawire-agent" in c["image"]:
            command += ["localhost/deltawire-agent"]
        else:
            command += ["--entrypoint", "engine", "localhost/deltawire-machine"]
            command += c["command"][2:]  # vllm serve
        command += [re.sub(r"\$\((\w+)\)", lambda m: values[m[1]], a) for a in c["args"]]
        return podman(*command)

    def ask(self, url):
        return podman("exec", HOLDER, "curl", "-fsSk", "-m", "5", url, check=False)

    def passes(self, c, probe):
        get = c[probe]["httpGet"]
        port = next(p["containerPort"] for p in c["ports"] if p["name"] == get["port"])
        return self.ask(f"{get.get('scheme', 'HTTP').lower()}://127.0.0.1:{port}{get['path']}"
                        ).returncode == 0

    def wait_for(self, c, probe):
        wait_until(f"the {probe} of {c['name']} passes", lambda: self.passes(c, probe))

    def run(self):
        for c in self.spec["initContainers"]:
            if c.get("restartPolicy") == "Always":
                self.start(c, "-d")
                self.wait_for(c, "startupProbe")
            else:
                self.start(c)
        for c in self.spec["containers"]:
            self.start(c, "-d")
            self.wait_for(c, "startupProbe")


class Trainer:
    """Publishes steps of a synthetic run by the trainer's image."""

    def __init__(self, scratch, bucket):
        self.scratch, self.bucket = scratch, bucket
        self.deltawire("synth", "-o", "/work/run", "--params", "300K", "--steps", "3",
                       "--write", "checkpoints", "-q")

    def deltawire(self, *words):
        return podman("run", "--rm", "--network", "none", "--user", "0",
                      "-v", f"{self.scratch}:/work", "-v", f"{self.bucket}:/bucket",
                      "localhost/deltawire-trainer", *words)

    def publish(self, name):
        self.deltawire("publish", "file:///bucket/run", f"/work/run/{name}",
                       "--baseline", "/work/baseline")
        subprocess.run(["chown", "-R", "10001:10001", self.bucket], check=True)
        path = self.scratch / "run" / name / "model.safetensors"
        return subprocess.run(["sha256sum", path], capture_output=True, text=True,
                              check=True).stdout.split()[0]


def make_certificate(scratch):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
                    "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
                    "/CN=deltawire", "-keyout", scratch / "key", "-out", scratch / "cert"],
                   check=True, capture_output=True)
    SECRETS["deltawire-tls"] = {"tls.crt": (scratch / "cert").read_text(),
                                "tls.key": (scratch / "key").read_text()}


def test(scratch):
    bucket = scratch / "bucket"
    bucket.mkdir()
    trainer = Trainer(scratch, bucket)
    sha = trainer.publish("base")
    make_certificate(scratch)
    pod = Pod(documents(DEPLOY / "kubernetes/sidecar.yaml"), scratch, bucket)
    sidecar, engine = pod.spec["initContainers"][1], pod.spec["containers"][0]

    def served():
        return json.loads(pod.ask("http://127.0.0.1:8000/served").stdout)

    def serves(version, sha, updates):
        now = served()
        return now["paused"] is False and now["sha256"] == sha and \
            (now["version"], now["updates"]) == (version, updates)

    it("pulls, then follows, then lets the engine load what is there")
    pod.run()
    assert served()["sha256"] == sha

    it("passes its probes when the agent knows which version it serves")
    for c, probe in ((sidecar, "readinessProbe"), (sidecar, "livenessProbe"),
                     (engine, "readinessProbe")):
        pod.wait_for(c, probe)
    assert serves("0", sha, 1), served()

    it("brings the engine to each step, from weights that it can only read")
    for i in (1, 2):
        sha = trainer.publish(f"step_00000{i}")
        wait_until(f"the engine serves version {i}", lambda: serves(str(i), sha, i + 1))
    assert podman("exec", engine["name"], "touch", "/weights/x", check=False).returncode != 0
    assert podman("exec", sidecar["name"], "touch", "/x", check=False).returncode != 0
    pod.wait_for(sidecar, "readinessProbe")

    it("goes on after the sidecar was killed")
    podman("kill", "-s", "KILL", sidecar["name"])
    podman("wait", sidecar["name"])
    podman("start", sidecar["name"])
    pod.wait_for(sidecar, "readinessProbe")
    wait_until("the engine serves version 2", lambda: serves("2", sha, 4))  # sent again
    sha = trainer.publish("step_000003")
    wait_until("the engine serves version 3", lambda: serves("3", sha, 5))

    it("is not ready, but healthy, when the engine is gone")
    podman("stop", "-t", 10, engine["name"])
    wait_until("it is not ready", lambda: not pod.passes(sidecar, "readinessProbe"))
    assert pod.passes(sidecar, "livenessProbe")

    it("ends on SIGTERM after the engine")
    podman("stop", "-t", 60, sidecar["name"])
    code = podman("inspect", "--format", "{{.State.ExitCode}}", sidecar["name"]).stdout.strip()
    assert code == "0", f"exit code {code}"


scratch = Path(tempfile.mkdtemp())
scratch.chmod(0o755)
try:
    test(scratch)
except BaseException:
    for name in podman("ps", "-a", "--format", "{{.Names}}", check=False).stdout.split():
        said = podman("logs", name, check=False)
        print("--", name, said.stdout, said.stderr, sep="\n")
    raise
finally:
    podman("rm", "-f", "-t", 0, "--depend", HOLDER, check=False)
    for folder in scratch.iterdir():
        if folder.is_mount():
            subprocess.run(["umount", folder], check=True)
    shutil.rmtree(scratch)
