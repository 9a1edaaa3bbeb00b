"""`surprisal.py`: a table of words whose numbers are those of their tokens."""

import csv
import math
import random
import re
import sys
from functools import partial

import pytest
from tests.client.conftest import Network
from tests.client.test_faults import without_scores

from rlstm_client import Client
from rlstm_client.cli.exits import CommandError
from rlstm_client.errors import ScoresNotStoredError

TEXTS = [
    "The cat, they said, sat.",
    "  A naïve café —\n\nand 12 monkeys; é🙂!  ",
    "one",
    "\tIt was the best of times,\r\nit was the worst of times ...",
]


def table(example, tmp_path, server, texts, **options):
    """The rows of the table of some texts, those of each text together."""
    files = []
    for number, text in enumerate(texts):
        files.append(tmp_path / f"{number}.txt")
        files[-1].write_bytes(text.encode())
    out = tmp_path / "words.csv"
    example("surprisal").surprisal(files, out=out, url=server.url, **options)
    with out.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    return [[row for row in rows if row["text"] == str(file)] for file in files]


def owner(text, place, space):
    """The number of the word that a character counts in, found by walking there."""
    step = 1 if space == "leading" else -1
    for direction in (step, -step):
        at = place
        while 0 <= at < len(text) and text[at].isspace():
            at += direction
        if 0 <= at < len(text):
            return len(text[: at + 1].split()) - 1
    raise AssertionError("a text without a word")


@pytest.mark.parametrize("space", ["leading", "trailing"])
def test_words_are_the_sums_of_their_tokens(example, tmp_path, server, client, space):
    """Each word costs what its own and its space's tokens cost, and all words what the text costs."""
    rows = table(example, tmp_path, server, TEXTS, space=space)

    for text, words in zip(TEXTS, rows, strict=True):
        item = client.score(text, adapt=True, unit="bits").items[0]
        sums = {name: [0.0] * len(text.split()) for name in ("static", "adapted", "tokens")}
        for start, static, adapted in zip(item.starts, item.static_logprobs, item.logprobs, strict=True):
            word = owner(text, start, space)
            for name, value in (("static", -static), ("adapted", -adapted), ("tokens", 1)):
                sums[name][word] += value
        assert [word["word"] for word in words] == text.split()
        assert [text[int(word["start"]) : int(word["end"])] for word in words] == text.split()
        for name, values in sums.items():
            assert [float(word[name]) for word in words] == pytest.approx(values)
        assert sum(float(word["adapted"]) for word in words) == pytest.approx(-item.totals.logprob)


def test_texts_read_together_are_one_session(example, tmp_path, server, client):
    """The second text costs what it costs after the first was learned."""
    texts = ["The quick brown fox. " * 6, "The quick brown fox."]
    rows = table(example, tmp_path, server, texts, together=True, unit="nats")
    session = client.sessions.create()
    answers = [session.append(text + "\n") for text in texts]

    for words, answer in zip(rows, answers, strict=True):
        assert sum(float(word["adapted"]) for word in words) == pytest.approx(-answer.totals.logprob)
        assert sum(float(word["static"]) for word in words) == pytest.approx(-answer.totals.static_logprob)
    assert answers[1].totals.gain > 0


def test_every_row_says_what_its_number_is(example, tmp_path, server):
    """Unit, convention and model survive any join."""
    (rows,) = table(example, tmp_path, server, TEXTS[:1], unit="log10", space="trailing")

    assert {(row["unit"], row["space"], row["model"]) for row in rows} == {("log10", "trailing", "tiny")}


def test_kenlm_form(example, tmp_path, server, client, capsys):
    """A line is a sentence: its words and its end sum to the total, which is the score of the line."""
    lines = ["the cat sat", "a naïve  café", "the end"]
    file = tmp_path / "lines.txt"
    file.write_text("\n\n".join(lines))
    example("surprisal").surprisal([file], kenlm="static", url=server.url)
    printed = capsys.readouterr().out.splitlines()

    totals, tokens = [], 0
    for line, row in zip(lines, printed[:3], strict=True):
        *words, end, total = row.split("\t")
        assert [word.rsplit("=", 1)[0] for word in words] == line.split()
        numbers = [float(word.split()[-1]) for word in (*words, end)]
        (logprob,) = [item.totals.logprob for item in client.score(line + "\n", unit="log10").items]
        assert sum(numbers) == pytest.approx(logprob, rel=1e-5)
        said, figure, oovs = re.fullmatch(r"(Total): (\S+) (OOV: 0)", total).groups()
        assert float(figure) == pytest.approx(logprob, rel=1e-5), said + oovs
        assert end.startswith("</s>=2 1 ")
        totals, tokens = [*totals, logprob], tokens + len(numbers)
    assert printed[0].startswith("the=3 ")
    assert printed[2].startswith("the=3 ")  # the same word has the same number
    named = [row.split("\t") for row in printed[3:]]
    perplexity = 10 ** (-math.fsum(totals) / tokens)
    assert [name for name, _ in named[:2]] == ["Perplexity including OOVs:", "Perplexity excluding OOVs:"]
    assert [float(figure) for _, figure in named[:2]] == pytest.approx([perplexity] * 2, rel=1e-5)
    assert named[2:] == [["OOVs:", "0"], ["Tokens:", str(tokens)]]


def test_scores_that_are_no_longer_stored_make_no_table(example, tmp_path, server, monkeypatch):
    """A repeat without scores ends it with an error: no word has 0 bits, and no file is made."""
    network = Network()
    network.let_pass(2)  # what the server is, and a new session
    network.faults.append(without_scores)
    monkeypatch.setattr(example("surprisal"), "Client", partial(Client, transport=network))
    files = [tmp_path / "one.txt", tmp_path / "two.txt"]
    for file in files:
        file.write_text("The quick brown fox.")
    with pytest.raises(ScoresNotStoredError, match="applied; its scores are no longer stored"):
        example("surprisal").surprisal(files, together=True, out=tmp_path / "words.csv", url=server.url)

    assert not (tmp_path / "words.csv").exists()


def reading(example, text, starts, ends, costs, unknown=()):
    """What a model without bytes as tokens could have answered."""
    flags = [index in unknown for index in range(len(starts))]
    return example("surprisal").Reading("x", text, starts, ends, costs, costs, flags)


def test_words_out_of_the_vocabulary_are_left_out_of_one_perplexity(example, capsys):
    """10 ** (6 / 3) with them, 10 ** (2 / 2) without."""
    sentence = reading(example, "a zyx\n", [0, 2, 5], [1, 5, 6], [1.5, 4.0, 0.5], unknown={1})
    example("surprisal").write_kenlm([sentence], "static", sys.stdout)
    row, *summary = capsys.readouterr().out.splitlines()

    assert row == "a=3 1 -1.5\tzyx=0 1 -4\t</s>=2 1 -0.5\tTotal: -6 OOV: 1"
    assert summary == [
        "Perplexity including OOVs:\t100",
        "Perplexity excluding OOVs:\t10",
        "OOVs:\t1",
        "Tokens:\t3",
    ]


def test_a_token_that_holds_a_space_and_a_word_cannot_trail(example):
    """Subwords begin with their space: the convention that needs it apart is refused, the other is not."""
    subwords = reading(example, "the cat", [0, 3], [3, 7], [1.0, 2.0])

    assert [word.static for word in example("surprisal").words_of(subwords, "leading")] == [1.0, 2.0]
    with pytest.raises(CommandError, match="--space leading"):
        example("surprisal").words_of(subwords, "trailing")


def test_words_without_end(example):
    """A perplexity beyond any number is infinite, not an error."""
    assert example("surprisal").perplexity(-1000.0, 1) == math.inf


def test_a_file_without_a_word_is_refused(example, tmp_path, server):
    """Before anything is scored, and nothing is written."""
    file = tmp_path / "blank.txt"
    file.write_text(" \n")
    with pytest.raises(CommandError, match="holds no word"):
        example("surprisal").surprisal([file], out=tmp_path / "words.csv", url=server.url)

    assert not (tmp_path / "words.csv").exists()


def test_many_lines_are_many_texts(example, tmp_path, server, client):
    """More lines than fit one request are each scored alone, in order."""
    generator = random.Random(1)
    lines = ["".join(generator.choices("ab ", k=9)).strip() or "a" for _ in range(40)]
    file = tmp_path / "items.txt"
    file.write_text("\n".join(lines))
    out = tmp_path / "words.csv"
    example("surprisal").surprisal([file], lines=True, out=out, url=server.url)
    with out.open(newline="") as rows:
        costs = {}
        for row in csv.DictReader(rows):
            costs.setdefault(row["text"], []).append(float(row["static"]))

    assert [*costs] == [f"{file}:{number}" for number in range(1, 41)]
    items = client.score(items=[{"text": line} for line in lines], unit="bits").items
    assert [sum(values) for values in costs.values()] == pytest.approx([-i.totals.logprob for i in items])


def test_long_texts_travel_alone(example):
    """Texts are sent together while they are short: a request never holds two long ones."""
    texts = {"a": "x" * 60_000, "b": "x" * 60_000, "c": "x", "d": "x" * 200_000}
    names = [[name for name, _ in batch] for batch in example("surprisal").batches(texts)]

    assert names == [["a"], ["b", "c"], ["d"]]
