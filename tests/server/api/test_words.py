import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_model.vocab import ByteVocab
from rlstm_server.api.words import byte_column, word_rows
from rlstm_server.schemas import Columns

VOCAB = ByteVocab()


def columns(text, logprobs=None):
    encoded = VOCAB.encode(text)
    count = len(encoded.ids)
    values = tuple(logprobs or (-1.0 for _ in range(count)))
    return Columns(
        ids=tuple(encoded.ids),
        logprobs=values,
        static_logprobs=tuple(2 * value for value in values),
        ranks=(1,) * count,
        entropies=(0.0,) * count,
        starts=tuple(encoded.starts),
        ends=tuple(encoded.ends),
    )


def words(text, factor=1.0, logprobs=None):
    return json.loads(orjson.dumps(word_rows(text, columns(text, logprobs), factor)))


def test_the_space_before_a_word_belongs_to_it():
    """And the space after the last word is an entry of its own."""
    assert [("the cat \n"[row["start"] : row["end"]], row["tokens"]) for row in words("the cat \n")] == [
        ("the", 3),
        (" cat", 4),
        (" \n", 2),
    ]


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), st.sampled_from([1.0, 1.4427]))
def test_words_sum_to_their_tokens(text, factor):
    """Every token counts in exactly one word, whatever the text; the words tile it."""
    rows = words(text, factor)
    count = len(text.encode())
    assert sum(row["tokens"] for row in rows) == count
    assert sum(row["logprob"] for row in rows) == pytest.approx(-count * factor)
    assert sum(row["static_logprob"] for row in rows) == pytest.approx(-2 * count * factor)
    edges = [0, *[row["end"] for row in rows]]
    assert [row["start"] for row in rows] == edges[:-1]
    assert edges[-1] == len(text)


def test_bytes_are_told_where_they_are_no_text():
    """Joined with the others they are the text again; a text of whole characters needs none."""
    ids = VOCAB.encode("aé🙂").ids
    told = byte_column(ids, VOCAB)
    assert told == [None, [0xC3], [0xA9], [0xF0], [0x9F], [0x99], [0x82]]
    assert byte_column(VOCAB.encode("plain").ids, VOCAB) is None
