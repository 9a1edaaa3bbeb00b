import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_model.vocab import ByteVocab
from rlstm_server.api.score import byte_column, word_scores
from rlstm_server.schemas.text import Columns

TEXT = "The cat sat on the mat, é🙂 and slept."


async def one(client, **body):
    (item,) = (await client.ask(200, "POST", "/score", body))["items"]
    return item


async def test_columns_are_equally_long_and_sum_to_the_totals(client):
    """One entry a token in each, and the total is their sum."""
    item = await one(client, text=TEXT, adapt=True)
    count = len(TEXT.encode())
    for name in ("ids", "logprobs", "static_logprobs", "ranks", "entropies", "starts", "ends", "bytes"):
        assert len(item[name]) == count
    totals = item["totals"]
    assert totals["tokens"] == totals["bytes"] == count
    assert math.fsum(item["logprobs"]) == pytest.approx(totals["logprob"], abs=1e-4)
    assert math.fsum(item["static_logprobs"]) == pytest.approx(totals["static_logprob"], abs=1e-4)
    assert totals["gain"] == pytest.approx(totals["logprob"] - totals["static_logprob"], abs=1e-6)
    assert max(item["logprobs"]) <= 0


@pytest.mark.parametrize("adapt", [False, True])
async def test_white_space_in_each_place(client, adapt):
    """At least as probable as the token of it that came; of the model as loaded where it learns as well."""
    item = await one(client, text=TEXT, adapt=adapt, spaces=True)
    columns = [("logprobs", "space_logprobs"), ("static_logprobs", "static_space_logprobs")][: 1 + adapt]
    for own, space in columns:
        assert all(item[space][at] > item[own][at] for at, letter in enumerate(TEXT[:22]) if letter == " ")
    assert ("static_space_logprobs" in item) is adapt
    assert "space_logprobs" not in await one(client, text=TEXT, adapt=adapt)


async def test_spans_and_bytes_give_the_text_back(client):
    """Spans are in code points; the bytes of one character share its span and are told."""
    item = await one(client, text="aé")
    assert (item["starts"], item["ends"]) == ([0, 1, 1], [1, 2, 2])
    assert item["bytes"] == [None, [0xC3], [0xA9]]


async def test_a_text_its_ids_and_the_short_form_score_alike(client):
    """Three ways to say one thing."""
    by_text = await one(client, items=[{"text": TEXT}])
    by_ids = await one(client, items=[{"tokens": list(TEXT.encode())}])
    short = await one(client, text=TEXT)
    assert by_text["logprobs"] == by_ids["logprobs"] == short["logprobs"]


@pytest.mark.parametrize(
    ("unit", "factor"), [("nats", 1.0), ("bits", 1 / math.log(2)), ("log10", 1 / math.log(10))]
)
async def test_the_unit_applies_to_every_logarithm(client, unit, factor):
    """Columns, words, alternatives, totals and gain; not to ratios."""
    nats = await one(client, text=TEXT, adapt=True, words=True, top=2)
    body = {"text": TEXT, "adapt": True, "words": True, "top": 2, "unit": unit}
    answer = await client.ask(200, "POST", "/score", body)
    (item,) = answer["items"]
    assert answer["unit"] == unit
    for name in ("logprobs", "static_logprobs", "entropies"):
        assert item[name] == pytest.approx([value * factor for value in nats[name]])
    for name in ("logprob", "static_logprob", "gain"):
        assert item["totals"][name] == pytest.approx(nats["totals"][name] * factor)
    assert item["words"][0]["logprob"] == pytest.approx(nats["words"][0]["logprob"] * factor)
    assert item["top"]["logprobs"][0] == pytest.approx(
        [value * factor for value in nats["top"]["logprobs"][0]]
    )
    assert item["totals"]["bits_per_byte"] == pytest.approx(nats["totals"]["bits_per_byte"])


async def test_the_answer_says_what_its_numbers_depend_on(client):
    """Model, fingerprints and numerics; and how long each part took."""
    answer = await client.post("/score", json={"text": "a"})
    body = answer.json()
    assert body["model"] == "tiny"
    assert len(body["fingerprint"]) == len(body["adaptation_fingerprint"]) == 64
    assert body["numerics"]
    assert answer.headers["server-timing"].startswith("queue;dur=")


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
    return word_scores(text, columns(text, logprobs), factor)


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
