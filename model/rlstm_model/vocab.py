"""Vocabularies: text to token ids with spans, and back.

==========  =======================================  ====================  ==========================
kind        a token is                               bos and eos           text outside the vocabulary
==========  =======================================  ====================  ==========================
bytes       one byte of the text's UTF-8             byte 10 (newline)     none
characters  one code point                           the newline           the unknown id
words       what stands between white space,         ``<eos>``             ``<unk>``
            or a newline (``<eos>``)
==========  =======================================  ====================  ==========================

Vocabularies are immutable values. Spans count code points of the given text; all bytes of one character
share the character's span.
"""

import codecs
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

FORMAT_VERSION = 1

VocabKind = Literal["bytes", "characters", "words"]

UNKNOWN_WORD = "<unk>"
EOS_WORD = "<eos>"
_UNKNOWN_CHARACTER = "\N{REPLACEMENT CHARACTER}"


class VocabError(ValueError):
    """A description that is no vocabulary; the message names the field."""


class InvalidText(ValueError):
    """A string that is not text: a lone surrogate stands at code point ``index``."""

    def __init__(self, index: int) -> None:
        super().__init__(f"the text holds a lone surrogate at character {index}")
        self.index = index


class InvalidToken(ValueError):
    """``id``, at position ``index``, is not an id of the vocabulary."""

    def __init__(self, index: int, id: int) -> None:  # noqa: A002
        super().__init__(f"token {index} is not an id of the vocabulary")
        self.index = index
        self.id = id


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """A text's tokens: equally long lists, and how many tokens are the unknown id."""

    ids: list[int]
    starts: list[int]
    ends: list[int]
    unknown: int = 0


class Decoder(Protocol):
    """Ids to text, one at a time. What it returned so far, joined, never ends inside a character."""

    def feed(self, token: int) -> str:
        """The text that ``token`` completes; empty inside a character. Raises InvalidToken."""

    def flush(self) -> str:
        """What was held back at the end."""


class Vocab(Protocol):
    """What every vocabulary offers, with what most of them share."""

    @property
    def kind(self) -> VocabKind:
        """The family of vocabularies."""

    @property
    def size(self) -> int:
        """The number of ids V: 0 to V - 1."""

    @property
    def bos_id(self) -> int:
        """The token that a model reads before the first one: a text begins like a line."""
        return self.eos_id

    @property
    def eos_id(self) -> int:
        """The token that ends a line."""

    @property
    def unknown_id(self) -> int | None:
        """The token for what the vocabulary lacks; None where it lacks nothing."""

    def encode(self, text: str) -> Encoded:
        """The tokens of ``text``. Raises InvalidText."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``; invalid UTF-8 becomes U+FFFD. Raises InvalidToken."""
        self.validate(ids)
        decoder = self.decoder()
        return "".join(map(decoder.feed, ids)) + decoder.flush()

    def decoder(self) -> Decoder:
        """A new incremental decoder: its pieces, joined, are what ``decode`` gives."""

    def token_bytes(self, token: int) -> bytes:
        """The UTF-8 bytes of one token. Raises InvalidToken."""

    def validate(self, ids: Sequence[int]) -> None:
        """Raises InvalidToken at the first element that is not an id (a bool is none)."""
        for index, token in enumerate(ids):
            if type(token) is not int or not 0 <= token < self.size:
                raise InvalidToken(index, token)

    def split_pending(self, text: str, *, final: bool) -> tuple[str, str]:
        """``text`` as (what can be encoded now, what waits for more text); ``final`` holds nothing back."""
        return text, ""

    def to_json(self) -> dict[str, Any]:
        """A JSON object that :func:`from_json` reads back."""


def from_json(data: Mapping[str, Any]) -> Vocab:
    """The vocabulary described by ``data``. Raises VocabError on a missing, unknown or wrong field."""
    if not isinstance(data, Mapping):
        raise VocabError(f"a vocabulary must be a JSON object, not {type(data).__name__}")
    version = data.get("format_version")
    if version != FORMAT_VERSION:
        raise VocabError(f"format_version must be {FORMAT_VERSION}, not {version!r}")
    kind = data.get("kind")
    if kind == "bytes":
        _require_fields(data)
        return ByteVocab()
    if kind == "characters":
        _require_fields(data, "characters")
        return CharVocab(data["characters"])
    if kind == "words":
        _require_fields(data, "words")
        if not isinstance(data["words"], list):
            raise VocabError("words must be a list")
        return WordVocab(tuple(data["words"]))
    raise VocabError(f"kind must be bytes, characters or words, not {kind!r}")


@dataclass(frozen=True)
class ByteVocab(Vocab):
    """The 256 bytes: any text, no unknowns."""

    kind: ClassVar[VocabKind] = "bytes"
    size: ClassVar[int] = 256
    eos_id: ClassVar[int] = 10
    unknown_id: ClassVar[int | None] = None

    def encode(self, text: str) -> Encoded:
        """See :class:`Vocab`."""
        data = np.frombuffer(_utf8(text), dtype=np.uint8)
        starts = np.cumsum((data & 0xC0) != 0x80) - 1
        return Encoded(ids=data.tolist(), starts=starts.tolist(), ends=(starts + 1).tolist())

    def decode(self, ids: Sequence[int]) -> str:
        """See :class:`Vocab`."""
        self.validate(ids)
        return bytes(ids).decode("utf-8", errors="replace")

    def decoder(self) -> Decoder:
        """See :class:`Vocab`."""
        return _ByteDecoder(self)

    def token_bytes(self, token: int) -> bytes:
        """See :class:`Vocab`."""
        self.validate((token,))
        return bytes((token,))

    def to_json(self) -> dict[str, Any]:
        """See :class:`Vocab`."""
        return {"format_version": FORMAT_VERSION, "kind": self.kind}


@dataclass(frozen=True)
class CharVocab(Vocab):
    """The code points of ``characters``, in id order, and one id after them for all others."""

    characters: str

    kind: ClassVar[VocabKind] = "characters"

    def __post_init__(self) -> None:
        if not isinstance(self.characters, str):
            raise VocabError("characters must be a string")
        if len(set(self.characters)) != len(self.characters):
            raise VocabError("characters must be distinct")
        if "\n" not in self.characters:
            raise VocabError("characters must hold the newline, which is bos and eos")
        if _surrogate_in(self.characters):
            raise VocabError("characters must hold no lone surrogate")

    @classmethod
    def build(cls, text: str) -> "CharVocab":
        """The vocabulary of all characters of ``text``, in code point order. Raises InvalidText."""
        _utf8(text)
        return cls("".join(sorted(set(text) | {"\n"})))

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {character: index for index, character in enumerate(self.characters)}

    @property
    def size(self) -> int:
        """See :class:`Vocab`."""
        return len(self.characters) + 1

    @property
    def eos_id(self) -> int:
        """See :class:`Vocab`."""
        return self._ids["\n"]

    @property
    def unknown_id(self) -> int:
        """See :class:`Vocab`."""
        return len(self.characters)

    def encode(self, text: str) -> Encoded:
        """See :class:`Vocab`."""
        _utf8(text)
        unknown = self.unknown_id
        ids = [self._ids.get(character, unknown) for character in text]
        length = len(ids)
        return Encoded(
            ids=ids, starts=list(range(length)), ends=list(range(1, length + 1)), unknown=ids.count(unknown)
        )

    def decoder(self) -> Decoder:
        """See :class:`Vocab`."""
        return _CharDecoder(self)

    def token_bytes(self, token: int) -> bytes:
        """See :class:`Vocab`; the unknown id is U+FFFD."""
        self.validate((token,))
        return (self.characters + _UNKNOWN_CHARACTER)[token].encode()

    def to_json(self) -> dict[str, Any]:
        """See :class:`Vocab`."""
        return {"format_version": FORMAT_VERSION, "kind": self.kind, "characters": self.characters}


@dataclass(frozen=True)
class WordVocab(Vocab):
    """``words`` in id order, ``<unk>`` and ``<eos>`` among them.

    A newline is the token ``<eos>``; other white space only separates, so that decoding gives single
    spaces. The word ``<unk>`` in a text is the unknown id, as in the WikiText and PTB files; the word
    ``<eos>`` in a text is unknown: only a newline ends a line.
    """

    words: tuple[str, ...]

    kind: ClassVar[VocabKind] = "words"

    def __post_init__(self) -> None:
        for index, word in enumerate(self.words):
            if not isinstance(word, str) or _TOKEN.fullmatch(word) is None or word == "\n":
                raise VocabError(f"words[{index}] must be a string without white space")
            if _surrogate_in(word):
                raise VocabError(f"words[{index}] must hold no lone surrogate")
        if len(set(self.words)) != len(self.words):
            raise VocabError("words must be distinct")
        for special in (UNKNOWN_WORD, EOS_WORD):
            if special not in self.words:
                raise VocabError(f"words must hold {special}")

    @classmethod
    def build(cls, text: str) -> "WordVocab":
        """The vocabulary of all words of ``text``, most frequent first (ties in code point order).

        WikiText-2's training file gives 33,278 words. Raises InvalidText.
        """
        _utf8(text)
        counts = Counter(text.split())
        words = sorted(set(counts) - {UNKNOWN_WORD, EOS_WORD}, key=lambda word: (-counts[word], word))
        return cls((UNKNOWN_WORD, EOS_WORD, *words))

    @cached_property
    def _ids(self) -> dict[str, int]:
        ids = {word: index for index, word in enumerate(self.words)}
        ids["\n"] = ids.pop(EOS_WORD)
        return ids

    @property
    def size(self) -> int:
        """See :class:`Vocab`."""
        return len(self.words)

    @property
    def eos_id(self) -> int:
        """See :class:`Vocab`."""
        return self._ids["\n"]

    @property
    def unknown_id(self) -> int:
        """See :class:`Vocab`."""
        return self._ids[UNKNOWN_WORD]

    def encode(self, text: str) -> Encoded:
        """See :class:`Vocab`; a span leaves out the white space around a word."""
        _utf8(text)
        unknown = self.unknown_id
        ids, starts, ends = [], [], []
        for match in _TOKEN.finditer(text):
            ids.append(self._ids.get(match[0], unknown))
            starts.append(match.start())
            ends.append(match.end())
        return Encoded(ids=ids, starts=starts, ends=ends, unknown=ids.count(unknown))

    def decoder(self) -> Decoder:
        """See :class:`Vocab`."""
        return _WordDecoder(self)

    def token_bytes(self, token: int) -> bytes:
        """See :class:`Vocab`; without the spaces between words."""
        self.validate((token,))
        return b"\n" if token == self.eos_id else self.words[token].encode()

    def split_pending(self, text: str, *, final: bool) -> tuple[str, str]:
        """See :class:`Vocab`; the word after the last white space may still grow."""
        if final:
            return text, ""
        cut = len(text) - len(_LAST_WORD.search(text)[0])  # type: ignore[index]
        return text[:cut], text[cut:]

    def to_json(self) -> dict[str, Any]:
        """See :class:`Vocab`."""
        return {"format_version": FORMAT_VERSION, "kind": self.kind, "words": list(self.words)}


class _ByteDecoder:
    def __init__(self, vocab: ByteVocab) -> None:
        self._vocab = vocab
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        return self._utf8.decode(self._vocab.token_bytes(token))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class _CharDecoder:
    def __init__(self, vocab: CharVocab) -> None:
        self._vocab = vocab

    def feed(self, token: int) -> str:
        return self._vocab.token_bytes(token).decode()

    def flush(self) -> str:
        return ""


class _WordDecoder:
    """A space goes between two words of a line, and nowhere else."""

    def __init__(self, vocab: WordVocab) -> None:
        self._vocab = vocab
        self._inside_line = False

    def feed(self, token: int) -> str:
        word = self._vocab.token_bytes(token).decode()
        space = " " if self._inside_line and word != "\n" else ""
        self._inside_line = word != "\n"
        return space + word

    def flush(self) -> str:
        return ""


_TOKEN = re.compile(r"\n|\S+")
_LAST_WORD = re.compile(r"\S*\Z")


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidText(error.start) from None


def _surrogate_in(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _require_fields(data: Mapping[str, Any], *names: str) -> None:
    wrong = sorted(set(data) ^ {"format_version", "kind", *names})
    if wrong:
        raise VocabError(f"unknown or missing fields: {', '.join(wrong)}")
