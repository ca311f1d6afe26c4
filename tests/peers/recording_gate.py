"""A proxy in front of a vLLM server, only for the rollouts: it keeps each answer with generated
tokens, and can be closed while a test examines the engine."""
import contextlib
import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from vllm_server import version_of


class Gate:
    def __init__(self, port):
        self.upstream = port
        self.answers = []  # (tokens, log-probabilities, [[version, start, end], ...])
        self._may_pass = threading.Condition()
        self._n_inside, self._is_closed = 0, False
        gate = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with gate._pass():
                    status, answer = gate._forward(self.path, body)
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def _forward(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=600)
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as error:
            return 502, json.dumps({"error": str(error)}).encode()
        finally:
            connection.close()
        if answer.status == 200:
            [choice] = json.loads(text)["choices"]
            spans = [[version_of(s["version"]), s["start"], s["end"]]
                     for s in choice["weight_versions"]]
            logprobs = [token["logprob"] for token in choice["logprobs"]["content"]]
            self.answers.append((choice["token_ids"], logprobs, spans))
        return answer.status, text

    @contextlib.contextmanager
    def _pass(self):
        with self._may_pass:
            self._may_pass.wait_for(lambda: not self._is_closed, timeout=600)
            self._n_inside += 1
        try:
            yield
        finally:
            with self._may_pass:
                self._n_inside -= 1
                self._may_pass.notify_all()

    @contextlib.contextmanager
    def closed(self):
        """Meanwhile nothing is generated for the rollouts."""
        with self._may_pass:
            self._is_closed = True
            assert self._may_pass.wait_for(lambda: self._n_inside == 0, timeout=600)
        try:
            yield
        finally:
            with self._may_pass:
                self._is_closed = False
                self._may_pass.notify_all()

    def close(self):
        self._http.shutdown()
        self._http.server_close()
