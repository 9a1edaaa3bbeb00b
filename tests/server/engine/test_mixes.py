"""What becomes of a session does not depend, to the last bit, on who shares its batch steps."""

import hashlib
import random

import pytest

from rlstm_model import native
from rlstm_model.adaptation.batch import run_batch
from rlstm_model.adaptation.items import DecodeStep, ScoreChunk
from rlstm_model.vocab import ByteVocab

TEXT = "It was the best of times, it was the worst of times; it was the age of wisdom."


def digest(observed):
    """All that came of a part: scores, and the state with its fast weights."""
    bits = hashlib.sha256()
    scores, state = observed.scores, observed.state
    for array in (scores.logprobs, scores.entropies, observed.static_logprobs, *state.arrays().values()):
        bits.update(array.tobytes())
    return bits.hexdigest()


def stream(evaluator, ids, experts):
    """A stream that has read and learned."""
    state = evaluator.start(experts=experts)
    for observed in evaluator.observe(state, ids):
        state = observed.state
    return state


class Neighbours:
    """Works of every sort, of streams at every place in their segments."""

    def __init__(self, served, draw, count):
        self.served, self.draw, self.evaluator = served, draw, served.evaluator()
        segment = self.evaluator.segment
        lengths = [draw.randrange(2 * segment) for _ in range(count)]
        self.states = [stream(self.evaluator, self.text(n), draw.choice([1, 1, 2, 4])) for n in lengths]

    def text(self, length):
        """Random tokens."""
        return [self.draw.randrange(256) for _ in range(length)]

    def works(self, most):
        """Some works."""
        return [self.work() for _ in range(self.draw.randint(0, most))]

    def work(self):
        """One work: a part, which may learn, a slice or a turn, of a stream or a static text."""
        state, sort = self.draw.choice(self.states), self.draw.randrange(5)
        if sort < 2:
            ids = self.text(self.draw.randint(1, 12))
            return self.evaluator.chunk(state, ids, learn=self.draw.random() < 0.7)
        reader = self.evaluator.reader(state) if sort < 4 else self.served.reader
        if sort == 3:
            return DecodeStep(reader, reader.cursor)
        return ScoreChunk(reader, reader.cursor, tuple(self.text(self.draw.randint(1, 12))))


def distinct_results(served, *, mixes, most, experts):
    """What became of one session's part, which learns, in so many different mixes."""
    draw = random.Random(mixes)
    segment = served.evaluator().segment
    state = stream(served.evaluator(), list(TEXT.encode())[: 2 * segment - 3], experts)
    own, others = served.evaluator().chunk(state, list(b"abc")), Neighbours(served, draw, 12)
    results = {digest(run_batch([own])[0])}
    for _ in range(mixes):
        works = others.works(most)
        place = draw.randint(0, len(works))
        native.set_threads(draw.choice([1, 2, 3]))
        performed = run_batch([*works[:place], own, *works[place:]])
        results.add(digest(performed[place]))
    return results


@pytest.fixture(autouse=True)
def own_threads(monkeypatch):
    """Has other tests compute as they would."""
    monkeypatch.setattr(native, "_threads", [])


@pytest.mark.parametrize("experts", [1, 4])
def test_a_session_has_one_result_in_any_mix(tools, experts):
    """Beside streams that read, learn, are read from, and static texts, on any number of threads."""
    served = tools.serve(ByteVocab(), kind="subspace", hidden=12)

    assert len(distinct_results(served, mixes=150, most=24, experts=experts)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("experts", [1, 4])
def test_a_session_of_the_shipped_model_has_one_result_in_a_thousand_mixes(tools, experts):
    """The same for the model that ships."""
    assert len(distinct_results(tools.serve_shipped(), mixes=1_000, most=12, experts=experts)) == 1
