"""Load, on targets that answer after a while and compute nothing; what a session takes in memory."""

import asyncio
import itertools

import pytest

from benchmarks.serving.capacity import session_bytes
from benchmarks.serving.load import SHORT_BYTES, Plan, Rounds, measure
from rlstm_model.adaptation.batch import run_batch
from rlstm_server.engine.state import SessionState
from rlstm_server.schemas.text import AdaptationRequest


class Clockwork:
    """Answers every append after the same time; a token is a byte."""

    def __init__(self, seconds, fails_after=None):
        self.seconds, self.fails_after = seconds, fails_after
        self.alive, self.texts, self.busy, self.most = set(), {}, 0, 0

    async def create(self):
        """A name that counts."""
        name = str(len(self.texts))
        self.alive.add(name)
        self.texts[name] = []
        return name

    async def append(self, session, text):
        """Wait; the bytes."""
        self.busy += 1
        self.most = max(self.most, self.busy)
        await asyncio.sleep(self.seconds)
        self.busy -= 1
        self.texts[session].append(text)
        if self.fails_after is not None and len(self.texts[session]) > self.fails_after:
            raise ConnectionError("gone")
        return len(text)

    async def delete(self, session):
        """Forget it."""
        self.alive.remove(session)


def ticking():
    """Rounds of 7 rows that take a second each, two of them between any two looks."""
    counts = itertools.count(2, 2)

    async def look():
        count = next(counts)
        return Rounds(count, 7 * count, count, tuple(range(count)))

    return look


async def test_every_session_appends_and_waits():
    """All at once, none twice at the same time; first texts differ, sessions end, rounds are those since."""
    crowd, stranger = Clockwork(0.02), Clockwork(0.01)
    measured = await measure(crowd, stranger, Plan(sessions=4, text_bytes=100, seconds=0.1), ticking())
    assert crowd.most == 4
    assert sorted(len(texts[0]) for texts in crowd.texts.values()) == [25, 50, 75, 100]
    assert all(len(text) == 100 for texts in crowd.texts.values() for text in texts[1:])
    assert {len(text) for text in stranger.texts["0"][1:]} == {SHORT_BYTES}
    assert not crowd.alive | stranger.alive
    assert all(append.took >= 0.02 and append.tokens == 100 for append in measured.appends)
    assert measured.rounds == Rounds(2, 14, 2, (2, 3))


@pytest.mark.parametrize("after", [0, 2])
async def test_an_append_that_fails_ends_the_measurement(after):
    """Before or while measuring; sessions are ended all the same."""
    crowd, stranger = Clockwork(0.01, fails_after=after), Clockwork(0.01)
    with pytest.raises(ConnectionError, match="gone"):
        await measure(crowd, stranger, Plan(sessions=2, text_bytes=9, seconds=5), ticking())
    assert not crowd.alive | stranger.alive


@pytest.mark.parametrize("kind", ["full", "output_bias"])
@pytest.mark.parametrize(("experts", "static"), [(1, False), (2, True)])
def test_a_session_in_the_middle_of_a_segment_takes_what_is_said(served, kind, experts, static):
    """To the byte; a new one, and one at the end of a segment, take less."""
    asked = AdaptationRequest(kind=kind, experts=experts, static=static, adapt="weights")
    choice, most = served.choose(asked), session_bytes(served, asked)
    evaluator = served.evaluator(choice.kind, choice.num_fast_weights)
    segment = evaluator.segment

    def memory(tokens):
        state = SessionState.before_text(served, choice).adapted
        for start in range(0, tokens, segment):
            ids = tuple(itertools.islice(itertools.cycle(b"a text"), min(segment, tokens - start)))
            (done,) = run_batch([evaluator.chunk(state, ids)])
            state = done.state
        arrays = [state.now.states_R2U, state.start.states_R2U]
        arrays += [] if state.delta_KP is None else [state.delta_KP]
        whole = {id(array): array for array in (one if one.base is None else one.base for one in arrays)}
        mixture = 0 if state.mixture is None else 8 * (len(state.mixture.weights) + 1)
        return sum(array.nbytes for array in whole.values()) + mixture

    assert memory(segment + segment // 2) == most
    assert memory(0) < most
    assert memory(2 * segment) <= most
