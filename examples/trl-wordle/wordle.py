"""The game as TRL sees it: a reward for one guess, or tools for a game of several turns.

TRL's rollout process imports this by name, so its only state is the address of the environment,
in WORDLE_URL."""
from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from typing import Any

PROMPT = "Guess a word of five letters."
TOOL_PROMPT = ("Play Wordle: find the word of five letters in six tries. Call guess(word). The "
               "answer has a mark for each letter: G it stands there, Y it is elsewhere in the "
               "word, - it is not in it.")


def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(
        os.environ.get("WORDLE_URL", "http://127.0.0.1:8800") + path,
        json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def worth(marks: str) -> float:
    """From 0 to 1."""
    return 1.0 if marks == "GGGGG" else 0.12 * marks.count("G") + 0.04 * marks.count("Y")


def first_guess(completions: list[Any], seed: list[int], **_: Any) -> list[float]:
    """For models without tools: the answer's first five characters are the guess. Letters get a
    small reward, so that a random model can start to learn."""
    rewards = []
    for completion, number in zip(completions, seed, strict=True):
        text = completion[-1]["content"][:5].lower()
        reward = 0.1 * len(re.findall("[a-z]", text))
        if re.fullmatch("[a-z]{5}", text):
            game = post("/games", {"seed": number})
            reward += worth(post(f"/games/{game['id']}/guess", {"word": text})["marks"])
        rewards.append(reward)
    return rewards


class Wordle:
    """An environment for models that call tools: TRL makes one for each rollout."""

    def reset(self, seed: int = 0, **_: Any) -> None:
        self._game = post("/games", {"seed": int(seed)})["id"]
        self._best, self._is_over = 0.0, False

    def guess(self, word: str) -> str:
        """
        Guesses a word.

        Args:
            word: Five letters.

        Returns:
            A mark for each letter: G it stands there, Y it is elsewhere, - it is not there.
        """
        if self._is_over:
            return "The game is over."
        try:
            answer = post(f"/games/{self._game}/guess", {"word": str(word)})
        except urllib.error.HTTPError as error:
            return json.load(error)["error"]
        self._best = max(self._best, worth(answer["marks"]))
        self._is_over = answer["won"] or answer["left"] == 0
        return answer["marks"] + (" You won." if answer["won"] else f" {answer['left']} left.")

    def get_reward(self) -> float:
        return self._best
