"""The structures of `src/rlstm.h`."""

from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p
from typing import Any


def _all(kind: type, names: str) -> list[tuple[str, Any]]:
    """Fields of one kind in a row."""
    return [(name, kind) for name in names.split()]


class MatrixStruct(Structure):
    """A matrix of n x m, packed in panels for both directions."""

    _fields_ = [*_all(c_int32, "n m half blocks rows columns"), *_all(c_void_p, "forward backward")]


class WeightStruct(Structure):
    """A matrix that rows share, and the axes between which each has a core of its own."""

    _fields_ = [*_all(MatrixStruct, "shared left right"), ("own", c_int64), *_all(c_int32, "r q")]


class BiasStruct(Structure):
    """A vector that rows share, and where each row's own begins."""

    _fields_ = [("shared", c_void_p), ("own", c_int64), *_all(c_int32, "n present")]


class LayerStruct(Structure):
    """A layer: its cell, and the mogrifier's rounds before it."""

    _fields_ = [
        *_all(c_int32, "input hidden low units"),
        *_all(WeightStruct, "x h u c"),
        ("bias", BiasStruct),
        *_all(POINTER(WeightStruct), "up down"),
        ("gate", POINTER(BiasStruct)),
    ]


class ModelStruct(Structure):
    """A model, and what its rows may change."""

    _fields_ = [
        *_all(c_int32, "vocab padded_vocab layers rlstm capped rounds stacking components"),
        *_all(c_int32, "embedding_width embedding_half feature_width"),
        *_all(c_void_p, "embedding input_left"),
        ("input_right", MatrixStruct),
        ("input_own", c_int64),
        *_all(c_int32, "input_r input_q"),
        ("output", WeightStruct),
        ("output_bias", BiasStruct),
        *_all(WeightStruct, "projection mixing"),
        ("projection_bias", BiasStruct),
        ("layer", POINTER(LayerStruct)),
        *_all(c_int64, "fast_weights own_size"),
        *_all(c_int32, "half whole"),
        *_all(c_void_p, "places precision shrink"),
        *_all(c_float, "shrink_all max_norm"),
    ]


class RowStruct(Structure):
    """One row of a window: addresses and a length."""

    _fields_ = [
        *_all(c_void_p, "delta delta_after gradient state ids targets loss log_probs"),
        ("length", c_int32),
        ("rate", c_float),
        ("step", c_void_p),
    ]


class StepStruct(Structure):
    """What became of a row's step."""

    _fields_ = [*_all(c_float, "norm gradient_norm scale"), ("taken", c_int32)]


class RecallStruct(Structure):
    """Reading on in one memory."""

    _fields_ = [
        *_all(c_void_p, "memory log_probs line values out weights_only"),
        *_all(c_int32, "experts length known ahead mode code"),
    ]
