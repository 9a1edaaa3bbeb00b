"""The vocabulary of bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rlstm_model.vocab.base import (
    FORMAT_VERSION,
    Encoded,
    Ids,
    Vocab,
    VocabKind,
    as_array,
    as_list,
    character_of_bytes,
    utf8,
)


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
