"""Shared by the tests of vocabularies."""

import pytest


@pytest.fixture(scope="session")
def fed():
    """What a decoder gives for each of some ids, and at the end."""

    def feed(vocab, ids):
        decoder = vocab.decoder()
        return [*(decoder.feed(token) for token in ids), decoder.flush()]

    return feed
