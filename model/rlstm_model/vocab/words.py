"""The vocabularies of a list: words, or characters."""

import re
import sys
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rlstm_model.vocab.base import (
    FORMAT_VERSION,
    Decoder,
    Encoded,
    Ids,
    SpecialTokens,
    UnknownText,
    VocabError,
    VocabKind,
    surrogate_in,
    utf8,
)

UNKNOWN_CHARACTER = "\N{REPLACEMENT CHARACTER}"
UNKNOWN_WORD = "<unk>"
EOS_WORD = "<eos>"


@dataclass(frozen=True)
class WordVocab(SpecialTokens):
    """``words`` in id order, the special ones among them.

    ``by_character``: each character is a token, not what stands between white space; unknown is U+FFFD.
    A newline is the token ``eos``; other white space only separates words, so that decoding gives single
    spaces. The word ``<unk>`` in a text is the unknown id, as in the WikiText and PTB files; the word
    ``<eos>`` in a text is unknown: only a newline ends a line.
    """

    words: tuple[str, ...]
    eos: str | None = EOS_WORD
    unknown: str | None = UNKNOWN_WORD
    bos: str | None = None
    lower: bool = False
    by_character: bool = False

    def __post_init__(self) -> None:
        for index, word in enumerate(self.words):
            whole = isinstance(word, str) and bool(word) and (self.by_character or not _BLANK.search(word))
            if not whole:
                raise VocabError(f"words[{index}] must be a string without white space")
            if surrogate_in(word):
                raise VocabError(f"words[{index}] must hold no lone surrogate")
        if len(set(self.words)) != len(self.words):
            raise VocabError("words must be distinct")
        self._check_special()

    @classmethod
    def of_characters(cls, characters: str) -> Self:
        """The vocabulary of these characters, in this order, and one id after them for all others."""
        return cls((*characters, UNKNOWN_WORD), eos="\n", by_character=True)

    @classmethod
    def of_characters_in(cls, text: str) -> Self:
        """The vocabulary of all characters of ``text``, in code point order. Raises InvalidText."""
        utf8(text)
        return cls.of_characters("".join(sorted({*text, "\n"})))

    @classmethod
    def build(cls, text: str) -> Self:
        """The vocabulary of all words of ``text``, most frequent first (ties in code point order).

        WikiText-2's training file gives 33,278 words. Raises InvalidText.
        """
        utf8(text)
        counts = Counter(text.split())
        words = sorted(set(counts) - {UNKNOWN_WORD, EOS_WORD}, key=lambda word: (-counts[word], word))
        return cls((UNKNOWN_WORD, EOS_WORD, *words))

    @cached_property
    def _index(self) -> dict[str, int]:
        return {word: index for index, word in enumerate(self.words)}

    @cached_property
    def _ids(self) -> dict[str, int]:
        """Ids of what stands in a text: specials in brackets do not."""
        ids = {word: i for word, i in self._index.items() if not self._never_in_text(word)}
        if self.eos is not None:
            ids["\n"] = self._index[self.eos]
        return ids

    def _never_in_text(self, word: str) -> bool:
        return word in (self.eos, self.bos) and len(word) > 2 and word[0] in "<[" and word[-1] in ">]"

    @property
    def kind(self) -> VocabKind:
        """See :class:`Vocab`."""
        return "characters" if self.by_character else "words"

    @property
    def size(self) -> int:
        """See :class:`Vocab`."""
        return len(self.words)

    def encode(self, text: str) -> Encoded:
        """See :class:`Vocab`; a span leaves out the white space around a word. Raises UnknownText."""
        utf8(text)
        unknown, known, lower = self.unknown_id, self._ids, self.lower

        def token(part: str, place: int) -> int:
            found = known.get(part.lower() if lower else part, unknown)
            if found is None:
                raise UnknownText(place, part)
            return found

        starts: Sequence[int] = range(len(text))
        ends: Sequence[int] = range(1, len(text) + 1)
        if self.by_character:
            ids = list(map(token, text, starts))
        else:
            ids, starts, ends = [], array("q"), array("q")
            for match in (_WORD if self.eos is None else _TOKEN).finditer(text):
                ids.append(token(match[0], match.start()))
                starts.append(match.start())
                ends.append(match.end())
        count = 0 if unknown is None else ids.count(unknown)
        return Encoded(ids=ids, starts=starts, ends=ends, unknown=count)

    def encode_ids(self, text: str) -> Ids:
        """See :class:`Vocab`; of characters a byte a token where all ids fit one."""
        if not self.by_character or self.lower or self.unknown_id is None:
            return super().encode_ids(text)
        utf8(text)
        dtype = np.uint8 if self.size <= 256 else np.int64
        table: NDArray[Any] = np.full(sys.maxunicode + 1, self.unknown_id, dtype=dtype)
        known = {word: token for word, token in self._ids.items() if len(word) == 1}
        table[_code_points("".join(known))] = [*known.values()]
        return table[_code_points(text)]

    def decoder(self) -> Decoder:
        """See :class:`Vocab`."""
        return Decoder(self) if self.by_character else _WordDecoder(self)

    def token_bytes(self, token: int) -> bytes:
        """See :class:`Vocab`; without the spaces between words."""
        self.validate((token,))
        if self.eos is not None and token == self.eos_id:
            return b"\n"
        if self.by_character and token == self.unknown_id:
            return UNKNOWN_CHARACTER.encode()
        return self.words[token].encode()

    def split_pending(self, text: str, *, final: bool) -> tuple[str, str]:
        """See :class:`Vocab`; the word after the last white space may still grow."""
        if final or self.by_character:
            return text, ""
        cut = len(text) - len(_LAST_WORD.search(text)[0])  # type: ignore[index]
        return text[:cut], text[cut:]

    def to_json(self) -> dict[str, Any]:
        """See :class:`Vocab`; what is as usual is left out, as in files that know nothing else."""
        said, characters = {"format_version": FORMAT_VERSION, "kind": self.kind}, "".join(self.words[:-1])
        options = {each.name: each.default for each in fields(self) if each.name in OPTIONS}
        own = {n: getattr(self, n) for n, usual in options.items() if getattr(self, n) != usual}
        if self.by_character and own == {"eos": "\n"} and self.words == (*characters, UNKNOWN_WORD):
            return {**said, "characters": characters}
        return {**said, "words": list(self.words), **own}


OPTIONS = ("eos", "unknown", "bos", "lower")
"""What a file may say of its words, or pieces."""


class _WordDecoder(Decoder):
    """A space goes between two words of a line, and nowhere else."""

    def __init__(self, vocab: WordVocab) -> None:
        super().__init__(vocab)
        self._inside_line = False

    def feed(self, token: int) -> str:
        word = super().feed(token)
        space = " " if self._inside_line and word != "\n" else ""
        self._inside_line = word != "\n"
        return space + word


_TOKEN = re.compile(r"\n|\S+")
_WORD = re.compile(r"\S+")
_BLANK = re.compile(r"\s")
_LAST_WORD = re.compile(r"\S*\Z")


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
