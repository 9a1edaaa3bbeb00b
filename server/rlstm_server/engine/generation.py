"""Continuing a text on the device, a few tokens a slice.

The token at an index is a function of the distribution, the seed, the choice and the index alone, so the same
seed gives the same text whatever else runs, and a text that was interrupted goes on as it would have.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from rlstm_model.adaptation.adapter import Cursor
from rlstm_model.adaptation.reader import Next, static_next
from rlstm_model.language_model import LanguageModel
from rlstm_model.sampling import sample, uniform
from rlstm_model.scoring import LOGPROB_FLOOR
from rlstm_model.vocab import Vocab
from rlstm_server.engine.messages import (
    EndEvent,
    FinishReason,
    GenerationEvent,
    GenerationSettings,
    TokenEvent,
)
from rlstm_server.engine.runner import Steps
from rlstm_server.engine.scoring import read_static
from rlstm_server.engine.stops import Released, StopStrings
from rlstm_server.errors import StateCorrupt

SLICE: Final = 4
"""Tokens of a slice of generation."""

NextToken: TypeAlias = Callable[[Cursor], Next]
"""Reads a cursor's token and predicts the one after it."""


@dataclass(eq=False)
class Continuation:
    """One text in the making. `index` counts its tokens, `seen` are those the repetition penalty acts on."""

    read: NextToken
    cursor: Cursor
    settings: GenerationSettings
    seed: int
    choice: int
    stops: StopStrings
    seen: set[int]
    index: int = 0

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the text is complete; None while it is not."""
        if self.stops.stopped:
            return "stop"
        return "length" if self.index >= self.settings.max_tokens else None

    def advance(self) -> list[Released]:
        """Choose one more token; return the tokens that may be shown now.

        Raises StateCorrupt when the model's output is not finite.
        """
        following = self.read(self.cursor)
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
        released = self.stops.feed(token, logprob)
        return released + self.stops.flush() if self.finish_reason == "length" else released


def continue_prompt(
    model: LanguageModel,
    vocab: Vocab,
    prompt: Sequence[int],
    settings: GenerationSettings,
    seed: int,
    unfinished: Sequence[int] = (),
) -> Steps[GenerationEvent, int]:
    """Continue a prompt `settings.choices` times with the weights as loaded; return the number of new tokens.

    `unfinished` are the last ids of the prompt, where they do not complete their character.
    """
    state, last = yield from read_static(model, prompt, model.initial_state(1), vocab.bos_id)
    texts = [
        Continuation(
            read=partial(static_next, model),
            cursor=Cursor(state, last),
            settings=settings,
            seed=seed,
            choice=choice,
            stops=StopStrings(vocab, settings.stop, after=unfinished or prompt[-1:]),
            seen=set(prompt),
        )
        for choice in range(settings.choices)
    ]
    return (yield from _write(texts, prompt_tokens=len(prompt)))


def continue_text(text: Continuation) -> Steps[GenerationEvent, int]:
    """Continue from any state, keeping nothing; return the number of new tokens."""
    return (yield from _write([text], prompt_tokens=0))


def _write(texts: Sequence[Continuation], *, prompt_tokens: int) -> Steps[GenerationEvent, int]:
    """Advance the texts in turn until all are complete, a slice of each at a time."""
    shown = [0] * len(texts)
    going_on = list(range(len(texts)))
    while going_on:
        for number in going_on:
            events = _slice(texts[number], shown[number])
            shown[number] += len(events)
            yield [*events, *_end(texts[number], prompt_tokens, shown[number])]
        going_on = [number for number in going_on if texts[number].finish_reason is None]
    return sum(shown)


def _slice(text: Continuation, shown: int) -> list[TokenEvent]:
    released: list[Released] = []
    for _ in range(SLICE):
        if text.finish_reason is not None:
            break
        released += text.advance()
    return token_events(released, text.choice, shown)


def token_events(released: Sequence[Released], choice: int, first_index: int) -> list[TokenEvent]:
    """Number released tokens, from `first_index`."""
    return [
        TokenEvent(choice=choice, index=index, id=token.id, text=token.text, logprob=token.logprob)
        for index, token in enumerate(released, start=first_index)
    ]


def _end(text: Continuation, prompt_tokens: int, shown: int) -> list[Any]:
    if text.finish_reason is None:
        return []
    return [
        EndEvent(
            choice=text.choice,
            finish_reason=text.finish_reason,
            prompt_tokens=prompt_tokens,
            completion_tokens=shown,
            seed=text.seed,
        )
    ]
