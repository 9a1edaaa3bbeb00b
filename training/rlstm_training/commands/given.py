"""The texts a command is given: files, corpora by name, streams."""

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from rlstm_model.vocab import Vocab
from rlstm_training.corpora import CorpusError, load_corpus
from rlstm_training.corpora.streams import load_stream
from rlstm_training.corpora.texts import Passage, excerpt, passage


class SplitName(StrEnum):
    """A split, as the command line names it: typer takes no list of literals."""

    TRAIN = "train"
    VALID = "valid"
    TEST = "test"


Files = Annotated[list[str] | None, typer.Argument(help="Text files; - is standard input.")]
Corpora = Annotated[list[str] | None, typer.Option("--corpus", help="A corpus by name, or a folder.")]
Splits = Annotated[list[SplitName] | None, typer.Option("--split", help="Of the corpora (default: test).")]
Streams = Annotated[list[str] | None, typer.Option("--stream", help="A stream, read in one session.")]
Prefix = Annotated[int | None, typer.Option(min=1, help="Only the first bytes of each text or segment.")]


def texts_given(
    vocab: Vocab,
    files: Sequence[str],
    corpora: Sequence[str],
    splits: Sequence[SplitName],
    streams: Sequence[str],
    prefix: int | None,
) -> list[tuple[str, list[Passage]]]:
    """Every text named, by its name, as passages. Wrong usage when none is; raises CorpusError."""
    texts = [
        *(_file(vocab, path, prefix) for path in files),
        *(_corpus(vocab, name, split, prefix) for name in corpora for split in splits),
        *(_stream(vocab, name, prefix) for name in streams),
    ]
    if not texts:
        raise typer.BadParameter("name files, a --corpus or a --stream", param_hint="FILES")
    return texts


def _file(vocab: Vocab, path: str, prefix: int | None) -> tuple[str, list[Passage]]:
    try:
        raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise CorpusError(f"{path}: {error.strerror}") from error
    return _whole(vocab, raw, path, prefix)


def _corpus(vocab: Vocab, name: str, split: SplitName, prefix: int | None) -> tuple[str, list[Passage]]:
    return _whole(vocab, load_corpus(name, split.value), f"{name} {split}", prefix)


def _whole(vocab: Vocab, raw: bytes, name: str, prefix: int | None) -> tuple[str, list[Passage]]:
    if prefix is None:
        return name, [passage(vocab, raw, name)]
    return name, [excerpt(vocab, raw[:prefix], name)]


def _stream(vocab: Vocab, name: str, prefix: int | None) -> tuple[str, list[Passage]]:
    segments = load_stream(name, prefix=prefix)
    return name, [excerpt(vocab, raw, label) for label, raw in segments]
