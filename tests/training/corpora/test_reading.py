"""From the name of a corpus or a stream to its text; what is damaged or missing is named."""

import json
import lzma

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_training.corpora import SPLITS, CorpusError
from rlstm_training.corpora.published import PUBLISHED
from rlstm_training.corpora.reading import (
    Extent,
    first_free,
    held_out,
    load_corpus,
    load_file,
    load_stream,
    locate,
    missing_files,
)


def test_a_corpus_is_found_by_its_name(corpora, own_folder, words):
    """Byte ranges of one file join to it; a file a split; a document by its path; a folder by its own."""
    assert b"".join(load_corpus("one", split) for split in SPLITS) == load_file("one/one.txt.xz")
    assert load_corpus("three", "valid") == words(300, "valid")
    assert load_corpus("kinds/letter", "valid") == load_corpus("kinds/letter", "test") == words(200, 9)
    assert load_corpus(str(own_folder), "train") == words(300, "train")


def test_an_own_corpus_that_no_mark_explains_is_refused(own_folder):
    """It is read as the client reads text: units of two bytes would train a model of every other zero."""
    (own_folder / "train.txt").write_bytes("a text without a mark".encode("utf-16-le"))
    with pytest.raises(CorpusError, match=r"train\.txt looks like UTF-16 without a mark"):
        load_corpus(str(own_folder), "train")


def test_extents_say_where_and_under_which_licence(corpora, own_folder, monkeypatch, published):
    """Of the manifest a range of a file; of own and published corpora the whole split."""
    monkeypatch.setattr("rlstm_training.corpora.reading.PUBLISHED", {"verse": published})
    (corpora / "verse.txt").write_bytes(b"tyger tyger burning")
    extent, own, verse = (locate(name, "valid") for name in ("one", str(own_folder), "verse"))
    assert load_file(extent.path)[extent.start : extent.end] == load_corpus("one", "valid")
    assert (own.start, own.end) == (0, len(load_corpus(str(own_folder), "valid")))
    assert (verse.start, verse.end, load_corpus("verse", "valid")) == (0, 5, b"tyger")
    licences = ("public domain", "the user's own text", "public domain")
    assert (extent.licence, own.licence, verse.licence) == licences


def test_missing_things_are_named(corpora, own_folder):
    """What is not there: the corpus, the split, the file, the manifest; who asks hears what there is."""
    (own_folder / "test.txt").unlink()
    for name, split, message in [
        ("nothing", "train", ", ".join(PUBLISHED)),
        ("kinds", "train", "no corpus 'kinds'"),
        (str(own_folder), "test", "test.txt: No such file"),
    ]:
        with pytest.raises(CorpusError, match=message):
            load_corpus(name, split)
    with pytest.raises(CorpusError, match=r"no file 'absent\.xz'"):
        load_file("absent.xz")
    manifest = json.loads((corpora / "manifest.json").read_text())
    manifest["files"] = [record for record in manifest["files"] if record["role"] != "test"]
    (corpora / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CorpusError, match="'three' has no test split"):
        load_corpus("three", "test")
    (corpora / "manifest.json").unlink()
    with pytest.raises(CorpusError, match=r"no corpus 'three'.*set RLSTM_CORPORA"):
        load_corpus("three", "train")


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


def test_missing_files_are_listed(corpora, own_folder, published, monkeypatch):
    """Of the manifest, of a published corpus, of a folder, of nothing: what to look for."""
    monkeypatch.setattr("rlstm_training.corpora.reading.PUBLISHED", {"verse": published})
    assert missing_files("three") == missing_files(str(own_folder)) == []
    for path in (corpora / "three/valid.txt.xz", own_folder / "test.txt"):
        path.unlink()
    assert missing_files("three") == [corpora / "three/valid.txt.xz"]
    assert missing_files(str(own_folder)) == [own_folder / "test.txt"]
    assert missing_files("verse") == [corpora / "verse" / "verse.txt"]
    assert len(missing_files("nothing")) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"no xz", "is damaged"),
        (lzma.compress(b"short"), "holds 5 bytes; the manifest says"),
        (lzma.compress(b"x" * 2000)[:-30], "is damaged"),
        (None, "its checksum is not the manifest's"),
    ],
)
def test_damaged_files_are_named(corpora, words, content, message):
    """An empty, foreign, shortened or cut file, or one with a changed byte."""
    changed = lzma.compress(words(300, "train").replace(b"sea", b"see"))
    (corpora / "three/train.txt.xz").write_bytes(changed if content is None else content)
    with pytest.raises(CorpusError, match=f"three/train.txt.xz.*{message}"):
        load_corpus("three", "train")


@pytest.mark.parametrize("text", ["[]", "{", '{"files": [{"path": "a"}]}'])
def test_a_manifest_of_another_form_is_refused(corpora, text):
    """A manifest that lacks what we need says so."""
    (corpora / "manifest.json").write_text(text)
    with pytest.raises(CorpusError, match="is no corpora manifest"):
        load_corpus("three", "train")


def test_a_stream_is_its_segments_in_order(corpora):
    """Each the named range of its file; in the prefix form a shorter one stays whole."""
    letter, valid = load_file("kinds/letter.txt.xz"), load_corpus("three", "valid")
    whole = load_stream("turns")
    assert [raw for _, raw in whole] == [letter[100:300], valid[:150], letter[300:350]]
    assert [label for label, _ in whole] == ["letter.txt @100", "valid.txt @0", "letter.txt @300"]
    assert load_stream("turns", prefix=60) == [(label, raw[:60]) for label, raw in whole]
    with pytest.raises(CorpusError, match=r"no stream 'other'.*there: turns"):
        load_stream("other")
    (corpora / "streams.json").write_text('{"turns": {}}')
    with pytest.raises(CorpusError, match=r"streams.json is no description of streams"):
        load_stream("turns")


def test_held_out_text_is_in_no_stream(corpora):
    """The first bytes after those that a stream uses; better no text than a test text."""
    assert held_out("three", "valid", 200) == load_corpus("three", "valid")[150:350]
    assert held_out("three", "test", 200) == load_corpus("three", "test")[:200]
    assert held_out("one", "valid", 200) == load_corpus("one", "valid")[:200]
    assert held_out("kinds/letter", "valid", 300) == load_file("kinds/letter.txt.xz")[350:650]
    with pytest.raises(CorpusError, match="no 9000 bytes in a row"):
        held_out("three", "valid", 9000)


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=5),
    st.integers(0, 20),
    st.integers(1, 15),
)
def test_first_free_against_trying_every_place(ranges, start, length):
    """The earliest place whose bytes are all free; an error exactly when there is none."""
    extent = Extent(path="a", start=start, end=60, licence="")
    taken = [Extent(path="a", start=a, end=a + size, licence="") for a, size in ranges]
    used = {place for a, size in ranges for place in range(a, a + size)}
    free = [at for at in range(start, 61 - length) if used.isdisjoint(range(at, at + length))]
    if free:
        assert first_free(extent, taken, length) == free[0]
    else:
        with pytest.raises(CorpusError):
            first_free(extent, taken, length)
