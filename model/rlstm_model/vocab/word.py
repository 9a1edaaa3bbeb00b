"""The vocabulary of words."""

import re
from array import array
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from rlstm_model.vocab.base import (
    FORMAT_VERSION,
    Decoder,
    Encoded,
    Vocab,
    VocabError,
    VocabKind,
    surrogate_in,
    utf8,
)

UNKNOWN_WORD = "<unk>"
EOS_WORD = "<eos>"


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
