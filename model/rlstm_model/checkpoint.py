"""Checkpoints: a folder that holds everything a model needs to be used.

======================  ==================================================================
file                    content
======================  ==================================================================
model.safetensors       the weights, as float32, float16 or bfloat16
config.json             the ModelConfig
vocab.json              the vocabulary
README.md               the model card (optional to read)
adaptation.safetensors  a calibration (optional; :mod:`rlstm_model.adaptation.calibration_file`)
evaluation.json         what the model reached on which text (optional to read)
======================  ==================================================================

Loading is strict: whatever is missing, extra, misshaped or not finite is a CheckpointError that names the
file and the tensor, before anything is allocated for it. Nothing here can run code from a checkpoint.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from rlstm_model import hub, stored
from rlstm_model import vocab as vocabularies
from rlstm_model.config import ConfigError, ModelConfig
from rlstm_model.files import replace_folder
from rlstm_model.parameters import Parameters, shapes
from rlstm_model.vocab import Vocab, VocabError

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
VOCAB = "vocab.json"
CARD = "README.md"
ADAPTATION = "adaptation.safetensors"
EVALUATION = "evaluation.json"
_FILES: Final = (WEIGHTS, CONFIG, VOCAB, CARD, ADAPTATION, EVALUATION)

CARD_FIELDS: Final = (
    "library_name: mogrifier-rlstm",
    "pipeline_tag: text-generation",
    "tags:",
    '- "rlstm"',
    '- "language-model"',
)
"""What the card of any model says to model hubs, in YAML."""
CARD_HEADER: Final = "\n".join(("---", *CARD_FIELDS, "---", ""))

StoredDtype = Literal["F32", "F16", "BF16"]

_BYTES: Final = {"F32": 4, "F16": 2, "BF16": 2}

_Parsed = TypeVar("_Parsed")


class CheckpointError(ValueError):
    """A checkpoint that cannot be found, read or written; the message names the file and the tensor."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Checkpoint:
    """A model that is ready to be used. Its weights are never changed."""

    parameters: Parameters
    vocab: Vocab
    name: str
    folder: Path
    card: str
    fingerprint: str

    @property
    def adaptation_file(self) -> Path | None:
        """Where the calibration lies, if there is one."""
        path = self.folder / ADAPTATION
        return path if path.is_file() else None


def shipped_names() -> list[str]:
    """The models that come with the package."""
    shipped = _shipped_folder()
    return sorted(path.name for path in shipped.iterdir() if path.is_dir()) if shipped.is_dir() else []


def load(name_or_path: str | Path) -> Checkpoint:
    """The checkpoint in a folder or, where there is no such folder, the shipped one of that name.

    Or on Hugging Face's hub, as ``hf://owner/name`` (:mod:`rlstm_model.hub`). Raises CheckpointError.
    """
    folder, name = _resolve(name_or_path)
    config = _read_json(folder / CONFIG, ModelConfig.from_json)
    vocab = _read_json(folder / VOCAB, vocabularies.from_json)
    if vocab.size != config.vocab_size:
        raise CheckpointError(
            f"{folder / VOCAB}: holds {vocab.size} tokens, but vocab_size in {CONFIG} is {config.vocab_size}"
        )
    parameters = _load_parameters(folder / WEIGHTS, config)
    card = folder / CARD
    return Checkpoint(
        parameters=parameters,
        vocab=vocab,
        name=name,
        folder=folder,
        card=card.read_text("utf-8", errors="replace") if card.is_file() else "",
        fingerprint=fingerprint(parameters, vocab),
    )


def save(
    folder: str | Path,
    parameters: Parameters,
    vocab: Vocab,
    *,
    dtype: StoredDtype = "F32",
    card: str = CARD_HEADER,
) -> None:
    """Write a checkpoint: ``folder`` never holds a half-written one, nor old and new files mixed.

    The new folder is written beside it, synced and renamed. An old checkpoint goes as a whole, its
    calibration and results too, which belong to the old weights. Raises CheckpointError, with nothing
    changed, when a weight is not finite in ``dtype``, vocabulary and model differ in size, ``folder`` holds
    other files, or the disk refuses.
    """
    folder = Path(folder)
    config = parameters.config
    if vocab.size != config.vocab_size:
        raise CheckpointError(f"the vocabulary holds {vocab.size} tokens, the model {config.vocab_size}")
    _refuse_foreign(folder)
    weights = _stored_weights(parameters, dtype)
    folder.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        (staged / WEIGHTS).write_bytes(weights)
        _write_json(staged / CONFIG, config.to_json())
        _write_json(staged / VOCAB, vocab.to_json())
        (staged / CARD).write_text(card, "utf-8")
        staged.chmod(0o755)
        replace_folder(folder, staged)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{folder}: cannot be written ({error})") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def fingerprint(parameters: Parameters, vocab: Vocab) -> str:
    """sha256 over configuration, vocabulary and weights: equal numbers, equal fingerprint.

    It is defined over the values as float32, by tensor name, so that neither the order in a file nor a
    stored precision that rounds nothing changes it.
    """
    digest = hashlib.sha256()
    for part in (parameters.config.identity(), vocab.to_json()):
        digest.update(json.dumps(part, sort_keys=True).encode())
    for name, weight in sorted(parameters.arrays.items()):
        digest.update(f"{name}{list(weight.shape)}".encode())
        digest.update(np.ascontiguousarray(weight, "<f4").data)
    return digest.hexdigest()


def _shipped_folder() -> Path:
    return Path(str(files("rlstm_model"))) / "shipped"


def _resolve(name_or_path: str | Path) -> tuple[Path, str]:
    """Its folder and its name."""
    if hub.is_of_hub(name_or_path):
        try:
            return hub.snapshot(name_or_path, _FILES)
        except hub.HubError as error:
            raise CheckpointError(str(error)) from error
    path, names = Path(name_or_path), shipped_names()
    if not path.is_dir() and str(name_or_path) in names:
        path = _shipped_folder() / str(name_or_path)
    if path.is_dir():
        return path, path.resolve().name
    known = likely(str(name_or_path), names) or "none"
    raise CheckpointError(f"{name_or_path}: no such checkpoint folder or shipped model (shipped: {known})")


def likely(name: str, known: Iterable[str]) -> str:
    """What may have been meant by a name that is unknown: the nearest three, and how many more there are."""
    names = list(known)
    if len(names) <= 3:
        return ", ".join(names)
    return f"{', '.join(get_close_matches(name, names, cutoff=0.0))} and {len(names) - 3} more"


def _read_json(path: Path, parse: Callable[[Mapping[str, Any]], _Parsed]) -> _Parsed:
    try:
        return parse(json.loads(path.read_bytes()))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: is missing") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    except (ConfigError, VocabError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is not valid JSON") from error


def _load_parameters(path: Path, config: ModelConfig) -> Parameters:
    if not path.is_file():
        raise CheckpointError(f"{path}: is missing")
    _refuse_oversized(path, config)
    try:
        held = stored.read_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path}: is damaged or no safetensors file ({error})") from error
    expected = shapes(config)
    _check_names(path, held, expected)
    for name, shape in expected.items():
        array, dtype = held.arrays[name], held.dtypes[name]
        if array.shape != shape:
            raise CheckpointError(f"{path}: tensor {name} has shape {list(array.shape)}, not {list(shape)}")
        if dtype not in _BYTES:
            raise CheckpointError(f"{path}: tensor {name} has dtype {dtype}, not one of {', '.join(_BYTES)}")
        _check_finite(array, f"{path}: tensor {name}")
    return Parameters(config, {name: held.arrays[name] for name in expected})


def _check_names(path: Path, held: stored.Stored, expected: Mapping[str, Any]) -> None:
    for name in sorted(expected.keys() - held.arrays.keys()):
        raise CheckpointError(f"{path}: tensor {name} is missing")
    for name in sorted(held.arrays.keys() - expected.keys()):
        raise CheckpointError(f"{path}: tensor {name} is not part of the model of {CONFIG}")


def _refuse_oversized(path: Path, config: ModelConfig) -> None:
    """A wrong number in the config must not make us read what no model could fill."""
    size = path.stat().st_size
    if config.num_parameters * min(_BYTES.values()) > size:
        raise CheckpointError(
            f"{path}: has {size} bytes, too few for the {config.num_parameters} weights of {CONFIG}"
        )


def _check_finite(weight: NDArray[Any], what: str) -> None:
    if not np.isfinite(weight).all():
        raise CheckpointError(f"{what} holds a value that is not finite")


def _stored_weights(parameters: Parameters, dtype: StoredDtype) -> bytes:
    for name, weight in parameters.arrays.items():
        _check_finite(weight, f"tensor {name}")
        _check_finite(stored.rounded(weight, dtype), f"tensor {name} as {dtype}")
    return stored.write(parameters.arrays, dict.fromkeys(parameters.arrays, dtype), {"format": "pt"})


def _refuse_foreign(folder: Path) -> None:
    """Replacing a folder deletes it: never somebody's own."""
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder}: is not a folder")
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.name not in _FILES:
            raise CheckpointError(f"{folder}: holds {path.name}, which is not part of a checkpoint")


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", "utf-8")
