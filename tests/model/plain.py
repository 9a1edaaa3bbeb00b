"""The layers once more, in plain torch with dropout masks, for automatic differentiation to follow."""

import torch


def mogrify(weights, x, h):
    for k, matrix in enumerate(weights.up):
        if weights.down is not None:
            matrix = matrix @ weights.down[k]
        bias = 0.0 if weights.bias is None else weights.bias[k]
        if k % 2 == 0:
            x = 2 * torch.sigmoid(h @ matrix.T + bias) * x
        else:
            h = 2 * torch.sigmoid(x @ matrix.T + bias) * h
    return x, h


def cell_step(weights, x, h, c, mask, capped):
    """The new h and c; ``mask`` is the state mask."""
    n = h.shape[-1]
    b_i, b_j, b_f, b_o = weights.bias.reshape(4, n)
    w_x, w_h = weights.x.reshape(-1, n, n), weights.h.reshape(-1, n, n)
    i = torch.sigmoid(x @ w_x[0].T + h @ w_h[0].T + b_i)
    j = torch.tanh(x @ w_x[1].T + h @ w_h[1].T + b_j)
    from_below = x @ w_x[2].T if weights.u is None else (i * j) @ weights.u.T
    f = torch.sigmoid(from_below + h @ w_h[2].T + b_f)
    c = f * c + (torch.minimum(i, 1 - f) if capped else i) * j
    into_o = x @ w_x[3].T + h @ w_h[3].T if weights.c is None else (c * mask) @ weights.c.T
    return torch.sigmoid(into_o + b_o) * torch.tanh(c), c


def layer_window(layer, x_TBH, h, c, mask=None):
    """A layer's h after every token ``[T, B, H]``, and its last c."""
    mask = torch.ones_like(h) if mask is None else mask
    outputs = []
    for x in x_TBH:
        x, mogrified_h = mogrify(layer.weights.mogrifier, x, h * mask)
        h, c = cell_step(layer.weights.cell, x, mogrified_h, c, mask, layer.cell.capped)
        outputs.append(h)
    return torch.stack(outputs), c


def stack_window(stack, x_TBH, state, masks):
    """What the softmax reads, and the last h and c."""
    source, outputs, hs, cs = x_TBH, [], [], []
    for index, layer in enumerate(stack.layers):
        mask = None if masks.state is None else masks.state[index]
        raw, c = layer_window(layer, source, state.h[index], state.c[index], mask)
        hs.append(raw[-1])
        cs.append(c)
        outputs.append(raw if masks.cell is None else raw * masks.cell[index])
        source = sum(outputs) if stack.stacking == "residual" else outputs[-1]
    features = outputs[-1] if stack.stacking == "plain" else sum(outputs)
    return features, torch.stack(hs), torch.stack(cs)
