"""A published corpus small enough to write down."""

import hashlib

import pytest

from rlstm_training.corpora.published import PublishedCorpus, PublishedFile


@pytest.fixture
def published():
    """Nineteen letters and spaces: six to train, five to validate, eight to test."""
    text = b"tyger tyger burning"
    file = PublishedFile(
        name="verse.txt",
        splits={"train": slice(0, 6), "valid": slice(6, 11), "test": slice(11, 19)},
        size=len(text),
        lines=0,
        tokens=3,
        checksums={"md5": hashlib.md5(text).hexdigest()},
    )
    return PublishedCorpus(
        name="verse",
        about="Blake",
        licence="public domain",
        files=(file,),
        obtain="Ask a librarian",
        address="http://verse.test/verse.zip",
    )
