"""The requests of trainers to engines, over real connections to servers that answer as the test
wants."""
import http.server
import json
import threading

import pytest

from deltawire._engines import Engine, EngineError, Wait, label_of

STREAM = "ab" * 16
GOOD = {
    "/is_paused": {"is_paused": False},
    "/pause": {"status": "paused"},
    "/start_weight_update": {"message": "Weight update started"},
    "/update_weights": {"message": "Weights updated"},
    "/finish_weight_update": {"message": "Weight update finished"},
    "/resume": {"status": "resumed"},
    "/weight_info": {"weight_version": f"{STREAM}:7"},
}


class Server:
    """Keeps the requests; `answers` has the bytes for a path, `to` is where it redirects."""

    def __init__(self):
        self.requests, self.answers, self.to, self.code = [], {}, None, 307
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self):
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                path = self.path.split("?")[0]
                server.requests.append((path, self.headers.get("Authorization")))
                body = server.answers.get(path, json.dumps(GOOD.get(path, {})).encode())
                self.send_response(200 if server.to is None else server.code)
                if server.to is not None:
                    self.send_header("Location", server.to + self.path)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = answer

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def paths(self):
        return [path for path, _ in self.requests]

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def servers():
    made = [Server(), Server()]
    yield made
    for server in made:
        server.close()


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_gets_no_token(servers, code):
    engine, other = servers
    engine.to, engine.code = other.url, code
    with pytest.raises(EngineError, match=f"status {code}.*redirects are not followed"):
        Engine(engine.url, "secret").label()
    with pytest.raises(EngineError, match=f"status {code}.*redirects are not followed"):
        Engine(engine.url, "secret").update(STREAM, 1, 60)
    assert engine.requests == [("/weight_info", "Bearer secret"), ("/is_paused", "Bearer secret")]
    assert other.requests == []


def test_an_update(servers):
    Engine(servers[0].url).update(STREAM, 1, 60)
    assert servers[0].paths() == ["/is_paused", "/pause", "/start_weight_update",
                                  "/update_weight_version", "/update_weights",
                                  "/finish_weight_update", "/resume"]


def test_an_engine_that_was_found_paused_serves_only_after_an_update(servers):
    """A killed trainer may have left it half way."""
    server = servers[0]
    server.answers["/is_paused"] = b'{"is_paused": true}'
    server.answers["/start_weight_update"] = b"{}"
    engine = Engine(server.url)
    with pytest.raises(EngineError, match="is this vLLM"):
        engine.update(STREAM, 1, 60)
    assert "/resume" not in server.paths()
    del server.answers["/start_weight_update"]
    engine.update(STREAM, 1, 60)
    assert server.paths()[-1] == "/resume" and not engine.is_mixed


@pytest.mark.parametrize("body", [
    b"", b"{}", b"[]", b"true", b'"Weights updated"', b'{"message": true}',
    b'{"message": {"text": "x"}}', b'{"message": "x", "error": "a worker fell"}',
    b'{"success": true}'])
@pytest.mark.parametrize("path", ["/update_weights", "/finish_weight_update"])
def test_a_200_that_says_something_else_is_no_success(servers, path, body):
    servers[0].answers[path] = body
    engine = Engine(servers[0].url)
    with pytest.raises(EngineError, match="is this vLLM"):
        engine.update(STREAM, 1, 60)
    assert engine.is_mixed
    assert "/resume" not in servers[0].paths()


def test_a_version_of_another_stream_is_not_the_one_that_is_waited_for(servers):
    engine = Engine(servers[0].url)
    for label in (label_of("cd" * 16, 7), label_of(STREAM, 6), "7"):
        wait = Wait(engine, label, None)
        assert not wait.done()
        assert wait.status == f"serves version 7 of the stream {STREAM}"
    assert Wait(engine, label_of(STREAM, 7), None).done()
