"""The model, slowly and obviously: float64 NumPy, one batch row and one token at a time.

Written from the equations (docs/mathematics.md §1.2) and nothing else; it shares no code with the package.
"""

import numpy as np


def sigmoid(a):
    return 1.0 / (1.0 + np.exp(-a))


def softmax(logits):
    shifted = np.exp(logits - logits.max())
    return shifted / shifted.sum()


def mogrify(config, layer, x, h):
    for k in range(1, config.mogrifier_rounds + 1):
        matrix = layer["mogrifier_up"][k - 1]
        if config.mogrifier_rank:
            matrix = matrix @ layer["mogrifier_down"][k - 1]
        bias = layer["mogrifier_bias"][k - 1] if config.mogrifier_bias else 0.0
        if k % 2 == 1:
            x = 2 * sigmoid(matrix @ h + bias) * x
        else:
            h = 2 * sigmoid(matrix @ x + bias) * h
    return x, h


def cell_step(config, layer, x, h, c, state_mask):
    n = len(c)
    b_i, b_j, b_f, b_o = layer["bias"].reshape(4, n)
    w_ix, w_jx = layer["x"].reshape(-1, n, len(x))[:2]
    w_ih, w_jh, w_fh = layer["h"].reshape(-1, n, n)[:3]
    i = sigmoid(w_ix @ x + w_ih @ h + b_i)
    j = np.tanh(w_jx @ x + w_jh @ h + b_j)
    if config.cell == "rlstm":
        f = sigmoid(layer["u"] @ (i * j) + w_fh @ h + b_f)
    else:
        f = sigmoid(layer["x"].reshape(4, n, len(x))[2] @ x + w_fh @ h + b_f)
    write = np.minimum(i, 1 - f) if config.cap_input_gate else i
    c = f * c + write * j
    if config.cell == "rlstm":
        o = sigmoid(layer["c"] @ (c * state_mask) + b_o)
    else:
        o = sigmoid(layer["x"].reshape(4, n, len(x))[3] @ x + layer["h"].reshape(4, n, n)[3] @ h + b_o)
    return o * np.tanh(c), c


def predict(config, weights, e_out, x, temperature=1.0):
    """The next token's probabilities; a mixture's, component after component."""
    bias = weights["embedding.bias"]
    if config.softmax_components == 1:
        return softmax(temperature * (e_out @ x + bias))
    mixed = {name.removeprefix("embedding.mixture."): w for name, w in weights.items() if ".mixture." in name}
    shares = softmax(mixed["weights"] @ x)
    latents = [
        np.tanh(matrix @ x + own)
        for matrix, own in zip(mixed["projection"], mixed["projection_bias"], strict=True)
    ]
    parts = [
        share * softmax(temperature * (e_out @ latent + bias))
        for share, latent in zip(shares, latents, strict=True)
    ]
    return sum(parts)


def layers_of(config, weights):
    for index in range(config.num_layers):
        prefix = f"stack.layers.{index}."
        yield {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}


def layer_input(config, outputs):
    return sum(outputs) if config.stacking == "residual" else outputs[-1]


def softmax_input(config, outputs):
    return outputs[-1] if config.stacking == "plain" else sum(outputs)


def forward(config, weights, ids_TB, h_LBH, c_LBH, masks):
    """Features and probabilities after every token, and the last h and c.

    ``weights``: name to array; ``masks``: full arrays under input, cell, state, output, ones where unused.
    """
    h, c = h_LBH.copy(), c_LBH.copy()
    time, batch = ids_TB.shape
    features = np.zeros((time, batch, config.hidden_size))
    probabilities = np.zeros((time, batch, config.vocab_size))
    tied = "embedding.output" not in weights
    e_out = weights["embedding.input"] if tied else weights["embedding.output"]
    for b in range(batch):
        for t in range(time):
            embedded = weights["embedding.input"][ids_TB[t, b]] * masks["input"][t, b]
            outputs = []
            for index, layer in enumerate(layers_of(config, weights)):
                x = embedded if index == 0 else layer_input(config, outputs)
                state_mask = masks["state"][index, b]
                x, mogrified_h = mogrify(config, layer, x, h[index, b] * state_mask)
                h[index, b], c[index, b] = cell_step(config, layer, x, mogrified_h, c[index, b], state_mask)
                outputs.append(h[index, b] * masks["cell"][index, t, b])
            features[t, b] = softmax_input(config, outputs) * masks["output"][t, b]
            probabilities[t, b] = predict(config, weights, e_out, features[t, b])
    return features, probabilities, h, c
