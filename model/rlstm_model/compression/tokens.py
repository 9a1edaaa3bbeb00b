"""Bytes to tokens: any bytes, for a vocabulary that has them all."""

import codecs
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Final

from rlstm_model.compression.header import CompressionError
from rlstm_model.vocab import Vocab

_NO_TEXT: Final = re.compile("([\udc80-\udcff]+)")
"""What stands for bytes that are no UTF-8, as Python's `surrogateescape` has them."""


def check(vocab: Vocab) -> None:
    """Raise CompressionError for a vocabulary that lacks some bytes."""
    if vocab.kind not in ("bytes", "subwords"):
        raise CompressionError(
            f"a file of bytes needs a model of bytes or subwords; this is one of {vocab.kind}"
        )


def tokens_of(parts: Iterable[bytes], vocab: Vocab) -> Iterator[list[int]]:
    """The tokens of all parts together, in parts; ids below 256 are the bytes that are no text."""
    decoder, waiting = codecs.getincrementaldecoder("utf-8")("surrogateescape"), ""
    for part, final in chain(((part, False) for part in parts), ((b"", True),)):
        text, waiting = vocab.split_pending(waiting + decoder.decode(part, final), final=final)
        if ids := _encoded(text, vocab):
            yield ids


def _encoded(text: str, vocab: Vocab) -> list[int]:
    ids: list[int] = []
    for index, run in enumerate(_NO_TEXT.split(text)):
        ids += [ord(character) & 0xFF for character in run] if index % 2 else vocab.encode_ids(run).tolist()
    return ids
