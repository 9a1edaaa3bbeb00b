"""`rlstm rescore`: lists are ranked by a session that learns from the winners."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.client.cli.test_nbest import LISTS, MAKE, files, nemo

from rlstm_client import Client

Run = Callable[..., tuple[Any, list[Any], str]]
PRIMER = "the monkeys sat at the end. " * 3


@pytest.fixture
def rescore(run: Callable[..., tuple[Any, str, str]]) -> Run:
    """Run `rlstm rescore`: its exit code, the lines that are written, and what is said."""

    def call(*arguments: object) -> tuple[Any, list[Any], str]:
        code, out, err = run("rescore", *arguments)
        lines = out.splitlines() if out.startswith("--") else list(map(json.loads, out.splitlines()))
        return code, lines, err

    return call


def winners(rows: Sequence[Any]) -> list[str]:
    """What was chosen."""
    return [row["text"] for row in rows]


def test_the_score_is_the_weighted_sum_after_the_winners(rescore: Run, url: str, tmp_path: Path) -> None:
    """Each list is scored by a session that has read the primer and the winners before it."""
    files(tmp_path, {"primer": PRIMER})
    options = ("--prime", tmp_path / "primer", "--alpha", 0.5, "--static-alpha", 0.25, "--beta", 2)
    code, rows, said = rescore(MAKE["json"](tmp_path), *options)
    assert (code, "of 3 winners changed by learning" in said) == (0, True)

    with Client(url) as client:
        adapted, static = client.sessions.create(), client.sessions.create()
        read = PRIMER + "\n"
        for row, (_, texts, given) in zip(rows, LISTS, strict=True):
            adapted.append(read)
            static.append(read, learn=False)
            for own, text, first in zip(row["candidates"], texts, given, strict=True):
                logprob, base = (one.score([text + "\n"]).best.logprob for one in (adapted, static))
                assert (own["logprob"], own["static_logprob"]) == pytest.approx((logprob, base), abs=1e-4)
                bonus = first + 2 * len(text.split())
                assert own["score"] == pytest.approx(bonus + 0.5 * logprob + 0.25 * base, abs=1e-3)
                assert own["static_score"] == pytest.approx(bonus + 0.75 * base, abs=1e-3)
            for rank, winner in (("rank", "text"), ("static_rank", "static_text")):
                ranked = sorted(row["candidates"], key=lambda one: one[rank])
                score = rank.replace("rank", "score")
                assert [one[score] for one in ranked] == sorted((one[score] for one in ranked), reverse=True)
                assert row[winner] == ranked[0]["text"]
            read = row["text"] + "\n"


@pytest.mark.parametrize("fold", [[], ["--fold-case"]])
def test_the_same_winners_in_each_format(rescore: Run, tmp_path: Path, fold: Sequence[str]) -> None:
    """Read from three of them; written to a folder, they are the first of each list."""
    scale = ("--acoustic-scale", 0.1)
    told = {kind: rescore(MAKE[kind](tmp_path / kind), *scale, *fold)[1] for kind in MAKE}
    assert len(winners(told["json"])) == 3
    assert winners(told["espnet"]) == winners(told["kaldi"]) == winners(told["json"])
    for kind, best in (("espnet", "1best_recog/text"), ("kaldi", "words_text")):
        assert rescore(tmp_path / kind, *scale, *fold, "--out", tmp_path / f"{kind}-out")[:2] == (0, [])
        lines = (tmp_path / f"{kind}-out" / best).read_text().splitlines()
        first = {line.partition(" ")[0].removesuffix("-1"): line.partition(" ")[2] for line in lines}
        assert [first[key] for key, *_ in LISTS] == winners(told["json"])


def test_the_same_winners_of_beams(rescore: Run, tmp_path: Path) -> None:
    """NeMo's lists are equally long; their best stand first in what is written."""
    beams = nemo(tmp_path)
    rows = [line.split("\t") for line in beams.read_text().splitlines()]
    own = [[{"text": text, "given": float(score)} for text, score in rows[at : at + 2]] for at in (0, 2, 4)]
    files(tmp_path, {"lists": "".join(json.dumps({"candidates": each}) + "\n" for each in own)})
    told = rescore(beams, "--beam-size", 2)[1]
    assert told == rescore(tmp_path / "lists")[1]
    assert rescore(beams, "--beam-size", 2, "--out", tmp_path / "out.tsv")[:2] == (0, [])
    written = (tmp_path / "out.tsv").read_text().splitlines()
    assert [line.partition("\t")[0] for line in written[::2]] == winners(told)
    assert rescore(beams, "--beam-size", 2, "--out", tmp_path / "out.tsv")[0] == 2
    assert rescore(beams, "--beam-size", 2, "--out", tmp_path / "out.tsv", "--force")[0] == 0


def test_case_is_folded_for_the_model_alone(rescore: Run, tmp_path: Path) -> None:
    """What is written stays; what it costs is what lower case costs."""
    files(
        tmp_path,
        {"upper": '{"candidates": [{"text": "THE END"}]}', "lower": '{"candidates": [{"text": "the end"}]}'},
    )
    ran = [
        rescore(tmp_path / name, *options)
        for name, options in (("upper", []), ("upper", ["--fold-case"]), ("lower", []))
    ]
    assert ["is in capitals" in err for _, _, err in ran] == [True, False, False]
    upper, folded, lower = (rows[0] for _, rows, _ in ran)
    assert folded["text"] == "THE END"
    costs = [one["candidates"][0]["logprob"] for one in (upper, folded, lower)]
    assert costs[1] == costs[2] != costs[0]


@pytest.mark.parametrize("kept", ["name", "state"])
def test_a_session_goes_on(rescore: Run, tiny_checkpoint: Path, tmp_path: Path, kept: str) -> None:
    """By its name, or in a file: two runs say of the second half what one run says of it."""
    whole = MAKE["json"](tmp_path)
    lines = whole.read_text().splitlines(keepends=True)
    files(tmp_path, {"first": "".join(lines[:2]), "second": "".join(lines[2:])})
    local: list[object] = ["--local", "--model", tiny_checkpoint] if kept == "state" else []
    place: list[object] = ["--state", tmp_path / "kept"] if kept == "state" else ["--name", "rescored"]
    rows = rescore(whole, *local)[1]
    parts = [rescore(tmp_path / part, *local, *place)[1] for part in ("first", "second")]

    assert [*parts[0], *parts[1]] == rows


def test_a_session_that_nobody_keeps_ends(rescore: Run, url: str, tmp_path: Path) -> None:
    """Also where the server refuses."""
    with Client(url) as client:
        before = {info.id for info in client.sessions.list()}
        assert rescore(MAKE["json"](tmp_path))[0] == 0
        assert rescore(MAKE["json"](tmp_path), "--model", "none")[0] == 1
        assert {info.id for info in client.sessions.list()} == before


def test_word_errors_and_weights(rescore: Run, tmp_path: Path) -> None:
    """With references: errors of each way to choose. Weights that are found make no more, and are told."""
    pytest.importorskip("jiwer", reason="it comes with the extra rescore")
    lists = MAKE["espnet"](tmp_path / "lists")
    refs = files(tmp_path, {"refs": "utt-a RECOGNISE SPEECH\nutt-b THE END\nutt-c THEE END\n"}) / "refs"

    def wrong(said: str) -> dict[str, int]:
        rows = [re.split("  +", line) for line in said.splitlines() if line.endswith(" %")]
        return {row[0]: int(row[1]) for row in rows}

    code, rows, said = rescore(lists, "--refs", refs)
    assert (code, len(rows)) == (0, 3)
    assert wrong(said)["first pass"] == 4 + 0 + 2
    errors = {"WRECK A NICE BEACH": 4, "": 2}
    assert wrong(said)["adapted"] == sum(errors.get(text, 0) for text in winners(rows))
    code, (found,), tuned = rescore(lists, "--dev", refs)
    assert (code, found.split()[::2]) == (0, ["--alpha", "--static-alpha", "--beta"])
    assert wrong(tuned)["adapted"] <= wrong(said)["adapted"]
    again = rescore(lists, "--refs", refs, *found.split())
    assert wrong(again[2]) == wrong(tuned)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--refs", "none"], "none: No such file or directory"),
        (["--refs", "refs"], "there is no reference of 'utt-a'"),
        (["--out", "no/where"], "no/where: No such file or directory"),
        (["--dev", "refs", "--name", "x"], "--dev finds weights"),
        (["--beta", "nan"], "weights have to be finite"),
        (["--state", "x"], "--state goes with --local"),
        (["--local", "--name", "x"], "--name goes with a server"),
        (["--local", "--state", "no/where"], "no/where: No such file or directory"),
        (["--local", "--state", "refs", "--fold-case"], "refs: the file is no session"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_scored(
    rescore: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Sequence[str], said: str
) -> None:
    """In one line; no server is asked."""
    monkeypatch.chdir(files(tmp_path, {"refs": "x y\n"}))
    code, rows, err = rescore(MAKE["json"](tmp_path), *options, "--url", "http://127.0.0.1:9")
    assert (code, rows, said in err, err.count("\n")) == (2, [], True, 1)


def test_without_jiwer_nothing_is_counted(
    rescore: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists are ranked; whoever asks for word errors is told what to install."""
    monkeypatch.setattr("rlstm_client.cli.rescore.find_spec", lambda _: None)
    files(tmp_path, {"lists": '{"id": "a", "candidates": [{"text": "b"}], "reference": "b"}'})
    code, rows, said = rescore(tmp_path / "lists")
    assert (code, winners(rows), "WER" in said) == (0, ["b"], False)
    code, rows, said = rescore(tmp_path / "lists", "--refs", tmp_path / "lists")
    assert (code, rows) == (4, [])
    assert "pip install 'mogrifier-rlstm[rescore]'" in said
