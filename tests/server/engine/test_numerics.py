"""The numerics id names what decides the bits."""

import torch

from rlstm_model.vocab import ByteVocab
from rlstm_server.engine.numerics import numerics_id


def test_the_id_names_library_device_and_dtype(tools):
    """Two models on one machine share it; another dtype has another."""
    one, two = tools.tiny_model(ByteVocab()), tools.tiny_model(ByteVocab(), seed=1)
    name = numerics_id(one)

    assert name == numerics_id(two)
    assert all(part in name for part in (torch.__version__, "cpu", "float32"))
    assert " " not in name
    assert numerics_id(one.double()) != name
