"""`rlstm surprisal` against the real application."""

import csv
import json
import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlstm_client import Client
from rlstm_client.cli.items import KENLM_WORD, Item
from rlstm_client.cli.surprisal import batches
from rlstm_client.cli.words import KenLM, Reading, perplexity, rows

TEXTS = [
    "The café was\tnaïve.  So it was,\n\nand so — again — 👍 it was",
    "one",
    "\tIt was the best of times,\r\nit was the worst of times ...\n\n",
]
TABLE = '''item,condition,sentence,note,position
1,a,the cat | sat down,"x, y",7
1,b,the dog | sat down,,8
2,a,the cat | sat down,"a ""b""",9
'''

Run = Callable[..., tuple[Any, str, str]]
Rows = Sequence[dict[str, Any]]


@pytest.fixture
def table(run: Run) -> Callable[..., Rows]:
    """Run it, and give the rows that it writes."""

    def call(*arguments: object) -> Rows:
        code, out, err = run("surprisal", *arguments)
        assert code == 0, err
        return list(csv.DictReader(out.splitlines()))

    return call


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as client:
        yield client


def total(rows: Rows, name: str) -> float:
    return math.fsum(float(row[name]) for row in rows)


def costs(client: Client, text: str) -> dict[str, float]:
    """What a text costs that is read alone."""
    sums = client.score(text, adapt="both", unit="bits").items[0].totals
    return {"frozen": -(sums.static_logprob or 0), "adapted": -sums.logprob}


@pytest.mark.parametrize("text", TEXTS)
def test_words_are_the_sums_of_their_tokens(table: Any, tmp_path: Path, client: Client, text: str) -> None:
    """All words together cost what the text costs, its end apart; white space behind them is of any kind."""
    file = tmp_path / "story.txt"
    file.write_bytes(text.encode())
    found = table(file)
    read = text.replace("\r\n", "\n").rstrip()
    item = client.score(read + "\n", adapt="both", unit="bits", spaces=True).items[0]
    words = read.split()
    sums = {name: [0.0] * len(words) for name in ("frozen", "adapted", "frozen_trailing", "adapted_trailing")}
    for at, start in enumerate(item.starts):
        ended = len(read[:start].split())  # words before; one goes on, unless white space comes here
        border = (read + "\n")[start].isspace()
        word = ended if border or read[start - 1 : start].strip() == "" else ended - 1
        for name, own, space in (
            ("frozen", item.static_logprobs, item.static_space_logprobs),
            ("adapted", item.logprobs, item.space_logprobs),
        ):
            if word < len(words):
                sums[name][word] -= own[at]
                sums[f"{name}_trailing"][word] -= own[at]
            if border and ended and not read[start - 1].isspace():
                sums[f"{name}_trailing"][ended - 1] -= space[at]
                if word < len(words):
                    sums[f"{name}_trailing"][word] += space[at]

    assert [row["word"] for row in found] == words
    assert [read[int(row["start"]) : int(row["end"])] for row in found] == words
    assert [int(row["length"]) for row in found] == [len(word) for word in words]
    for name, values in sums.items():
        assert [float(row[name]) for row in found] == pytest.approx(values, abs=1e-5), name
    for name, cost in costs(client, read).items():
        assert total(found, name) == pytest.approx(cost, abs=1e-4)
    behind_first = item.entropies[next(i for i, at in enumerate(item.starts) if at >= int(found[0]["end"]))]
    assert float(found[0]["entropy"]) == pytest.approx(behind_first, abs=1e-5)
    assert {(row["unit"], row["model"], row["file"]) for row in found} == {("bits", "tiny", str(file))}


@pytest.mark.parametrize("by", ["word", "region", "text"])
def test_a_table_comes_back_with_its_columns(table: Any, tmp_path: Path, client: Client, by: str) -> None:
    """All of them, in a row a word, a region or a text; the sums are those of the text without its marks."""
    file = tmp_path / "items.csv"
    file.write_text(TABLE, newline="\r\n")
    found = table(file, "--regions", "|", "--by", by)
    texts = ["the cat sat down", "the dog sat down", "the cat sat down"]
    given = list(csv.DictReader(TABLE.splitlines()))

    for number, (text, row) in enumerate(zip(texts, given, strict=True)):
        each = {"word": 4, "region": 2, "text": 1}[by]
        mine = found[number * each : (number + 1) * each]
        assert all(word[name] == row[name] for word in mine for name in row)
        assert [int(word["rlstm_position"]) for word in mine] == [*range(1, each + 1)]
        for name, cost in costs(client, text).items():
            assert total(mine, name) == pytest.approx(cost, abs=1e-4)
    if by == "region":
        assert [row["word"] for row in found[:2]] == ["the cat", "sat down"]
        assert [row["words"] for row in found[:2]] == ["2", "2"]


def test_a_table_of_words_gets_a_row_for_each(table: Any, tmp_path: Path, client: Client) -> None:
    """Words of one item are one text; a table's own regions are summed."""
    file = tmp_path / "words.tsv"
    file.write_text("word\titem\tregion\nthe\t1\tA\nold man\t1\tA\nsat\t1\tB\nwe\t2\tA\n")
    found, regions = table(file), table(file, "--by", "region")

    assert [row["word"] for row in found] == ["the", "old man", "sat", "we"]
    assert [row["position"] for row in found] == ["1", "2", "3", "1"]
    assert [(row["region"], row["word"]) for row in regions] == [
        ("A", "the old man"),
        ("B", "sat"),
        ("A", "we"),
    ]
    for some, text in ((found[:3], "the old man sat"), (found[3:], "we"), (regions[:2], "the old man sat")):
        assert total(some, "adapted") == pytest.approx(costs(client, text)["adapted"], abs=1e-4)


@pytest.mark.parametrize(("to", "sep", "theirs"), [("tsv", "\t", ";"), ("jsonl", None, "\t")])
def test_other_forms(run: Run, tmp_path: Path, to: str, sep: str | None, theirs: str) -> None:
    """The same rows, of a spreadsheet's table too, with rows of empty cells; units are as asked for."""
    file = tmp_path / "items.csv"
    with file.open("w", newline="", encoding="utf-16") as place:
        csv.writer(place, delimiter=theirs).writerows([*csv.reader(TABLE.splitlines()), [""] * 9, [" "], []])
    out = run("surprisal", file, "--to", to, "--unit", "nats")[1].splitlines()
    found = [json.loads(line) for line in out] if sep is None else list(csv.DictReader(out, delimiter=sep))

    assert [row["note"] for row in found[::5]] == ["x, y", "", 'a "b"']
    assert {row["unit"] for row in found} == {"nats"}


def test_what_is_learned_lasts_until_it_is_reset(table: Any, tmp_path: Path, client: Client) -> None:
    """After each text, in each condition, or never; frozen costs are those of a session's baseline."""
    file = tmp_path / "items.csv"
    file.write_text(TABLE)
    before = {info.id for info in client.sessions.list()}
    asked = ("--by", "text", "--column", "sentence")
    item, condition, never = (
        table(file, *asked, "--reset", reset) for reset in ("item", "condition", "never")
    )
    session = client.sessions.create()
    texts = [row["sentence"] for row in item]
    answers = [session.append(text + "\n", final=True, unit="bits", scores="tokens") for text in texts]

    first, second, third = (float(row["adapted"]) for row in never)
    assert third < float(item[2]["adapted"])
    assert float(condition[1]["adapted"]) == float(item[1]["adapted"]) != second
    assert float(condition[2]["adapted"]) < float(item[2]["adapted"]) == float(item[0]["adapted"]) == first
    for row, answer in zip(never, answers, strict=True):
        assert float(row["adapted"]) == pytest.approx(-math.fsum(answer.logprobs[:-1]), abs=1e-4)
        assert float(row["frozen"]) == pytest.approx(-math.fsum(answer.static_logprobs[:-1]), abs=1e-4)
    assert {info.id for info in client.sessions.list()} == before | {session.id}


def test_what_was_learned_first_may_be_frozen(table: Any, tmp_path: Path) -> None:
    """Each text is read as if it alone followed: two equal ones cost the same, and less than before."""
    file, first = tmp_path / "items.csv", tmp_path / "first.txt"
    file.write_text(TABLE)
    first.write_text("the cat | sat down and the dog | sat down\n" * 4)
    alone = table(file, "--by", "text")
    frozen = table(file, "--by", "text", "--adapt-on", first, "--then-freeze", "--reset", "item")
    learning = table(file, "--by", "text", "--adapt-on", first)

    assert frozen[0]["adapted"] == frozen[2]["adapted"] != learning[0]["adapted"]
    assert float(frozen[0]["adapted"]) < float(alone[0]["adapted"])
    assert [row["frozen"] for row in frozen] == [row["frozen"] for row in alone]


def test_a_model_that_does_not_adapt(table: Any, tmp_path: Path) -> None:
    """Has one cost, whatever it has read before."""
    file = tmp_path / "items.csv"
    file.write_text(TABLE)
    for reset in ("item", "never"):
        found = table(file, "--adapt", "frozen", "--reset", reset)
        assert {row["adapted"] for row in found} == {""}
        assert all(float(row["frozen"]) > 0 for row in found)


@pytest.mark.parametrize("space", ["leading", "trailing"])
def test_kenlm_form(run: Run, tmp_path: Path, client: Client, space: str) -> None:
    """A line is a sentence, a blank one too: its words and its end sum to the total, the score of the line.

    Only what KenLM takes for a space ends a word.
    """
    sentences = ["the cat sat", "", "a naïve  café", "the\u00a0end"]
    file = tmp_path / "lines.txt"
    file.write_bytes("\r\n".join(sentences).encode())
    code, out, err = run("surprisal", file, "--kenlm", "frozen", "--space", space)
    assert code == 0, err
    printed = out.splitlines()

    totals, tokens = [], 0
    for line, row in zip(sentences, printed[:4], strict=True):
        *words, end, said = row.split("\t")
        assert [word.rsplit("=", 1)[0] for word in words] == KENLM_WORD.findall(line)
        numbers = [float(word.split()[-1]) for word in (*words, end)]
        (logprob,) = [item.totals.logprob for item in client.score(line + "\n", unit="log10").items]
        assert sum(numbers) == pytest.approx(logprob, rel=1e-5)
        found = re.fullmatch(r"Total: (\S+) OOV: 0", said)
        assert found is not None
        assert float(found[1]) == pytest.approx(logprob, rel=1e-5)
        assert end.startswith("</s>=2 1 ")
        totals, tokens = [*totals, logprob], tokens + len(numbers)
    assert printed[0].startswith("the=3 3 ")
    named = [row.split("\t") for row in printed[4:]]
    expected = 10 ** (-math.fsum(totals) / tokens)
    assert [name for name, _ in named[:2]] == ["Perplexity including OOVs:", "Perplexity excluding OOVs:"]
    assert [float(figure) for _, figure in named[:2]] == pytest.approx([expected] * 2, rel=1e-5)
    assert named[2:] == [["OOVs:", "0"], ["Tokens:", str(tokens)]]


@pytest.mark.parametrize(
    ("name", "content", "options", "said"),
    [
        ("blank.txt", " \n", (), "blank.txt holds no word"),
        ("a.csv", "a,b\n1,2\n", (), "no column sentence or text or word: give one of a, b"),
        ("a.csv", "a,sentence\n1,x\n2\n", (), "a.csv, row 3: 1 cells, not the 2"),
        ("a.csv", 'a,sentence\n1,"x\n', (), "a.csv, row 2: unexpected end of data"),
        ("a.csv", "a,sentence\n1,x\n2, \n", (), "a.csv, row 3: no word in the column sentence"),
        ("a.csv", "a,a\n1,x\n", (), "name each column once"),
        ("a.csv", "sentence\n", (), "a.csv has no rows"),
        ("a.csv", "sentence\nx\n", ("--reset", "condition"), "no column condition"),
        ("a.csv", "sentence\nx\n", ("--by", "region"), "has no regions"),
        ("a.txt", "x\n", ("--kenlm", "frozen", "--unit", "bits"), "--unit is of tables"),
        ("a.txt", "x\n", ("--space", "leading"), "--space goes with --kenlm"),
        ("a.txt", "x\n", ("--then-freeze",), "goes with --adapt-on"),
        ("a.txt", "x\n", ("--adapt", "frozen", "--adapt-on", "a.txt"), "learns nothing"),
    ],
)
def test_what_cannot_be_read(
    run: Run, tmp_path: Path, name: str, content: str, options: Any, said: str
) -> None:
    """Is said in a line before anything is read or written."""
    file = tmp_path / name
    file.write_text(content)
    code, out, err = run("surprisal", file, *options)

    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


def reading(text: str, starts: Sequence[int], costs: Sequence[float], unknown: Any = ()) -> Reading:
    """What a model without bytes as tokens could have answered."""
    given: Any = {"frozen": costs, "adapted": costs, "entropies": costs}
    given |= {"frozen_space": [0.125] * len(costs), "adapted_space": [0.5] * len(costs)}
    given["unknown"] = [index in unknown for index in range(len(starts))]
    return Reading(item=Item.of(text, {}, None), model="m", starts=starts, **given)


def test_words_out_of_the_vocabulary_are_left_out_of_one_perplexity(capsys: Any) -> None:
    """10 ** (6 / 3) with them, 10 ** (2 / 2) without."""
    sentences = KenLM("frozen", "leading")
    sentences.write(reading("a zyx", [0, 2, 5], [1.5, 4.0, 0.5], unknown={1}))
    sentences.close()
    row, *summary = capsys.readouterr().out.splitlines()

    assert row == "a=3 1 -1.5\tzyx=0 1 -4\t</s>=2 1 -0.5\tTotal: -6 OOV: 1"
    assert summary == [
        "Perplexity including OOVs:\t100",
        "Perplexity excluding OOVs:\t10",
        "OOVs:\t1",
        "Tokens:\t3",
    ]


def test_a_token_that_has_a_space_and_a_word() -> None:
    """Counts in its word, but for what white space costs there, of whatever token: the word before has it."""
    subwords = reading("the cat", [0, 3, 7], [1.0, 2.0, 0.25])
    names = ("frozen", "frozen_trailing", "adapted_trailing", "entropy")

    assert [tuple(row[name] for name in names) for _, row in rows(subwords, "word")] == [
        (1.0, 1.125, 1.5, 2.0),
        (2.0, 2.0, 2.0, 0.25),
    ]


def test_words_without_end() -> None:
    """A perplexity beyond any number is infinite, not an error."""
    assert perplexity(1000.0, 1, 10.0) == math.inf


def test_many_texts_are_each_read_alone(table: Any, tmp_path: Path, client: Client) -> None:
    """More lines than fit one request, in order; long ones travel alone."""
    generator = random.Random(1)
    lines = ["".join(generator.choices("ab ", k=9)).strip() or "a" for _ in range(40)]
    file = tmp_path / "items.txt"
    file.write_text("\n".join(lines))
    found = table(file, "--from", "lines", "--by", "text")

    assert [row["line"] for row in found] == [str(number) for number in range(1, 41)]
    items = client.score(items=[{"text": line} for line in lines], unit="bits").items
    assert [float(row["frozen"]) for row in found] == pytest.approx(
        [-i.totals.logprob for i in items], abs=1e-4
    )
    sizes = [60_000, 60_000, 1, 200_000]
    made = batches([Item("x" * size, [], [], []) for size in sizes])
    assert [[len(item.text) for item in batch] for batch in made] == [[60_000], [60_000, 1], [200_000]]
