"""fault_proxy between http.client and a small server: tests each fault from the client's side.

DW_FAULT_PROXY names the program; build/tests/servers/fault_proxy by default.
"""
import collections
import http.client
import http.server
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROXY = os.environ.get("DW_FAULT_PROXY", str(ROOT / "build/tests/servers/fault_proxy"))
BODY = bytes(range(256)) * 4096  # 1 MiB


class Handler(http.server.BaseHTTPRequestHandler):
    """Keeps what it gets, returns it to GET; lists in chunks."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, body=b""):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_PUT(self):
        n = int(self.headers.get("Content-Length", 0))
        try:
            body = self.rfile.read(n)
        except ConnectionResetError:
            self.server.cut.set()
            self.close_connection = True
            return
        self.server.puts[self.path] += 1
        self.server.hosts.add(self.headers["Host"])
        self.server.objects[self.path] = body
        self.reply(200)

    def do_GET(self):
        if "list-type=2" not in self.path:
            body = self.server.objects.get(self.path)
            self.reply(404 if body is None else 200, body or b"")
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for key in sorted(self.server.objects) + [" " * 100]:
            line = key.encode() + b"\n"
            self.wfile.write(b"%x;why=not\r\n%s\r\n" % (len(line), line))
        self.wfile.write(b"0\r\nTrailer: x\r\n\r\n")

    do_HEAD = do_GET


@pytest.fixture(scope="module")
def server():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


class Proxy:
    def __init__(self, server, *args):
        server.objects = {"/big": BODY, "/one": b"1", "/empty": b""}
        server.puts, server.hosts = collections.Counter(), set()
        server.cut = threading.Event()
        self.process = subprocess.Popen(
            [PROXY, "--to", f"127.0.0.1:{server.server_port}", *args],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        word, port = self.process.stdout.readline().split()
        assert word == "port"
        self.port = int(port)
        self.connection = None

    def request(self, method, path, body=None, headers=None):
        """Status and body; keeps the connection for the next request, if possible."""
        if self.connection is None:
            self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            self.connection.request(method, path, body, headers or {})
            reply = self.connection.getresponse()
            return reply.status, reply.read()
        except (OSError, http.client.HTTPException):
            self.connection.close()
            self.connection = None
            raise

    def end(self):
        """The counts of faults that happened."""
        if self.connection:
            self.connection.close()
        self.process.send_signal(signal.SIGTERM)
        _, err = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, err
        return {k: int(n) for k, n in map(str.split, err.splitlines()) if int(n)}


@pytest.fixture
def start(server, tmp_path):
    started = []

    def start(plan, *args):
        (tmp_path / "plan").write_text(plan)
        started.append(Proxy(server, "--plan", str(tmp_path / "plan"), *args))
        return started[-1]

    yield start
    for proxy in started:
        if proxy.process.poll() is None:
            proxy.process.kill()
            proxy.process.communicate()


def test_passes_everything_on_unchanged(start, server):
    proxy = start("# nothing\n\n1000 reset\n")
    assert proxy.request("PUT", "/new", BODY[:-1], {"Host": "far.away"}) == (200, b"")
    assert server.hosts == {"far.away"}
    for path, body in ("/new", BODY[:-1]), ("/big", BODY), ("/one", b"1"), ("/empty", b""):
        assert proxy.request("GET", path) == (200, body)
    assert proxy.request("HEAD", "/big") == (200, b"")
    assert proxy.request("GET", "/none")[0] == 404
    status, listed = proxy.request("GET", "/?list-type=2")
    assert status == 200 and listed.split() == [b"/big", b"/empty", b"/new", b"/one"]
    assert proxy.end() == {"requests": 8}


def test_passes_100_continue_on(start, server):
    proxy = start("2 503\n")
    head = b"PUT /c HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"
    with socket.create_connection(("127.0.0.1", proxy.port), 60) as s:
        s.sendall(head)
        assert s.recv(4096).startswith(b"HTTP/1.1 100 ")
        s.sendall(b"four")
        assert s.recv(4096).startswith(b"HTTP/1.1 200 ")
        assert server.objects["/c"] == b"four"
        # refused before the body is sent, with the connection's end
        s.sendall(head)
        reply = b""
        while part := s.recv(4096):
            reply += part
        assert reply.startswith(b"HTTP/1.1 503 ") and reply.endswith(b"</Error>")
    assert proxy.end() == {"requests": 2, "503": 1}


def test_reset_leaves_the_server_alone(start, server):
    proxy = start("1 reset\n")
    with pytest.raises(ConnectionResetError):
        proxy.request("PUT", "/new", b"x")
    assert not server.puts
    assert proxy.request("PUT", "/new", b"x")[0] == 200
    assert proxy.end() == {"requests": 2, "reset": 1}


def test_lost_reply_after_the_work(start, server):
    proxy = start("1 lost PUT\n")
    assert proxy.request("GET", "/one") == (200, b"1")
    with pytest.raises((ConnectionResetError, http.client.RemoteDisconnected)):
        proxy.request("PUT", "/new", b"x")
    assert server.puts == {"/new": 1} and server.objects["/new"] == b"x"
    assert proxy.end() == {"requests": 2, "lost": 1}


def test_cut_request(start, server):
    proxy = start("1 cut PUT\n")
    with pytest.raises(OSError):
        proxy.request("PUT", "/new", BODY)
        proxy.request("GET", "/one")
    assert server.cut.wait(60) and "/new" not in server.objects
    assert proxy.end()["cut"] == 1


@pytest.mark.parametrize("path", ["/big", "/one", "/?list-type=2"])
def test_truncated_reply(start, path):
    proxy = start("1 truncate\n")
    with pytest.raises(http.client.IncompleteRead):
        proxy.request("GET", path)
    assert proxy.request("GET", path)[0] == 200
    assert proxy.end() == {"requests": 2, "truncate": 1}


def test_one_flipped_bit(start):
    proxy = start("every 1 flip\n")
    for path, want in ("/big", BODY), ("/one", b"1"):
        status, body = proxy.request("GET", path)
        assert status == 200 and len(body) == len(want)
        flipped = int.from_bytes(body, "big") ^ int.from_bytes(want, "big")
        assert bin(flipped).count("1") == 1
    assert proxy.request("GET", "/empty") == (200, b"")
    assert proxy.end() == {"requests": 3, "flip": 2}


def test_flipped_bit_in_chunks(start):
    proxy = start("2 flip\n")
    _, whole = proxy.request("GET", "/?list-type=2")
    _, flipped = proxy.request("GET", "/?list-type=2")
    assert sum(bin(a ^ b).count("1") for a, b in zip(whole, flipped)) == 1
    assert len(whole) == len(flipped)
    assert proxy.end() == {"requests": 2, "flip": 1}


def test_answers_of_its_own(start, server):
    proxy = start("1 500\n2 503\n3 429\n4 307\n5 error-200\n6 204\n7 412\n")
    replies = []
    for _ in range(7):
        proxy.connection = proxy.connection or http.client.HTTPConnection(
            "127.0.0.1", proxy.port, timeout=60)
        proxy.connection.request("PUT", "/new?a=b", BODY)
        reply = proxy.connection.getresponse()
        replies.append((reply.status, reply.getheader("Retry-After"),
                        reply.getheader("Location"), b"<Error>" in reply.read()))
    assert replies == [(500, None, None, True), (503, None, None, True),
                       (429, "1", None, True), (307, None, "/new?a=b", True),
                       (200, None, None, True), (204, None, None, False),
                       (412, None, None, True)]
    assert not server.puts
    assert proxy.request("HEAD", "/one")[0] == 200
    assert proxy.end() == {"requests": 8, "500": 1, "503": 1, "429": 1, "307": 1,
                           "error-200": 1, "204": 1, "412": 1}


def test_garbage(start, server):
    proxy = start("1 garbage\n")
    with pytest.raises(http.client.BadStatusLine):
        proxy.request("PUT", "/new", BODY)
    assert not server.puts
    assert proxy.request("GET", "/one") == (200, b"1")
    assert proxy.end() == {"requests": 2, "garbage": 1}


@pytest.mark.parametrize("fault", ["stall", "stall-reply"])
def test_stall_ends_when_the_client_leaves(start, fault):
    proxy = start(f"1 {fault}\n")
    proxy.connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=1)
    with pytest.raises(TimeoutError):
        proxy.request("GET", "/big")
    assert proxy.request("GET", "/one") == (200, b"1")
    assert proxy.end() == {"requests": 2, fault: 1}


def test_stall_has_an_end(start):
    proxy = start("1 stall\n", "--stall-ms", "50")
    with pytest.raises((ConnectionResetError, http.client.RemoteDisconnected)):
        proxy.request("GET", "/one")
    proxy.end()


def test_delay(start):
    proxy = start("1 delay\n", "--delay-ms", "150")
    began = time.monotonic()
    assert proxy.request("GET", "/one") == (200, b"1")
    assert time.monotonic() - began >= 0.15
    assert proxy.end() == {"requests": 1, "delay": 1}


def test_stale_list(start, server):
    proxy = start("every 2 stale GET list-type\n")
    listed = proxy.request("GET", "/?list-type=2&x=y")
    proxy.request("PUT", "/new", b"x")
    assert proxy.request("GET", "/?list-type=2&x=y") == listed
    assert b"/new" in proxy.request("GET", "/?list-type=2&x=y")[1]
    # there is no earlier reply to another list, so it is not stale
    assert b"/new" in proxy.request("GET", "/?list-type=2")[1]
    assert proxy.end() == {"requests": 5, "stale": 1}


def test_counts_on_demand(start):
    proxy = start("every 2 500\n")
    for _ in range(4):
        proxy.request("GET", "/one")
    proxy.process.send_signal(signal.SIGUSR1)
    assert proxy.process.stderr.readline() == "requests 4\n"
    assert proxy.end()["500"] == 2


def test_ends_with_connections_open(start):
    proxy = start("1 stall\n")
    with socket.create_connection(("127.0.0.1", proxy.port), 60) as stalled, \
            socket.create_connection(("127.0.0.1", proxy.port), 60):
        stalled.sendall(b"GET /one HTTP/1.1\r\nHost: h\r\n\r\n")
        while proxy.process.poll() is None:
            proxy.process.send_signal(signal.SIGUSR1)
            if "requests 1\n" == proxy.process.stderr.readline():
                break
        proxy.process.send_signal(signal.SIGTERM)
        proxy.process.communicate(timeout=300)  # reads the reports that are left: a pipe can fill
        assert proxy.process.returncode == 0


def test_nonsense_is_dropped(start):
    proxy = start("")
    for nonsense in (b"\r\n\r\n", b"x" * 300000, b"PUT /n HTTP/1.1\r\n"
                     b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n"):
        with socket.create_connection(("127.0.0.1", proxy.port), 60) as s:
            try:
                s.sendall(nonsense)
                s.shutdown(socket.SHUT_WR)
                while s.recv(4096):
                    pass
            except OSError:  # it has closed the connection
                pass
    assert proxy.request("GET", "/one") == (200, b"1")
    proxy.end()


def test_by_chance_from_a_seed(server):
    """The same seed and requests give the same faults; clients that retry succeed with many
    threads."""
    counted = []
    for _ in range(2):
        proxy = Proxy(server, "--rate", "0.5", "--seed", "7", "--delay-ms", "1",
                      "--stall-ms", "20")
        for _ in range(60):
            try:
                proxy.request("GET", "/big")
            except (OSError, http.client.HTTPException):
                pass
        counted.append(proxy.end())
    assert counted[0] == counted[1]
    assert len(counted[0]) > 6


def test_many_threads(server):
    proxy = Proxy(server, "--rate", "0.3", "--seed", "1", "--delay-ms", "1",
                  "--stall-ms", "20")
    done = []

    def client():
        connection = None
        for _ in range(40):
            try:
                connection = connection or http.client.HTTPConnection(
                    "127.0.0.1", proxy.port, timeout=60)
                connection.request("GET", "/one")
                reply = connection.getresponse()
                done.append((reply.status, reply.read()))
            except (OSError, http.client.HTTPException):
                connection = None

    threads = [threading.Thread(target=client) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (200, b"1") in done
    assert proxy.end()["requests"] == 640


@pytest.mark.parametrize("line", ["x reset", "0 reset", "1", "1 nothing", "every reset",
                                  "random 2 reset", "1 reset GET / more", "-1 reset"])
def test_bad_plans_are_refused(tmp_path, line):
    (tmp_path / "plan").write_text("1 reset\n" + line + "\n")
    done = subprocess.run([PROXY, "--to", "127.0.0.1:1", "--plan", tmp_path / "plan"],
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "plan:2: not a line of a plan" in done.stderr


def test_a_plan_with_no_server_behind(start, tmp_path):
    (tmp_path / "empty").write_text("")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    process = subprocess.Popen([PROXY, "--to", f"127.0.0.1:{port}", "--plan",
                                tmp_path / "empty"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    connection = http.client.HTTPConnection(
        "127.0.0.1", int(process.stdout.readline().split()[1]), timeout=60)
    with pytest.raises((ConnectionResetError, http.client.RemoteDisconnected)):
        connection.request("GET", "/")
        connection.getresponse()
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 0
