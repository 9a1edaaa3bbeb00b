"""What the commands print."""

import json
import re
from dataclasses import replace

import pytest

from rlstm_client.cli import output
from rlstm_client.models import (
    AppendResult,
    Candidate,
    Ranking,
    ScoredItem,
    ScoreResult,
    SessionInfo,
    Totals,
    WordScore,
)


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


def test_text_cannot_command_a_terminal() -> None:
    """Escapes and other control characters are shown, not obeyed; text and line ends stay."""
    assert output.harmless("é🙂\n\ta\x1b[2J\x07\r") == "é🙂\n\ta\\x1b[2J\\x07\\r"


def test_json_is_one_ascii_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Any terminal and any program can take it."""
    output.print_json(AppendResult(version=1, position=2, extra={"é": "\u2028"}))
    out = capsys.readouterr().out

    assert (out.isascii(), out.count("\n")) == (True, 1)
    assert json.loads(out)["é"] == "\u2028"


def test_tables_take_brackets_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Markup in a name is not obeyed."""
    output.print_table({"name": ["[red]x[/red]", "\x1b[31m"], "n": [1_000, None], "none": [None, None]})
    out = capsys.readouterr().out

    assert "[red]x[/red]" in out
    assert "\\x1b[31m" in out
    assert "1,000" in out


def test_a_score_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """Sums, and where asked for tokens and words, each beside its own numbers."""
    item = ScoredItem(
        totals=Totals(logprob=-3.5, tokens=2, bytes=3, bits_per_byte=1.25),
        first_token="bos",
        ids=(97, 195),
        logprobs=(-1.5, -2.0),
        starts=(0, 1),
        ends=(1, 2),
        words=(WordScore(start=0, end=2, tokens=2, logprob=-3.5),),
    )
    output.show(output.Scored(ScoreResult(items=[item], unit="bits"), "aé"), as_json=False)
    out = capsys.readouterr().out

    assert all(said in out for said in ("'a'", "'é'", " 1.5000", "'aé'", " 3.5000", "1.2500", "bos"))
    assert "-3.5" not in out


def test_a_session_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """Rates are made of sums, and what is not known is left out."""
    info = SessionInfo(id="s1", version=3, position=8, metadata={"topic": "sea"})
    output.show(info, as_json=False)
    out = capsys.readouterr().out

    assert "s1" in out
    assert "topic sea" in out
    assert not any(said in out for said in ("bits per byte", "learning", "forked from"))


@pytest.mark.parametrize("static", [True, False])
def test_a_ranking_for_people(capsys: pytest.CaptureFixture[str], static: bool) -> None:
    """The best stands first; where there is a frozen baseline, its figures stand beside the adapted ones."""
    both = [
        Candidate(logprob=-2.0, score=-3.0, rank=2, tokens=1, static_logprob=-4.0, static_rank=1),
        Candidate(logprob=-1.0, score=-1.5, rank=1, tokens=2, static_logprob=-5.0, static_rank=2),
    ]
    alone = [replace(each, static_logprob=None, static_rank=None) for each in both]
    ranking = Ranking(version=1, candidates=both if static else alone, unit="bits")
    output.show(output.Ranked(ranking, ["[a]", "b"]), as_json=False)
    heading, _, *rows = [re.split("  +", line.strip()) for line in capsys.readouterr().out.splitlines()]

    if static:
        assert heading == ["rank", "static rank", "score", "bits", "static bits", "tokens", "candidate"]
        assert rows[0] == ["1", "2", "-1.5000", "1.0000", "5.0000", "2", "b"]
        assert rows[1] == ["2", "1", "-3.0000", "2.0000", "4.0000", "1", "[a]"]
    else:
        assert heading == ["rank", "score", "bits", "tokens", "candidate"]
        assert rows[0] == ["1", "-1.5000", "1.0000", "2", "b"]
