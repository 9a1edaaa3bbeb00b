"""`rescore.py`: n-best lists, ranked by a session that learns from the winners."""

import json
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlstm_client.cli.exits import CommandError

LISTS = [
    {"id": "a", "candidates": [{"text": "12 monkeys", "given": -2}, {"text": "twelve monks", "given": -1.5}]},
    {"id": "b", "candidates": [{"text": "the end"}, {"text": "thee"}, {"text": ""}], "reference": "the end"},
]


def rescored(example, tmp_path, capsys, server, lists, **options):
    """The lines that are written for some lists."""
    file = tmp_path / "lists.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in lists))
    example("rescore").rescore(file, url=server.url, **options)
    captured = capsys.readouterr()
    return [json.loads(line) for line in captured.out.splitlines()], captured.err


@pytest.mark.jobs
def test_the_score_is_the_weighted_sum_after_the_winners(example, tmp_path, capsys, server, client):
    """Each list is scored by a session that has learned the primer and the winners before it."""
    primer = tmp_path / "before.txt"
    primer.write_text("the monkeys sat at the end. " * 3)
    rows, _ = rescored(example, tmp_path, capsys, server, LISTS, prime=primer, alpha=0.5, beta=0.25, gamma=2)
    adapted, static = client.sessions.create(), client.sessions.create()
    for text in (primer.read_text() + "\n", rows[0]["text"] + "\n"):
        adapted.append(text)
        static.append(text, learn=False)
        ranking = [(c["text"], c["logprob"], c["static_logprob"]) for c in rows[0]["candidates"]]
        if text != rows[0]["text"] + "\n":
            for candidate, (written, logprob, static_logprob) in zip(
                LISTS[0]["candidates"], ranking, strict=True
            ):
                assert written == candidate["text"]
                assert adapted.score([written + "\n"]).best.logprob == pytest.approx(logprob, abs=1e-4)
                assert static.score([written + "\n"]).best.logprob == pytest.approx(static_logprob, abs=1e-4)

    for row, given_row in zip(rows, LISTS, strict=True):
        for ours, given_one in zip(row["candidates"], given_row["candidates"], strict=True):
            tokens = len(ours["text"].encode()) + 1
            expected = 0.5 * ours["logprob"] + 0.25 * tokens + 2 * given_one.get("given", 0)
            assert ours["score"] == pytest.approx(expected, abs=1e-4)
            learned = 0.5 * (ours["logprob"] - ours["static_logprob"])
            assert ours["static_score"] == pytest.approx(ours["score"] - learned, abs=1e-4)
        best = max(row["candidates"], key=lambda each: each["score"])
        assert (row["text"], best["rank"]) == (best["text"], 1)
        best = max(row["candidates"], key=lambda each: each["static_score"])
        assert (row["static_text"], best["static_rank"]) == (best["text"], 1)
    second = adapted.score([c["text"] + "\n" for c in LISTS[1]["candidates"]])
    assert [c.logprob for c in second.candidates] == pytest.approx(
        [c["logprob"] for c in rows[1]["candidates"]], abs=1e-4
    )


@pytest.mark.jobs
def test_word_errors_are_told(example, tmp_path, capsys, server):
    """Of the list with a reference: two words, said by whom they were hit."""
    rows, told = rescored(example, tmp_path, capsys, server, LISTS)
    right = rows[1]["text"] == "the end"
    (line,) = [line for line in told.splitlines() if "adapted" in line]

    assert [row["id"] for row in rows] == ["a", "b"]
    assert line.replace("│", " ").split()[1:3] == [str(int(right)), "1"]
    assert "of 2 winners changed by learning" in told


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("12 monkeys", "line 2 is not JSON"),
        ("[]", "line 2: there has to be a list of candidates"),
        ('{"candidates": []}', "line 2: there have to be 1 to 256 candidates"),
        ('{"candidates": ["secret"]}', "line 2: a candidate needs a text"),
        ('{"candidates": [{"text": "a", "given": "secret"}]}', "line 2: given has to be a finite number"),
        ('{"candidates": [{"text": "a", "given": NaN}]}', "line 2: given has to be a finite number"),
        ('{"candidates": [{"text": "a", "given": true}]}', "line 2: given has to be a finite number"),
        ('{"candidates": [{"text": "a"}], "reference": 7}', "line 2: the reference has to be a text"),
    ],
)
def test_a_line_that_is_no_list_is_named(example, tmp_path, line, said):
    """Before anything is scored: no server is asked, and no input is repeated."""
    file = tmp_path / "lists.jsonl"
    file.write_text(json.dumps(LISTS[0]) + "\n" + line + "\n")
    with pytest.raises(CommandError) as caught:
        example("rescore").rescore(file, url="http://127.0.0.1:1")

    assert str(caught.value) == said


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from("ab"), max_size=5), st.lists(st.sampled_from("abc"), max_size=5))
def test_edits_are_the_fewest(example, words, reference):
    """Against the definition, written as a recursion."""

    @cache
    def fewest(i, j):
        if not i or not j:
            return i + j
        replaced = fewest(i - 1, j - 1) + (words[i - 1] != reference[j - 1])
        return min(fewest(i - 1, j) + 1, fewest(i, j - 1) + 1, replaced)

    assert example("rescore").edits(words, reference) == fewest(len(words), len(reference))
