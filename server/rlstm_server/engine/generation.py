"""Continuing a text on the device, a token at a time.

The token at an index is a function of the distribution, the seed, the choice and the index alone, so the same
seed gives the same text whatever else runs, and a text that was interrupted goes on as it would have.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rlstm_model.adaptation.batch_step import DecodeStep, NextToken
from rlstm_model.adaptation.evaluator import Cursor
from rlstm_model.adaptation.reader import Reader
from rlstm_model.sampling import sample, uniform
from rlstm_model.scoring import LOGPROB_FLOOR
from rlstm_model.vocab import Vocab
from rlstm_server.engine.scoring import read
from rlstm_server.engine.steps import Ask, Steps, performed, together
from rlstm_server.engine.stops import Released, StopStrings
from rlstm_server.errors import StateCorrupt
from rlstm_server.schemas import EndEvent, FinishReason, GenerationEvent, GenerationSettings, TokenEvent


@dataclass(eq=False)
class Continuation:
    """One text in the making. `index` counts its tokens, `seen` are those the repetition penalty acts on."""

    reader: Reader
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

    @property
    def turn(self) -> DecodeStep:
        """What must be computed before the next token can be chosen."""
        return DecodeStep(self.reader, self.cursor)

    def choose(self, following: NextToken) -> list[Released]:
        """Choose one more token; return the tokens that may be shown now.

        Raises StateCorrupt when the model's output is not finite.
        """
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
    reader: Reader,
    vocab: Vocab,
    prompt: Sequence[int],
    settings: GenerationSettings,
    seed: int,
    unfinished: Sequence[int] = (),
) -> Steps[GenerationEvent, int]:
    """Continue a prompt `settings.choices` times with the reader's weights; return the number of new tokens.

    `unfinished` are the last ids of the prompt, where they do not complete their character.
    """
    cursor = yield from read(reader, prompt)
    texts = [
        Continuation(
            reader=reader,
            cursor=cursor,
            settings=settings,
            seed=seed,
            choice=choice,
            stops=StopStrings(vocab, settings.stop, after=unfinished or prompt[-1:]),
            seen=set(prompt),
        )
        for choice in range(settings.choices)
    ]
    written = (_write(text, prompt_tokens=len(prompt)) for text in texts)
    return sum((yield from together(written, len(texts))))


def continue_text(text: Continuation) -> Steps[GenerationEvent, int]:
    """Continue from any state, keeping nothing; return the number of new tokens."""
    return (yield from _write(text, prompt_tokens=0))


def _write(text: Continuation, *, prompt_tokens: int) -> Steps[GenerationEvent, int]:
    """Choose token after token; what may be shown of them is, while the next one is computed."""
    shown = 0
    events: Sequence[GenerationEvent] = ()
    while text.finish_reason is None:
        following = yield from performed(text.turn, events)
        events = _token_events(text.choose(following), text.choice, shown)
        shown += len(events)
    yield Ask((), [*events, _end(text, text.finish_reason, prompt_tokens, shown)])
    return shown


def _token_events(released: Sequence[Released], choice: int, first_index: int) -> list[TokenEvent]:
    """Number released tokens, from `first_index`."""
    return [
        TokenEvent(choice=choice, index=index, id=token.id, text=token.text, logprob=token.logprob)
        for index, token in enumerate(released, start=first_index)
    ]


def _end(text: Continuation, reason: FinishReason, prompt_tokens: int, shown: int) -> EndEvent:
    return EndEvent(
        choice=text.choice,
        finish_reason=reason,
        prompt_tokens=prompt_tokens,
        completion_tokens=shown,
        seed=text.seed,
    )
