"""Texts as ids, in the form they are read in: what a recipe reads, and passages to evaluate on."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from rlstm_model.checkpoint import load
from rlstm_model.vocab import (
    ByteVocab,
    InvalidText,
    SubwordVocab,
    Vocab,
    VocabError,
    VocabKind,
    WordVocab,
)
from rlstm_training.batches import VOCABULARY, Ids, Texts
from rlstm_training.config import Form, Recipe, Source
from rlstm_training.corpora import CorpusError, Split
from rlstm_training.corpora.reading import held_out, load_corpus, locate

# The most that a token takes on average in any text we know: more is read than is kept.
_BYTES_A_TOKEN = {"bytes": 1, "characters": 4, "words": 8, "subwords": 8, "pieces": 8}


@dataclass(frozen=True, kw_only=True, eq=False)
class Passage:
    """A text to be evaluated: its tokens, how many of them are unknown, and its size in bytes."""

    name: str
    ids: list[int]
    bytes: int
    unknown: int = 0


def prepare(recipe: Recipe) -> tuple[Texts, Vocab]:
    """The texts and the vocabulary of ``recipe``: of the model it starts from, else built from the texts.

    Raises CheckpointError for a model to start from that cannot be loaded, CorpusError for texts that are
    missing, damaged, too short for their rows, without the lines that jitter needs, or hold what the
    vocabulary lacks, and when the vocabulary's size is not the model's.
    """
    raws = _load_sources(recipe, "train")
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
    valid_raws = _load_sources(recipe, "valid")
    valid = {name: _encode_long(vocab, raw, f"{name} valid", 1) for name, raw in valid_raws.items()}
    digests = {VOCABULARY: _sha256(json.dumps(vocab.to_json()).encode())}
    digests |= {f"{name} train": _sha256(raw) for name, raw in raws.items()}
    digests |= {f"{name} valid": _sha256(raw) for name, raw in valid_raws.items()}
    return Texts(train=train, valid=valid, eos_id=vocab.eos_id, digests=digests), vocab


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def on_corpus(recipe: Recipe, corpus: str) -> Recipe:
    """The same recipe for another corpus: all rows read it, and its vocabulary gives the model's size.

    That of subwords is as large as the recipe says. Raises CorpusError.
    """
    moved = replace(recipe, sources=(Source(corpus=corpus, rows=recipe.rows),))
    if recipe.vocab == "subwords":
        return moved
    vocab = build_vocab(recipe.vocab, _load_sources(moved, "train"), size=recipe.model.vocab_size)
    return replace(moved, model=replace(recipe.model, vocab_size=vocab.size))


def training_texts(vocab: Vocab, sources: Sequence[Source], least: int = 1) -> list[tuple[Ids, int]]:
    """Training texts as tokens of a vocabulary that is there already, each with its rows.

    Raises CorpusError for texts that are missing, have fewer than ``least`` tokens, or hold what the
    vocabulary cannot have.
    """
    texts = []
    for source in sources:
        raw = in_form(load_corpus(source.corpus, "train"), source.form)
        ids = _ids(vocab, raw, f"{_label(source)} train")
        if len(ids) < least:
            needed = len(raw) * least // max(1, len(ids))
            message = f"{source.corpus}: {len(ids):,} tokens to measure on are too few: {least:,} are needed"
            raise CorpusError(f"{message}, some {needed:,} bytes")
        texts.append((ids, source.rows))
    return texts


def build_vocab(kind: VocabKind, texts: dict[str, bytes], *, size: int) -> Vocab:
    """The vocabulary of named texts; ``size`` is that of subwords, of others the texts give it.

    Raises CorpusError where characters, words or subwords are asked of no UTF-8, or too many subwords.
    """
    if kind == "bytes":
        return ByteVocab()
    text = "".join(_decode(raw, name) for name, raw in texts.items())
    if kind == "characters":
        return WordVocab.of_characters_in(text)
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
        try:
            encoded = vocab.encode(_decode(raw, name))
        except InvalidText as error:
            raise CorpusError(f"{name}: {error}") from error
        ids, unknown = encoded.ids, encoded.unknown
    if not ids:
        raise CorpusError(f"{name} holds no text")
    return Passage(name=name, ids=ids, bytes=len(raw), unknown=unknown)


def excerpt(vocab: Vocab, raw: bytes, name: str) -> Passage:
    """A passage of bytes cut anywhere: characters that the cut left incomplete are dropped."""
    if vocab.kind != "bytes":
        raw = raw.decode(errors="ignore").encode()
    return passage(vocab, raw, name)


def validation_passages(vocab: Vocab, corpora: Sequence[str], tokens: int) -> list[Passage]:
    """About ``tokens`` tokens in all: the beginnings of the corpora's validation texts, in equal shares.

    What belongs to a stream is left out. Raises CorpusError.
    """
    share, passages = max(1, tokens // len(corpora)), []
    for corpus in corpora:
        extent = locate(corpus, "valid")
        length = min(share * _BYTES_A_TOKEN[vocab.kind], extent.end - extent.start)
        passages.append(first_tokens(vocab, held_out(corpus, "valid", length), f"{corpus} valid", share))
    return passages


def first_tokens(vocab: Vocab, raw: bytes, name: str, tokens: int) -> Passage:
    """The passage of the first ``tokens`` tokens of a text. Raises CorpusError when it holds none."""
    if vocab.kind == "bytes":
        return excerpt(vocab, raw[:tokens], name)
    text = raw.decode(errors="ignore")
    ends = vocab.encode(text).ends
    return excerpt(vocab, text[: ends[min(tokens, len(ends)) - 1]].encode() if ends else b"", name)


def _vocabulary_texts(recipe: Recipe, raws: dict[str, bytes]) -> dict[str, bytes]:
    """The texts that give the vocabulary: for subwords, of several texts as much as their rows ask for."""
    if recipe.vocab != "subwords" or len(raws) == 1:
        return raws
    rows = {_label(source): source.rows for source in recipe.sources}
    each = min(len(raw) // rows[label] for label, raw in raws.items())
    sizes = {label: each * rows[label] for label in raws}
    # All of a text, or the whole lines in its first so many bytes.
    return {
        label: raw if len(raw) <= sizes[label] else raw[: raw.rfind(b"\n", 0, sizes[label]) + 1]
        for label, raw in raws.items()
    }


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
    ids = _ids(vocab, raw, name)
    if vocab.kind == "characters":
        unknown = np.flatnonzero(ids == vocab.unknown_id)
        if len(unknown):
            raise CorpusError(f"{name}: character {unknown[0]} is not in the vocabulary of the training text")
    if len(ids) // pieces <= window:
        each = f" for each of {pieces} rows" if pieces > 1 else ""
        raise CorpusError(f"{name}: {len(ids)} tokens cannot fill a window of {window}{each}")
    return ids


def _ids(vocab: Vocab, raw: bytes, name: str) -> Ids:
    if vocab.kind == "bytes":
        return np.frombuffer(raw, dtype=np.uint8)
    try:
        return vocab.encode_ids(_decode(raw, name))
    except InvalidText as error:
        raise CorpusError(f"{name}: {error}") from error


def _load_sources(recipe: Recipe, split: Split) -> dict[str, bytes]:
    raws = {corpus: load_corpus(corpus, split) for corpus in recipe.corpora}
    return {_label(source): in_form(raws[source.corpus], source.form) for source in recipe.sources}


def _label(source: Source) -> str:
    return f"{source.corpus}/{source.form}"


def _decode(raw: bytes, name: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise CorpusError(f"{name} is not UTF-8 text (byte {error.start:,}): convert it") from error


def in_form(raw: bytes, form: Form) -> bytes:
    """``raw`` in another form: see :class:`rlstm_training.config.Source`."""
    if form == "as_is":
        return raw
    text = raw.replace(b"\r\n", b"\n")
    return text if form == "lf" else unwrap(text)


def unwrap(text: bytes) -> bytes:
    """Join hard-wrapped lines, and let one newline end a paragraph, as novels have it.

    A line was wrapped if the next line's first word would not have fitted on it: so verse, headings and
    lists keep their lines. The width is that of the block's longest line, at least 50 bytes.
    """
    blocks = re.split(rb"\n[ \t]*\n", text)
    return b"\n".join(_unwrap_block(block) for block in blocks if block.strip()) + b"\n"


def _unwrap_block(block: bytes) -> bytes:
    lines = block.strip(b"\n").split(b"\n")
    width = max(50, *(len(line) for line in lines))
    joined = [lines[0]]
    for before, line in pairwise(lines):
        first_word = line.split(b" ", 1)[0]
        wrapped = bool(first_word) and len(before) + 1 + len(first_word) > width - 3
        if wrapped:
            joined[-1] = joined[-1].rstrip() + b" " + line
        else:
            joined.append(line)
    return b"\n".join(joined)
