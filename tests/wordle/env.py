#!/usr/bin/env python3
"""wordle-env over HTTP: games, refusals, many at once, its end."""
import random
import subprocess

from lib import Server, in_parallel, program, run_tests

ENV = program("WORDLE_ENV")
server = Server(ENV, "--listen", "127.0.0.1:0")
WORDS = server.get("/words")["words"]


def feedback(guess, answer):
    marks = ["g" if a == b else "." for a, b in zip(guess, answer)]
    rest = [b for a, b in zip(guess, answer) if a != b]
    for i, letter in enumerate(guess):
        if marks[i] == "." and letter in rest:
            marks[i] = "y"
            rest.remove(letter)
    return "".join(marks)


def play(rng, at, seed=None):
    """Plays a game to its end and checks each turn. Returns the last answer."""
    game = at.post("/games", {} if seed is None else {"seed": seed})["games"][0]
    prompt, lines, total = "WORDLE\n", [], 0
    assert game["prompt"] == prompt
    for turn in range(1, 7):
        word = rng.choice(WORDS) if rng.random() < 0.9 else "qqqqq"
        said = at.post(f"/games/{game['id']}/guess", {"text": word})
        lines.append((word, said["feedback"]))
        prompt += f"{word} {said['feedback']}\n"
        total += said["reward"]
        assert said["prompt"] == prompt and said["turn"] == turn
        assert said["valid"] == (word != "qqqqq")
        before = [line for line in lines[:-1] if line[0] != "qqqqq"]
        assert said["consistent"] == (said["valid"] and before != [] and
                                      all(feedback(w, word) == m for w, m in before))
        assert said["done"] == (turn == 6 or said["won"])
        assert abs(said["total"] - total) < 1e-6
        if said["done"]:
            break
        assert "answer" not in said
    for word, marks in lines:
        assert marks == ("!!!!!" if word == "qqqqq" else feedback(word, said["answer"]))
    at.want(409, "POST", f"/games/{game['id']}/guess", {"text": "crane"})
    return said


def test_seeds():
    rng = random.Random(1)
    for seed in (0, 7, 2**63 - 1):
        first = play(rng, server, seed)["answer"]
        assert first == play(rng, server, seed)["answer"]
        group = server.post("/games", {"seed": seed, "n": 4})["games"]
        assert len({game["id"] for game in group}) == 4
        for game in group:
            said = server.post(f"/games/{game['id']}/guess", {"text": first + "\nmore"})
            assert said["won"] and said["feedback"] == "ggggg" and said["reward"] > 3
    some = server.post("/games", {"n": 1024})["games"]
    assert len({game["id"] for game in some}) == 1024


def test_what_is_refused():
    game = server.post("/games")["games"][0]["id"]
    for body in ({"n": 0}, {"n": 1025}, {"n": "1"}, {"n": 1.5}, {"seed": -1}, {"seed": "x"},
                 {"seed": 1.0}):
        server.want(400, "POST", "/games", body)
    for raw in ("x", "[]", "{", '{"n":1,"n":2}', '{"n":1} more', b"\xff\xfe", '"text"'):
        server.want(400, "POST", "/games", raw=raw)
    for body in ({}, {"text": 5}, {"text": None}):
        server.want(400, "POST", f"/games/{game}/guess", body)
    server.want(400, "POST", f"/games/{game}/guess", raw='{"text":"a\\u0000b"}')
    server.want(413, "POST", f"/games/{game}/guess", {"text": "a" * (1 << 20)})
    for path in ("/games/x/guess", f"/games/{'0' * 16}/guess", f"/games/{'0' * 400}/guess",
                 f"/games/{game}", f"/games/{game}/guess/more"):
        server.want(404, "POST", path, {"text": "crane"})
    server.want(404, "GET", f"/games/{game}/guess")
    said = server.post(f"/games/{game}/guess", {"text": "crane"})
    assert said["turn"] == 1  # none of these was a guess
    # a long guess that is none, with letters that JSON must carry
    game = server.post("/games")["games"][0]["id"]
    said = server.post(f"/games/{game}/guess", {"text": "aé\t" + "z" * 1000})
    assert said["prompt"] == "WORDLE\na???z !!!!!\n"


def test_many_at_once():
    def work(i):
        rng = random.Random(i)
        for _ in range(8):
            play(rng, server)

    in_parallel(16, work)


def test_the_oldest_games_go():
    first = server.post("/games")["games"][0]["id"]
    for _ in range(16):
        server.post("/games", {"n": 1024})
    server.want(404, "POST", f"/games/{first}/guess", {"text": "crane"})


def test_few_answers():
    few = Server(ENV, "--listen", "127.0.0.1:0", "--answers", "2")
    answers = few.get("/words")["answers"]
    assert len(answers) == 2 and few.get("/words")["words"] == sorted(WORDS)
    rng = random.Random(3)
    assert {play(rng, few)["answer"] for _ in range(30)} == set(answers)
    assert few.get("/health")["status"] == "ok"
    assert few.end() == 0


def run(*arguments):
    return subprocess.run([ENV, *arguments], capture_output=True, text=True, timeout=180,
                          check=False)


def test_use():
    said = run("--help")
    assert said.returncode == 0 and "Example" in said.stdout
    for wrong in (["--nonsense"], ["more"], ["--answers", "0"], ["--answers", "x"]):
        assert run(*wrong).returncode == 2, wrong
    for failing in (["--listen", "nowhere"], ["--listen", server.url[7:]]):
        said = run(*failing)
        assert said.returncode == 1 and said.stderr.count("\n") == 1, (failing, said.stderr)


def test_end():
    assert server.end() == 0


run_tests(globals())
