"""Where the keys come from that exported sessions are signed with."""

import os
import secrets
from pathlib import Path
from typing import Final

from rlstm_server.engine.envelope import ExportKeys
from rlstm_server.errors import StartupError
from rlstm_server.settings import Settings

FILE: Final = "export.key"
_KEY_BYTES: Final = 32


def find_keys(settings: Settings, *, kept: bool) -> ExportKeys | None:
    """Give the keys of the settings; where they name none, one of the store's own. Raises StartupError.

    A store that is `kept` in the data folder has its key there, drawn once; that of one in memory ends with
    it. Servers that share a store would each draw another, so there is none then.
    """
    if settings.export_key:
        return ExportKeys(tuple(key.get_secret_value().encode() for key in settings.export_key))
    if settings.redis_url is not None:
        return None
    return ExportKeys((_kept_key(settings.data_dir) if kept else secrets.token_bytes(_KEY_BYTES),))


def _kept_key(folder: Path) -> bytes:
    """The key in a folder that this process alone uses; drawn where there is none."""
    path = folder / FILE
    try:
        if not path.exists():
            _write(path, secrets.token_hex(_KEY_BYTES))
        key = bytes.fromhex(path.read_text("ascii"))
    except OSError as error:
        raise StartupError(f"cannot read or write {path}: {error.strerror}") from None
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise StartupError(f"{path} holds no key: put the old one back, or remove it for a new one")
    return key


def _write(path: Path, text: str) -> None:
    """Write a file for the owner's eyes, whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
