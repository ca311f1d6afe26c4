"""Wordle over HTTP: a word of five letters, six tries.

    python env.py [--host 127.0.0.1] [--port 8800]

    POST /games {"seed": 7}              -> {"id": "...", "tries": 6}
    POST /games/ID/guess {"word": "..."} -> {"marks": "G-Y--", "won": false, "left": 5}
    GET  /healthz

A seed always gives the same word. G: the letter is at this position. Y: it is at another
position, and no other mark counts it. A game is dropped when it is over, or when there are too
many.
"""
from __future__ import annotations

import argparse
import json
import random
import threading
import uuid
from collections import Counter, OrderedDict
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LETTERS, TRIES, MAX_GAMES, MAX_BODY = 5, 6, 10_000, 4096
WORDS = """
about actor alarm album apple arena badge baker basic beach begin berry blade blank board
bonus brain bread brick brush cabin camel candy chain chair chalk charm chess civic clean
clock cloud coast coral crane cream crowd daily dairy dance delta diary dream drink eagle
early earth eight elbow enjoy entry error event fable faith fancy fever field flame floor
focus forum frame fresh front fruit giant glass globe grain grape green guest habit happy
heart honey horse hotel house human ideal image index jelly jewel judge juice knife label
labor large laser learn lemon level light lilac linen logic lunar magic mango maple march
medal melon metal model money month motor mount mouse music nerve night noble noise north
novel nurse ocean olive onion opera orbit order organ otter paint panel paper party patch
peach pearl penny phone photo piano pilot pizza plain plane plant plate point power pride
prize queen quiet radio rally range rapid ratio river robin robot royal salad scale scene
scout shade sheep shelf shell shirt shore sight skill sleep slice smile smoke snake solar
solid sound south space spare spice spoon sport staff stage stair stamp state steam steel
stone storm story sugar sunny table teach theme tiger title toast token tooth tower trace
track train tulip uncle union urban value video visit vivid voice wagon watch water whale
wheat wheel white woman world yacht yield young zebra
""".split()


def marks_of(guess: str, word: str) -> str:
    """Marks letters in the right place first; then the others from the left, as often as the word
    has them."""
    left = Counter(w for g, w in zip(guess, word, strict=True) if g != w)
    marks = ""
    for g, w in zip(guess, word, strict=True):
        if g == w:
            marks += "G"
        elif left[g] > 0:
            left[g] -= 1
            marks += "Y"
        else:
            marks += "-"
    return marks


def word_of(seed: int) -> str:
    return random.Random(seed).choice(WORDS)


@dataclass
class Game:
    word: str
    left: int = TRIES


class Games:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._games: OrderedDict[str, Game] = OrderedDict()

    def begin(self, body: dict[str, Any]) -> dict[str, Any]:
        seed = body.get("seed")
        if not isinstance(seed, int):
            raise ValueError("seed is a number")
        name = uuid.uuid4().hex
        with self._lock:
            self._games[name] = Game(word_of(seed))
            if len(self._games) > MAX_GAMES:
                self._games.popitem(last=False)
        return {"id": name, "tries": TRIES}

    def guess(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        word = body.get("word")
        if not (isinstance(word, str) and len(word) == LETTERS and word.isascii()
                and word.isalpha()):
            raise ValueError(f"a guess is a word of {LETTERS} letters")
        with self._lock:
            game = self._games[name]
            game.left -= 1
            marks = marks_of(word.lower(), game.word)
            won = marks == "G" * LETTERS
            if won or game.left == 0:
                del self._games[name]
        return {"marks": marks, "won": won, "left": game.left}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    games = Games()

    def do_GET(self) -> None:
        self._answer(200 if self.path == "/healthz" else 404, {})

    def do_POST(self) -> None:
        try:
            n_bytes = int(self.headers.get("Content-Length") or 0)
            if not 0 <= n_bytes <= MAX_BODY:
                self.close_connection = True
                raise ValueError("the body is too large")
            body = json.loads(self.rfile.read(n_bytes) or b"{}")
            if not isinstance(body, dict):
                raise ValueError("the body is no object")
            match self.path.strip("/").split("/"):
                case ["games"]:
                    self._answer(200, self.games.begin(body))
                case ["games", name, "guess"]:
                    self._answer(200, self.games.guess(name, body))
                case _:
                    self._answer(404, {"error": "POST /games or /games/ID/guess"})
        except KeyError:
            self._answer(404, {"error": "no such game, or it is over"})
        except ValueError as error:
            self._answer(400, {"error": str(error)})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8800)
    given = parser.parse_args()
    server = ThreadingHTTPServer((given.host, given.port), Handler)
    server.daemon_threads = True
    print(f"Wordle on http://{given.host}:{server.server_port}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
