"""N-best lists made by rule: what is in them, and what is counted."""

import json

import pytest

from benchmarks import rescore as module
from benchmarks.rescore import CANDIDATES, n_best_lists, sentences
from rlstm_client.cli.wer import errors_of

pytest.importorskip("jiwer", reason="it comes with the extra rescore")

NOVEL = (
    "x" * module.BEGIN + ". " + "The king spoke to Ignosi of the mountain road; we said nothing then. " * 8
)
LEXICON = ["kind", "sing", "ignorance", "mountains", "load", "toad", "nothings", "spike", "then"]


def test_the_lists_are_made_by_rule():
    """Different texts in capitals, the same each time; words are replaced, never lost."""
    said = sentences(NOVEL, 5)
    lists = [*n_best_lists(said, LEXICON)]
    assert lists == [*n_best_lists(said, LEXICON)]
    assert said[:2] == ["the king spoke to ignosi of the mountain road", "we said nothing then"]
    for one, sentence in zip(lists, said, strict=True):
        texts = [candidate["text"] for candidate in one["candidates"]]
        assert 1 < len(set(texts)) == len(texts) <= CANDIDATES
        assert one["reference"] == sentence.upper()
        assert all(len(text.split()) == len(sentence.split()) for text in texts)
        assert any(wrong for wrong, _ in errors_of(texts, one["reference"]))


def test_what_is_chosen_is_counted(type_command, tiny_checkpoint, monkeypatch):
    """On the lists that no weight was found on; the best there is bounds all."""
    texts = {module.NOVEL: NOVEL, "other": " ".join(LEXICON)}
    monkeypatch.setattr(module, "novels", lambda _: texts)
    done = type_command(module.rescore, tiny_checkpoint, "--lists", 3, "--weighed", 2, "--json")
    found = json.loads(done.stdout.splitlines()[-1])
    rates = {name: row["wer"] for name, row in found["rows"].items()}

    assert (found["lists"], set(found["weights"])) == (3, {"frozen", "adapted"})
    assert all(rates["best there is"] <= rates[name] for name in ("first pass", "frozen", "adapted"))
    assert rates["adapted - frozen"] == pytest.approx(rates["adapted"] - rates["frozen"])
