"""``rlstm corpora``: what is here, and how to get the rest."""

import json

import pytest
import typer
from typer.testing import CliRunner

from rlstm_training.commands.corpora import corpora
from rlstm_training.corpora.published import PUBLISHED


@pytest.fixture
def rlstm_corpora():
    """Types the command; the answer has exit_code, stdout and stderr."""
    app = typer.Typer()
    app.command()(corpora)
    return lambda *words: CliRunner().invoke(app, words)


def test_all_are_told_and_how_to_get_those_missing(rlstm_corpora, corpora):
    """A folder that has one of them: the others come with their files."""
    for split in ("train", "valid", "test"):
        (corpora / f"ptb.char.{split}.txt").write_text("a")
    told = rlstm_corpora().stdout
    for name, corpus in PUBLISHED.items():
        assert name in told
        assert (f"into {corpora / name} " in told) == (name != "ptb-characters")
        assert corpus.licence in told


def test_json(rlstm_corpora, corpora):
    """One object: the folder, and each corpus with its missing files."""
    told = json.loads(rlstm_corpora("text8", "--json").stdout)
    assert told["folder"] == str(corpora)
    (text8,) = told["corpora"]
    assert text8["missing"] == [str(corpora / "text8" / "text8")]
    assert text8["address"] == "http://mattmahoney.net/dc/text8.zip"


def test_downloading_gets_what_is_missing(rlstm_corpora, corpora, monkeypatch):
    """Only those named, and only where they are not here yet."""
    got = []

    def get(corpus, folder, client):
        got.append((corpus.name, folder))

    monkeypatch.setattr("rlstm_training.commands.corpora.download", get)
    (corpora / "text8").write_bytes(b"x")
    assert rlstm_corpora("enwik8", "text8", "--download").exit_code == 0
    assert got == [("enwik8", corpora)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--download",), "name what to download"),
        (("enwik9",), "'enwik9' is none of ptb-words"),
        (("ptb-words", "--download"), "corpus 'ptb-words' cannot be downloaded"),
    ],
)
def test_wrong_usage_is_told(rlstm_corpora, corpora, words, message):
    """Exit code 2, and what is wrong on standard error."""
    done = rlstm_corpora(*words)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.replace("\u2502", " ").split())
