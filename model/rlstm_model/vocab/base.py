"""What every vocabulary offers, and what can be wrong with one or with a text."""

import codecs
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

FORMAT_VERSION = 1
PIECE = 16_384
"""Numbers of a long text that are worked on at once: other threads wait meanwhile."""

VocabKind = Literal["bytes", "characters", "words", "subwords", "pieces"]
Ids = NDArray[np.int64] | NDArray[np.uint8]


class VocabError(ValueError):
    """A description that is no vocabulary; the message names the field."""


class InvalidText(ValueError):
    """A string that is not text: a lone surrogate stands at code point ``index``."""

    def __init__(self, index: int) -> None:
        super().__init__(f"the text holds a lone surrogate at character {index}")
        self.index = index


class UnknownText(InvalidText):
    """A string with ``part``, at code point ``index``, for which a vocabulary has no token."""

    def __init__(self, index: int, part: str) -> None:
        ValueError.__init__(self, f"the vocabulary has no token for {part[:40]!r}, at character {index}")
        self.index = index


class InvalidToken(ValueError):
    """``id``, at position ``index``, is not an id of the vocabulary."""

    def __init__(self, index: int, id: int) -> None:  # noqa: A002
        super().__init__(f"token {index} is not an id of the vocabulary")
        self.index = index
        self.id = id


def check_ids(ids: Iterable[int], vocab_size: int) -> list[int]:
    """The ids as plain integers. Raises InvalidToken for one outside the vocabulary."""
    checked = [int(token) for token in ids]
    for index, token in enumerate(checked):
        if not 0 <= token < vocab_size:
            raise InvalidToken(index, token)
    return checked


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """A text's tokens, where each begins and ends, and how many tokens are the unknown id.

    The three are equally long. Of a long text spans would be many millions of objects, so they lie in arrays.
    """

    ids: list[int]
    starts: Sequence[int]
    ends: Sequence[int]
    unknown: int = 0


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

    def encode_ids(self, text: str) -> Ids:
        """The tokens of ``text`` as an array, without their spans: for long texts. Raises InvalidText."""
        return np.array(self.encode(text).ids, dtype=np.int64)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``; invalid UTF-8 becomes U+FFFD. Raises InvalidToken."""
        self.validate(ids)
        decoder = self.decoder()
        return "".join(map(decoder.feed, ids)) + decoder.flush()

    def decoder(self) -> "Decoder":
        """A new incremental decoder: its pieces, joined, are what ``decode`` gives."""
        return Decoder(self)

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
        """A JSON object that :func:`rlstm_model.vocab.from_json` reads back."""


class SpecialTokens(Vocab, Protocol):
    """A vocabulary that names its special tokens, and has ids by name.

    eos      what a newline is; None where a newline only separates, or is like other text
    unknown  the token for what the vocabulary lacks; None where such text is refused
    bos      the token that a model reads before the first one; None is eos
    lower    text is read in lower case
    """

    eos: str | None
    unknown: str | None
    bos: str | None
    lower: bool

    @property
    def _index(self) -> Mapping[str, int]:
        """Ids by name."""

    @property
    def bos_id(self) -> int:
        """See :class:`Vocab`."""
        return self.eos_id if self.bos is None else self._index[self.bos]

    @property
    def eos_id(self) -> int:
        """See :class:`Vocab`; that of bos where nothing ends a line."""
        special = self.bos if self.eos is None else self.eos
        assert special is not None
        return self._index[special]

    @property
    def unknown_id(self) -> int | None:
        """See :class:`Vocab`."""
        return None if self.unknown is None else self._index[self.unknown]

    def _check_special(self) -> None:
        """Raise VocabError unless all that is named is there, and something begins a text."""
        if type(self.lower) is not bool:
            raise VocabError("lower must be true or false")
        if self.eos is None and self.bos is None:
            raise VocabError("bos must be named where there is no eos: a model reads one before a text")
        for special in (self.unknown, self.eos, self.bos):
            if special is not None and (not isinstance(special, str) or special not in self._index):
                raise VocabError(f"{self.kind} must hold {special!r}")


class Decoder:
    """Ids to text, one at a time: what is no UTF-8 becomes U+FFFD.

    What it returned so far, joined, never ends inside a character.

    lost  of the text that came last the characters, U+FFFD, that stand for tokens before: the newest one
          begins a character, and those were none to their end
    """

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.lost = 0

    def feed(self, token: int) -> str:
        """The text that ``token`` completes; empty inside a character. Raises InvalidToken."""
        data = self._vocab.token_bytes(token)
        goes_on = 0x80 <= data[0] < 0xC0
        lost = "" if goes_on else self.flush()
        self.lost = len(lost)
        return lost + self._utf8.decode(data)

    def flush(self) -> str:
        """What was held back at the end."""
        return self._utf8.decode(b"", final=True)


def space_ids(vocab: Vocab) -> NDArray[np.intp]:
    """The tokens that begin with white space."""
    first = (vocab.token_bytes(token).decode(errors="replace")[:1] for token in range(vocab.size))
    return np.array([token for token, character in enumerate(first) if character.isspace()], np.intp)


def utf8(text: str) -> bytes:
    """The UTF-8 of ``text``. Raises InvalidText."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidText(error.start) from None


def surrogate_in(text: str) -> bool:
    """Whether ``text`` holds a lone surrogate."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def character_of_bytes(data: NDArray[np.uint8]) -> NDArray[np.int64]:
    """For each byte of a UTF-8 text, which of the text's code points it belongs to."""
    characters = np.empty(len(data), dtype=np.int64)
    count = -1
    for start in range(0, len(data), PIECE):
        piece = data[start : start + PIECE]
        characters[start : start + PIECE] = np.cumsum((piece & 0xC0) != 0x80) + count
        count = int(characters[start + len(piece) - 1])
    return characters


def as_list(values: NDArray[np.integer[Any]]) -> list[int]:
    """The values as a list, made in pieces."""
    made: list[int] = []
    for start in range(0, len(values), PIECE):
        made += values[start : start + PIECE].tolist()
    return made


def as_array(values: NDArray[np.integer[Any]]) -> "array[int]":
    """The values in eight bytes each, made in pieces."""
    made = array("q")
    for start in range(0, len(values), PIECE):
        made.frombytes(values[start : start + PIECE].astype(np.int64).tobytes())
    return made
