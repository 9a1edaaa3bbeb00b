"""N-best lists in the formats of recognisers: read, refused, and written in another order."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlstm_client.cli.exits import CommandError
from rlstm_client.cli.inputs import How
from rlstm_client.cli.nbest import Format, references

LISTS = [
    ("utt-a", ["WRECK A NICE BEACH", "RECOGNISE SPEECH", ""], [-1.0, -1.5, -9.25]),
    ("utt-b", ["THE END"], [-0.5]),
    ("utt-c", ["", "THEE END"], [-2.0, -2.5]),
]


def files(folder: Path, named: Mapping[str, str]) -> Path:
    """A folder of these files."""
    for name, text in named.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def espnet(folder: Path) -> Path:
    """As its decoding writes them: the worse ranks lack utterances, an empty text, and scores of torch."""
    named = dict[str, str]()
    for key, texts, scores in LISTS:
        for rank, (text, score) in enumerate(zip(texts, scores, strict=True), 1):
            lines = {"text": text, "score": f"tensor({score:.4f})", "token": " ".join(text.lower())}
            for name, line in lines.items():
                place = f"{rank}best_recog/{name}"
                named[place] = named.get(place, "") + f"{key} {line}\n"
    return files(folder, named)


def kaldi(folder: Path) -> Path:
    """As `nbest-to-linear` writes them, in costs."""
    named = {"words_text": "", "lm_cost": "", "ac_cost": ""}
    for key, texts, scores in LISTS:
        for rank, (text, score) in enumerate(zip(texts, scores, strict=True), 1):
            named["words_text"] += f"{key}-{rank} {text}\n"
            named["lm_cost"] += f"{key}-{rank} 0.25\n"
            named["ac_cost"] += f"{key}-{rank} {-10 * score - 2.5}\n"
    return files(folder, named)


def json_lines(folder: Path) -> Path:
    """Ours."""
    rows = [
        {"id": key, "candidates": [{"text": t, "given": s} for t, s in zip(texts, scores, strict=True)]}
        for key, texts, scores in LISTS
    ]
    return files(folder, {"lists": "".join(json.dumps(row) + "\n" for row in rows)}) / "lists"


def nemo(folder: Path) -> Path:
    """Two candidates an utterance; their utterances have no names."""
    rows = [
        (t, s) for _, texts, scores in LISTS for t, s in list(zip(texts * 2, scores * 2, strict=True))[:2]
    ]
    return files(folder, {"beams.tsv": "".join(f"{text}\t{score}\n" for text, score in rows)}) / "beams.tsv"


MAKE = {"espnet": espnet, "kaldi": kaldi, "json": json_lines}


@pytest.mark.parametrize("kind", MAKE)
def test_the_same_lists_in_each_format(tmp_path: Path, kind: str) -> None:
    """Lists of unequal length, texts without a word, and scores that are greater for the better."""
    found = Format(MAKE[kind](tmp_path), acoustic_scale=0.1).read()

    assert [(one.id, list(one.texts)) for one in found] == [(key, texts) for key, texts, _ in LISTS]
    assert [list(one.given) for one in found] == [pytest.approx(scores) for *_, scores in LISTS]
    assert [one.first_pass for one in found] == [0, 0, 0]


def test_the_score_of_a_candidate(tmp_path: Path) -> None:
    """Is `given`, or else `score`, as others call it; in what was ranked before `score` is another."""
    candidates = [{"text": "a", "score": -2}, {"text": "b", "given": -1.5, "score": 7}, {"text": "c"}]
    (tmp_path / "lists").write_text(json.dumps({"candidates": candidates}))

    assert [list(one.given) for one in Format(tmp_path / "lists").read()] == [[-2.0, -1.5, 0.0]]


def test_lists_are_read_as_told(tmp_path: Path) -> None:
    """All their files, and the references: in an encoding, or with bytes replaced that are no text."""
    (tmp_path / "lists.tsv").write_bytes(b"caf\xe9\t-1\n")
    (tmp_path / "said").write_bytes(b"1 caf\xe9\n")
    for how, text in ((How(encoding="latin-1"), "café"), (How(invalid="replace"), "caf\ufffd")):
        assert list(Format(tmp_path / "lists.tsv", 1, how=how).read()[0].texts) == [text]
        assert references(tmp_path / "said", how) == {"1": text}


def test_beams_are_cut_by_their_number(tmp_path: Path) -> None:
    """NeMo's utterances are numbered; what is no multiple of the number is refused."""
    found = Format(nemo(tmp_path), 2).read()
    assert [(one.id, list(one.texts)) for one in found] == [
        (str(number), list(texts * 2)[:2]) for number, (_, texts, _) in enumerate(LISTS, 1)
    ]
    with pytest.raises(CommandError, match="6 lines are no multiple of --beam-size 4"):
        Format(nemo(tmp_path), 4).read()
    with pytest.raises(CommandError, match="give --beam-size"):
        Format(nemo(tmp_path)).read()


@pytest.mark.parametrize("kind", ["espnet", "kaldi"])
def test_lists_are_written_in_another_order(tmp_path: Path, kind: str) -> None:
    """All that a candidate's files say moves with it; read again it is the same in that order."""
    form = Format(MAKE[kind](tmp_path / "in"))
    lists = form.read()
    orders = [list(range(len(one.texts)))[::-1] for one in lists]
    form.check(tmp_path / "out")
    form.write(tmp_path / "out", lists, orders, [])
    again = Format(tmp_path / "out").read()

    assert [(one.id, list(one.texts), list(one.given), list(one.lines)) for one in again] == [
        (one.id, list(one.texts[::-1]), list(one.given[::-1]), list(one.lines[::-1])) for one in lists
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]
    with pytest.raises(CommandError, match="is there already"):
        form.check(tmp_path / "out")


def test_beams_are_written_in_another_order(tmp_path: Path) -> None:
    """The lines as they were."""
    form = Format(nemo(tmp_path), 2)
    lists = form.read()
    form.write(tmp_path / "out.tsv", lists, [[1, 0]] * len(lists), [])
    before, after = ((tmp_path / name).read_text().splitlines() for name in ("beams.tsv", "out.tsv"))
    assert after == [line for at in range(0, len(before), 2) for line in (before[at + 1], before[at])]


GOOD: Mapping[str, Any] = {"candidates": [{"text": "a"}]}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("12 monkeys", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "is no JSON object"),
        ('{"candidates": []}', "candidates has to be a list of 1 to 256"),
        (json.dumps({"candidates": [{"text": "a"}] * 257}), "candidates has to be a list of 1 to 256"),
        ('{"candidates": ["secret"]}', "a candidate needs a text"),
        ('{"candidates": [{"text": "a", "given": "secret"}]}', "given has to be a finite number"),
        ('{"candidates": [{"text": "a", "given": NaN}]}', "given has to be a finite number"),
        ('{"candidates": [{"text": "a", "given": 1e999}]}', "given has to be a finite number"),
        (f'{{"candidates": [{{"text": "a", "given": 1{"0" * 400}}}]}}', "given has to be a finite number"),
        ('{"candidates": [{"text": "a", "given": true}]}', "given has to be a finite number"),
        ('{"candidates": [{"text": "secret \\ud83d"}]}', "half a character"),
        (json.dumps(GOOD | {"reference": 7}), "the reference has to be a text"),
        (json.dumps(GOOD | {"id": None}), "the id has to be a text or a whole number"),
        (json.dumps(GOOD | {"id": {"secret": 1}}), "the id has to be a text or a whole number"),
    ],
)
def test_a_line_that_is_no_list_is_named(tmp_path: Path, line: str, said: str) -> None:
    """By its number; nothing of it is repeated."""
    (tmp_path / "lists").write_text(json.dumps(GOOD) + "\n\n" + line + "\n")
    with pytest.raises(CommandError) as caught:
        Format(tmp_path / "lists").read()

    assert str(caught.value).startswith(f"{tmp_path / 'lists'} line 3")
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"lists": ""}, "there is no list in it"),
        ({"lists": json.dumps({"id": "1", **GOOD}) + "\n" + json.dumps({"id": 1, **GOOD})}, "two lists '1'"),
        (
            {"lists/1best_recog/text": "a b\n", "lists/1best_recog/score": ""},
            "a has a candidate without a score",
        ),
        (
            {"lists/1best_recog/text": "a b\n", "lists/1best_recog/score": "a nan\n"},
            "line 1: the score has to",
        ),
        ({"lists/1best_recog/score": "a 1\na 1\n"}, "line 2: 'a' comes twice"),
        ({"lists/text": "a-1 b\n", "lists/lm_cost": "a-2 7\n"}, "a-1 has a candidate without a score"),
        ({"lists/text": "a-x b\n"}, "begins with UTTERANCE-N"),
        ({"lists/other": ""}, "no words_text and no text"),
    ],
)
def test_lists_that_are_none_are_refused(tmp_path: Path, named: Mapping[str, str], said: str) -> None:
    """With the file, and its line where there is one."""
    files(tmp_path, named)
    with pytest.raises(CommandError, match=said):
        Format(tmp_path / "lists").read()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a the end\nb\n", {"a": "the end", "b": ""}),
        ('{"audio_filepath": "x.wav", "text": "one"}\n{"text": "two"}\n', {"1": "one", "2": "two"}),
        ('{"id": "a", "reference": "one", "candidates": []}\n', {"a": "one"}),
    ],
)
def test_references(tmp_path: Path, text: str, found: Mapping[str, str]) -> None:
    """Lines of text by utterance, a manifest of NeMo's, or lists that have theirs."""
    (tmp_path / "refs").write_text(text)
    assert references(tmp_path / "refs") == found
