"""Vocabularies of models that were trained elsewhere, from the files that come with them."""

import base64
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from rlstm_client.texts import TextError, decoded
from rlstm_model.vocab import PieceVocab, VocabError, WordVocab
from rlstm_model.vocab.pieces import Library
from rlstm_training.imports import ImportRefused

# What special tokens are called, the commonest first.
_UNKNOWN: Final = ("<unk>", "<UNK>", "[UNK]", "UNK", "<oov>")
_EOS: Final = ("<eos>", "</s>", "<sos/eos>", "<EOS>", "[EOS]", "<|endoftext|>")
_BOS: Final = ("<s>", "<bos>", "<sos>", "<BOS>", "[BOS]")
_WRITTEN: Final = {"<space>": " ", "<newline>": "\n", "\\n": "\n", "\\t": "\t"}
"""How lists of characters write what would not be seen."""


class Specials(NamedTuple):
    """The special tokens that were named, None for those to be found; and whether text is lower-cased."""

    eos: str | None = None
    unknown: str | None = None
    bos: str | None = None
    lower: bool = False

    def among(self, tokens: Iterable[str], file: Path) -> dict[str, Any]:
        """Those of a vocabulary. Raises ImportRefused for one that it lacks, and where none begins a text."""
        there = set(tokens)
        named = {"eos": self.eos, "unknown": self.unknown, "bos": self.bos}
        for token in filter(None, named.values()):
            if token not in there:
                raise ImportRefused(f"{file}: has no token {token!r}")
        usual = {"eos": ("\n", *_EOS), "unknown": _UNKNOWN, "bos": _BOS}
        chosen = {
            name: next((token for token in usual[name] if token in there), None) if given is None else given
            for name, given in named.items()
        }
        if chosen["eos"] is None and chosen["bos"] is None:
            raise ImportRefused(
                f"{file}: none of its tokens is one of {', '.join((*_EOS, *_BOS))}: "
                "name with --bos the one that the model reads before a text"
            )
        return {**chosen, "lower": self.lower}


def listed(file: Path, specials: Specials, size: int, *, by_character: bool = False) -> WordVocab:
    """A list of words, or of characters, one a line in id order or as ``word id``, or in JSON.

    ``size`` is the model's. Raises ImportRefused, OSError.
    """
    tokens = _tokens(file)
    if by_character:
        tokens = [_WRITTEN.get(token, token) for token in tokens]
    first: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if not token or (not by_character and re.search(r"\s", token)):
            raise ImportRefused(f"{file}: token {index} is {token!r}, which is no word")
        if token in first:
            raise ImportRefused(f"{file}: {token!r} is token {first[token]} and token {index}")
        first[token] = index
    _check_size(file, len(tokens), size)
    try:
        return WordVocab(tuple(tokens), **specials.among(first, file), by_character=by_character)
    except VocabError as error:
        raise ImportRefused(f"{file}: {error}") from error


def pieces(file: Path, specials: Specials, size: int) -> PieceVocab:
    """A tokenizer.json, or a sentencepiece model. Raises ImportRefused, OSError."""
    data = file.read_bytes()
    library: Library = "tokenizers" if data[:1] == b"{" else "sentencepiece"
    text = _text(data, file) if library == "tokenizers" else base64.b64encode(data).decode()
    try:
        names = PieceVocab.names(library, text)
        _check_size(file, len(names), size)
        vocab = PieceVocab(library, text, **specials.among(names, file))
        vocab.check()
    except VocabError as error:
        raise ImportRefused(f"{file}: {error}") from error
    return vocab


def _check_size(file: Path, tokens: int, size: int) -> None:
    if tokens != size:
        raise ImportRefused(f"{file}: has {tokens:,} tokens, the state dict's embedding {size:,}")


def _tokens(file: Path) -> Sequence[str]:
    text = _text(file.read_bytes(), file)
    if file.suffix == ".json":
        return _in_json(text, file)
    lines = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    numbered = [re.fullmatch(r"(\S+)[ \t]+(\d+)", line) for line in lines]
    if all(numbered):
        return _in_order({match[1]: int(match[2]) for match in numbered if match}, len(lines), file)
    return lines


def _in_json(text: str, file: Path) -> Sequence[str]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ImportRefused(f"{file}: is no JSON ({error})") from error
    if isinstance(data, dict) and all(type(number) is int for number in data.values()):
        return _in_order(data, len(data), file)
    if isinstance(data, list) and all(isinstance(token, str) for token in data):
        return data
    raise ImportRefused(f"{file}: must be a list of words, or an object with the id of each")


def _in_order(ids: dict[str, int], count: int, file: Path) -> Sequence[str]:
    if sorted(ids.values()) != list(range(count)):
        raise ImportRefused(f"{file}: its {count:,} ids are not 0 to {count - 1:,}, each for one word")
    return sorted(ids, key=ids.__getitem__)


def _text(data: bytes, file: Path) -> str:
    try:
        return "".join(decoded((data,), str(file)))
    except TextError as error:
        raise ImportRefused(f"{file}: is no text in UTF-8, or in the encoding that its mark tells") from error
