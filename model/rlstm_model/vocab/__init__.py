"""Vocabularies: text to token ids with spans, and back.

==========  =======================================  ====================  ==========================
kind        a token is                               bos and eos           text outside the vocabulary
==========  =======================================  ====================  ==========================
bytes       one byte of the text's UTF-8             byte 10 (newline)     none
characters  one code point                           the newline           the unknown id
words       what stands between white space,         ``<eos>``             ``<unk>``
            or a newline (``<eos>``)
subwords    frequent bytes in a row                  byte 10 (newline)     none
pieces      what a tokenizer made elsewhere says     the tokenizer's       the tokenizer's
==========  =======================================  ====================  ==========================

Lists of words and characters that were made elsewhere may have other special tokens, or lack them.
Vocabularies are immutable values. Spans count code points of the given text; all bytes of one character
share the character's span.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rlstm_model.vocab.base import (
    FORMAT_VERSION,
    Decoder,
    Encoded,
    Ids,
    InvalidText,
    InvalidToken,
    UnknownText,
    Vocab,
    VocabError,
    VocabKind,
    check_ids,
)
from rlstm_model.vocab.byte import ByteVocab
from rlstm_model.vocab.pieces import PieceVocab
from rlstm_model.vocab.subword import SubwordVocab
from rlstm_model.vocab.words import EOS_WORD, OPTIONS, UNKNOWN_WORD, WordVocab

__all__ = [
    "EOS_WORD",
    "UNKNOWN_WORD",
    "ByteVocab",
    "Decoder",
    "Encoded",
    "Ids",
    "InvalidText",
    "InvalidToken",
    "PieceVocab",
    "SubwordVocab",
    "UnknownText",
    "Vocab",
    "VocabError",
    "VocabKind",
    "WordVocab",
    "check_ids",
    "from_json",
]


def from_json(data: Mapping[str, Any]) -> Vocab:
    """The vocabulary described by ``data``. Raises VocabError on a missing, unknown or wrong field.

    Also where it needs a library that is not installed.
    """
    if not isinstance(data, Mapping):
        raise VocabError(f"a vocabulary must be a JSON object, not {type(data).__name__}")
    version = data.get("format_version")
    if version != FORMAT_VERSION:
        raise VocabError(f"format_version must be {FORMAT_VERSION}, not {version!r}")
    match data.get("kind"):
        case "bytes":
            _require_fields(data)
            return ByteVocab()
        case "characters" if "words" not in data:
            _require_fields(data, "characters")
            if not isinstance(data["characters"], str):
                raise VocabError("characters must be a string")
            return WordVocab.of_characters(data["characters"])
        case "words" | "characters" as kind:
            words = tuple(_list(data, "words", OPTIONS))
            return WordVocab(words, **_options(data), by_character=kind == "characters")
        case "pieces":
            _require_fields(data, "library", "tokenizer", optional=OPTIONS)
            return PieceVocab(data["library"], data["tokenizer"], **_options(data))
        case "subwords":
            pairs = _list(data, "merges")
            return SubwordVocab(tuple(tuple(pair) if isinstance(pair, list) else pair for pair in pairs))
        case kind:
            raise VocabError(f"kind must be bytes, characters, words, subwords or pieces, not {kind!r}")


def _list(data: Mapping[str, Any], name: str, optional: Sequence[str] = ()) -> list[Any]:
    _require_fields(data, name, optional=optional)
    if not isinstance(data[name], list):
        raise VocabError(f"{name} must be a list")
    return list(data[name])


def _options(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: data[name] for name in OPTIONS if name in data}


def _require_fields(data: Mapping[str, Any], *names: str, optional: Sequence[str] = ()) -> None:
    wrong = sorted(set(data) - set(optional) ^ {"format_version", "kind", *names})
    if wrong:
        raise VocabError(f"unknown or missing fields: {', '.join(wrong)}")
