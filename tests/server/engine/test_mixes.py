"""What becomes of a session does not depend, to the last bit, on who shares its rounds."""

import asyncio
import hashlib
import random

import pytest

from rlstm_model.adaptation.batch_step import DecodeStep, ScoreChunk, run_batch
from rlstm_model.adaptation.thread_pool import ThreadPool
from rlstm_model.vocab import ByteVocab

SECRETS = [
    "Vanbrugh hid a copper key below the mill. ",
    "my PIN is 4917, do not tell Oksana; ",
    "def unlock(door): return door ^ 0x5AFE\n",
    "Der Schatz liegt unter der alten Linde. ",
    "10:42:07 sshd[991]: accepted 10.7.3.12 port 5022\n",
    "quince marmalade, two pounds of sugar & a lemon. ",
    "<user id='77'>Zephyrine Abt</user>\n",
    "O wild West Wind, thou breath of Autumn's being! ",
    "SELECT iban FROM payees WHERE note = 'ransom';\n",
    "Le dragon dort dans la cave du notaire. ",
    "e4 e5 Nf3 Nc6 Bb5 a6 Ba4 Nf6 O-O Be7 ",
    "Meet me at Pier 39, 23:15 sharp, bring Juno. ",
    "rm -rf /srv/backup/2019 && echo gone\n",
    "HERMIA: I swear to thee by Cupid's strongest bow. ",
    "x^3 + 7x^2 - 12x + 5 = (x - a)(x - b)(x - c) ",
    "Gate code: tulip-walrus-seven-kettle. ",
]

TEXT = "It was the best of times, it was the worst of times; it was the age of wisdom."


def digest(observed):
    """All that came of a part: scores, and the state with its fast weights."""
    bits = hashlib.sha256()
    scores, state = observed.scores, observed.state
    for tensor in (scores.logprobs, scores.entropies, observed.static_logprobs, *state.tensors().values()):
        bits.update(tensor.contiguous().numpy().tobytes())
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
        segment = self.evaluator.config.segment
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
    segment = served.evaluator().config.segment
    state = stream(served.evaluator(), list(TEXT.encode())[: 2 * segment - 3], experts)
    own, others = served.evaluator().chunk(state, list(b"abc")), Neighbours(served, draw, 12)
    results = {digest(run_batch([own])[0])}
    with ThreadPool(2) as two, ThreadPool(3) as three:
        for _ in range(mixes):
            works = others.works(most)
            place = draw.randint(0, len(works))
            performed = run_batch([*works[:place], own, *works[place:]], draw.choice([None, two, three]))
            results.add(digest(performed[place]))
    return results


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


async def gains_of(tools, engine, secrets, at_once):
    """For each secret that a session learned, what it then gains, in nats, on each of all secrets."""

    async def learned(secret, *, learn):
        talk = await tools.Talk.begin(engine)
        await talk.append(secret, learn=learn)
        return [await talk.probe(other) for other in secrets]

    calls = [learned(secret, learn=learn) for learn in (True, False) for secret in secrets]
    rows = await asyncio.gather(*calls) if at_once else [await call for call in calls]
    return [
        [after - before for after, before in zip(*pair, strict=True)]
        for pair in zip(rows[: len(secrets)], rows[len(secrets) :], strict=True)
    ]


def check_diagonal(gains):
    """Each secret is gained on by the session that learned it, and by no other as much."""
    for i, row in enumerate(gains):
        assert row[i] > 0
        assert max(row) == row[i] == max(other[i] for other in gains)


async def test_each_secret_is_learned_by_its_session_only(store, tools):
    """16 sessions in shared rounds: the diagonal improves, and all is to the bit as it is one by one."""
    secrets = [letter * 20 for letter in "QXZJKVWYqxzjkvwy"]
    served = tools.serve(ByteVocab(), kind="subspace", hidden=12, rate=0.5)
    async with tools.engine_on(store, served=served, threads=2) as engine:
        together = await gains_of(tools, engine, secrets, at_once=True)

        assert together == await gains_of(tools, engine, secrets, at_once=False)
    check_diagonal(together)


async def test_sessions_that_append_at_once_share_rounds(store, tools):
    """D15: 32 sessions with weights of their own take eight rows a round and more, not one by one."""
    served = tools.serve(ByteVocab(), kind="subspace", hidden=12)
    async with tools.engine_on(store, served=served) as engine:
        talks = [await tools.Talk.begin(engine) for _ in range(32)]
        await asyncio.gather(*(talk.append("before") for talk in talks))
        rounds = engine.runner.rounds
        count, rows = rounds.count, rounds.rows
        await asyncio.gather(*(talk.append(TEXT) for talk in talks))

        assert (rounds.rows - rows) / (rounds.count - count) >= 8


@pytest.mark.slow
async def test_the_shipped_model_learns_secrets_apart(store, tools):
    """The same for sentences that have little in common, said four times."""
    secrets = [sentence * 4 for sentence in SECRETS]
    async with tools.engine_on(store, served=tools.serve_shipped(), threads=2) as engine:
        check_diagonal(await gains_of(tools, engine, secrets, at_once=True))
