#!/usr/bin/env python3
"""Replaces vLLM in the pod: its control interface over weights that are only hashed.

    GET /served     the weights that it would use: {"version", "sha256", "paused", "updates"}
"""
import hashlib
import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

model = sys.argv[1]
options = dict(word.lstrip("-").split("=", 1) for word in sys.argv[2:])


def sha256(directory):
    with open(os.path.join(directory, "model.safetensors"), "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


state = {"version": "default", "paused": False, "updates": 0, "sha256": sha256(model)}
session = {"active": False, "label": "default"}


def update(body):
    info = body["update_info"]
    if not state["paused"] or not session["active"]:
        return 400, {"error": "not paused, or no update was started"}
    state["sha256"] = sha256(info["dir"])
    state["updates"] += 1
    return 200, {"message": "Weights updated"}


def finish(body):
    session["active"] = False
    session["label"] = body["weight_version"]
    state["version"] = session["label"].rpartition(":")[2]
    return 200, {"message": "Weight update finished"}


def pause(on):
    state["paused"] = on
    return 200, {"status": "paused" if on else "resumed"}


def start():
    session["active"] = True
    return 200, {"message": "Weight update started"}


routes = {
    ("GET", "/health"): lambda body: (200, {}),
    ("GET", "/version"): lambda body: (200, {"version": "0.32.0"}),
    ("GET", "/weight_info"): lambda body: (200, {"weight_version": session["label"]}),
    ("GET", "/is_paused"): lambda body: (200, {"is_paused": state["paused"]}),
    ("GET", "/served"): lambda body: (200, state),
    ("POST", "/pause"): lambda body: pause(True),
    ("POST", "/resume"): lambda body: pause(False),
    ("POST", "/start_weight_update"): lambda body: start(),
    ("POST", "/update_weights"): update,
    ("POST", "/finish_weight_update"): finish,
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        route = routes.get((self.command, self.path.split("?")[0]))
        status, value = route(json.loads(body or b"{}")) if route else (404, {"error": "no route"})
        text = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = answer


signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
ThreadingHTTPServer(("127.0.0.1", int(options["port"])), Handler).serve_forever()
