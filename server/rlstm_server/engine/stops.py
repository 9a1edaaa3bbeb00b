"""Stop strings: text is shown only when it cannot become part of one.

Tokens are released in order, each with the text that it completes. A token waits while its text could still
begin a stop string, or while a character is incomplete. What was released is never taken back.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rlstm_model.vocab import Vocab


class Released(NamedTuple):
    """A token whose text may be shown; ``text`` is empty inside a character."""

    id: int
    text: str
    logprob: float


@dataclass
class _Waiting:
    id: int
    text: str
    logprob: float


class StopStrings:
    """Holds tokens back until their text is free of any stop string.

    `after` are the ids just before the text: they decide whether a word begins with a space, and which
    character the first bytes complete. Feed tokens one by one; `stopped` says that a stop string is complete,
    after which nothing more comes out.
    """

    def __init__(self, vocab: Vocab, stops: Sequence[str], after: Sequence[int] = ()) -> None:
        self._decoder = vocab.decoder()
        for token in after:
            self._decoder.feed(token)
        self._stops = tuple(stops)
        self._waiting: deque[_Waiting] = deque()
        self.stopped = False

    def feed(self, token: int, logprob: float) -> list[Released]:
        """Take one token; return those that are free now."""
        self._waiting.append(_Waiting(token, self._decoder.feed(token), logprob))
        text = "".join(waiting.text for waiting in self._waiting)
        at = self._first_stop(text)
        if at is not None:
            self.stopped = True
            return self._cut(at)
        return self._free(len(text) - self._longest_beginning(text))

    def flush(self) -> list[Released]:
        """Release everything: the text ends here, an incomplete character reads as U+FFFD."""
        if self.stopped:
            return []
        rest = self._decoder.flush()
        if rest and self._waiting:
            self._waiting[-1].text += rest
        return self._take(len(self._waiting))

    def _first_stop(self, text: str) -> int | None:
        return min((at for stop in self._stops if (at := text.find(stop)) >= 0), default=None)

    def _longest_beginning(self, text: str) -> int:
        """The length of the longest end of `text` with which a stop string begins."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0

    def _free(self, characters: int) -> list[Released]:
        """Release the tokens within the first `characters`; a token without text waits for its character."""
        count, seen = 0, 0
        for index, token in enumerate(self._waiting):
            seen += len(token.text)
            if seen > characters:
                break
            if token.text:
                count = index + 1
        return self._take(count)

    def _cut(self, characters: int) -> list[Released]:
        """Release the tokens that begin before the stop string, the last one with the text before it."""
        released: list[Released] = []
        left = characters
        group: list[_Waiting] = []
        for token in self._waiting:
            group.append(token)
            if not token.text:
                continue
            if left <= 0:
                break
            token.text = token.text[:left]
            left -= len(token.text)
            released += [Released(part.id, part.text, part.logprob) for part in group]
            group = []
        self._waiting.clear()
        return released

    def _take(self, count: int) -> list[Released]:
        taken = [self._waiting.popleft() for _ in range(count)]
        return [Released(token.id, token.text, token.logprob) for token in taken]
