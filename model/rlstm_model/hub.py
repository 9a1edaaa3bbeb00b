"""Models on Hugging Face's hub and in its cache, through ``huggingface_hub`` (the extra ``hub``).

``hf://owner/name``, or ``hf://owner/name@revision``. What was downloaded stays in the hub's cache; with
``HF_HUB_OFFLINE=1`` that alone is looked at. Nothing but a checkpoint's files is asked for.
"""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

PREFIX: Final = "hf://"
_CACHED: Final = "models--"


class HubError(ValueError):
    """A model that the hub, or its cache, does not give; the message names it."""


def is_of_hub(name_or_path: str | Path) -> bool:
    """Whether that is a name on the hub, or a model's folder in the cache, which holds its revisions."""
    path = Path(name_or_path)
    cached = path.name.startswith(_CACHED) and (path / "snapshots").is_dir()
    return cached or str(name_or_path).startswith(PREFIX)


def snapshot(name_or_path: str | Path, files: Sequence[str]) -> tuple[Path, str]:
    """The folder with a model's files, and its name, without the owner's.

    Raises HubError, also where the library is not installed.
    """
    said = str(name_or_path)
    try:
        library: Any = importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise HubError(f"{said} needs huggingface_hub: install mogrifier-rlstm[hub]") from error
    if said.startswith(PREFIX):
        repository, _, revision = said.removeprefix(PREFIX).partition("@")
        options: dict[str, Any] = {"revision": revision or None}
    else:
        path = Path(said).resolve()
        repository = path.name.removeprefix(_CACHED).replace("--", "/")
        options = {"cache_dir": str(path.parent), "local_files_only": True}
    try:
        folder = library.snapshot_download(repository, allow_patterns=[*files], **options)
    except (OSError, ValueError) as error:  # the library's errors are of these: network, names, the cache
        raise HubError(f"{said}: {str(error).strip().partition(chr(10))[0]}") from error
    return Path(folder), repository.rpartition("/")[2]
