"""A session's state survives being bytes, bit for bit; damaged bytes are refused."""

from dataclasses import replace

import pytest
import torch

from rlstm_model.vocab import ByteVocab
from rlstm_server.engine.learning import read_piece
from rlstm_server.engine.models import Models
from rlstm_server.engine.snapshot import Snapshots
from rlstm_server.engine.text import Place, read_passage
from rlstm_server.errors import ModelMismatch, StateCorrupt
from rlstm_server.schemas import Passage
from rlstm_server.store.base import SessionKey

KEY = SessionKey("acme", "a1")


def read(tools, served, state, text):
    piece = read_passage(served.vocab, Passage(text=text), "", place=state.place)
    return tools.finish(read_piece(state, piece, learn=True))


@pytest.fixture
def served(tools):
    return tools.serve(ByteVocab())


@pytest.fixture
def learned(tools, served):
    """A state in the middle of a segment, with fast weights."""
    return read(tools, served, tools.before_text(served), "a text that was learned from").state


def test_an_opened_state_scores_bit_for_bit_the_same(tools, served, learned):
    """Packed and opened, a state gives the same scores and the same state after more text."""
    snapshots = Snapshots(Models(served))
    opened = snapshots.open(KEY, 3, snapshots.pack(KEY, 3, learned))
    one, other = (
        read(tools, served, learned, "and then some more"),
        read(tools, served, opened, "and then some more"),
    )

    assert one.columns == other.columns
    assert snapshots.pack(KEY, 4, one.state) == snapshots.pack(KEY, 4, other.state)
    assert opened.totals == learned.totals


def test_a_fresh_state_and_every_part_of_the_place_are_kept(served, tools):
    """A state before any text, and held-back text and ids, come back as they were."""
    place = Place(characters=7, pending="wor", unfinished=(0xE2, 0x82))
    fresh = replace(tools.before_text(served, static=False, rate_scale=2.5), place=place)
    snapshots = Snapshots(Models(served))
    opened = snapshots.open(KEY, 0, snapshots.pack(KEY, 0, fresh))

    assert (opened.place, opened.choice) == (place, fresh.choice)


@pytest.mark.parametrize("key", [SessionKey("acme", "a2"), SessionKey("other", "a1")])
def test_another_sessions_state_is_refused(served, learned, key):
    """A value that names another session or tenant is not opened, nor is another version's."""
    snapshots = Snapshots(Models(served))
    value = snapshots.pack(KEY, 3, learned)
    for wrong_key, wrong_version in ((key, 3), (KEY, 4)):
        with pytest.raises(StateCorrupt, match="names another"):
            snapshots.open(wrong_key, wrong_version, value)


def test_another_models_state_is_refused(served, learned, tools):
    """A state belongs to the model that made it."""
    value = Snapshots(Models(served)).pack(KEY, 3, learned)
    with pytest.raises(ModelMismatch):
        Snapshots(Models(tools.serve(ByteVocab(), seed=1))).open(KEY, 3, value)


def test_a_kind_that_the_model_has_no_more_is_refused_like_another_model(served, learned):
    """Without its rule a state means nothing."""
    value = Snapshots(Models(served)).pack(KEY, 3, learned)
    rule = replace(served.calibrated.default, kind="output_bias", num_fast_weights=256)
    other = replace(served, calibrated=replace(served.calibrated, choices=(rule,)))
    with pytest.raises(ModelMismatch, match="kind of fast weights"):
        Snapshots(Models(other)).open(KEY, 3, value)


def test_a_flipped_bit_is_noticed(served, learned):
    """Any damaged byte fails the checksum."""
    snapshots = Snapshots(Models(served))
    value = bytearray(snapshots.pack(KEY, 3, learned))
    value[len(value) // 2] ^= 1
    with pytest.raises(StateCorrupt):
        snapshots.open(KEY, 3, bytes(value))


def test_a_state_that_is_not_finite_is_not_packed(served, learned):
    """NaN never reaches the store."""
    poisoned = replace(learned.adapted, delta_KP=torch.full_like(learned.adapted.delta_KP, float("nan")))
    with pytest.raises(StateCorrupt, match="not finite"):
        Snapshots(Models(served)).pack(KEY, 3, replace(learned, adapted=poisoned))


def test_sums_that_are_not_finite_are_not_packed(served, learned):
    """Neither do sums."""
    totals = replace(learned.totals, adapted_nats=float("inf"))
    with pytest.raises(StateCorrupt, match="sums"):
        Snapshots(Models(served)).pack(KEY, 3, replace(learned, totals=totals))
