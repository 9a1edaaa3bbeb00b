"""A model packed for the native core: what its structures point to.

Everything is padded to LANES values: every vector, every block of gates, both sides of every matrix. Padding
is zero and stays zero. Shape suffixes: N rows of a matrix, M columns, R and Q axes, P fast weights, D
elements of all cores and biases, T tokens, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from ctypes import addressof, c_char
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlstm_model.config import ModelConfig
from rlstm_model.native.library import library
from rlstm_model.native.structures import BiasStruct, LayerStruct, MatrixStruct, ModelStruct, WeightStruct
from rlstm_model.parameters import shapes

LANES: Final = 16

Floats = NDArray[np.float32]


def padded(size: int) -> int:
    """The next multiple of LANES."""
    return -(-size // LANES) * LANES


def address(array: NDArray[Any]) -> int:
    """Where its values begin, which ``array.ctypes.data`` takes four times as long to say."""
    try:
        return addressof(c_char.from_buffer(array.data))
    except (TypeError, ValueError):  # read-only, empty or of several pieces
        return int(array.ctypes.data)


def with_room(log_probs_TV: Floats, stride: int) -> Floats:
    """The same log-probabilities in rows of ``stride`` floats, of which the last are impossible tokens."""
    owner = log_probs_TV if log_probs_TV.base is None else log_probs_TV.base
    if (
        log_probs_TV.shape[1] == stride
        and log_probs_TV.dtype == np.float32
        and log_probs_TV.flags.c_contiguous
    ):
        return log_probs_TV
    if (
        isinstance(owner, np.ndarray)
        and owner.ndim == 2
        and owner.shape[1] == stride
        and owner.dtype == np.float32
        and log_probs_TV.strides == (4 * stride, 4)
        and (address(log_probs_TV) - address(owner)) % (4 * stride) == 0
    ):
        return log_probs_TV
    length, vocabulary = log_probs_TV.shape
    copy = np.full((length, stride), -1e30, np.float32)
    copy[:, :vocabulary] = log_probs_TV
    return copy[:, :vocabulary]


class Axes(NamedTuple):
    """Fixed axes of a matrix ``[.., N, M]``: ``left`` ``[.., N, R]`` and ``right`` ``[.., Q, M]``."""

    left: Floats
    right: Floats


class Space(NamedTuple):
    """What rows may change: cores between ``axes``, by weight name, and the biases named.

    chosen_P  the places of the fast weights among the elements of all cores and biases; None is all of them
    dtype     of fast weights: float16 or float32
    whole     every weight instead. A row is then read with a model of its own
    """

    axes: Mapping[str, Axes]
    biases: Sequence[str]
    chosen_P: NDArray[np.int64] | None = None
    dtype: type = np.float32
    whole: bool = False


class Rule(NamedTuple):
    """One step: delta - shrink delta - rate precision gradient, cut back to the norm ``max_norm``.

    ``precision_P`` None is 1 for all; ``shrink_P`` may be one number for all.
    """

    precision_P: Floats | None = None
    shrink_P: "Floats | float" = 0.0
    max_norm: float = float("inf")


class PackedModel:
    """A model packed for the native core, with the places of what rows add to it.

    units         U: of all layers together
    fast_weights  P: all elements of cores, as :class:`Space` orders them, and of biases; or those chosen
    dtype         of deltas
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, NDArray[Any]],
        space: Space | None = None,
        rule: Rule | None = None,
    ) -> None:
        """``weights`` are float16 or float32 arrays by name; half precision stays so.

        Raises ValueError for weights that are not the config's, and for rows that could change nothing.
        """
        if {name: weight.shape for name, weight in weights.items()} != shapes(config):
            raise ValueError("the weights are not those of the model's config")
        self.config = config
        self._kept: list[Any] = []
        self._weights = weights
        self._space = space or Space({}, ())
        if config.softmax_components > 1 and (self._space.whole or self._space.axes or self._space.biases):
            raise ValueError("rows can add nothing to a model with a mixture of softmaxes")
        self._laid: list[tuple[str, int, Callable[[Floats], None]]] = []
        self._offsets: dict[str, list[tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]]] = {}
        self._size = 0
        self.struct = self._build()
        """What the core reads; it lives as long as this does."""
        self.units = sum(self.struct.layer[layer].units for layer in range(config.num_layers))
        self.padded_vocab = int(self.struct.padded_vocab)
        self._add_rule(self._places(), rule or Rule())

    @property
    def names(self) -> list[str]:
        """The weights of which cores and biases are elements, in their order."""
        return [*self._weights] if self._space.whole else [*self._space.axes, *self._space.biases]

    def lay(self, delta_P: Floats) -> None:
        """Lay a row's fast weights over a model that is ``whole``; those that were there before go."""
        parts, done = {}, 0
        for name, weight in self._weights.items():
            part = delta_P[done : done + weight.size].reshape(weight.shape)
            parts[name] = part if "mogrifier_" in name else part[None]  # stacked over rounds, or single
            done += weight.size
        for name, index, put in self._laid:
            put(np.ascontiguousarray(parts[name][index], np.float32))

    def _add_rule(self, places_D: NDArray[np.int64], rule: Rule) -> None:
        chosen = self._space.chosen_P
        if self._size >= 1 << 31:
            raise ValueError(f"rows of {self._size} values are more than the native core can learn")
        places = places_D if chosen is None else places_D[chosen]
        self.fast_weights, self.dtype = len(places), self._space.dtype
        struct = self.struct
        struct.fast_weights, struct.own_size = len(places), self._size
        struct.half, struct.whole = int(self.dtype is np.float16), int(self._space.whole)
        struct.places = self._keep(places.astype(np.int32))
        struct.max_norm = rule.max_norm
        if rule.precision_P is not None:
            struct.precision = self._keep(_vector(rule.precision_P, len(places)))
        if isinstance(rule.shrink_P, float):
            struct.shrink_all = rule.shrink_P
        else:
            struct.shrink = self._keep(_vector(rule.shrink_P, len(places)))

    # ---- packing ------------------------------------------------------------------------------------------

    def _keep(self, array: NDArray[Any]) -> int:
        self._kept.append(array)
        return address(array)

    def _matrix(self, weight_NM: NDArray[Any], blocks: int, name: str = "", index: int = 0) -> MatrixStruct:
        """``blocks`` of rows are padded one by one.

        ``name`` and ``index``: whose whole weights may be laid over it.
        """
        rows, columns = weight_NM.shape[0] // blocks, weight_NM.shape[1]
        n, m = blocks * padded(rows), padded(columns)
        forward = np.zeros((n // LANES, m, LANES), np.float32)
        backward = np.zeros((m // LANES, n, LANES), np.float32)
        dense = np.ascontiguousarray(weight_NM, np.float32)
        _pack(dense, None, blocks, forward, backward)
        half = weight_NM.dtype == np.float16 and not self._space.whole
        if half:
            forward, backward = forward.astype(np.float16), backward.astype(np.float16)
        if self._space.whole:
            self._laid.append((name, index, lambda part: _pack(dense, part, blocks, forward, backward)))
        kept = (self._keep(forward), self._keep(backward))
        return MatrixStruct(n, m, int(half), blocks, rows, columns, *kept)

    def _weight(self, name: str, blocks: int, index: int | None = None) -> WeightStruct:
        weight = self._weights[name] if index is None else self._weights[name][index]
        shared = self._matrix(weight, blocks, name, index or 0)
        if self._space.whole:
            own = self._claim(name, weight.shape, (blocks, 1))
            return _shared(shared, own)
        axes = self._space.axes.get(name)
        if axes is None:
            return _shared(shared)
        left, right = axes if index is None else (axes.left[index], axes.right[index])
        _check_axes(name, left, right, weight.shape)
        own = self._claim(name, (left.shape[1], right.shape[0]), (1, 1))
        left_matrix, right_matrix = self._matrix(_single(left), blocks), self._matrix(_single(right), 1)
        return WeightStruct(shared, left_matrix, right_matrix, own, left_matrix.m, right_matrix.n)

    def _bias(self, name: str, blocks: int, index: int | None = None, fill: float = 0.0) -> BiasStruct:
        bias = self._weights.get(name)
        if bias is None:
            return BiasStruct(None, -1, 0, 0)
        values = bias if index is None else bias[index]
        whole = np.full((blocks, padded(len(values) // blocks)), fill, np.float32)
        whole[:, : len(values) // blocks] = values.reshape(blocks, -1)
        own = -1
        if self._space.whole or name in self._space.biases:
            own = self._claim(name, values.shape, (blocks,))
        if self._space.whole:
            self._laid.append((name, index or 0, _adding(whole[:, : len(values) // blocks])))
        return BiasStruct(self._keep(whole), own, whole.size, 1)

    def _claim(self, name: str, shape: tuple[int, ...], blocks: tuple[int, ...]) -> int:
        """A place among a row's fast weights for an array of a shape; tied matrices have one."""
        sides = tuple(b * padded(s // b) for s, b in zip(shape, blocks, strict=True))
        offset = self._size
        self._offsets.setdefault(name, []).append((offset, shape, blocks, sides))
        self._size += int(np.prod(sides))
        return offset

    def _build(self) -> ModelStruct:
        config, weights = self.config, self._weights
        embedding = weights["embedding.input"]
        width = embedding.shape[1]
        half = embedding.dtype == np.float16 and not self._space.whole
        rows = np.zeros((len(embedding), padded(width)), np.float16 if half else np.float32)
        rows[:, :width] = embedding
        if self._space.whole:
            self._laid.append(("embedding.input", 0, _adding(rows[:, :width])))
        model = ModelStruct(
            vocab=config.vocab_size,
            padded_vocab=padded(config.vocab_size),
            layers=config.num_layers,
            rlstm=int(config.cell == "rlstm"),
            capped=int(config.cap_input_gate),
            rounds=config.mogrifier_rounds,
            stacking=("residual", "skip", "plain").index(config.stacking),
            components=config.softmax_components,
            embedding_width=padded(width),
            embedding_half=int(half),
            feature_width=padded(weights[f"stack.layers.{config.num_layers - 1}.h"].shape[1]),
            embedding=self._keep(rows),
            input_own=-1,
        )
        self._input(model)
        matrix = "embedding.output" if "embedding.output" in weights else "embedding.input"
        model.output = self._weight(matrix, 1)
        if matrix == "embedding.input" and model.input_own >= 0:  # tied: one core for both
            self._size = model.output.own
            self._offsets[matrix].pop()
            model.output.own = model.input_own
        model.output_bias = self._bias("embedding.bias", 1, fill=-1e30)
        if config.softmax_components > 1:
            self._mixture(model)
        layers = [self._layer(layer) for layer in range(config.num_layers)]
        model.layer = (LayerStruct * len(layers))(*layers)
        self._kept.append(layers)
        return model

    def _input(self, model: ModelStruct) -> None:
        name, embedding = "embedding.input", self._weights["embedding.input"]
        if self._space.whole:
            model.input_own = self._claim(name, embedding.shape, (1, 1))
            return
        axes = self._space.axes.get(name)
        if axes is None:
            return
        _check_axes(name, *axes, embedding.shape)
        left = np.zeros((len(axes.left), padded(axes.left.shape[1])), np.float32)
        left[:, : axes.left.shape[1]] = axes.left
        model.input_left = self._keep(left)
        model.input_right = self._matrix(_single(axes.right), 1)
        model.input_own = self._claim(name, (axes.left.shape[1], axes.right.shape[0]), (1, 1))
        model.input_r, model.input_q = left.shape[1], model.input_right.n

    def _mixture(self, model: ModelStruct) -> None:
        components, width = self.config.softmax_components, self.config.hidden_size
        prefix = "embedding.mixture."
        projection = self._weights[f"{prefix}projection"].reshape(components * width, width)
        model.projection = _shared(self._matrix(projection, components))
        model.mixing = _shared(self._matrix(self._weights[f"{prefix}weights"], 1))
        bias = self._weights[f"{prefix}projection_bias"]
        whole = np.zeros((components, padded(width)), np.float32)
        whole[:, :width] = bias
        model.projection_bias = BiasStruct(self._keep(whole), -1, whole.size, 1)

    def _layer(self, number: int) -> LayerStruct:
        config, prefix = self.config, f"stack.layers.{number}."
        rlstm, rounds = config.cell == "rlstm", range(config.mogrifier_rounds)
        nothing = _shared(MatrixStruct())
        layer = LayerStruct(
            x=self._weight(f"{prefix}x", 2 if rlstm else 4),
            h=self._weight(f"{prefix}h", 3 if rlstm else 4),
            u=self._weight(f"{prefix}u", 1) if rlstm else nothing,
            c=self._weight(f"{prefix}c", 1) if rlstm else nothing,
            bias=self._bias(f"{prefix}bias", 4),
        )
        layer.input, layer.hidden = layer.x.shared.m, layer.h.shared.m
        layer.units = self._weights[f"{prefix}h"].shape[1]
        up = [self._weight(f"{prefix}mogrifier_up", 1, k) for k in rounds]
        layer.up = (WeightStruct * len(up))(*up)
        if config.mogrifier_rank and rounds:
            down = [self._weight(f"{prefix}mogrifier_down", 1, k) for k in rounds]
            layer.down = (WeightStruct * len(down))(*down)
            layer.low = down[0].shared.n
        gates = [self._bias(f"{prefix}mogrifier_bias", 1, k) for k in rounds]
        layer.gate = (BiasStruct * len(gates))(*gates)
        return layer

    def _places(self) -> NDArray[np.int64]:
        places = []
        for name in self.names:
            for offset, shape, blocks, sides in self._offsets.get(name, ()):
                index = np.arange(int(np.prod(shape))).reshape(shape)
                whole = np.full(sides, -1)
                whole[np.ix_(*(_inside(s, b) for s, b in zip(shape, blocks, strict=True)))] = index
                flat = np.empty(index.size, np.int64)
                inside = whole.ravel() >= 0
                flat[whole.ravel()[inside]] = np.flatnonzero(inside) + offset
                places.append(flat)
        return np.concatenate(places) if places else np.empty(0, np.int64)


def _shared(matrix: MatrixStruct, own: int = -1) -> WeightStruct:
    """A matrix without axes; ``own``: where each row's whole weights begin, -1 for none."""
    return WeightStruct(matrix, MatrixStruct(), MatrixStruct(), own, 0, 0)


def _check_axes(name: str, left: Floats, right: Floats, shape: tuple[int, ...]) -> None:
    if not left.size or not right.size or (len(left), right.shape[1]) != shape:
        raise ValueError(f"axes of {left.shape} and {right.shape} are none of {name}, {shape}")


def _pack(dense_NM: Floats, delta_NM: Floats | None, blocks: int, forward: Floats, backward: Floats) -> None:
    n, m = dense_NM.shape
    delta = None if delta_NM is None else address(delta_NM)
    library().rl_pack(address(dense_NM), delta, n, m, blocks, address(forward), address(backward))


def _adding(whole: Floats) -> Callable[[Floats], None]:
    """Puts what is given, added to the values that there are now, where they are."""
    loaded = whole.copy()

    def put(part: Floats) -> None:
        whole[:] = loaded + part.reshape(loaded.shape)

    return put


def _vector(values: Floats, size: int) -> Floats:
    vector = np.ascontiguousarray(values, np.float32)
    if vector.shape != (size,):
        raise ValueError(f"a rule of {size} fast weights has {size} numbers, not {vector.shape}")
    return vector


def _inside(size: int, blocks: int) -> NDArray[np.int64]:
    """Where the values of padded blocks stand."""
    each = size // blocks
    return (np.arange(blocks)[:, None] * padded(each) + np.arange(each)).ravel()


def _single(array: NDArray[Any]) -> Floats:
    return np.asarray(array, np.float32)
