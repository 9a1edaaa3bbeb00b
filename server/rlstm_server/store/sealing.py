"""Seals: every stored state says what it is, and is refused before a byte of it is used if that is wrong.

    magic (8) | header length (4, little-endian) | header (JSON) | checksum (32) | payload

The checksum is BLAKE2b-256 of everything before and after it, so a damaged header is noticed as well.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Final, NamedTuple

from rlstm_server.errors import StateCorrupt
from rlstm_server.store.base import SessionKey

MAGIC: Final = b"RLSTMST1"
MAX_HEADER_BYTES: Final = 65_536
_LENGTH_BYTES: Final = 4
_CHECKSUM_BYTES: Final = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class Seal:
    """What a sealed state belongs to.

    fingerprint, adaptation_fingerprint    of the model and of its calibration
    numerics                               the device and libraries that computed it
    tenant, session_id, version            the place in a history
    """

    fingerprint: str
    adaptation_fingerprint: str
    numerics: str
    tenant: str
    session_id: str
    version: int

    @classmethod
    def of(
        cls, key: SessionKey, version: int, *, fingerprint: str, adaptation_fingerprint: str, numerics: str
    ) -> "Seal":
        """Make the seal of the state of `key` at `version`."""
        return cls(
            fingerprint=fingerprint,
            adaptation_fingerprint=adaptation_fingerprint,
            numerics=numerics,
            tenant=key.tenant,
            session_id=key.session_id,
            version=version,
        )


class Unsealed(NamedTuple):
    """A payload, and the seal that it was found under."""

    payload: bytes
    seal: Seal


def seal(seal: Seal, payload: bytes) -> bytes:
    """Return the bytes to store."""
    header = json.dumps({**asdict(seal), "length": len(payload)}, sort_keys=True).encode()
    if len(header) > MAX_HEADER_BYTES:
        raise ValueError(f"the seal must be at most {MAX_HEADER_BYTES} bytes, not {len(header)}")
    front = MAGIC + len(header).to_bytes(_LENGTH_BYTES, "little") + header
    return b"".join((front, _checksum(front, payload), payload))


def unseal(value: bytes, key: SessionKey, version: int) -> Unsealed:
    """Return the payload, if `value` is whole and belongs to `key` at `version`, and whose it says it is.

    Raises StateCorrupt when it is damaged or belongs elsewhere. Nothing in the message comes from the value.
    """
    found, payload = _open(value)
    expected = {"tenant": key.tenant, "session_id": key.session_id, "version": version}
    for field, place in expected.items():
        if getattr(found, field) != place:
            raise StateCorrupt(f"the stored state names another {field}")
    return Unsealed(payload, found)


def _open(value: bytes) -> tuple[Seal, bytes]:
    start = len(MAGIC) + _LENGTH_BYTES
    length = int.from_bytes(value[len(MAGIC) : start], "little")
    body = start + length + _CHECKSUM_BYTES
    if value[: len(MAGIC)] != MAGIC or length > MAX_HEADER_BYTES or len(value) < body:
        raise StateCorrupt("the stored state is not a sealed value")
    payload = value[body:]
    if _checksum(value[: start + length], payload) != value[start + length : body]:
        raise StateCorrupt("the stored state fails its checksum")
    found, stated = _parse(value[start : start + length])
    if stated != len(payload):
        raise StateCorrupt("the stored state has not the length its seal states")
    return found, payload


def _parse(header: bytes) -> tuple[Seal, object]:
    try:
        content = json.loads(header)
        stated = content.pop("length")
        found = Seal(**content)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise StateCorrupt("the stored state has a seal that cannot be read") from error
    for field in fields(Seal):
        if type(getattr(found, field.name)) is not field.type:
            raise StateCorrupt(f"the stored state's seal has a wrong {field.name}")
    return found, stated


def _checksum(front: bytes, payload: bytes) -> bytes:
    digest = hashlib.blake2b(front, digest_size=_CHECKSUM_BYTES)
    digest.update(payload)
    return digest.digest()
