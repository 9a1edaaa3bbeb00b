"""What stands before the coded tokens: what they were made with, and what tells whether a file is whole.

=========  ===============================================================================================
bytes      content
=========  ===============================================================================================
4          F2 72 6C 7A, "òrlz" in Latin-1: no text in UTF-8 begins so
1          the version of the format
2          n, the length of the rest of the header
4          CRC-32 of what follows, to the end of the file
n          the fields of :class:`Header`, in their order: digests are the first 8 bytes of a SHA-256; whole
           numbers (little-endian) and names have their length before them, in a byte
the rest   the coded tokens, in words of four bytes
=========  ===============================================================================================
"""

import struct
import zlib
from dataclasses import dataclass
from typing import IO, Final

MAGIC: Final = b"\xf2rlz"
VERSION: Final = 2
DIGEST: Final = 8

_FRONT: Final = struct.Struct("<4sBHL")
_FIELDS: Final = struct.Struct(f"<B{DIGEST}s{DIGEST}s{DIGEST}s")


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
        front = _FIELDS.pack(self.kind, self.fingerprint, self.calibration, self.content)
        numbers = (n.to_bytes((n.bit_length() + 7) // 8, "little") for n in (self.size, self.tokens))
        names = (name.encode() for name in (self.model, self.numerics))
        return front + b"".join(map(_with_length, (*numbers, *names)))

    @classmethod
    def unpacked(cls, data: bytes) -> "Header":
        """What :meth:`packed` gave. Raises CompressionError."""
        try:
            kind, fingerprint, calibration, content = _FIELDS.unpack_from(data)
            size, tokens, model, numerics = _split(data[_FIELDS.size :])
            names = model.decode(), numerics.decode()
            if max(len(size), len(tokens)) > 7:
                raise ValueError("no file has so many bytes")
        except (struct.error, ValueError) as error:
            raise CompressionError("the file is damaged") from error
        return cls(
            kind=kind,
            fingerprint=fingerprint,
            calibration=calibration,
            content=content,
            size=int.from_bytes(size, "little"),
            tokens=int.from_bytes(tokens, "little"),
            model=names[0],
            numerics=names[1],
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


def _with_length(data: bytes) -> bytes:
    if len(data) > 255:
        raise CompressionError(f"the model's name is too long: {data.decode()!r}")
    return bytes((len(data),)) + data


def _split(data: bytes) -> list[bytes]:
    """The fields that have their length before them. Raises ValueError for one that is cut short."""
    fields = []
    while data:
        end = 1 + data[0]
        if len(data) < end:
            raise ValueError("cut short")
        fields.append(data[1:end])
        data = data[end:]
    return fields
