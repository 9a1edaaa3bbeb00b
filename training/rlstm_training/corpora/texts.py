"""Texts as ids: what a recipe reads, and passages to evaluate on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from rlstm_model.checkpoint import load
from rlstm_model.vocab import (
    ByteVocab,
    CharVocab,
    SubwordVocab,
    Vocab,
    VocabError,
    VocabKind,
    WordVocab,
)
from rlstm_training.batches import Ids, Texts
from rlstm_training.config import Recipe, Source
from rlstm_training.corpora import CorpusError, Split, in_form, load_corpus


@dataclass(frozen=True, kw_only=True, eq=False)
class Passage:
    """A text to be evaluated: its tokens, how many of them are unknown, and its size in bytes."""

    name: str
    ids: list[int]
    bytes: int
    unknown: int = 0


def prepare(recipe: Recipe, *, folder: Path | None = None) -> tuple[Texts, Vocab]:
    """The texts and the vocabulary of ``recipe``: of the model it starts from, else built from the texts.

    Raises CheckpointError for a model to start from that cannot be loaded, CorpusError for texts that are
    missing, damaged, too short for their rows, without the lines that jitter needs, or hold what the
    vocabulary lacks, and when the vocabulary's size is not the model's.
    """
    raws = _load_sources(recipe, "train", folder)
    if recipe.start_from is None:
        vocab = build_vocab(recipe.vocab, _vocabulary_texts(recipe, raws), size=recipe.model.vocab_size)
    else:
        vocab = load(recipe.start_from).vocab
    if vocab.size != recipe.model.vocab_size:
        raise CorpusError(
            f"the vocabulary of {', '.join(raws)} holds {vocab.size} tokens; "
            f"the recipe's model.vocab_size is {recipe.model.vocab_size}"
        )
    train = [_train_text(recipe, source, vocab, raws[_label(source)]) for source in recipe.sources]
    valid = {
        name: _encode_long(vocab, raw, f"{name} valid", 1)
        for name, raw in _load_sources(recipe, "valid", folder).items()
    }
    return Texts(train=train, valid=valid, eos_id=vocab.eos_id), vocab


def on_corpus(recipe: Recipe, corpus: str, *, folder: Path | None = None) -> Recipe:
    """The same recipe for another corpus: all rows read it, and its vocabulary gives the model's size.

    That of subwords is as large as the recipe says. Raises CorpusError.
    """
    moved = replace(recipe, sources=(Source(corpus=corpus, rows=recipe.rows),))
    if recipe.vocab == "subwords":
        return moved
    vocab = build_vocab(recipe.vocab, _load_sources(moved, "train", folder), size=recipe.model.vocab_size)
    return replace(moved, model=replace(recipe.model, vocab_size=vocab.size))


def build_vocab(kind: VocabKind, texts: dict[str, bytes], *, size: int) -> Vocab:
    """The vocabulary of named texts; ``size`` is that of subwords, of others the texts give it.

    Raises CorpusError where characters, words or subwords are asked of no UTF-8, or too many subwords.
    """
    if kind == "bytes":
        return ByteVocab()
    text = "".join(_decode(raw, name) for name, raw in texts.items())
    if kind == "characters":
        return CharVocab.build(text)
    if kind == "words":
        return WordVocab.build(text)
    try:
        return SubwordVocab.build(text, size)
    except VocabError as error:
        raise CorpusError(f"{', '.join(texts)}: {error}") from error


def passage(vocab: Vocab, raw: bytes, name: str) -> Passage:
    """``raw`` as tokens of ``vocab``. Raises CorpusError when it holds none, or is no UTF-8 but must be."""
    if vocab.kind == "bytes":
        ids, unknown = list(raw), 0
    else:
        encoded = vocab.encode(_decode(raw, name))
        ids, unknown = encoded.ids, encoded.unknown
    if not ids:
        raise CorpusError(f"{name} holds no text")
    return Passage(name=name, ids=ids, bytes=len(raw), unknown=unknown)


def excerpt(vocab: Vocab, raw: bytes, name: str) -> Passage:
    """A passage of bytes cut anywhere: characters that the cut left incomplete are dropped."""
    if vocab.kind != "bytes":
        raw = raw.decode(errors="ignore").encode()
    return passage(vocab, raw, name)


def _vocabulary_texts(recipe: Recipe, raws: dict[str, bytes]) -> dict[str, bytes]:
    """The texts that give the vocabulary: for subwords, of several texts as much as their rows ask for."""
    if recipe.vocab != "subwords" or len(raws) == 1:
        return raws
    rows = {_label(source): source.rows for source in recipe.sources}
    each = min(len(raw) // rows[label] for label, raw in raws.items())
    return {label: _first_lines(raw, each * rows[label]) for label, raw in raws.items()}


def _first_lines(raw: bytes, size: int) -> bytes:
    """All of a text, or the lines in its first ``size`` bytes."""
    return raw if len(raw) <= size else raw[: raw.rfind(b"\n", 0, size) + 1]


def _train_text(recipe: Recipe, source: Source, vocab: Vocab, raw: bytes) -> tuple[Ids, int]:
    """A source's ids and rows, which are sure to be read as the recipe says."""
    name = f"{_label(source)} train"
    pieces = source.rows if recipe.batching == "contiguous" else 1
    ids = _encode_long(vocab, raw, name, recipe.window, pieces)
    if recipe.jitter_lines and not np.any(ids == vocab.eos_id):
        raise CorpusError(f"{name}: has no line ends, which the recipe's jitter_lines needs")
    return ids, source.rows


def _encode_long(vocab: Vocab, raw: bytes, name: str, window: int, pieces: int = 1) -> Ids:
    """Ids of a text with more than ``window`` tokens a piece, all known where tokens are characters."""
    ids: Ids = (
        np.frombuffer(raw, dtype=np.uint8) if vocab.kind == "bytes" else vocab.encode_ids(_decode(raw, name))
    )
    if vocab.kind == "characters":
        unknown = np.flatnonzero(ids == vocab.unknown_id)
        if len(unknown):
            raise CorpusError(f"{name}: character {unknown[0]} is not in the vocabulary of the training text")
    if len(ids) // pieces <= window:
        each = f" for each of {pieces} rows" if pieces > 1 else ""
        raise CorpusError(f"{name}: {len(ids)} tokens cannot fill a window of {window}{each}")
    return ids


def _load_sources(recipe: Recipe, split: Split, folder: Path | None) -> dict[str, bytes]:
    corpora: Sequence[str] = list(dict.fromkeys(source.corpus for source in recipe.sources))
    raws = {corpus: load_corpus(corpus, split, folder=folder) for corpus in corpora}
    return {_label(source): in_form(raws[source.corpus], source.form) for source in recipe.sources}


def _label(source: Source) -> str:
    return f"{source.corpus}/{source.form}"


def _decode(raw: bytes, name: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise CorpusError(f"{name} is not UTF-8 at byte {error.start}") from error
