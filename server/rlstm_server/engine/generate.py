"""Continuing a text on the device, a token at a time, up to its length or a stop string.

The token at an index is a function of the distribution, the seed, the choice and the index alone, so the same
seed gives the same text whatever else runs, and a text that was interrupted goes on as it would have. Text is
shown only when it cannot become part of a stop string: tokens are released in order, each with the text that
it completes, and what was released is never taken back.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rlstm_model.adaptation.evaluator import Reader
from rlstm_model.adaptation.items import DecodeStep
from rlstm_model.adaptation.state import Cursor
from rlstm_model.sampling import sample, uniform
from rlstm_model.scores import LOGPROB_FLOOR, alternatives
from rlstm_model.vocab import Vocab
from rlstm_server.engine.worker import compute
from rlstm_server.errors import StateCorrupt
from rlstm_server.metrics import Metrics
from rlstm_server.schemas.generation import (
    EndEvent,
    FinishReason,
    GenerationEvent,
    GenerationSettings,
    TokenEvent,
)
from rlstm_server.schemas.text import EngineIdentity


class Released(NamedTuple):
    """A token whose text may be shown; ``text`` is empty inside a character.

    Its first ``lost`` characters stand for ids before the text, which began one and did not complete it.
    """

    id: int
    text: str
    logprob: float
    lost: int = 0


class StopStrings:
    """Holds tokens back while their text could begin a stop string, or while a character is incomplete.

    `after` are the ids just before the text: they decide whether a word begins with a space, and which
    character the first bytes complete. Feed tokens one by one; `stopped` says that a stop string is complete,
    after which nothing more comes out.
    """

    def __init__(self, vocab: Vocab, stops: Sequence[str], after: Sequence[int] = ()) -> None:
        self._decoder = vocab.decoder()
        for token in after:
            self._decoder.feed(token)
        self._stops = tuple(stops)
        self._waiting: deque[Released] = deque()
        self.stopped = False

    def feed(self, token: int, logprob: float) -> list[Released]:
        """Take one token; return those that are free now."""
        piece, lost = self._decoder.feed(token), self._decoder.lost
        if piece and not (self._stops or self._waiting):
            return [Released(token, piece, logprob, lost)]
        if lost and self._waiting:
            self._waiting[-1] = self._waiting[-1]._replace(text=piece[:lost])
            piece, lost = piece[lost:], 0
        self._waiting.append(Released(token, piece, logprob, lost))
        text = "".join(waiting.text for waiting in self._waiting)
        at = min((at for stop in self._stops if (at := text.find(stop)) >= 0), default=None)
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
            last = self._waiting.pop()
            self._waiting.append(last._replace(text=last.text + rest))
        return self._take(len(self._waiting))

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
        group: list[Released] = []
        for token in self._waiting:
            if not token.text:
                group.append(token)
                continue
            if characters <= 0:
                break
            released += [*group, token._replace(text=token.text[:characters])]
            characters -= len(token.text)
            group = []
        self._waiting.clear()
        return released

    def _take(self, count: int) -> list[Released]:
        return [self._waiting.popleft() for _ in range(count)]


@dataclass(eq=False)
class Generation:
    """One text that is being generated. The repetition penalty acts on the tokens `seen`.

    `index` counts its tokens; once it is complete there is a `finish_reason`. Their `alternatives` are asked
    for by `top`: the most probable tokens at each place, best first, of those that are not released yet.
    """

    reader: Reader
    cursor: Cursor
    settings: GenerationSettings
    seed: int
    choice: int
    stops: StopStrings
    seen: set[int]
    index: int = 0
    top: int = 0
    alternatives: "deque[tuple[tuple[int, float], ...]]" = field(default_factory=deque)
    finish_reason: FinishReason | None = None

    def __post_init__(self) -> None:
        if self.index >= self.settings.max_tokens:
            self.finish_reason = "length"

    async def decode(self) -> list[Released]:
        """Choose one more token; return the tokens that may be shown now.

        Raises StateCorrupt when the model's output is not finite.
        """
        following = await compute(DecodeStep(self.reader, self.cursor))
        log_probs_V = following.log_probs_V
        number = uniform(self.seed, self.choice, self.index)
        try:
            token = sample(log_probs_V, self.settings.sampling, number, self.seen)
        except ArithmeticError as error:
            raise StateCorrupt("the next-token distribution is not finite") from error
        logprob = min(0.0, max(LOGPROB_FLOOR, float(log_probs_V[token])))
        self.cursor = following.after(token)
        self.seen.add(token)
        self.index += 1
        if self.top:
            ids_1K, logprobs_1K = alternatives(log_probs_V[None], self.top)
            self.alternatives.append(tuple(zip(ids_1K[0].tolist(), logprobs_1K[0].tolist(), strict=True)))
        released = self.stops.feed(token, logprob)
        if self.stops.stopped:
            self.finish_reason = "stop"
        elif self.index >= self.settings.max_tokens:
            self.finish_reason = "length"
            released += self.stops.flush()
        return released

    async def write(
        self,
        put: Callable[[GenerationEvent], None],
        metrics: Metrics,
        *,
        number: int = 0,
        prompt_tokens: int = 0,
        identity: EngineIdentity | None = None,
    ) -> None:
        """Decode to the end, as choice `number`; what may be shown is, while the next token is computed."""
        shown = 0
        while (reason := self.finish_reason) is None:
            for token in await self.decode():
                put(
                    TokenEvent(
                        choice=number,
                        index=shown,
                        id=token.id,
                        text=token.text,
                        logprob=token.logprob,
                        lost=token.lost,
                        top=self.alternatives.popleft() if self.top else (),
                    )
                )
                shown += 1
        metrics.tokens.labels("generated").inc(shown)
        put(
            EndEvent(
                choice=number,
                finish_reason=reason,
                prompt_tokens=prompt_tokens,
                completion_tokens=shown,
                seed=self.seed,
                identity=identity,
            )
        )
