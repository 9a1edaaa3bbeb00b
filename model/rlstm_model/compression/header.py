"""What stands before the coded tokens: what they were made with, and what tells whether a file is whole.

=========  ===============================================================================================
bytes      content
=========  ===============================================================================================
4          F2 72 6C 7A, "òrlz" in Latin-1: no text in UTF-8 begins so
1          the version of the format
2          n, the length of the rest of the header
4          CRC-32 of what follows, to the end of the file
n          the fields of :class:`Header`, in their order: whole numbers are little-endian, digests the first
           16 bytes of a SHA-256, names have their length before them, in a byte
the rest   the coded tokens, in words of four bytes
=========  ===============================================================================================
"""

import struct
import zlib
from dataclasses import dataclass
from typing import IO, Final

MAGIC: Final = b"\xf2rlz"
VERSION: Final = 1
DIGEST: Final = 16

_FRONT: Final = struct.Struct("<4sBHL")
_FIELDS: Final = struct.Struct(f"<B{DIGEST}s{DIGEST}s{DIGEST}sQQ")


class CompressionError(ValueError):
    """A file that cannot be compressed, or not be decompressed here; the message is a sentence."""


@dataclass(frozen=True, kw_only=True)
class Header:
    """What coded tokens were made with.

    kind         number of the kind of adaptation
    fingerprint  of the model's weights and vocabulary
    calibration  of the file that says how the model learns; zeros where it does not
    content      of the bytes that were compressed
    size         how many these are
    tokens       how many were coded
    model        its name
    numerics     the identity of the numbers
    """

    kind: int
    fingerprint: bytes
    calibration: bytes
    content: bytes
    size: int
    tokens: int
    model: str
    numerics: str

    def packed(self) -> bytes:
        """The fields as they are stored."""
        digests = self.fingerprint, self.calibration, self.content
        fields = _FIELDS.pack(self.kind, *digests, self.size, self.tokens)
        return fields + b"".join(map(_with_length, (self.model, self.numerics)))

    @classmethod
    def unpacked(cls, data: bytes) -> "Header":
        """What :meth:`packed` gave. Raises CompressionError."""
        try:
            kind, fingerprint, calibration, content, size, tokens = _FIELDS.unpack_from(data)
            model, rest = _without_length(data[_FIELDS.size :])
            numerics, rest = _without_length(rest)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise CompressionError("the file is damaged") from error
        if rest:
            raise CompressionError("the file is damaged")
        return cls(
            kind=kind,
            fingerprint=fingerprint,
            calibration=calibration,
            content=content,
            size=size,
            tokens=tokens,
            model=model,
            numerics=numerics,
        )


def write(sink: IO[bytes], header: Header, coded: bytes) -> int:
    """Write a whole file; how many bytes it has."""
    fields = header.packed()
    whole = _FRONT.pack(MAGIC, VERSION, len(fields), zlib.crc32(coded, zlib.crc32(fields))) + fields + coded
    sink.write(whole)
    return len(whole)


def read(source: IO[bytes]) -> tuple[Header, bytes]:
    """The header of a file and its coded tokens. Raises CompressionError unless it is as it was written."""
    front = source.read(_FRONT.size)
    if not front:
        raise CompressionError("the file is empty")
    if front[: len(MAGIC)] != MAGIC[: len(front)]:
        raise CompressionError("this is no file of `rlstm compress`")
    if len(front) < _FRONT.size:
        raise CompressionError("the file is cut short")
    _, version, length, checksum = _FRONT.unpack(front)
    if version != VERSION:
        raise CompressionError(
            f"the file is of version {version} of the format; this program reads {VERSION}"
        )
    rest = source.read()
    if zlib.crc32(rest) != checksum:
        raise CompressionError("the file is damaged or cut short")
    if len(rest) < length or (len(rest) - length) % 4:
        raise CompressionError("the file is damaged")
    return Header.unpacked(rest[:length]), rest[length:]


def _with_length(name: str) -> bytes:
    data = name.encode()
    if len(data) > 255:
        raise CompressionError(f"the model's name is too long: {name!r}")
    return bytes((len(data),)) + data


def _without_length(data: bytes) -> tuple[str, bytes]:
    end = 1 + data[0]
    if len(data) < end:
        raise IndexError(end)
    return data[1:end].decode(), data[end:]
