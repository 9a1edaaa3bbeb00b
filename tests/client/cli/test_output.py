"""What the commands print."""

import json

import pytest

from rlstm_client.cli import output
from rlstm_client.models import AppendResult, ScoredItem, SessionInfo, Totals, WordScore


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
    output.print_table("", ("name", "n"), [("[red]x[/red]", 1_000), ("\x1b[31m", None)])
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
    output.print_scores(item, "aé", "bits")
    out = capsys.readouterr().out

    assert all(said in out for said in ("'a'", "'é'", "-1.5000", "'aé'", "-3.5000", "1.2500", "bos"))


def test_a_session_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """Rates are made of sums, and what is not known is left out."""
    info = SessionInfo(id="s1", version=3, position=8, metadata={"topic": "sea"})
    output.print_session(info)
    out = capsys.readouterr().out

    assert "s1" in out
    assert "metadata topic" in out
    assert "bits per byte" not in out
