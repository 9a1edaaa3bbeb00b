"""Files of a corpora folder that are not what its manifest says."""

import lzma

import pytest

from rlstm_training.corpora import CorpusError
from rlstm_training.corpora.reading import load_corpus


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
