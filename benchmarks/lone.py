"""One stream of a library in a process of its own: `python -P benchmarks/lone.py MODEL`.

Each line on standard input is a task and how many tokens (bytes of text) it gets; the answer is a line with
the seconds that it took. Only what every commit's library has is used, so that another commit's Python can
run it too.
"""

import random
import sys
import time
from collections.abc import Callable
from typing import Any

import rlstm_model

WORDS = ("the", "of", "a", "river", "stone", "was", "carried", "under", "bright", "seven", "ships", "slowly")
EXPERTS = 2
"""Of a session that says nothing else: one is frozen."""


def prose(size: int, seed: int = 0) -> str:
    """Words without sense: so many characters, which are so many bytes."""
    draw, text = random.Random(seed), ""
    while len(text) < size:
        text += draw.choice(WORDS) + " "
    return text[:size]


class Lone:
    """A model and one session of it."""

    def __init__(self, name: str) -> None:
        self._model = rlstm_model.load(name)
        self._stream: Any = self._model.stream()
        # What evaluates a stream has other names in other commits.
        (evaluator,) = (part for part in vars(self._stream).values() if hasattr(part, "observe"))
        self._stream.state = evaluator.start(experts=EXPERTS)
        self._stream.observe(prose(200))

    def learn(self, size: int) -> None:
        """Go on with the session."""
        self._stream.observe(prose(size))

    def score(self, size: int) -> None:
        """A text with the weights as loaded."""
        self._model.score(prose(size))

    def generate(self, size: int) -> None:
        """Continue the session, which stays as it is."""
        for _ in self._stream.generate(size):
            pass


def main() -> None:
    """Answer until there are no more lines."""
    lone = Lone(sys.argv[1])
    tasks: dict[str, Callable[[int], None]] = {
        "learn": lone.learn,
        "score": lone.score,
        "generate": lone.generate,
    }
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        task, size = line.split()
        began = time.perf_counter()
        tasks[task](int(size))
        sys.stdout.write(f"{time.perf_counter() - began}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
