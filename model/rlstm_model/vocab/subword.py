"""The vocabulary of subwords: byte-pair encoding (Sennrich et al. 2016) over the bytes of UTF-8.

A text is cut into pieces: a newline, or what stands between spaces with one space before it, or spaces; none
longer than 65 code points, so that a stream of text never waits for more than that. Merging starts from the
256 bytes and never crosses a piece's borders. The ``tokenizers`` library trains and applies the merges.
"""

import importlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, ClassVar

import numpy as np

from rlstm_model.vocab.base import (
    FORMAT_VERSION,
    Encoded,
    Ids,
    Vocab,
    VocabError,
    VocabKind,
    as_array,
    character_of_bytes,
    utf8,
)

_LONGEST_TOKEN = 4 * 65
_REMEMBERED_PIECES = 2**16


@dataclass(frozen=True)
class SubwordVocab(Vocab):
    """The 256 bytes, then what each of ``merges``, in their order, joins: a pair of ids before its own.

    A merge that gives the bytes of an earlier token has no id of its own. Tokens, joined, are the text.
    """

    merges: tuple[tuple[int, int], ...]

    kind: ClassVar[VocabKind] = "subwords"
    eos_id: ClassVar[int] = 10
    unknown_id: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        """Raises VocabError, also when the ``tokenizers`` library is not installed."""
        _ = self._encoder

    @classmethod
    def build(cls, text: str, size: int) -> "SubwordVocab":
        """The vocabulary of ``size`` tokens whose merges shorten ``text`` most, greedily.

        Raises InvalidText, and VocabError where ``text`` has too few pairs that occur twice.
        """
        utf8(text)
        if size < 256:
            raise VocabError(f"subwords: a vocabulary holds the 256 bytes, so {size} tokens are too few")
        vocab = cls(tuple(_trained_merges(text.split("\n"), size)))
        if vocab.size != size:
            raise VocabError(f"subwords: the text gives {vocab.size} tokens, not {size}; it is too short")
        return vocab

    @cached_property
    def _tokens(self) -> list[bytes]:
        tokens = [bytes((byte,)) for byte in range(256)]
        known = set(tokens)
        for index, pair in enumerate(self.merges):
            token = b"".join(_merged(tokens, pair, f"merges[{index}]"))
            if token not in known:
                known.add(token)
                tokens.append(token)
        if len(set(self.merges)) != len(self.merges):
            raise VocabError("merges must be distinct")
        return tokens

    @cached_property
    def _encoder(self) -> Callable[[str], Sequence[int]]:
        """The ids of one piece; those of the commonest pieces are remembered."""
        library = _library()
        names = [_as_characters(token) for token in self._tokens]
        merges = [(names[first], names[second]) for first, second in self.merges]
        ids = {name: index for index, name in enumerate(names)}
        tokenizer = library.Tokenizer(library.models.BPE(vocab=ids, merges=merges))
        tokenizer.pre_tokenizer = _pre_tokenizer(library)

        def encode(piece: str) -> Sequence[int]:
            return tuple(tokenizer.encode(piece, add_special_tokens=False).ids)

        return lru_cache(_REMEMBERED_PIECES)(encode)

    @property
    def size(self) -> int:
        """See :class:`Vocab`."""
        return len(self._tokens)

    def encode(self, text: str) -> Encoded:
        """See :class:`Vocab`; a token that begins or ends inside a character spans all of that."""
        character = character_of_bytes(np.frombuffer(utf8(text), dtype=np.uint8))
        ids = self._ids(text)
        after = np.cumsum([len(self._tokens[token]) for token in ids], dtype=np.int64)
        starts = character[np.concatenate(([0], after))[: len(ids)]]
        return Encoded(ids=ids, starts=as_array(starts), ends=as_array(character[after - 1] + 1))

    def encode_ids(self, text: str) -> Ids:
        """See :class:`Vocab`."""
        utf8(text)
        return np.array(self._ids(text), dtype=np.int64)

    def _ids(self, text: str) -> list[int]:
        return list(chain.from_iterable(map(self._encoder, _PIECE.findall(text))))

    def decode(self, ids: Sequence[int]) -> str:
        """See :class:`Vocab`."""
        self.validate(ids)
        return b"".join(map(self._tokens.__getitem__, ids)).decode("utf-8", errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """See :class:`Vocab`."""
        self.validate((token,))
        return self._tokens[token]

    def split_pending(self, text: str, *, final: bool) -> tuple[str, str]:
        """See :class:`Vocab`; the last piece may still grow, unless it is a newline."""
        if final or not text or text[-1] == "\n":
            return text, ""
        # Pieces never cross a line's end: only the last line is cut into pieces.
        begin = text.rfind("\n") + 1
        last = _PIECE.findall(text, begin)[-1]
        return text[: -len(last)], text[-len(last) :]

    def to_json(self) -> dict[str, Any]:
        """See :class:`Vocab`."""
        merges = [list(pair) for pair in self.merges]
        return {"format_version": FORMAT_VERSION, "kind": self.kind, "merges": merges}


# Where a piece ends depends on one character after it at most, so all but the last are final. Of several
# spaces before a word the last belongs to the word.
_PIECE = re.compile(r"\n| ?[^ \n]{1,64}| {1,64}(?= [^ \n])| {1,64}")
# Within a piece letters (with their marks), digits and the rest are kept apart.
_PART = r"\n| ?[\p{L}\p{M}]+| ?\p{N}+| ?[^ \n\p{L}\p{M}\p{N}]+| +(?= [^ \n])| +"


def _library() -> Any:
    try:
        return importlib.import_module("tokenizers")
    except ImportError as error:
        raise VocabError("subwords need the tokenizers library: install mogrifier-rlstm[training]") from error


def _pre_tokenizer(library: Any) -> Any:
    pre = library.pre_tokenizers
    parts = pre.Split(library.Regex(_PART), "isolated")
    return pre.Sequence([parts, pre.ByteLevel(add_prefix_space=False, use_regex=False)])


def _trained_merges(lines: Iterable[str], size: int) -> Iterable[tuple[int, int]]:
    """The merges that the library finds, in ids as this module counts them."""
    library = _library()
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = _pre_tokenizer(library)
    trainer = library.trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(lines, trainer)
    ids = {_as_characters(bytes((byte,))): byte for byte in range(256)}
    for first, second in json.loads(tokenizer.to_str())["model"]["merges"]:
        yield ids[first], ids[second]
        ids.setdefault(first + second, len(ids))


def _merged(tokens: Sequence[bytes], pair: Any, name: str) -> tuple[bytes, bytes]:
    """The bytes of a merge's two tokens. Raises VocabError."""
    if type(pair) is not tuple or len(pair) != 2 or any(type(token) is not int for token in pair):
        raise VocabError(f"{name} must be a pair of ids")
    if not all(0 <= token < len(tokens) for token in pair):
        raise VocabError(f"{name} must join tokens that come before it")
    first, second = tokens[pair[0]], tokens[pair[1]]
    if b"\n" in (first, second):
        raise VocabError(f"{name} must not join a newline")
    if len(first) + len(second) > _LONGEST_TOKEN:
        raise VocabError(f"{name} must not make a token of more than {_LONGEST_TOKEN} bytes")
    return first, second


def _as_characters(token: bytes) -> str:
    """``token`` as the library writes it: visible Latin-1 as it is, the other bytes from U+0100 on."""
    return token.decode("latin-1").translate(character_names())


@lru_cache(maxsize=1)
def character_names() -> dict[int, int]:
    """The code points by which the library writes bytes that are not visible in Latin-1."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in visible]
    return {byte: 0x100 + index for index, byte in enumerate(others)}
