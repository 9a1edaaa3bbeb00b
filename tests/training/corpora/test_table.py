"""The table of published corpora, against itself and against those files that are at hand."""

import re

import pytest

from rlstm_training.corpora import CorpusError, corpora_folder
from rlstm_training.corpora.published import PUBLISHED
from rlstm_training.corpora.reading import load_corpus

SPLITS = ("train", "valid", "test")


@pytest.mark.parametrize("corpus", PUBLISHED.values(), ids=lambda corpus: corpus.name)
def test_every_corpus_has_its_splits_once(corpus):
    """Each split is in one file; only single files are downloaded, and their size is known beforehand."""
    assert sorted(split for file in corpus.files for split in file.splits) == sorted(SPLITS)
    if corpus.address:
        assert len(corpus.files) == 1
        assert corpus.files[0].size


@pytest.mark.parametrize("corpus", PUBLISHED.values(), ids=lambda corpus: corpus.name)
def test_checksums_have_the_length_of_their_algorithm(corpus):
    """A slip of the keyboard would lock everybody out."""
    for file in corpus.files:
        for algorithm, digest in file.checksums.items():
            assert re.fullmatch(f"[0-9a-f]{{{ {'md5': 32, 'sha1': 40, 'sha256': 64}[algorithm] }}}", digest)


@pytest.mark.parametrize("name", ["enwik8", "text8"])
def test_a_hundred_million_bytes_are_split_ninety_five_five(name):
    """In this order, without a gap."""
    (file,) = PUBLISHED[name].files
    parts = [range(file.size)[file.splits[split]] for split in SPLITS]
    assert [len(part) for part in parts] == [90_000_000, 5_000_000, 5_000_000]
    assert [byte for part in parts for byte in (part[0], part[-1])] == [
        0,
        89_999_999,
        90_000_000,
        94_999_999,
        95_000_000,
        99_999_999,
    ]


def test_word_counts_are_sums():
    """Penn Treebank: 887,521, 70,390 and 78,669 words, and an end for each line."""
    words = [file.tokens - file.lines for file in PUBLISHED["ptb-words"].files]
    assert words == [887_521, 70_390, 78_669]
    assert [file.lines for file in PUBLISHED["ptb-characters"].files] == [
        file.lines for file in PUBLISHED["ptb-words"].files
    ]


def test_text8_is_letters_and_spaces():
    """Twenty-seven symbols."""
    (file,) = PUBLISHED["text8"].files
    assert len(set(file.alphabet)) == file.distinct == 27


@pytest.mark.skipif(not (corpora_folder() / "wikitext-2").is_dir(), reason="no WikiText-2 in RLSTM_CORPORA")
@pytest.mark.parametrize("split", SPLITS)
def test_wikitext_is_what_the_table_says(split):
    """Sizes, token counts and checksums of the real files, with and without the manifest."""
    corpus = PUBLISHED["wikitext-2"]
    assert corpus.load(split, corpora_folder()) == load_corpus("wikitext-2", split)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_corpus_that_is_not_here_says_what_to_do(name, tmp_path):
    """Every corpus of the table names its files and where they come from; the Treebank why not from us."""
    with pytest.raises(CorpusError) as caught:
        load_corpus(name, "train", folder=tmp_path)
    assert str(tmp_path / name) in str(caught.value)
    assert all(file.name in str(caught.value) for file in PUBLISHED[name].files)
    assert ("may not be passed on" in str(caught.value)) == name.startswith("ptb")
