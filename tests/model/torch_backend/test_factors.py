"""Factors of many rows' gradients against one row's gradient at a time, by automatic differentiation."""

import pytest
import torch

from rlstm_model.torch_backend.factors import segment_gradients

SEGMENT, BOS = 4, 1  # those of the gradients by hand
SHAPES = [
    {},
    {"tie_embeddings": True},
    {"stacking": "skip", "mogrifier_rank": 0},
    {"stacking": "plain", "mogrifier_bias": False},
    {"cell": "lstm", "cap_input_gate": False, "mogrifier_rounds": 2},
    {"cell": "lstm", "tie_embeddings": True, "mogrifier_rank": 0},
    {"mogrifier_rounds": 0},
    {"cell": "lstm", "mogrifier_rounds": 0, "stacking": "plain", "hidden_size": 6, "widths": (4, 6, 5)},
]


def batches(model, texts, **changes):
    """All segment gradients of some texts."""
    options = {"segment": SEGMENT, "reduction": "mean", "bos_id": BOS, **changes}
    return list(segment_gradients(model, texts, **options))


def whole(gradients, name):
    """One weight's gradients ``[B, ..]``, multiplied out."""
    if name in gradients.biases:
        return gradients.biases[name]
    rounds = [factors.gradients() for factors in gradients.matrices[name]]
    return torch.stack(rounds, 1) if "mogrifier" in name else rounds[0]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rows", [2, 8])
def test_products_of_factors_are_every_segments_gradients(tiny_model, gradients_by_hand, text, shape, rows):
    """For texts of unequal lengths, in their own places: each row's gradient as if it were alone."""
    model = tiny_model(dtype=torch.float64, **shape)
    texts = [text(length, seed=length) for length in (9, 3, 14, 12)]
    longest_first = [texts[2], texts[3], texts[0]]
    expected = [gradients_by_hand(model, own) for own in longest_first]
    found = batches(model, texts, rows=rows)
    reads = [
        (row, part)
        for first in range(0, 3, rows)
        for part in range(3)
        for row in range(first, min(first + rows, 3))
        if (part + 1) * SEGMENT <= len(longest_first[row])
    ]
    assert sum(gradients.batch for gradients in found) == len(reads)
    names = [name for name, weight in model.named_parameters() if weight.numel()]
    flat = torch.cat([torch.cat([whole(each, name).flatten(1) for name in names], 1) for each in found])
    by_row = torch.stack([expected[row][part] for row, part in reads])
    torch.testing.assert_close(flat, by_row, atol=1e-12, rtol=0)


def test_a_sum_is_the_segment_times_a_mean(tiny_model, text):
    """The loss may be reduced either way."""
    model, texts = tiny_model(dtype=torch.float64), [text(4), text(4, seed=8)]
    (mean,), (total,) = batches(model, texts), batches(model, texts, reduction="sum")
    for name, _ in model.named_parameters():
        torch.testing.assert_close(whole(total, name), SEGMENT * whole(mean, name), atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ["segment", "rows"])
def test_nothing_is_read_in_steps_of_nothing(tiny_model, text, name):
    """Sizes below one are refused by name."""
    with pytest.raises(ValueError, match=f"{name} must be at least 1"):
        batches(tiny_model(), [text(8)], **{name: 0})


def test_a_mixture_of_softmaxes_is_refused(tiny_model, text):
    """Its gradient has no such factors."""
    with pytest.raises(ValueError, match="mixture of softmaxes"):
        batches(tiny_model(softmax_components=2), [text(8)])
