"""The wave's arithmetic: who reads what when, and what flows between layers."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlstm_model.wave import Flow, Wave, some_layers

SIZES = {"layers": st.integers(1, 6), "time": st.integers(1, 9)}


@given(**SIZES)
def test_every_layer_reads_every_token_once_and_in_order(layers, time):
    """Over all steps layer l is active at steps l to l + T - 1, and nowhere else."""
    wave = Wave(layers, time)
    read = [[] for _ in range(layers)]
    for step in range(wave.steps):
        for layer in range(layers)[wave.active(step)]:
            read[layer].append(step - layer)
    assert read == [list(range(time))] * layers
    assert wave.steps == time + layers - 1


@given(**SIZES)
def test_all_are_active_exactly_when_the_slice_is_whole(layers, time):
    """The short form of the question gives the same answer."""
    wave = Wave(layers, time)
    for step in range(wave.steps):
        assert wave.all_active(step) == (wave.active(step) == slice(0, layers))


@given(**SIZES)
def test_who_is_read_from_above_is_read_one_step_later(layers, time):
    """The layer above one that hands up is active at the next step, with the same token."""
    wave = Wave(layers, time)
    for step in range(wave.steps):
        below = range(layers)[wave.below(step)]
        assert set(below) == set(range(layers)[wave.active(step)]) - {layers - 1}
        assert all(layer + 1 in range(layers)[wave.active(step + 1)] for layer in below)


@given(**SIZES)
def test_a_skewed_tensor_holds_each_layers_tokens_where_it_reads_them(layers, time):
    """``of`` finds them again; first and last values have their places before and after."""
    wave, source = Wave(layers, time), torch.arange(layers * time).float().reshape(layers, time, 1, 1) + 1
    skewed = wave.skew(source)
    assert skewed.shape[1] == (wave.steps if layers > 1 else time)
    for layer in range(layers):
        assert torch.equal(skewed[wave.of(layer)], source[layer])
    buffer = torch.zeros(layers, wave.steps + 1, 1, 1)
    wave.first(buffer, -torch.arange(1.0, layers + 1).reshape(layers, 1, 1))
    buffer[:, 1:] += skewed
    assert [buffer[layer, layer].item() for layer in range(layers)] == [
        -(layer + 1.0) for layer in range(layers)
    ]
    assert torch.equal(wave.last(buffer), source[:, -1])


@pytest.mark.parametrize("stacking", ["residual", "skip", "plain"])
@given(**SIZES, seed=st.integers(0, 99))
def test_what_flows_down_is_the_derivative_of_what_flows_up(stacking, layers, time, seed):
    """Layers that double what they read: features and the gradient at the input are known sums."""
    wave, generator = Wave(layers, time), torch.Generator().manual_seed(seed)
    x, d_out = torch.randn(2, time, 1, 2, generator=generator, dtype=torch.float64)
    flow = Flow.begin(wave, stacking, x, torch.zeros(layers, 1, 2, dtype=torch.float64), None)
    for step in range(wave.steps):
        active = wave.active(step)
        flow.h[active, step + 1] = 2 * flow.x[active, step]
        flow.pass_up(step)
    arriving, dx = flow.arrive(d_out).clone(), torch.zeros_like(flow.x)
    for step in reversed(range(wave.steps)):
        flow.pass_down(step, arriving, dx)
        active = wave.active(step)
        dx[active, step] = 2 * arriving[active, step]
    factor = {
        "residual": 2 * 3 ** (layers - 1),
        "skip": sum(2**layer for layer in range(1, layers + 1)),
        "plain": 2**layers,
    }[stacking]
    torch.testing.assert_close(flow.out(), factor * x)
    torch.testing.assert_close(dx[wave.of(0)], factor * d_out)


def test_some_layers_keeps_the_structure():
    """Named tuples, lists and None stay what they are; tensors lose layers."""
    wave = Wave(layers=torch.arange(3), time=[torch.arange(3), None])
    part = some_layers(wave, slice(1, 3))
    assert isinstance(part, Wave)
    assert part.layers.tolist() == [1, 2]
    assert part.time[0].tolist() == [1, 2]
    assert part.time[1] is None
