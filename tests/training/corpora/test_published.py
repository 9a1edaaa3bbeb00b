"""Published files: found as they may lie, accepted only as they were published, downloaded whole or not."""

import io
import lzma
import re
import zipfile
from dataclasses import replace

import httpx
import pytest

from rlstm_training.corpora import ENVIRONMENT, SPLITS, CorpusError, corpora_folder
from rlstm_training.corpora.published import PUBLISHED, download
from rlstm_training.corpora.reading import load_corpus

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
    assert b"".join(published.load(split, tmp_path) for split in SPLITS) == TEXT


def test_a_missing_file_says_what_to_put_where(published, tmp_path):
    """The place, the files, the variable, where to get them, and the command where there is one."""
    with pytest.raises(CorpusError) as caught:
        published.load("train", tmp_path)
    told = str(caught.value)
    parts = (f"{tmp_path}/verse/verse.txt is missing", "put verse.txt into", "RLSTM_CORPORA", "librarian")
    assert all(part in told for part in parts)
    assert told.endswith("rlstm corpora verse --download")
    assert "download" not in replace(published, address=None).how_to_get(tmp_path)


@pytest.mark.parametrize(
    ("changes", "raw", "message"),
    [
        ({}, b"", "is empty"),
        ({}, TEXT[:-1], "has 18 bytes; verse.txt has 19"),
        ({}, TEXT.replace(b"u", b"o"), "its md5 is not that of verse.txt"),
        ({"size": None}, TEXT + b" ing", "has 4 words and line ends; verse.txt has 3"),
        ({"size": None}, TEXT + b"\n", "has 1 lines; verse.txt has 0"),
        ({"splits": {"valid": slice(None)}}, TEXT, "'verse' has no train split"),
    ],
)
def test_another_file_is_refused(published, tmp_path, changes, raw, message):
    """Each thing that is known of a file is checked; the error names the file."""
    corpus = replace(published, files=(replace(published.files[0], **changes),))
    (tmp_path / "verse.txt").write_bytes(raw)
    with pytest.raises(CorpusError, match=message) as refused:
        corpus.load("train", tmp_path)
    assert "verse" in str(refused.value)


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


def test_spaced_characters_become_the_text(published, tmp_path):
    """What is checked is the file; what is read is the text that it spells."""
    unchecked = {"size": None, "checksums": {}, "tokens": None}
    file = replace(published.files[0], splits={"train": slice(None)}, lines=1, **unchecked)
    (tmp_path / "verse.txt").write_bytes(b" t h e _ s e a \n c a l m")
    assert replace(published, spaced=True, files=(file,)).load("train", tmp_path) == b"the sea\ncalm"


def _fetch(corpus, folder, answer):
    with httpx.Client(transport=httpx.MockTransport(answer)) as client:
        return download(corpus, folder, client)


def test_a_download_is_read_like_any_other_file(published, tmp_path):
    """Also after a redirect; nothing else is left beside it."""

    def answer(request):
        if request.url.path == "/verse.zip":
            return httpx.Response(302, headers={"location": "/elsewhere"})
        return httpx.Response(200, content=_zipped("verse.txt", TEXT))

    path = _fetch(published, tmp_path, answer)
    assert published.load("train", tmp_path) == b"tyger "
    assert list((tmp_path / "verse").iterdir()) == [path]


def _broken(request):
    raise httpx.ConnectError("no route")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (_broken, r"verse.zip: cannot be downloaded \(no route\)"),
        (404, "cannot be downloaded .*404"),
        (b"<html>", "is no whole zip archive"),
        (_zipped("verse.txt", TEXT)[:-9], "is no whole zip archive"),
        (_zipped("poem.txt", TEXT), "holds no file verse.txt"),
        (_zipped("verse.txt", TEXT * 2), "has 38 bytes, not 19"),
        (_zipped("verse.txt", TEXT[::-1]), "its md5 is not that"),
    ],
)
def test_a_bad_download_changes_nothing(published, tmp_path, answer, message):
    """The error names the address, the old file stays, and no half file is left."""
    old = tmp_path / "verse" / "verse.txt"
    old.parent.mkdir()
    old.write_bytes(TEXT)

    def answered(request):
        if callable(answer):
            return answer(request)
        return httpx.Response(404) if answer == 404 else httpx.Response(200, content=answer)

    with pytest.raises(CorpusError, match=message):
        _fetch(published, tmp_path, answered)
    assert old.read_bytes() == TEXT
    assert list(old.parent.iterdir()) == [old]


def test_what_cannot_be_downloaded_says_so(published, tmp_path):
    """Where it may not be passed on, where to get it instead; a file where a folder should be."""
    with pytest.raises(CorpusError, match=r"cannot be downloaded\. Ask a librarian"):
        _fetch(replace(published, address=None), tmp_path, _broken)
    (tmp_path / "verse").write_text("")
    with pytest.raises(CorpusError, match=r"verse/verse.txt: cannot be written"):
        _fetch(published, tmp_path, _broken)


@pytest.mark.parametrize("corpus", PUBLISHED.values(), ids=lambda corpus: corpus.name)
def test_the_table_agrees_with_itself(corpus, tmp_path, monkeypatch):
    """Each split in one file; single files are downloaded; a slip of the keyboard would lock everybody out.

    A corpus that is not here names its files and where they come from; the Treebank why not from us.
    """
    assert sorted(split for file in corpus.files for split in file.splits) == sorted(SPLITS)
    assert corpus.address is None or (len(corpus.files) == 1 and corpus.files[0].size)
    for algorithm, digest in (item for file in corpus.files for item in file.checksums.items()):
        assert re.fullmatch(f"[0-9a-f]{{{ {'md5': 32, 'sha1': 40, 'sha256': 64}[algorithm] }}}", digest)
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path))
    with pytest.raises(CorpusError) as caught:
        load_corpus(corpus.name, "train")
    assert all(file.name in str(caught.value) for file in corpus.files)
    assert ("may not be passed on" in str(caught.value)) == corpus.name.startswith("ptb")


def test_known_counts():
    """100 million bytes are split 90/5/5 without a gap; the Treebank's words."""
    for name in ("enwik8", "text8"):
        (file,) = PUBLISHED[name].files
        parts = [range(file.size)[file.splits[split]] for split in SPLITS]
        assert [len(part) for part in parts] == [90_000_000, 5_000_000, 5_000_000]
        assert [part.start for part in parts] == [0, parts[0].stop, parts[1].stop]
    words = [file.tokens - file.lines for file in PUBLISHED["ptb-words"].files]
    assert words == [887_521, 70_390, 78_669]
    lines = [[file.lines for file in PUBLISHED[name].files] for name in ("ptb-words", "ptb-characters")]
    assert lines[0] == lines[1]


@pytest.mark.skipif(not (corpora_folder() / "wikitext-2").is_dir(), reason="no WikiText-2 in RLSTM_CORPORA")
@pytest.mark.parametrize("split", SPLITS)
def test_wikitext_is_what_the_table_says(split):
    """Sizes, token counts and checksums of the real files, with and without the manifest."""
    assert PUBLISHED["wikitext-2"].load(split, corpora_folder()) == load_corpus("wikitext-2", split)
