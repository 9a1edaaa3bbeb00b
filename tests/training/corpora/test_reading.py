"""From the name of a corpus to its text."""

import json

import pytest

from rlstm_training.corpora import CorpusError
from rlstm_training.corpora.published import PUBLISHED
from rlstm_training.corpora.reading import load_corpus, load_file, locate, missing_files


def test_splits_of_one_file_join_to_the_file(corpora):
    """Byte-range splits are in order and leave nothing out."""
    parts = [load_corpus("one", split) for split in ("train", "valid", "test")]
    assert b"".join(parts) == load_file("one/one.txt.xz")


def test_splits_in_files(corpora, words):
    """A corpus with a file a split gives each file as it is."""
    assert load_corpus("three", "valid") == words(300, "valid")


def test_a_file_without_splits_is_named_by_its_path(corpora, words):
    """A single document is the same whichever split is asked for."""
    assert load_corpus("kinds/letter", "valid") == load_corpus("kinds/letter", "test") == words(200, 9)


def test_own_folder(own_folder, words):
    """A folder with train.txt is a corpus, without any manifest."""
    assert load_corpus(str(own_folder), "train") == words(300, "train")


def test_extents_say_where_and_under_which_licence(corpora):
    """A located split is a range of bytes of a file."""
    extent = locate("one", "valid")
    assert load_file(extent.path)[extent.start : extent.end] == load_corpus("one", "valid")
    assert extent.licence == "public domain"


def test_missing_things_are_named(corpora, own_folder):
    """What is not there: the corpus, the split, the file, the manifest."""
    (own_folder / "test.txt").unlink()
    for name, split, message in [
        ("nothing", "train", "no corpus 'nothing'"),
        ("kinds", "train", "no corpus 'kinds'"),
        (str(own_folder), "test", "test.txt: No such file"),
    ]:
        with pytest.raises(CorpusError, match=message):
            load_corpus(name, split)
    with pytest.raises(CorpusError, match=r"no file 'absent\.xz'"):
        load_file("absent.xz")
    (corpora / "manifest.json").unlink()
    with pytest.raises(CorpusError, match=r"no corpus 'three'.*set RLSTM_CORPORA"):
        load_corpus("three", "train")


def test_a_missing_split_is_named(corpora):
    """A corpus without the split that is asked for says which."""
    manifest = json.loads((corpora / "manifest.json").read_text())
    manifest["files"] = [record for record in manifest["files"] if record["role"] != "test"]
    (corpora / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CorpusError, match="'three' has no test split"):
        load_corpus("three", "test")


def test_a_manifest_goes_before_a_published_corpus_and_that_before_a_folder(corpora, tmp_path, monkeypatch):
    """What a name means does not depend on the folder that a command is run in."""
    monkeypatch.chdir(tmp_path)
    for name in ("three", "enwik8"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.txt").write_text("something else")
    assert load_corpus("three", "train") != b"something else"
    with pytest.raises(CorpusError, match=r"enwik8/enwik8 is missing"):
        load_corpus("enwik8", "train")
    assert load_corpus("./enwik8", "train") == b"something else"


def test_own_and_published_corpora_are_located_whole(corpora, own_folder, monkeypatch, published):
    """Their extent is the whole split, under their own licence."""
    monkeypatch.setattr("rlstm_training.corpora.reading.PUBLISHED", {"verse": published})
    assert locate(str(own_folder), "valid").end == len(load_corpus(str(own_folder), "valid"))
    assert locate(str(own_folder), "valid").licence == "the user's own text"
    (corpora / "verse.txt").write_bytes(b"tyger tyger burning")
    assert (locate("verse", "test").start, locate("verse", "test").end) == (0, 8)
    assert locate("verse", "test").licence == "public domain"
    assert load_corpus("verse", "test") == b" burning"


def test_published_names_are_told(corpora):
    """Who asks for something unknown hears what there is."""
    with pytest.raises(CorpusError, match=", ".join(PUBLISHED)):
        load_corpus("ptb", "train")


def test_missing_files_are_listed(corpora, own_folder, published, monkeypatch):
    """Of the manifest, of a published corpus, of a folder, of nothing: what to look for."""
    monkeypatch.setattr("rlstm_training.corpora.reading.PUBLISHED", {"verse": published})
    assert missing_files("three") == missing_files(str(own_folder)) == []
    (corpora / "three/valid.txt.xz").unlink()
    (own_folder / "test.txt").unlink()
    assert missing_files("three") == [corpora / "three/valid.txt.xz"]
    assert missing_files(str(own_folder)) == [own_folder / "test.txt"]
    assert missing_files("verse") == [corpora / "verse" / "verse.txt"]
    assert len(missing_files("nothing")) == 3
