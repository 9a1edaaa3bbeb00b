"""``rlstm train --list``: the table of recipes."""

import json

from rlstm_training.commands.train import show_recipes
from rlstm_training.recipes import RECIPES


def test_all_recipes_are_listed_with_what_they_read(capsys, corpora):
    """Name, weights and corpora; those that are not here are marked."""
    show_recipes(as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(RECIPES)
    assert all("(not here)" in line for line in lines[1:])
    assert f"{RECIPES['ptb-words-24m-rlstm']().model.num_parameters:,}" in "\n".join(lines)


def test_a_corpus_that_is_here_is_not_marked(capsys, corpora):
    """Files of a published corpus in the corpora folder are seen."""
    (corpora / "text8").write_bytes(b"x")
    show_recipes(as_json=True)
    rows = {row["recipe"]: row for row in json.loads(capsys.readouterr().out)["recipes"]}
    assert rows["text8-48m-lstm"]["corpora"] == {"text8": True}
    assert rows["enwik8-48m-lstm"]["corpora"] == {"enwik8": False}
    assert rows["bytes-small"]["corpora"] == {"enwiki6": False, "dickens": False}
