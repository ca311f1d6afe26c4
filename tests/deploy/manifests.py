#!/usr/bin/env python3
# labels: slow
"""Kubernetes and compose files: everything that they name exists and fits together."""
import re

from lib import DEPLOY, Check, container_files, documents

check = Check()
UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def n_bytes(text):
    number, unit = re.fullmatch(r"(\d+)(Ki|Mi|Gi|Ti)", text).groups()
    return int(number) * UNITS[unit]


def image_name(image):
    return image.rsplit("/", 1)[-1].split(":")[0]


def is_ours(container):
    return image_name(container["image"]) in container_files()


# ---- Kubernetes ----

def check_container(c, volumes, where):
    where = f"{where}, container {c['name']}"
    image, _, tag = c["image"].rpartition(":")
    check.that(image and tag != "latest", f"{where}: the image has no tag")
    ports = {p["name"]: p["containerPort"] for p in c.get("ports", [])}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        if probe in c:
            port = c[probe]["httpGet"]["port"]
            check.that(port in ports, f"{where}: {probe} asks port {port}, not declared")
    paths = [m["mountPath"] for m in c.get("volumeMounts", [])]
    check.that(len(paths) == len(set(paths)), f"{where}: two mounts in one place")
    for mount in c.get("volumeMounts", []):
        check.that(mount["name"] in volumes, f"{where}: no volume {mount['name']}")
        volume = volumes.get(mount["name"], {})
        if volume.get("emptyDir", {}).get("medium") == "Memory":
            limit = n_bytes(c["resources"]["limits"]["memory"])
            check.that(mount.get("readOnly") or limit > n_bytes(volume["emptyDir"]["sizeLimit"]),
                       f"{where}: its memory is less than {mount['name']}, which it fills")
    if is_ours(c):
        check_ours(c, ports, where)


def check_ours(c, ports, where):
    security = c.get("securityContext", {})
    for key, value in (("runAsNonRoot", True), ("allowPrivilegeEscalation", False),
                       ("readOnlyRootFilesystem", True), ("capabilities", {"drop": ["ALL"]})):
        check.that(security.get(key) == value, f"{where}: {key} is not {value}")
    user = re.findall(r"^USER (\d+)", container_files()[image_name(c["image"])].read_text(), re.M)
    check.that(str(security.get("runAsUser")) == user[-1],
               f"{where}: runs as another user than the image's {user[-1]}")
    text = " ".join(c["args"])
    for port in re.findall(r"--listen[= ][^ ]*:(\d+)", text):
        check.that(int(port) in ports.values(), f"{where}: port {port} is not declared")
    mounts = [m["mountPath"] for m in c.get("volumeMounts", [])]
    for path in re.findall(r"(?:--into|-file|--tls-\w+)[= ](/[^ ]*)", text):
        check.that(any(path == m or path.startswith(m + "/") for m in mounts),
                   f"{where}: {path} is on no volume")


def check_pod(spec, where):
    volumes = {v["name"]: v for v in spec["volumes"]}
    init, main = spec["initContainers"], spec["containers"]
    names = [c["name"] for c in init + main]
    check.that(len(names) == len(set(names)), f"{where}: two containers of one name")
    for c in init + main:
        check_container(c, volumes, where)
    mounted = {m["name"] for c in init + main for m in c.get("volumeMounts", [])}
    check.that(mounted == set(volumes), f"{where}: mounted {mounted}, declared {set(volumes)}")
    check.that(len({c["image"] for c in init + main if is_ours(c)}) == 1,
               f"{where}: containers of ours with different images")

    # the order: pull ends, then the sidecar is up, then the engine
    check.that([c["args"][0] for c in init] == ["pull", "follow"] and
               "restartPolicy" not in init[0] and init[1].get("restartPolicy") == "Always",
               f"{where}: not first a pull, then a sidecar that follows")
    check.that("startupProbe" in init[1], f"{where}: nothing makes the engine wait")
    into = {re.search(r"--into[= ](/\S*)", " ".join(c["args"])).group(1) for c in init}
    check.that(len(into) == 1, f"{where}: pull and follow into {into}")
    for c in main:
        seen = [m for m in c["volumeMounts"] if {m["mountPath"]} == into]
        check.that(seen and seen[0].get("readOnly"),
                   f"{where}, container {c['name']}: does not see the weights read-only")
        ports = {p["containerPort"] for p in c["ports"]}
        for port in re.findall(r"--engine[= ]\w+=http://127\.0\.0\.1:(\d+)", " ".join(init[1]["args"])):
            check.that(int(port) in ports, f"{where}: the engine does not listen on {port}")


def references(node, kinds):
    """(kind, name) of the Secrets and ConfigMaps that are named below NODE."""
    if isinstance(node, list):
        for item in node:
            yield from references(item, kinds)
    elif isinstance(node, dict):
        for key, value in node.items():
            if key in kinds and isinstance(value, dict):
                yield kinds[key], value.get("secretName") or value["name"]
            yield from references(value, kinds)


def check_kubernetes():
    files = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    docs = [(path, d) for path in files for d in documents(path)]
    for path, d in docs:
        check.that(all(d.get(k) for k in ("apiVersion", "kind")) and d["metadata"].get("name"),
                   f"{path}: a document without kind or name")
    deployments = [d for _, d in docs if d["kind"] == "Deployment"]
    check.that(deployments, "no Deployment")
    labels, ports = {}, set()
    for d in deployments:
        where, template = d["metadata"]["name"], d["spec"]["template"]
        labels = template["metadata"]["labels"]
        check.that(d["spec"]["selector"]["matchLabels"].items() <= labels.items(),
                   f"{where}: does not select its own pods")
        check_pod(template["spec"], where)
        ports |= {p["name"] for c in template["spec"]["initContainers"] +
                  template["spec"]["containers"] for p in c.get("ports", [])}

    comments = "\n".join(path.read_text() for path in files)
    made = {(d["kind"], d["metadata"]["name"]) for _, d in docs}
    made |= {("Secret", name) for name in re.findall(r"kubectl create secret \w+ ([\w-]+)", comments)}
    kinds = {"configMapRef": "ConfigMap", "secretRef": "Secret", "secretKeyRef": "Secret",
             "secret": "Secret", "credentials": "Secret"}
    for path, d in docs:
        for reference in references(d, kinds):
            check.that(reference in made, f"{path}: nobody makes {reference}")
        spec = d.get("spec", {})
        selector, used = None, []
        if d["kind"] == "Service":
            selector, used = spec["selector"], [p["targetPort"] for p in spec["ports"]]
        elif d["kind"] == "NetworkPolicy":
            selector = spec["podSelector"]["matchLabels"]
            used = [p["port"] for rule in spec["ingress"] for p in rule["ports"]]
        elif d["kind"] == "PodMonitor":
            selector = spec["selector"]["matchLabels"]
            used = [e["port"] for e in spec["podMetricsEndpoints"]]
        if selector is not None:
            where = f"{d['kind']} {d['metadata']['name']}"
            check.that(selector.items() <= labels.items(), f"{where}: selects no pod")
            check.that(set(used) <= ports, f"{where}: ports {used}, declared {ports}")


# ---- compose ----

def check_compose():
    path = DEPLOY / "containers" / "compose.yaml"
    (d,) = documents(path)
    used = set()
    for name, s in d["services"].items():
        where = f"compose, {name}"
        check.that(image_name(s["image"]) in container_files(), f"{where}: image {s['image']}")
        if "build" in s:
            context = (path.parent / s["build"]["context"]).resolve()
            check.that(context / s["build"]["dockerfile"] == container_files()[s["image"]],
                       f"{where}: is built from another file than its image's")
        targets = ["/run/secrets/" + secret for secret in s.get("secrets", [])]
        for volume in s["volumes"]:
            source, target = volume.split(":")[:2]
            targets.append(target)
            used.add(source)
            check.that(source.startswith("./") or source in d["volumes"],
                       f"{where}: no volume {source}")
        for secret in s.get("secrets", []):
            check.that(secret in d["secrets"], f"{where}: no secret {secret}")
        for word in s["command"]:
            for file in re.findall(r"^(?:file://)?(/.*)", word):
                check.that(any(file == t or file.startswith(t + "/") for t in targets),
                           f"{where}: {file} is on no volume")
        check.that(s["read_only"] and s["cap_drop"] == ["ALL"], f"{where}: not hardened")
        for port in s.get("ports", []):
            host, _, inner = port.split(":")
            check.that(host == "127.0.0.1" and f"0.0.0.0:{inner}" in s["command"],
                       f"{where}: publishes {port}")
    for volume in d["volumes"]:
        check.that(volume in used, f"compose: nobody uses the volume {volume}")


check_kubernetes()
check_compose()
check.end()
