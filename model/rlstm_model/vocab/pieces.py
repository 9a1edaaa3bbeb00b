"""The vocabulary of a tokenizer that was made elsewhere: Hugging Face's ``tokenizers``, or sentencepiece.

A text is cut at white space, and each word with the blanks before it is encoded on its own: so a stream of
text never waits for more than a word, and encoding is what the library gives for a whole line wherever its
pieces do not cross words (:meth:`PieceVocab.check`).
"""

import base64
import binascii
import importlib
import json
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal, NamedTuple, get_args

from rlstm_model.vocab.base import (
    FORMAT_VERSION,
    Decoder,
    Encoded,
    SpecialTokens,
    VocabError,
    VocabKind,
    utf8,
)
from rlstm_model.vocab.subword import character_names

Library = Literal["tokenizers", "sentencepiece"]
Spanned = Sequence[tuple[int, int, int]]
"""Ids, each with where its piece begins and ends in what was encoded."""

_REMEMBERED = 2**16
_SAMPLE = "It was the best of times, it was the worst of times; 1,859 pages -- isn't it? (Yes!)"


class Tokenizer(NamedTuple):
    """What a library says of its pieces.

    names    of all pieces, in id order
    data     the bytes of each; a piece that begins a word begins with a space
    encode   the pieces of a word with the blanks before it
    spaces   whether blanks are pieces of their own, so that pieces, joined, are the text
    unknown  the piece for what it lacks
    """

    names: Sequence[str]
    data: Sequence[bytes]
    encode: Callable[[str], Spanned]
    spaces: bool
    unknown: str | None


@dataclass(frozen=True)
class PieceVocab(SpecialTokens):
    """``tokenizer`` is the text of a tokenizer.json, or a sentencepiece model's bytes in base64.

    A newline is what the library makes of it, else ``eos``, else nothing.
    """

    library: Library
    tokenizer: str
    eos: str | None = None
    unknown: str | None = None
    bos: str | None = None
    lower: bool = False

    kind: ClassVar[VocabKind] = "pieces"

    def __post_init__(self) -> None:
        """Raises VocabError, also when the library is not installed."""
        if self.library not in get_args(Library) or not isinstance(self.tokenizer, str):
            raise VocabError(f"library must be {' or '.join(get_args(Library))}, and tokenizer a string")
        self._check_special()

    @cached_property
    def _made(self) -> Tokenizer:
        return _made(self.library, self.tokenizer)

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self._made.names)}

    @cached_property
    def _encoder(self) -> Callable[[str], Spanned]:
        """The pieces of one word; those of the commonest words are remembered."""
        encode, lower = self._made.encode, self.lower
        return lru_cache(_REMEMBERED)(lambda word: encode(word.lower() if lower else word))

    @cached_property
    def _newline(self) -> Spanned:
        made = [(token, 0, 1) for token, *_ in self._made.encode("\n") if token != self.unknown_id]
        return made or ([] if self.eos is None else [(self._index[self.eos], 0, 1)])

    @staticmethod
    def names(library: Library, tokenizer: str) -> Sequence[str]:
        """The names of all pieces, in id order. Raises VocabError."""
        return _made(library, tokenizer).names

    def check(self) -> None:
        """Raise VocabError where pieces cross words: a text would not be read as the model learned it."""
        for line in (_SAMPLE, _SAMPLE.lower(), f"{_SAMPLE} {_SAMPLE}"):
            whole = [token for token, *_ in self._made.encode(line)]
            if whole != [token for word in _WORD.findall(line) for token, *_ in self._made.encode(word)]:
                raise VocabError("the tokenizer's pieces depend on more than a word: it cannot read a stream")

    @property
    def size(self) -> int:
        """See :class:`Vocab`."""
        return len(self._made.names)

    @property
    def unknown_id(self) -> int | None:
        """See :class:`Vocab`."""
        name = self._made.unknown if self.unknown is None else self.unknown
        return None if name is None else self._index[name]

    def encode(self, text: str) -> Encoded:
        """See :class:`Vocab`; what the tokenizer leaves out is left out."""
        utf8(text)
        ids: list[int] = []
        starts, ends = array("q"), array("q")
        for match in _WORD.finditer(text):
            word, begin = match[0], match.start()
            pieces = self._newline if word == "\n" else self._encoder(word)
            for token, start, end in pieces:
                ids.append(token)
                starts.append(begin + min(start, len(word)))
                ends.append(begin + min(end, len(word)))
        unknown = self.unknown_id
        return Encoded(
            ids=ids, starts=starts, ends=ends, unknown=0 if unknown is None else ids.count(unknown)
        )

    def decoder(self) -> Decoder:
        """See :class:`Vocab`."""
        return Decoder(self) if self._made.spaces else _PieceDecoder(self)

    def token_bytes(self, token: int) -> bytes:
        """See :class:`Vocab`; of a piece that begins a word with the space before it."""
        self.validate((token,))
        return b"\n" if self._newline and (token, 0, 1) == self._newline[0] else self._made.data[token]

    def split_pending(self, text: str, *, final: bool) -> tuple[str, str]:
        """See :class:`Vocab`; the last word, with the blanks before it, may still grow."""
        if final or not text or text[-1] == "\n":
            return text, ""
        cut = len(text) - len(_LAST_WORD.search(text)[0])  # type: ignore[index]
        return text[:cut], text[cut:]

    def to_json(self) -> dict[str, Any]:
        """See :class:`Vocab`."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        own = {name: value for name, value in named.items() if value not in (None, False)}
        return {"format_version": FORMAT_VERSION, "kind": self.kind, **own}


_WORD = re.compile(r"\n|[^\S\n]*\S+|[^\S\n]+")
_LAST_WORD = re.compile(r"[^\S\n]*\S*\Z")


class _PieceDecoder(Decoder):
    """A line does not begin with the space of its first word."""

    def __init__(self, vocab: PieceVocab) -> None:
        super().__init__(vocab)
        self._begins = True

    def feed(self, token: int) -> str:
        text = super().feed(token)
        if self._begins:
            text = text.removeprefix(" ")
        self._begins = text == "\n" or (self._begins and not text)
        return text


def _made(library: Library, tokenizer: str) -> Tokenizer:
    return _of_tokenizers(tokenizer) if library == "tokenizers" else _of_model(tokenizer)


def _library(name: Library) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise VocabError(f"these pieces need the {name} library: pip install {name}") from error


def _of_tokenizers(text: str) -> Tokenizer:
    library = _library("tokenizers")
    try:
        tokenizer, described = library.Tokenizer.from_str(text), json.loads(text)
    except Exception as error:  # the library raises Exception itself
        raise VocabError(f"tokenizer is none that the tokenizers library reads ({error})") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    names = [tokenizer.id_to_token(token) for token in range(tokenizer.get_vocab_size())]
    if None in names:
        raise VocabError(f"tokenizer has no piece of id {names.index(None)}, but of higher ones")
    of_bytes = _types(described.get("pre_tokenizer")) | _types(described.get("decoder"))

    def encode(word: str) -> Spanned:
        made = tokenizer.encode(word, add_special_tokens=False)
        return [(token, *span) for token, span in zip(made.ids, made.offsets, strict=True)]

    model = described["model"]
    unknown = model.get("unk_token")
    if unknown is None and isinstance(model.get("unk_id"), int):
        unknown = names[model["unk_id"]]
    added = {each["content"] for each in described.get("added_tokens") or ()}
    spaces = "ByteLevel" in of_bytes
    written = _bytes_of_level if spaces else _written(model)
    data = [(b"" if name in added else written(name)) or name.encode() for name in names]
    return Tokenizer(names, data, encode, spaces, unknown)


def _types(part: Any) -> set[str]:
    """The types named in a part of a tokenizer.json, and in what it is a sequence of."""
    if not isinstance(part, dict):
        return set()
    inner = [*(part.get("pretokenizers") or ()), *(part.get("decoders") or ())]
    return {str(part.get("type"))}.union(*map(_types, inner))


def _bytes_of_level(name: str) -> bytes:
    """The bytes of a piece whose characters stand for bytes, as :func:`character_names` has them."""
    return name.translate({code: byte for byte, code in character_names().items()}).encode(
        "latin-1", "replace"
    )


def _written(model: dict[str, Any]) -> Callable[[str], bytes]:
    """How pieces of a model that is not of bytes say whether they begin a word."""
    inner = model.get("continuing_subword_prefix") or ""
    last = model.get("end_of_word_suffix") or ""
    marked = any("\N{LOWER ONE EIGHTH BLOCK}" in name for name in _names_in(model))

    def written(name: str) -> bytes:
        if marked:
            return _of_mark(name)
        if last:
            return (f"{name.removesuffix(last)} " if name.endswith(last) else name).encode()
        return name.removeprefix(inner).encode() if inner and name.startswith(inner) else f" {name}".encode()

    return written


def _names_in(model: dict[str, Any]) -> Iterator[str]:
    vocabulary = model.get("vocab") or ()
    return (each if isinstance(each, str) else each[0] for each in vocabulary)


_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def _of_mark(name: str) -> bytes:
    """A piece of sentencepiece's form: its mark is a space, and a byte is written in hexadecimal."""
    byte = _BYTE.fullmatch(name)
    return bytes([int(byte[1], 16)]) if byte else name.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode()


def _of_model(encoded: str) -> Tokenizer:
    library = _library("sentencepiece")
    try:
        model = library.SentencePieceProcessor(model_proto=base64.b64decode(encoded, validate=True))
    except (binascii.Error, RuntimeError) as error:
        raise VocabError(f"tokenizer is no sentencepiece model ({error})") from None
    names = [model.id_to_piece(token) for token in range(model.get_piece_size())]

    def encode(word: str) -> Spanned:
        bare = word.lstrip()
        made, blank = model.encode(bare, return_type="offset_mapping"), len(word) - len(bare)
        spans = zip(made["ids"], made["offsets"], strict=True)
        return [(token, blank + start, blank + end) for token, (start, end) in spans]

    unknown = model.unk_id()
    return Tokenizer(names, [*map(_of_mark, names)], encode, False, names[unknown] if unknown >= 0 else None)
