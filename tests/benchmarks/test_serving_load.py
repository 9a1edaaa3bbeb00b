"""Load, on targets that answer after a while and compute nothing."""

import asyncio
import itertools

import pytest

from benchmarks.serving.load import SHORT_BYTES, Plan, Rounds, measure


class Clockwork:
    """Answers every append after the same time; a token is a byte."""

    def __init__(self, seconds, fails_after=None):
        self.seconds, self.fails_after = seconds, fails_after
        self.names = map(str, itertools.count())
        self.alive, self.texts, self.busy, self.most = set(), {}, 0, 0

    async def create(self):
        """A name that counts."""
        name = next(self.names)
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


class Ticking:
    """Rounds of 7 rows that take a second each, two of them between any two looks."""

    def __init__(self):
        self.looks = 0

    async def __call__(self):
        """Look."""
        self.looks += 1
        count = 2 * self.looks
        return Rounds(count, 7 * count, count, tuple(range(count)))


async def test_every_session_appends_and_waits():
    """All at once, none twice at the same time; the first texts differ, and the sessions are ended."""
    crowd, stranger = Clockwork(0.02), Clockwork(0.01)
    plan = Plan(sessions=4, text_bytes=100, seconds=0.1)
    measured = await measure(crowd, stranger, plan, Ticking())
    assert crowd.most == 4
    assert sorted(len(texts[0]) for texts in crowd.texts.values()) == [25, 50, 75, 100]
    assert all(len(text) == 100 for texts in crowd.texts.values() for text in texts[1:])
    assert {len(text) for text in stranger.texts["0"][1:]} == {SHORT_BYTES}
    assert not crowd.alive
    assert not stranger.alive
    assert all(append.took >= 0.02 and append.tokens == 100 for append in measured.appends)


async def test_rounds_are_those_while_measuring():
    """What was counted before is taken off."""
    measured = await measure(
        Clockwork(0.01), Clockwork(0.01), Plan(sessions=1, text_bytes=9, seconds=0), Ticking()
    )
    assert measured.rounds == Rounds(2, 14, 2, (2, 3))


@pytest.mark.parametrize("after", [0, 2])
async def test_an_append_that_fails_ends_the_measurement(after):
    """Before or while measuring; sessions are ended all the same."""
    crowd, stranger = Clockwork(0.01, fails_after=after), Clockwork(0.01)
    with pytest.raises(ConnectionError, match="gone"):
        await measure(crowd, stranger, Plan(sessions=2, text_bytes=9, seconds=5), Ticking())
    assert not crowd.alive | stranger.alive
