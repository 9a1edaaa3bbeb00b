"""The envelope of an exported session: a signature over all of it.

    magic and version (16) | header length (4, little-endian) | header | tensors | HMAC-SHA256 (32)

Nothing in a file is looked at before its signature is verified.
"""

import hashlib
import hmac
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from rlstm_server.errors import ImportRejected

MAGIC: Final = b"rlstm session 1\n"
MAX_HEADER_BYTES: Final = 65_536
_LENGTH_BYTES: Final = 4
_SIGNATURE_BYTES: Final = 32


@dataclass(frozen=True)
class ExportKeys:
    """Keys that files are signed with: the first signs, any verifies."""

    keys: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if not self.keys or not all(self.keys):
            raise ValueError("there must be a key, and none may be empty")

    def sign(self) -> "hmac.HMAC":
        """A signature to be fed the file."""
        return hmac.new(self.keys[0], digestmod=hashlib.sha256)

    def verifies(self, data: memoryview, signature: bytes) -> bool:
        """Whether one of the keys signed this. Every key is tried, each in constant time."""
        valid = False
        for key in self.keys:
            signed = hmac.new(key, data, hashlib.sha256).digest()
            valid = hmac.compare_digest(signed, signature) or valid
        return valid


class Signed(NamedTuple):
    """A file whose signature is right: its header, and its tensors."""

    header: bytes
    tensors: memoryview


class Export(NamedTuple):
    """A file that is to be written: how long it will be, and its pieces, to be read once."""

    size: int
    pieces: Iterator[bytes]


def write_envelope(header: bytes, size: int, tensors: Iterable[bytes], keys: ExportKeys) -> Export:
    """Put `size` bytes of tensors behind a header, which is short enough, and sign them as they are read."""
    front = b"".join((MAGIC, len(header).to_bytes(_LENGTH_BYTES, "little"), header))
    return Export(len(front) + size + _SIGNATURE_BYTES, _signed(front, tensors, keys))


def open_envelope(data: bytes, keys: ExportKeys) -> Signed:
    """Verify a file's signature, and only then look into it. Raises ImportRejected."""
    whole = memoryview(data)
    if not keys.verifies(whole[:-_SIGNATURE_BYTES], bytes(whole[-_SIGNATURE_BYTES:])):
        raise ImportRejected("the file is no whole export that this server signed")
    start = len(MAGIC) + _LENGTH_BYTES
    length = int.from_bytes(whole[len(MAGIC) : start], "little")
    end = len(data) - _SIGNATURE_BYTES
    if bytes(whole[: len(MAGIC)]) != MAGIC or length > MAX_HEADER_BYTES or start + length > end:
        raise ImportRejected("the file is no export of this version")
    return Signed(bytes(whole[start : start + length]), whole[start + length : end])


def _signed(front: bytes, tensors: Iterable[bytes], keys: ExportKeys) -> Iterator[bytes]:
    signature = keys.sign()
    signature.update(front)
    yield front
    for piece in tensors:
        signature.update(piece)
        yield piece
    yield signature.digest()
