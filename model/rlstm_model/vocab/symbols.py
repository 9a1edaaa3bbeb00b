"""The vocabularies of bytes, of characters and of words."""

import re
import sys
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rlstm_model.vocab.base import (
    FORMAT_VERSION,
    Decoder,
    Encoded,
    Ids,
    Utf8Decoder,
    Vocab,
    VocabError,
    VocabKind,
    as_array,
    as_list,
    character_of_bytes,
    surrogate_in,
    utf8,
)

UNKNOWN_WORD = "<unk>"
EOS_WORD = "<eos>"

_UNKNOWN_CHARACTER = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True)
class ByteVocab(Vocab):
    """The 256 bytes: any text, no unknowns."""

    kind: ClassVar[VocabKind] = "bytes"
    size: ClassVar[int] = 256
    eos_id: ClassVar[int] = 10
    unknown_id: ClassVar[int | None] = None

    def encode(self, text: str) -> Encoded:
        """See :class:`Vocab`."""
        data = np.frombuffer(utf8(text), dtype=np.uint8)
        starts = character_of_bytes(data)
        return Encoded(ids=as_list(data), starts=as_array(starts), ends=as_array(starts + 1))

    def encode_ids(self, text: str) -> Ids:
        """See :class:`Vocab`."""
        return np.frombuffer(utf8(text), dtype=np.uint8)

    def decode(self, ids: Sequence[int]) -> str:
        """See :class:`Vocab`."""
        self.validate(ids)
        return bytes(ids).decode("utf-8", errors="replace")

    def decoder(self) -> Decoder:
        """See :class:`Vocab`."""
        return Utf8Decoder(self)

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
        if surrogate_in(self.characters):
            raise VocabError("characters must hold no lone surrogate")

    @classmethod
    def build(cls, text: str) -> "CharVocab":
        """The vocabulary of all characters of ``text``, in code point order. Raises InvalidText."""
        utf8(text)
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
        utf8(text)
        unknown = self.unknown_id
        ids = [self._ids.get(character, unknown) for character in text]
        length = len(ids)
        return Encoded(ids=ids, starts=range(length), ends=range(1, length + 1), unknown=ids.count(unknown))

    def encode_ids(self, text: str) -> Ids:
        """See :class:`Vocab`; a byte a token where all ids fit one."""
        utf8(text)
        dtype = np.uint8 if self.size <= 256 else np.int64
        table: NDArray[Any] = np.full(sys.maxunicode + 1, self.unknown_id, dtype=dtype)
        table[_code_points(self.characters)] = np.arange(len(self.characters))
        return table[_code_points(text)]

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


class _CharDecoder:
    lost = 0

    def __init__(self, vocab: CharVocab) -> None:
        self._vocab = vocab

    def feed(self, token: int) -> str:
        return self._vocab.token_bytes(token).decode()

    def flush(self) -> str:
        return ""


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")


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
            if surrogate_in(word):
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
        utf8(text)
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
        utf8(text)
        unknown = self.unknown_id
        ids: list[int] = []
        starts, ends = array("q"), array("q")
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


class _WordDecoder:
    """A space goes between two words of a line, and nowhere else."""

    lost = 0

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
