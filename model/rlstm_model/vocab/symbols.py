"""The vocabularies of bytes and of characters."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rlstm_model.vocab.base import (
    FORMAT_VERSION,
    Encoded,
    Ids,
    Vocab,
    VocabError,
    VocabKind,
    as_array,
    as_list,
    character_of_bytes,
    surrogate_in,
    utf8,
)

UNKNOWN_CHARACTER = "\N{REPLACEMENT CHARACTER}"


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

    def token_bytes(self, token: int) -> bytes:
        """See :class:`Vocab`; the unknown id is U+FFFD."""
        self.validate((token,))
        return (self.characters + UNKNOWN_CHARACTER)[token].encode()

    def to_json(self) -> dict[str, Any]:
        """See :class:`Vocab`."""
        return {"format_version": FORMAT_VERSION, "kind": self.kind, "characters": self.characters}


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
