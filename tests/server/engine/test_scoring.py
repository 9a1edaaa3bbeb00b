"""Texts of one request are scored side by side, as each would be alone."""

import pytest

from rlstm_model.vocab import ByteVocab
from rlstm_server.schemas.sessions import Candidate, CandidatesRequest, CandidateWeights
from rlstm_server.schemas.text import AdaptationRequest, ScoreRequest

TEXT = "the quick brown fox"


async def test_scores_are_the_models(engine, tools):
    """An item's columns are what the model's own scoring gives, however long the text."""
    text = TEXT * 30
    answer = await engine.score(ScoreRequest(items=[tools.item(text)], top=2).by(tools.call()))
    reader = tools.serve(ByteVocab()).reader
    expected, _ = reader.score(reader.cursor, list(text.encode()), top=2)
    (scored,) = answer.items

    assert scored.first_token == "bos"
    assert scored.columns.logprobs == tuple(expected.logprobs.tolist())
    assert scored.columns.ranks == tuple(expected.ranks.tolist())
    assert scored.totals.logprob == sum(scored.columns.logprobs)
    assert [*scored.columns.top.ids] == expected.top_ids.tolist()


async def test_a_context_is_read_and_not_reported(engine, tools):
    """The scores after a context are the tail of the scores of both together."""
    request = ScoreRequest(items=[tools.item("brown fox", context="the quick "), tools.item(TEXT)]).by(
        tools.call()
    )
    after, whole = (await engine.score(request)).items

    assert after.first_token == "context"
    assert after.columns.logprobs == pytest.approx(whole.columns.logprobs[10:], abs=1e-6)
    assert (after.columns.starts[0], after.totals.tokens) == (0, 9)


async def test_adapting_inside_an_item_equals_a_session(engine, tools):
    """Dynamic evaluation of an item gives the scores of the same text in a new session."""
    request = ScoreRequest(items=[tools.item(TEXT)] * 2, adaptation=AdaptationRequest()).by(tools.call())
    one, two = (await engine.score(request)).items
    session = await (await tools.Talk.begin(engine)).append(TEXT)

    assert one.columns.logprobs == two.columns.logprobs == session.columns.logprobs
    assert one.columns.static_logprobs == session.columns.static_logprobs
    assert one.updates == session.updates > 0


def candidates_of(talk, *texts, first=0.0, **weights):
    """A request to rank texts; the first may have a score from elsewhere."""
    return CandidatesRequest(
        candidates=[
            Candidate(id=text, text=text, given=0.0 if place else first) for place, text in enumerate(texts)
        ],
        weights=CandidateWeights(**weights),
    ).by(talk.call())


@pytest.mark.parametrize("experts", [1, 2, 4])
async def test_candidates_are_also_ranked_by_the_weights_as_loaded(engine, tools, experts):
    """Each static figure is what these give to the candidate after all that the session has read."""
    talk = await tools.Talk.begin(engine, adaptation=AdaptationRequest(experts=experts))
    before, long = TEXT * 3, " jumps over the lazy dog" * 4
    await talk.append(before)  # a part of a segment is pending
    request = candidates_of(
        talk, " jumps", long, "~~~~", long + "!", first=-70.0, lm=0.5, length=2.5, given=2
    )
    ranked = (await engine.score_candidates(request)).candidates
    reader = tools.serve(ByteVocab()).reader
    for one in ranked:
        plain, _ = reader.score(reader.cursor, list((before + one.id).encode()))
        expected = plain.rows(slice(len(before), None)).total
        mixed = 0.5 * expected + 2.5 * one.tokens + (-140 if one.id == " jumps" else 0)
        assert one.static_logprob == pytest.approx(expected, abs=1e-4)
        assert one.static_score == pytest.approx(mixed, abs=1e-4)
        assert one.gain == one.logprob - one.static_logprob != 0
    best_first = sorted(ranked, key=lambda one: -one.static_score)
    assert [one.static_rank for one in best_first] == [1, 2, 3, 4]
    totals = (await talk.append(long, learn=False)).totals
    assert ranked[1].static_logprob == pytest.approx(totals.static_logprob, abs=1e-9)


async def test_candidates_of_a_session_without_a_static_row(engine, tools):
    """There are no static figures, as in the answers to its appends."""
    talk = await tools.Talk.begin(engine, adaptation=AdaptationRequest(static=False))
    await talk.append(TEXT)
    (one,) = (await engine.score_candidates(candidates_of(talk, " jumps"))).candidates
    assert (one.static_logprob, one.gain, one.static_score, one.static_rank) == (None, None, None, None)
    assert (await talk.append(" jumps")).totals.static_logprob is None
