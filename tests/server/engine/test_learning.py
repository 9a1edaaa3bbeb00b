"""How a reading is summed and counted."""

import tracemalloc
from collections import Counter

import pytest

from rlstm_model.adaptation.state import ExpertConfig
from rlstm_model.checkpoint import load
from rlstm_model.vocab import ByteVocab
from rlstm_server.engine.models import ServedModel
from rlstm_server.engine.reading import Reading, read_passage, read_piece
from rlstm_server.engine.state import SessionState
from rlstm_server.metrics import Metrics
from rlstm_server.schemas.text import AdaptationChoice, Columns, Totals


def totals(logprob, static):
    logprobs, static = (None if one is None else (one, 0.0, 0.0) for one in (logprob, static))
    columns = Columns(
        ids=(1,) * 3,
        logprobs=logprobs,
        static_logprobs=static,
        ranks=(1,) * 3,
        entropies=(0.0,) * 3,
        starts=(0, 1, 2),
        ends=(1, 2, 3),
    )
    return Totals.of(columns, bytes=3, words=1, unknown=0)


def test_every_guard_is_counted_under_its_outcome(tools):
    """A projected step is a step that was clipped; skipped and rolled-back ones are none."""
    metrics = Metrics()
    guards = Counter(["projected", "step_skipped", "step_skipped", "restarted", "reset", "frozen"])
    reading = Reading(
        state=None, columns=None, totals=None, row_steps=3, guards=guards, gradient_norms=[1.0, 2.0]
    )
    reading.count(metrics)
    outcomes = ("applied", "clipped", "skipped_nonfinite", "rolled_back", "skipped_frozen")
    counted = [tools.value(metrics, "adapt_updates_total", outcome=outcome) for outcome in outcomes]

    assert counted == [2, 1, 2, 2, 1]
    assert tools.value(metrics, "gradient_norm_sum") == 3.0


@pytest.mark.parametrize("rate", [0.05, 1.0, 1e3, 1e37])
@pytest.mark.parametrize("experts", [1, 2, 4])
def test_whatever_becomes_of_steps_each_is_counted_once(tools, rate, experts):
    """At sane and absurd rates, steps taken and skipped are those of all rows; no count is negative."""
    served, metrics = tools.serve(ByteVocab(), rate=rate), Metrics()
    state = tools.before_text(served, experts=experts)
    piece = read_passage(ByteVocab(), "abcdefgh" * 10, "")
    tools.finish(read_piece(state, piece, learn=True)).count(metrics)
    outcomes = ("applied", "clipped", "skipped_nonfinite", "skipped_frozen")
    counted = [tools.value(metrics, "adapt_updates_total", outcome=outcome) for outcome in outcomes]

    assert min(counted) >= 0
    assert sum(counted) == len(state.adapted.expert_config.rates) * (80 // tools.SEGMENT)


@pytest.mark.parametrize(("static", "nats", "tokens"), [(-4.0, 4.0, 3), (None, 0.0, 0)])
def test_the_static_loss_is_counted_where_there_is_one(tools, static, nats, tokens):
    """Without a static reference only the adapted loss grows."""
    metrics = Metrics()
    Reading(state=None, columns=None, totals=totals(-6.0, static)).count(metrics, in_session=True)

    assert tools.value(metrics, "loss_nats_total", part="adapted") == 6.0
    assert tools.value(metrics, "loss_tokens_total", part="adapted") == 3
    assert tools.value(metrics, "loss_nats_total", part="static") == nats
    assert tools.value(metrics, "loss_tokens_total", part="static") == tokens


def test_what_was_generated_is_learned_from_and_not_summed(tools):
    """Text that is read before a generated chunk keeps its loss; the chunk adds only what it learned."""
    served, metrics = tools.serve(ByteVocab()), Metrics()
    pieces = [read_passage(served.vocab, text, "") for text in ("abcde", "fghij")]
    first = tools.finish(read_piece(tools.before_text(served), pieces[0], learn=True))
    own = tools.finish(read_piece(first.state, pieces[1], learn=True, own=True))
    for reading in (first, own):
        reading.count(metrics, in_session=True)

    counted = [tools.value(metrics, "tokens_total", kind=kind) for kind in ("scored", "generated", "adapted")]
    assert counted == [5, 5, 10]
    assert tools.value(metrics, "loss_tokens_total", part="adapted") == 5
    assert (first.totals.tokens, own.state.totals.tokens, own.state.totals.updates) == (5, 5, 2)


def test_a_long_append_holds_few_fast_weights_at_a_time(tools, tiny_checkpoint):
    """A part's state is dropped with the next one: memory does not grow by a delta for every segment."""
    served = ServedModel.of(load(tiny_checkpoint))
    choice = AdaptationChoice.of(served.rules[0], ExpertConfig(), 1.0)
    state = SessionState.before_text(served, choice)
    piece = read_passage(ByteVocab(), "the quick brown fox " * 20, "")
    tools.finish(read_piece(state, piece, learn=True))  # the model is packed
    tracemalloc.start()
    try:
        tools.finish(read_piece(state, piece, learn=True))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    weights = 4 * served.parameters.config.num_parameters
    assert len(piece.ids) == 50 * 8
    assert most < 10 * weights  # the newest states, and what a step needs
