"""Downloads: whole and verified, or nothing."""

import io
import zipfile
from dataclasses import replace

import httpx
import pytest

from rlstm_training.corpora import CorpusError
from rlstm_training.corpora.published import download

TEXT = b"tyger tyger burning"


def _zipped(name, raw):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(name, raw)
    return packed.getvalue()


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
    assert path == tmp_path / "verse" / "verse.txt"
    assert published.load("train", tmp_path) == b"tyger "
    assert [file.name for file in path.parent.iterdir()] == ["verse.txt"]


def _broken(request):
    raise httpx.ConnectError("no route")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (_broken, r"verse.zip: cannot be downloaded \(no route\)"),
        (lambda _: httpx.Response(404), "cannot be downloaded .*404"),
        (lambda _: httpx.Response(200, content=b"<html>"), "is no whole zip archive"),
        (lambda _: httpx.Response(200, content=_zipped("verse.txt", TEXT)[:-9]), "is no whole zip archive"),
        (lambda _: httpx.Response(200, content=_zipped("poem.txt", TEXT)), "holds no file verse.txt"),
        (lambda _: httpx.Response(200, content=_zipped("verse.txt", TEXT * 2)), "has 38 bytes, not 19"),
        (lambda _: httpx.Response(200, content=_zipped("verse.txt", TEXT[::-1])), "its md5 is not that"),
    ],
)
def test_a_bad_download_changes_nothing(published, tmp_path, answer, message):
    """The error names the address, the old file stays, and no half file is left."""
    old = tmp_path / "verse" / "verse.txt"
    old.parent.mkdir()
    old.write_bytes(TEXT)
    with pytest.raises(CorpusError, match=message):
        _fetch(published, tmp_path, answer)
    assert old.read_bytes() == TEXT
    assert list(old.parent.iterdir()) == [old]


def test_what_may_not_be_passed_on_is_not_downloaded(published, tmp_path):
    """The error says where to get it instead."""
    with pytest.raises(CorpusError, match=r"cannot be downloaded\. Ask a librarian"):
        _fetch(replace(published, address=None), tmp_path, _broken)


def test_a_folder_that_cannot_be_written_is_named(published, tmp_path):
    """A file where a folder should be."""
    (tmp_path / "verse").write_text("")
    with pytest.raises(CorpusError, match=r"verse/verse.txt: cannot be written"):
        _fetch(published, tmp_path, lambda _: httpx.Response(200, content=_zipped("verse.txt", TEXT)))
