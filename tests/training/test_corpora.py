import json
import lzma

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstm_training.corpora import CorpusError, in_form, load_corpus, load_file, locate, unwrap


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
    with pytest.raises(CorpusError, match=r"manifest.json is missing; set RLSTM_CORPORA"):
        load_corpus("three", "train")


def test_a_missing_split_is_named(corpora):
    """A corpus without the split that is asked for says which."""
    manifest = json.loads((corpora / "manifest.json").read_text())
    manifest["files"] = [record for record in manifest["files"] if record["role"] != "test"]
    (corpora / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(CorpusError, match="'three' has no test split"):
        load_corpus("three", "test")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"no xz", "is damaged"),
        (lzma.compress(b"short"), "holds 5 bytes; the manifest says"),
        (lzma.compress(b"x" * 2000)[:-30], "is damaged"),
    ],
)
def test_damaged_files_are_named(corpora, content, message):
    """An empty, foreign, shortened or cut file is an error that names it."""
    (corpora / "three/train.txt.xz").write_bytes(content)
    with pytest.raises(CorpusError, match=f"three/train.txt.xz.*{message}"):
        load_corpus("three", "train")


def test_a_changed_byte_is_found(corpora, words):
    """A file of the right size but other content fails its checksum."""
    changed = words(300, "train").replace(b"sea", b"see")
    (corpora / "three/train.txt.xz").write_bytes(lzma.compress(changed))
    with pytest.raises(CorpusError, match="checksum"):
        load_corpus("three", "train")


@pytest.mark.parametrize("text", ["[]", "{", '{"files": [{"path": "a"}]}'])
def test_a_manifest_of_another_form_is_refused(corpora, text):
    """A manifest that lacks what we need says so."""
    (corpora / "manifest.json").write_text(text)
    with pytest.raises(CorpusError, match="is no corpora manifest"):
        load_corpus("three", "train")


def test_unwrap_joins_paragraphs_and_keeps_verse():
    """Hard-wrapped prose becomes one line a paragraph; short lines, headings and verse stay."""
    prose = (
        b"CHAPTER I\n\nIt was the best of times, it was the worst of times, it was\n"
        b"the age of wisdom, it was the age of foolishness, it was the\nepoch of belief.\n\n"
        b"Tyger Tyger,\nburning bright,\n"
    )
    assert unwrap(prose) == (
        b"CHAPTER I\nIt was the best of times, it was the worst of times, it was the age of wisdom, "
        b"it was the age of foolishness, it was the epoch of belief.\nTyger Tyger,\nburning bright,\n"
    )


_lines = st.lists(st.text(alphabet="ab ,.", max_size=90).map(str.encode), max_size=12)


@given(_lines.map(b"\n".join))
def test_unwrap_changes_white_space_only(text):
    """No word is lost, made or moved."""
    assert unwrap(text).split() == text.split()


@given(_lines.map(b"\r\n".join))
def test_forms(raw):
    """``as_is`` is the text; ``lf`` has no CRLF; ``unwrapped`` starts from ``lf``."""
    assert in_form(raw, "as_is") == raw
    assert b"\r\n" not in in_form(raw, "lf")
    assert in_form(raw, "lf").replace(b"\n", b"\r\n") == raw
    assert in_form(raw, "unwrapped") == unwrap(in_form(raw, "lf"))
