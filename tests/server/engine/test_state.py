"""A session's state survives being bytes, bit for bit; bytes that are no state are refused."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load, save

from rlstm_model.vocab import ByteVocab
from rlstm_server.engine import copies
from rlstm_server.engine.models import Models
from rlstm_server.engine.reading import Place, read_passage, read_piece
from rlstm_server.engine.requests import MAX_METADATA_BYTES, MAX_PENDING, check_metadata
from rlstm_server.engine.state import OVERHEAD_BYTES, SessionCopy, SessionFacts, States
from rlstm_server.errors import ImportRejected, ModelMismatch, StateCorrupt, TooLarge
from rlstm_server.store.base import Revision, SessionKey

KEY = SessionKey("acme", "a1")
LIMIT = 1 << 21


def read(tools, served, state, text):
    piece = read_passage(served.vocab, text, "", place=state.place)
    return tools.finish(read_piece(state, piece, learn=True))


@pytest.fixture(scope="module")
def served(tools):
    return tools.serve(ByteVocab())


@pytest.fixture(scope="module")
def states(served):
    return States(Models(served), LIMIT)


@pytest.fixture(scope="module")
def learned(tools, served):
    """A state in the middle of a segment, with fast weights."""
    return read(tools, served, tools.before_text(served), "a text that was learned from").state


# ---- stored -----------------------------------------------------------------------------------------------


def test_an_opened_state_scores_bit_for_bit_the_same(tools, served, states, learned):
    """Written and read, a state gives the same scores and the same state after more text."""
    opened = states.deserialize(KEY, 3, states.serialize(KEY, 3, learned))
    one, other = (read(tools, served, state, "and then some more") for state in (learned, opened))

    assert one.columns == other.columns
    assert states.serialize(KEY, 4, one.state) == states.serialize(KEY, 4, other.state)
    assert opened.totals == learned.totals


def test_a_fresh_state_and_every_part_of_the_place_are_kept(served, states, tools):
    """A state before any text, and held-back text and ids, come back as they were."""
    place = Place(characters=7, pending="wor", unfinished=(0xE2, 0x82))
    fresh = replace(tools.before_text(served, static=False, rate_scale=2.5), place=place)
    opened = states.deserialize(KEY, 0, states.serialize(KEY, 0, fresh))

    assert (opened.place, opened.choice) == (place, fresh.choice)


@pytest.mark.parametrize(
    ("key", "version"), [(SessionKey("acme", "a2"), 3), (SessionKey("other", "a1"), 3), (KEY, 4)]
)
def test_another_sessions_state_is_refused(states, learned, key, version):
    """A value that names another session, tenant or version is not opened."""
    value = states.serialize(KEY, 3, learned)
    with pytest.raises(StateCorrupt, match="names another"):
        states.deserialize(key, version, value)


def test_another_models_state_is_refused(states, learned, tools):
    """A state belongs to the model that made it."""
    value = states.serialize(KEY, 3, learned)
    with pytest.raises(ModelMismatch):
        States(Models(tools.serve(ByteVocab(), seed=1)), LIMIT).deserialize(KEY, 3, value)


def test_every_damage_is_noticed(states, learned):
    """One flipped bit anywhere, one byte more or less: refused."""
    value = states.serialize(KEY, 3, learned)
    draw = random.Random(1)
    places = [*range(48), *draw.sample(range(len(value)), 500)]
    broken = [value[:at] + bytes([value[at] ^ 1 << at % 8]) + value[at + 1 :] for at in places]
    for wrong in (*broken, value[:-1], value + b"\0", value[1:], b"", value[:40]):
        with pytest.raises(StateCorrupt):
            states.deserialize(KEY, 3, wrong)


def test_a_state_that_is_not_finite_is_not_written(states, learned):
    """Neither a weight nor a sum that is not finite reaches the store."""
    poisoned = replace(learned.adapted, delta_KP=np.full_like(learned.adapted.delta_KP, np.nan))
    totals = replace(learned.totals, adapted_nats=float("inf"))
    with pytest.raises(StateCorrupt, match="not finite"):
        states.serialize(KEY, 3, replace(learned, adapted=poisoned))
    with pytest.raises(StateCorrupt, match="sums"):
        states.serialize(KEY, 3, replace(learned, totals=totals))


def test_a_state_over_the_bound_is_not_written(served, learned):
    """The error names the setting, and both numbers."""
    with pytest.raises(TooLarge, match=r"RLSTM_LIMITS__STATE_BYTES.*at most 1,000"):
        States(Models(served), 1_000).serialize(KEY, 3, learned)


def test_what_is_beside_the_tensors_has_its_room(served, states, tools):
    """The longest text held back, in the characters that JSON makes most of, fits into what is set apart."""
    place = Place(characters=1 << 60, pending="\U0001f600" * MAX_PENDING)
    state = replace(tools.before_text(served), place=place)

    assert len(states.serialize(KEY, 1 << 50, state)) - state.nbytes < OVERHEAD_BYTES


# ---- files ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def copy(learned):
    """A session in the middle of a segment, with notes."""
    metadata = {"n": 1, "é": "ü", "x": None, "f": 1.5}
    facts = SessionFacts(name=None, created_at_ms=0, ttl_ms=1, metadata=metadata)
    return SessionCopy(key=KEY, revision=Revision.first(KEY), state=learned, facts=facts)


@pytest.fixture(scope="module")
def data(copy):
    return copies.write_file(copy)


@pytest.fixture(scope="module")
def imported(served):
    """What a server makes of a file."""
    return lambda data, models=None: copies.read_file(data, models or Models(served))


def changed(data, change=None, tensors=None):
    """The same file with another header, or other tensors."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["rlstm"])
    if change is not None:
        change(header)
    return save(load(data) if tensors is None else tensors, metadata={"rlstm": json.dumps(header)})


def test_a_file_holds_the_whole_session(copy, data, imported):
    """Tensors to the bit, and everything else that is no number of a version."""
    header, state = imported(data)
    assert state.adapted.header() == copy.state.adapted.header()
    theirs = state.adapted.arrays()
    assert all(np.array_equal(theirs[name], array) for name, array in copy.state.adapted.arrays().items())
    for name in ("choice", "totals", "place", "loss_guard"):
        assert getattr(state, name) == getattr(copy.state, name), name
    assert header.metadata == copy.facts.metadata
    assert (header.session, header.version, header.learning) == ("a1", 0, True)


def test_a_file_is_plain_safetensors(data, tmp_path):
    """Anybody's library opens it; the fingerprint of its model is in the metadata, the tenant is not."""
    path = tmp_path / "session.rlstm"
    path.write_bytes(data)
    with safe_open(path, "pt") as opened:
        header = json.loads(opened.metadata()["rlstm"])
        assert {"now", "delta"} < set(opened.keys())
    assert (header["fingerprint"], header["tenant"]) == ("f0", "")


def test_another_model_or_calibration_is_refused(data, imported, tools):
    """A file belongs to its model with its calibration."""
    for changes in ({"seed": 1}, {"calibrated": False}, {"hidden": 7}):
        with pytest.raises(ImportRejected):
            imported(data, Models(tools.serve(ByteVocab(), **changes)))


def _set(path, value):
    def change(header):
        *before, last = path
        for name in before:
            header = header[name]
        header[last] = value

    return change


HEADERS = {
    "no object": lambda header: header.clear(),
    "an unknown field": _set(["novel"], 1),
    "a version that is no number": _set(["version"], "1"),
    "a version beyond 63 bits": _set(["version"], 1 << 63),
    "a count below zero": _set(["totals", "tokens"], -1),
    "an infinite sum": _set(["totals", "adapted_nats"], float("inf")),
    "a sum that is no number": _set(["totals", "adapted_nats"], float("nan")),
    "no static sum": _set(["totals", "static_nats"], None),
    "a kind there is not": _set(["kind"], "output_bias"),
    "more num_fast_weights": _set(["num_fast_weights"], 10**12),
    "more experts": _set(["adapted", "experts"], 4),
    "a rate beyond bounds": _set(["adapted", "rate_scale"], 1e9),
    "weights that sum to 2": _set(["adapted", "weights"], [1.0, 1.0]),
    "a token beyond the vocabulary": _set(["adapted", "last"], 256),
    "an unfinished id beyond it": _set(["place", "unfinished"], [999]),
    "a pending list that is none": _set(["adapted", "pending"], 7),
    "more pending text than a session may hold": _set(["place", "pending"], "x" * (MAX_PENDING + 1)),
    "metadata too long": _set(["metadata"], {"n": "x" * 20_000}),
    "metadata of an object": _set(["metadata"], {"n": {}}),
    "a session that is none": _set(["session"], "é"),
    "a tenant that is none": _set(["tenant"], "é"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_is_not_believed(data, imported, name):
    """Anybody may have written it: each field is checked."""
    assert imported(changed(data))[0].learning
    with pytest.raises(ImportRejected):
        imported(changed(data, HEADERS[name]))


def test_tensors_are_those_of_the_model(data, imported):
    """Another name, shape or type, one missing, values that are no numbers or too large: refused."""
    named = load(data)
    for tensors in (
        {name: tensor for name, tensor in named.items() if name != "now"},
        {**named, "novel": named["now"]},
        {**named, "now": named["now"].astype(np.float64)},
        {**named, "now": np.ascontiguousarray(named["now"][..., :-1])},
        {**named, "now": named["now"] * np.nan},
        {**named, "delta": named["delta"] + 1e6},
    ):
        with pytest.raises(ImportRejected):
            imported(changed(data, tensors=tensors))


def test_all_that_a_session_may_hold_is_exported(copy, imported):
    """The longest text held back and the longest metadata, in the characters that JSON makes most of."""
    place = replace(copy.state.place, pending="\0" * MAX_PENDING)
    metadata = {"n": "\0" * ((MAX_METADATA_BYTES - len('{"n":""}')) // len(r"\u0000"))}
    check_metadata(metadata)
    most = replace(copy, state=replace(copy.state, place=place), facts=replace(copy.facts, metadata=metadata))
    header, state = imported(copies.write_file(most))
    assert (state.place, header.metadata) == (place, metadata)
