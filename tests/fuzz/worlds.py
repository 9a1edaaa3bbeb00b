"""Two very small served models, of bytes and of words, and exported sessions of theirs in all their forms."""

from dataclasses import dataclass, replace

import numpy as np

from rlstm_model.adaptation.calibration import CalibrationSet, GradientStatistics
from rlstm_model.adaptation.config import AdaptationConfig
from rlstm_model.config import ModelConfig
from rlstm_model.parameters import Parameters, shapes
from rlstm_model.vocab import ByteVocab, WordVocab
from rlstm_server.engine.copies import write_file
from rlstm_server.engine.models import Models, ServedModel
from rlstm_server.engine.reading import Place
from rlstm_server.engine.state import SessionCopy, SessionFacts, SessionState
from rlstm_server.schemas.text import AdaptationRequest
from rlstm_server.store.base import Revision, SessionKey

KEY = SessionKey("acme", "0123456789abcdef")
SEGMENT = 4


@dataclass(frozen=True)
class World:
    """A served model, states of its sessions, and the files that it exported of them."""

    served: ServedModel
    states: tuple[SessionState, ...]
    files: tuple[bytes, ...]

    @property
    def models(self):
        """What a file has to fit."""
        return Models(self.served)


def served_model(vocab):
    """A model of a few weights, all of which may be fast, or those of the output's biases."""
    config = ModelConfig(vocab_size=vocab.size, hidden_size=2, num_layers=1)
    generator = np.random.default_rng(1)
    arrays = {
        name: generator.normal(0.0, 0.5, shape).astype(np.float32) for name, shape in shapes(config).items()
    }
    full = AdaptationConfig(
        kind="full",
        num_fast_weights=config.num_parameters,
        rule="sgd",
        rate=0.01,
        segment=SEGMENT,
        reduction="mean",
        statistics_batch=1,
        statistics_segments=1,
    )
    calibrated = CalibrationSet(
        statistics=GradientStatistics(
            rms={name: np.ones_like(array) for name, array in arrays.items()}, axes={}, cores={}
        ),
        choices=(full, replace(full, kind="output_bias", num_fast_weights=vocab.size)),
        fingerprint="c",
    )
    return ServedModel(
        name="tiny",
        fingerprint="f",
        parameters=Parameters(config, arrays),
        vocab=vocab,
        calibrated=calibrated,
    )


def make_worlds():
    """Both, with sessions before any text, within a segment and after it, of one to four experts."""
    words = WordVocab.build("the cat sat on the mat\nthe dog ran\n")
    return tuple(_world(served_model(vocab)) for vocab in (ByteVocab(), words))


def _world(served):
    asked = [
        {},
        {"kind": "output_bias"},
        {"experts": 1},
        {"experts": 1, "static": False},
        {"experts": 4, "rate_scale": 0.5},
    ]
    states = [_state(served, length, **one) for length in (0, 2, SEGMENT, 11) for one in asked]
    facts = SessionFacts(name=None, created_at_ms=0, ttl_ms=1, metadata={"n": 1, "é": "ü", "x": None})
    copies = [
        SessionCopy(key=KEY, revision=Revision.first(KEY), state=state, facts=facts) for state in states
    ]
    files = tuple(write_file(copy) for copy in copies)
    return World(served, tuple(states), files)


def _state(served, length, **asked):
    choice = served.choose(AdaptationRequest(**asked))
    evaluator = served.evaluator(choice.kind, choice.num_fast_weights)
    state = SessionState.before_text(served, choice)
    for observed in evaluator.observe(state.adapted, [token % served.vocab.size for token in range(length)]):
        state = replace(state, adapted=observed.state)
    held = "do" if served.vocab.kind == "word" and length else ""
    return replace(state, place=Place(characters=length, pending=held))
