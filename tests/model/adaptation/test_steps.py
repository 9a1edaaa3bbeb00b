"""One step for all rows of a pass: each stream's own, as it would be alone."""

from dataclasses import replace

import pytest
import torch

from rlstm_model.adaptation.passes import Passes
from rlstm_model.adaptation.rows import Pass, Taught
from rlstm_model.torch_backend.rules import LearningRule
from rlstm_model.adaptation.steps import step
from rlstm_model.adaptation.tasks import task_of

NAN = float("nan")


@pytest.fixture(scope="module")
def evaluator(make_evaluator):
    return make_evaluator(rank=2, decay=0.05, max_norm_ratio=0.1)


@pytest.fixture(scope="module")
def parts(evaluator):
    """Streams of one, two and four experts at several rates, of which all are at the end of a segment."""
    made = []
    for experts in (1, 2, 4):
        for scale in (0.5, 40.0):
            state = evaluator.start(experts=experts, rate_scale=scale)
            (observed,) = evaluator.observe(state, [1, 2, 3, 4])
            made.append(evaluator.chunk(observed.state, (4, 3, 2, experts)))
    return made


def taught(parts, gradient_NP):
    """A pass of so many rows, padded to whole tiles."""
    deltas = torch.cat([part.state.delta_KP for part in parts])
    more = len(gradient_NP) - len(deltas)
    return Taught(
        Pass([], [], [], 0), torch.cat((deltas, deltas.new_zeros(more, deltas.shape[1]))), gradient_NP
    )


def gradients(evaluator, rows, more):
    generator = torch.Generator().manual_seed(2)
    found = torch.randn(rows, evaluator.fast_weights.size, generator=generator)
    return torch.cat((found, torch.zeros(more, found.shape[1])))


def test_each_stream_steps_as_it_would_alone(evaluator, parts):
    """Deltas, counts, guards and norms, some rows cut back and one without a number: to the last bit."""
    rows = sum(len(part.rates) for part in parts)
    gradient_NP = gradients(evaluator, rows, -rows % 8)
    gradient_NP[5, 3] = NAN
    first, seen = 0, set()
    for part, found in zip(parts, step(evaluator, parts, taught(parts, gradient_NP)), strict=True):
        own = gradient_NP[first : first + len(part.rates)]
        padded = torch.cat((own, torch.zeros(8 - len(own), own.shape[1])))
        (alone,) = step(evaluator, [part], taught([part], padded))
        assert torch.equal(found.delta_KP, alone.delta_KP)
        assert found._replace(delta_KP=None) == alone._replace(delta_KP=None)
        assert found.delta_KP.untyped_storage().nbytes() == found.delta_KP.nbytes
        first += len(part.rates)
        seen |= set(found.guards)
    assert seen == {"projected", "step_skipped"}


def test_a_third_bad_step_loses_the_row(evaluator, parts):
    """And only that row; a stream without any step keeps its delta, the very same value."""
    part = replace(parts[4], state=replace(parts[4].state, bad_steps=(2, 1, 0)))
    gradient_NP = gradients(evaluator, 3, 5)
    gradient_NP[:3, 0] = NAN
    (found,) = step(evaluator, [part], taught([part], gradient_NP))
    assert (found.lost, found.bad_steps) == ((True, False, False), (3, 2, 1))
    assert found.guards == ("step_skipped",) * 3 + ("restarted",)
    assert found.delta_KP is part.state.delta_KP
    assert (found.updates, found.gradient_norms, found.norm_ratio) == (0, (), None)


def test_the_pass_that_learns_is_stepped(evaluator, parts):
    """The steps of works that are read are those of their gradients; others have none."""
    reads = [*parts[:3], replace(parts[3], ids=parts[3].ids[:2])]
    done = Passes(evaluator.rows, reads, [task_of(part) for part in reads], turns=False).done
    assert [each.stepped is not None for each in done] == [True, True, True, False]
    taught_rows = evaluator.rows.learn([task_of(part).lesson for part in reads[:3]])
    for each, expected in zip(done, step(evaluator, reads[:3], taught_rows), strict=False):
        assert torch.equal(each.stepped.delta_KP, expected.delta_KP)


@pytest.mark.parametrize("rows", [1, 3])
def test_deltas_keep_the_precision_that_they_have(config, rows):
    """A step is computed in float32, and rounded once, at its end."""
    rule = LearningRule(config(rate=0.5, decay=0.1), torch.full((6,), 0.5), 10.0)
    generator = torch.Generator().manual_seed(1)
    delta, gradient = torch.randn(2, rows, 6, generator=generator)
    rates = [1.0, 2.0, 3.0][:rows]
    found = rule.step(delta.half(), gradient, rates)
    expected = rule.step(delta.half().float(), gradient, rates)
    assert found.delta_NP.dtype == torch.float16
    assert torch.equal(found.delta_NP, expected.delta_NP.half())
    assert found.norm_ratios == expected.norm_ratios


def test_a_step_beyond_the_range_that_is_kept_is_not_taken(config):
    """What float16 cannot hold would be infinite: the row keeps its delta."""
    rule = LearningRule(config(rule="sgd", rate=1.0, decay=0.0, max_norm_ratio=1e6), torch.ones(2), 1.0)
    delta = torch.tensor([[1.0, 2.0], [1.0, 2.0]]).half()
    found = rule.step(delta, torch.tensor([[-1e5, 0.0], [-1.0, 0.0]]), [1.0, 1.0])
    assert found.taken == [False, True]
    assert found.delta_NP.tolist() == [[1.0, 2.0], [2.0, 2.0]]
