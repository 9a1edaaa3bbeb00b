"""Published files: found as they may lie, accepted only as they were published."""

import io
import lzma
import zipfile
from dataclasses import replace

import pytest

from rlstm_training.corpora import CorpusError

TEXT = b"tyger tyger burning"


def _zipped(name, raw):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(name, raw)
    return packed.getvalue()


@pytest.mark.parametrize("place", ["verse.txt", "verse/verse.txt"])
@pytest.mark.parametrize(
    ("packing", "raw"), [("", TEXT), (".xz", lzma.compress(TEXT)), (".zip", _zipped("verse.txt", TEXT))]
)
def test_a_file_may_lie_in_two_places_and_be_packed(published, tmp_path, place, packing, raw):
    """In the corpora folder or the corpus's own in it; as it is, as .xz, in a .zip; its splits join to it."""
    path = tmp_path / (place + packing)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(raw)
    assert published.find(published.files[0], tmp_path) == path
    assert b"".join(published.load(split, tmp_path) for split in ("train", "valid", "test")) == TEXT


def test_a_missing_file_says_what_to_put_where(published, tmp_path):
    """The place, the files, the variable, where to get them, and the command where there is one."""
    with pytest.raises(CorpusError) as caught:
        published.load("train", tmp_path)
    told = str(caught.value)
    for part in (
        f"{tmp_path}/verse/verse.txt is missing",
        "put verse.txt into",
        "RLSTM_CORPORA",
        "librarian",
    ):
        assert part in told
    assert told.endswith("rlstm corpora verse --download")
    with pytest.raises(CorpusError) as caught:
        replace(published, address=None).load("train", tmp_path)
    assert "download" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "raw", "message"),
    [
        ({}, b"", "is empty"),
        ({}, TEXT[:-1], "has 18 bytes; verse.txt has 19"),
        ({}, TEXT.replace(b"b", b"Bb"), "byte 12 is 0x42, which verse.txt does not have"),
        ({"alphabet": None, "distinct": None}, TEXT.replace(b"u", b"o"), "its md5 is not that of verse.txt"),
        ({"size": None}, TEXT + b" ing", "has 4 words and line ends; verse.txt has 3"),
        (
            {"size": None, "tokens": None, "alphabet": None},
            TEXT + b"\n",
            "has 1 lines; verse.txt has 0",
        ),
        ({}, TEXT.replace(b"b", b"t"), "has 9 distinct bytes; verse.txt has 10"),
    ],
)
def test_another_file_is_refused(published, tmp_path, changes, raw, message):
    """Each thing that is known of a file is checked; the error names the file."""
    corpus = replace(published, files=(replace(published.files[0], **changes),))
    (tmp_path / "verse.txt").write_bytes(raw)
    with pytest.raises(CorpusError, match=f"{tmp_path}/verse.txt.*{message}"):
        corpus.load("train", tmp_path)


@pytest.mark.parametrize(
    ("packing", "raw", "message"),
    [
        (".xz", b"no xz", "is damaged"),
        (".xz", lzma.compress(b"x" * 2000)[:-30], "is damaged"),
        (".xz", lzma.compress(b""), "is empty"),
        (".zip", b"no zip", "is damaged"),
        (".zip", _zipped("verse.txt", TEXT)[:-30], "is damaged"),
        (".zip", _zipped("other.txt", TEXT), "holds no file verse.txt"),
    ],
)
def test_damaged_packing_is_named(published, tmp_path, packing, raw, message):
    """An archive that is foreign, cut, empty or of something else."""
    (tmp_path / f"verse.txt{packing}").write_bytes(raw)
    with pytest.raises(CorpusError, match=f"verse.txt{packing}.* {message}"):
        published.load("train", tmp_path)


def test_a_split_that_is_not_published_is_named(published, tmp_path):
    """A corpus without the split says so before it looks for files."""
    corpus = replace(published, files=(replace(published.files[0], splits={"train": slice(None)}),))
    with pytest.raises(CorpusError, match="'verse' has no test split"):
        corpus.load("test", tmp_path)


def test_spaced_characters_become_the_text(published, tmp_path):
    """What is checked is the file; what is read is the text that it spells."""
    spelled = b" t h e _ s e a \n c a l m"
    corpus = replace(
        published,
        spaced=True,
        files=(replace(published.files[0], splits={"train": slice(None)}, size=None, alphabet=None),),
    )
    plain = replace(corpus.files[0], checksums={}, tokens=None, lines=1, distinct=None)
    (tmp_path / "verse.txt").write_bytes(spelled)
    assert replace(corpus, files=(plain,)).load("train", tmp_path) == b"the sea\ncalm"
