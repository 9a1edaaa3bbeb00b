"""The structures of `src/rlstm.h`."""

from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p


class MatrixStruct(Structure):
    """A matrix of n x m, packed in panels for both directions."""

    _fields_ = [
        ("n", c_int32),
        ("m", c_int32),
        ("half", c_int32),
        ("forward", c_void_p),
        ("backward", c_void_p),
    ]


class WeightStruct(Structure):
    """A matrix that rows share, and the axes between which each has a core of its own."""

    _fields_ = [
        ("shared", MatrixStruct),
        ("left", MatrixStruct),
        ("right", MatrixStruct),
        ("own", c_int64),
        ("r", c_int32),
        ("q", c_int32),
    ]


class BiasStruct(Structure):
    """A vector that rows share, and where each row's own begins."""

    _fields_ = [("shared", c_void_p), ("own", c_int64), ("n", c_int32), ("present", c_int32)]


class LayerStruct(Structure):
    """A layer: its cell, and the mogrifier's rounds before it."""

    _fields_ = [
        ("input", c_int32),
        ("hidden", c_int32),
        ("low", c_int32),
        ("x", WeightStruct),
        ("h", WeightStruct),
        ("u", WeightStruct),
        ("c", WeightStruct),
        ("bias", BiasStruct),
        ("up", POINTER(WeightStruct)),
        ("down", POINTER(WeightStruct)),
        ("gate", POINTER(BiasStruct)),
    ]


class ModelStruct(Structure):
    """A model, and what its rows may change."""

    _fields_ = [
        *(
            (name, c_int32)
            for name in (
                "vocab",
                "padded_vocab",
                "layers",
                "rlstm",
                "capped",
                "rounds",
                "stacking",
                "components",
                "embedding_width",
                "embedding_half",
                "feature_width",
            )
        ),
        ("embedding", c_void_p),
        ("input_left", c_void_p),
        ("input_right", MatrixStruct),
        ("input_own", c_int64),
        ("input_r", c_int32),
        ("input_q", c_int32),
        ("output", WeightStruct),
        ("output_bias", BiasStruct),
        ("projection", WeightStruct),
        ("mixing", WeightStruct),
        ("projection_bias", BiasStruct),
        ("layer", POINTER(LayerStruct)),
        ("fast_weights", c_int64),
        ("own_size", c_int64),
        ("half", c_int32),
        ("whole", c_int32),
        ("places", c_void_p),
        ("precision", c_void_p),
        ("shrink", c_void_p),
        ("shrink_all", c_float),
        ("max_norm", c_float),
    ]


class RowStruct(Structure):
    """One row of a window: addresses and a length."""

    _fields_ = [
        *(
            (name, c_void_p)
            for name in (
                "delta",
                "delta_after",
                "gradient",
                "state",
                "ids",
                "targets",
                "loss",
                "log_probs",
            )
        ),
        ("length", c_int32),
        ("rate", c_float),
        ("step", c_void_p),
    ]


class StepStruct(Structure):
    """What became of a row's step."""

    _fields_ = [("norm", c_float), ("gradient_norm", c_float), ("scale", c_float), ("taken", c_int32)]
