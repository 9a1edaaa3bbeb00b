"""The numerics id names what decides the bits; a round that is not what each gets alone is found."""

import pytest
import torch
from rlstm_model.adaptation.batch_items import NextToken, ObservedChunk
from rlstm_model.adaptation.batch_step import run_batch

from rlstm_model.torch_backend.fast_weights import row_tile
from rlstm_model.vocab import ByteVocab
from rlstm_server.engine.models import batches_agree, numerics_id


def test_the_id_names_library_device_dtype_and_tile(tools):
    """Two models on one machine share it; another dtype, or works that go one by one, have another."""
    one, two = (tools.tiny_model(ByteVocab(), seed=seed, hidden=12) for seed in (0, 1))
    name = numerics_id(one)

    assert name == numerics_id(two)
    assert all(part in name for part in (torch.__version__, "cpu", "float32", f"tile{row_tile(one)}"))
    assert " " not in name
    assert numerics_id(one, batches_agree=False).endswith("-alone")
    assert numerics_id(one.double()) != name


@pytest.mark.parametrize("kind", ["full", "subspace"])
def test_rounds_agree_on_this_machine(tools, kind):
    """A stream among others gets the bits that it gets alone, for a model of a common size."""
    served = tools.serve(ByteVocab(), kind=kind, hidden=12)

    assert batches_agree(served.reader, served.evaluator())
    assert served.batches_agree


def last_one_off(works):
    """One bit of the last of many streams is wrong."""
    results = run_batch(works)
    if len(works) > 1 and isinstance(results[-1], ObservedChunk):
        h = results[-1].state.now.state.h
        h.copy_(torch.nextafter(h, torch.tensor(9.0)))
    return results


def larger_ones_off(works):
    """One bit of every distribution is wrong where many are computed."""
    results = run_batch(works)
    if len(works) > 12 and isinstance(results[0], NextToken):
        for result in results:
            result.log_probs_V.copy_(torch.nextafter(result.log_probs_V, torch.tensor(9.0)))
    return results


@pytest.mark.parametrize("performed", [last_one_off, larger_ones_off])
def test_a_round_that_depends_on_others_is_found(tools, performed):
    """One bit of difference, by place or by number, in states or in predictions, is enough."""
    served = tools.serve(ByteVocab(), kind="subspace", hidden=12)

    assert not batches_agree(served.reader, served.evaluator(), performed)
    assert batches_agree(
        served.reader, served.evaluator(), lambda works: [last_one_off([w])[0] for w in works]
    )
