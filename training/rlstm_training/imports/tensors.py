"""State dicts of ``torch.nn.LSTM`` language models, as the weights of ours.

===============  =======================================================  ==================================
part             names, whatever stands before them                       shape
===============  =======================================================  ==================================
embedding        ``encoder``, ``input_embedding``, ``embedding``          ``[V, E]``
layer K          ``rnn.weight_ih_lK`` .. or ``rnns.K.weight_ih_l0`` ..,   ``[4 N, M]``, ``[4 N, N]``, and two
                 also ``rnns.K.module.weight_hh_l0_raw`` (weight drop)    biases ``[4 N]``
output           ``decoder``, ``output_linear``, ``linear``               ``[V, N]``, ``[V]``
===============  =======================================================  ==================================

So they are called by pytorch/examples' word_language_model and what descends from it (Gulordava's models,
neural-complexity), by awd-lstm-lm, by ESPnet's SequentialRNNLM and by icefall's RnnLmModel.
"""

import pickle  # noqa: TID251 -- for its error alone
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError

from rlstm_model import stored
from rlstm_model.config import ModelConfig
from rlstm_model.parameters import Parameters, shapes
from rlstm_training.imports import ImportRefused

GATES: Final = "ifgo"
"""The order of gates in torch: input, forget, what is written, output."""

_OURS: Final = "igfo"
_WRAPPERS: Final = ("state_dict", "model_state_dict", "model", "net")
# A zip file; or a pickle's protocol and first instruction, where safetensors have the zeros of a length.
_PICKLED = re.compile(rb"PK\x03\x04|\x80[\x02-\x05][^\0]", re.DOTALL)
_LAYER = re.compile(
    r"(?:^|\.)(?:rnns?|lstm)(?:\.(\d+))?(?:\.module)?\.((?:weight|bias)_[ih]h)_l(\d+)(_raw)?$"
)
_EMBEDDING = re.compile(r"(?:^|\.)(?:encoder|(?:input_)?embedding)\.weight$")
_OUTPUT = re.compile(r"(?:^|\.)(?:decoder|(?:output_)?linear)\.(weight|bias)$")

Arrays = Mapping[str, NDArray[Any]]


def read_state_dict(path: Path) -> Arrays:
    """The tensors of a safetensors file, or a state dict that torch saved. Raises ImportRefused, OSError."""
    try:
        with path.open("rb") as file:
            begins = file.read(4)
        pickled = _PICKLED.match(begins) is not None
        held = None if pickled else stored.read_file(path)
    except (SafetensorError, ValueError) as error:
        raise ImportRefused(f"{path}: is no safetensors file and no state dict ({error})") from error
    if held is None:
        return _tensors(path)
    # A tensor of several names is stored by one, which the others have in the metadata.
    again = {name: held.arrays[kept] for name, kept in held.metadata.items() if kept in held.arrays}
    return {**again, **held.arrays}


def _tensors(path: Path) -> Arrays:
    try:
        with path.open("rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickles that torch did not write
            data = torch.load(file, map_location="cpu", weights_only=True)  # noqa: TID251 -- runs nothing
    except pickle.UnpicklingError:
        raise ImportRefused(
            f"{path}: is a whole pickled module, which can run anything; turn it into a state dict with "
            f"python -m rlstm_training.imports.unpickle {path} {path.stem}.safetensors"
        ) from None
    except (RuntimeError, EOFError, ValueError, KeyError) as error:
        raise ImportRefused(f"{path}: is damaged ({error})") from error
    while isinstance(data, Mapping) and not any(isinstance(value, torch.Tensor) for value in data.values()):
        data = next((data[name] for name in _WRAPPERS if name in data), None)
    if not isinstance(data, Mapping):
        raise ImportRefused(f"{path}: holds no state dict")
    tensors = {name: value for name, value in data.items() if isinstance(value, torch.Tensor)}
    return {name: _array(tensor) for name, tensor in tensors.items()}


def _array(tensor: torch.Tensor) -> NDArray[Any]:
    plain = tensor.detach()
    return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()


def parameters_of(
    arrays: Arrays, *, gates: str = GATES, tied: bool = False, no_bias: bool = False
) -> Parameters:
    """A model's weights, in float32.

    ``gates`` is the order of the blocks of gates; ``tied``: there is no output matrix, it is the embedding's;
    ``no_bias``: biases that are not there are zero. Raises ImportRefused, which names the tensor.
    """
    if sorted(gates) != sorted(GATES):
        raise ImportRefused(f"gates: must be {GATES} in some order, not {gates!r}")
    parts = _Parts(arrays, _recognised(arrays), no_bias)
    embedding = parts.take("encoder.weight", None, None)
    vocab_size, width = embedding.shape
    ours, widths = {"embedding.input": embedding}, [width]
    if tied:
        parts.names.setdefault("decoder.weight", parts.names["encoder.weight"])
    number_of_layers = 1 + max(
        (int(part.rpartition("_l")[2]) for part in parts.names if "_l" in part), default=0
    )
    order = [gates.index(gate) for gate in _OURS]
    for layer in range(number_of_layers):
        n = parts.units(layer)
        own = {
            "x": parts.take(f"weight_ih_l{layer}", 4 * n, widths[-1]),
            "h": parts.take(f"weight_hh_l{layer}", 4 * n, n),
            "bias": parts.bias(f"bias_ih_l{layer}", 4 * n) + parts.bias(f"bias_hh_l{layer}", 4 * n),
        }
        for name, part in own.items():
            blocks = part.reshape(4, -1, *part.shape[1:])[order]
            ours[f"stack.layers.{layer}.{name}"] = blocks.reshape(part.shape)
        ours[f"stack.layers.{layer}.mogrifier_up"] = np.zeros((0, n, n))
        widths.append(n)
    output = parts.take("decoder.weight", vocab_size, widths[-1])
    shared = np.array_equal(output, embedding)
    if not shared:
        ours["embedding.output"] = output
    ours["embedding.bias"] = parts.bias("decoder.bias", vocab_size)
    config = ModelConfig(
        vocab_size=vocab_size,
        hidden_size=max(widths),
        num_layers=number_of_layers,
        cell="lstm",
        cap_input_gate=False,
        mogrifier_rounds=0,
        mogrifier_bias=False,
        tie_embeddings=shared,
        stacking="plain",
        widths=() if len(set(widths)) == 1 else tuple(widths),
    )
    return Parameters(config, {name: np.ascontiguousarray(ours[name], np.float32) for name in shapes(config)})


@dataclass(frozen=True)
class _Parts:
    """Arrays by what they are; ``names`` are those of the file."""

    arrays: Arrays
    names: dict[str, str]
    no_bias: bool

    def take(self, part: str, *shape: int | None) -> NDArray[np.float64]:
        """One of them, which must be there, of this shape (None: of any size), and finite."""
        if part not in self.names:
            hint = "; --no-bias where the model has none" if "bias" in part else ""
            hint = "; --tied where it is the embedding's" if part == "decoder.weight" else hint
            raise ImportRefused(f"tensor {part} is missing{hint}")
        name = self.names[part]
        array = self.arrays[name]
        sizes = zip(array.shape, shape, strict=False)
        if array.ndim != len(shape) or any(wanted not in (None, size) for size, wanted in sizes):
            expected = [size or "any" for size in shape]
            raise ImportRefused(f"tensor {name} has shape {list(array.shape)}, not {expected}")
        if array.dtype.kind != "f" or not np.isfinite(array).all():
            raise ImportRefused(f"tensor {name} holds a value that is no finite number")
        return array.astype(np.float64)

    def bias(self, part: str, size: int) -> NDArray[np.float64]:
        if self.no_bias and part not in self.names:
            return np.zeros(size)
        return self.take(part, size)

    def units(self, layer: int) -> int:
        """Of a layer, whose gates must be an LSTM's four."""
        part = f"weight_hh_l{layer}"
        rows, n = self.take(part, None, None).shape
        if rows != 4 * n:
            message = (
                f"tensor {self.names[part]} has shape [{rows}, {n}]: {rows / n:g} gates, not an LSTM's 4"
            )
            raise ImportRefused(message)
        return int(n)


def _recognised(arrays: Arrays) -> dict[str, str]:
    """The names by what they are, as a model of word_language_model would call it."""
    names: dict[str, str] = {}
    for name in sorted(arrays):
        part = _part_of(name)
        if part is None:
            raise ImportRefused(f"tensor {name} belongs to no torch.nn.LSTM language model")
        if (
            part in names and name != f"{names[part]}_raw"
        ):  # weight drop: what was drawn last, and what it is of
            raise ImportRefused(f"tensor {name} is the same part of a model as {names[part]}")
        names[part] = name
    return names


def _part_of(name: str) -> str | None:
    if _EMBEDDING.search(name):
        return "encoder.weight"
    if output := _OUTPUT.search(name):
        return f"decoder.{output[1]}"
    layer = _LAYER.search(name)
    return layer and f"{layer[2]}_l{int(layer[1] or 0) + int(layer[3])}"
