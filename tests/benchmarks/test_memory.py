"""What a memory saves and costs: figures are those of a session that is read alone."""

import json
import math

import numpy as np
import pytest
import torch
from tests.benchmarks.conftest import TEXT

from benchmarks.cases import backend_on, evaluator_of
from benchmarks.memory import KINDS, TOKENS, cost, memory, stored_bytes


@pytest.fixture
def evaluator(subject):
    rule = subject.calibrated.choose()
    return evaluator_of(backend_on(torch.device("cpu"), subject, rule, 1), subject, rule)


def test_the_command(checkpoint, own_folder, type_command, evaluator):
    """Bits of a repeated line: a memory knows it, and costs no more than it says."""
    words = [checkpoint, "--corpus", own_folder, "--prefix", len(TEXT) // 10]
    told = json.loads(type_command(memory, *words, "--json").stdout)
    (name,) = told["bits_per_byte"]["frozen"]
    bits = {kind: own[name] for kind, own in told["bits_per_byte"].items()}
    for kind, config in KINDS.items():
        start = evaluator.start(experts=config.experts, static=config.static, adapt=config.adapt)
        parts = list(evaluator.observe(start, list(TEXT)))
        nats = -math.fsum(float(part.scores.logprobs.sum(dtype=np.float64)) for part in parts)
        assert bits[kind] == pytest.approx(nats / math.log(2) / len(TEXT), abs=1e-5)
        # 880 tokens of segments of 6: the last is not finished.
        assert told["stored"][kind] == stored_bytes(evaluator, kind) == parts[-1].state.nbytes
    assert bits["both"] < bits["weights"] < bits["frozen"]
    assert bits["memory"] < bits["frozen"] / 4
    shown = type_command(memory, *words).stdout
    assert f"{bits['both']:.4f}" in shown
    assert "a full memory is loaded in" in shown


def test_costs_are_of_a_full_memory(evaluator):
    """Times of the processor, above nothing, for a text of any length."""
    found = cost(evaluator, list(TEXT) * (TOKENS // len(TEXT) + 1))
    assert min(found.frozen, found.beside_frozen, found.alone, found.load) > 0
