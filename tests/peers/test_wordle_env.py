"""The environment of examples/trl-wordle."""
import json
import sys
import threading
import urllib.error
import urllib.request
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "examples/trl-wordle")]
import env  # noqa: E402


@pytest.mark.parametrize("guess, word, marks", [
    ("crane", "crane", "GGGGG"), ("brick", "loamy", "-----"), ("least", "steal", "YYYYY"),
    ("speed", "abide", "--Y-Y"),  # one e in the word, two in the guess
    ("eerie", "melee", "YG--G"),  # letters in the right place count first
    ("allow", "total", "YY-Y-"),
    ("geese", "eagle", "YY--G"),
])
def test_marks(guess, word, marks):
    assert env.marks_of(guess, word) == marks


@pytest.fixture
def url():
    server = ThreadingHTTPServer(("127.0.0.1", 0), env.Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def status(url, body):
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(url, body)
    return caught.value.code


def test_a_game(url):
    game = post(f"{url}/games", {"seed": 7})
    word = env.word_of(7)
    guess = f"{url}/games/{game['id']}/guess"
    other = next(w for w in env.WORDS if w != word)
    assert post(guess, {"word": other}) == {
        "marks": env.marks_of(other, word), "won": False, "left": 5}
    for bad in ("four", "sixsix", "12345", "pâté!", None, 7):
        assert status(guess, {"word": bad}) == 400
    assert post(guess, {"word": word.upper()}) == {"marks": "GGGGG", "won": True, "left": 4}
    assert status(guess, {"word": word}) == 404  # it is over
    assert status(f"{url}/games", {"seed": "x"}) == 400
    assert status(f"{url}/games", [1]) == 400
    assert status(f"{url}/nothing", {}) == 404


def test_a_game_that_is_lost(url):
    game = post(f"{url}/games", {"seed": 1})
    other = next(w for w in env.WORDS if w != env.word_of(1))
    answers = [post(f"{url}/games/{game['id']}/guess", {"word": other}) for _ in range(6)]
    assert [a["left"] for a in answers] == [5, 4, 3, 2, 1, 0]
    assert status(f"{url}/games/{game['id']}/guess", {"word": other}) == 404
