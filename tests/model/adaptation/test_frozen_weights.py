"""Static texts in rounds: the model as loaded, many texts at once."""

import pytest
import torch

from rlstm_model.adaptation.batch_step import DecodeStep, ScoreChunk, run_batch
from rlstm_model.torch_backend.fast_weights import FrozenWeights
from rlstm_model.adaptation.reader import frozen_reader
from rlstm_model.scoring import score

BOS = 1


@pytest.mark.parametrize(
    "shape", [{}, {"tie_embeddings": True, "cell": "lstm"}, {"softmax_components": 3}], ids=str
)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_scores_are_the_models_own(tiny_model, text, shape, temperature):
    """Texts of any length and single tokens: what scoring each alone gives."""
    model = tiny_model(**shape)
    texts = [tuple(text(length, seed=length)) for length in (1, 4, 9, 9, 30)]
    readers = [frozen_reader(model, BOS, temperature) for _ in texts]
    works = [ScoreChunk(reader, reader.cursor, ids, 2) for reader, ids in zip(readers, texts, strict=True)]
    *found, following = run_batch([*works, DecodeStep(readers[0], readers[0].cursor)])
    for result, ids in zip(found, texts, strict=True):
        expected, state = score(model, ids, state=None, last=BOS, top=2, temperature=temperature)
        torch.testing.assert_close(result.scores.logprobs, expected.logprobs, rtol=0, atol=1e-5)
        assert torch.equal(result.scores.ranks, expected.ranks)
        torch.testing.assert_close(result.cursor.state, state, rtol=0, atol=1e-5)
    first = found[1].scores.logprobs[0]
    torch.testing.assert_close(following.log_probs_V[texts[1][0]], first, rtol=0, atol=1e-5)


def test_readers_of_one_model_are_read_together(tiny_model):
    """Each text may have a reader of its own: their weights are the same ones."""
    model = tiny_model()
    one, other = (frozen_reader(model, BOS) for _ in range(2))
    assert one.rows == other.rows
    assert hash(one.rows) == hash(other.rows)
    assert one.rows != frozen_reader(model, BOS, 0.5).rows
    assert one.rows != frozen_reader(tiny_model(), BOS).rows
    assert FrozenWeights(model).zero(3).shape == (3, 0)
