"""Shared by the tests of compression."""

import io

import pytest

from rlstm_model.compression import compress, decompress


@pytest.fixture(scope="session")
def pack(tiny_checkpoint):
    """Compresses bytes by the tiny model, or another: the file, and what is said of it."""

    def call(content, adapt="both", model=tiny_checkpoint):
        sink = io.BytesIO()
        summary = compress(io.BytesIO(content), sink, model=model, adapt=adapt)
        return sink.getvalue(), summary

    return call


@pytest.fixture(scope="session")
def unpack(tiny_checkpoint):
    """Gives back what was compressed."""

    def call(packed, model=tiny_checkpoint):
        sink = io.BytesIO()
        size = decompress(io.BytesIO(packed), sink, model=model)
        assert size == len(sink.getvalue())
        return sink.getvalue()

    return call
