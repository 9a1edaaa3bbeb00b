"""Results: what a checkpoint reached on which text, kept beside it as ``evaluation.json``.

A result belongs to weights and settings. Results of other weights are dropped when the file is written
again, and one for the same text under the same settings replaces the last one.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from rlstm_model.adaptation.config import AdaptationConfig
from rlstm_model.checkpoint import EVALUATION, Checkpoint, CheckpointError
from rlstm_model.vocab import VocabKind
from rlstm_training.atomic import replace_text
from rlstm_training.evaluation.evaluation import PUBLISHED, Evaluation
from rlstm_training.evaluation.monte_carlo import MonteCarlo

FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class EvaluationSettings:
    """Everything that a result depends on beside the weights and the text.

    ``adaptation`` is the learning rule, None where nothing was learned; ``prefix`` the bytes of each text
    or segment that were read, None for all of them.
    """

    temperature: float = 1.0
    adaptation: AdaptationConfig | None = None
    experts: int = 1
    rate_scale: float = 1.0
    monte_carlo: MonteCarlo | None = None
    prefix: int | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON object with all of it."""
        return {
            "temperature": self.temperature,
            "adaptation": None if self.adaptation is None else self.adaptation.to_json(),
            "experts": self.experts,
            "rate_scale": self.rate_scale,
            "monte_carlo": None if self.monte_carlo is None else asdict(self.monte_carlo),
            "prefix": self.prefix,
        }


def record(
    evaluation: Evaluation, settings: EvaluationSettings, kind: VocabKind, *, now: datetime | None = None
) -> dict[str, Any]:
    """A result as it is kept. ``published`` names the measure that is published for such tokens."""
    return {
        **evaluation.to_json(),
        "published": PUBLISHED[kind],
        "settings": settings.to_json(),
        "date": (now or datetime.now(UTC)).isoformat(timespec="seconds"),
    }


def load_results(checkpoint: Checkpoint) -> list[dict[str, Any]]:
    """The results of a checkpoint's present weights. Raises CheckpointError when the file is damaged."""
    path = checkpoint.folder / EVALUATION
    try:
        data = json.loads(path.read_bytes())
        if data["format_version"] != FORMAT_VERSION:
            raise CheckpointError(f"{path}: format_version must be {FORMAT_VERSION}")
        results = [dict(result) for result in data["results"]]
        known = data["fingerprint"] == checkpoint.fingerprint
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: holds no results that can be read; move it away ({error})") from error
    return results if known else []


def save_results(checkpoint: Checkpoint, new: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Add results to the file beside a checkpoint; returns all that it holds then, by text.

    The file is replaced in one step. Raises CheckpointError, with the old file unharmed.
    """
    kept = {_key(result): dict(result) for result in (*load_results(checkpoint), *new)}
    results = sorted(kept.values(), key=lambda result: str(result["text"]))
    data = {"format_version": FORMAT_VERSION, "fingerprint": checkpoint.fingerprint, "results": results}
    path = checkpoint.folder / EVALUATION
    try:
        replace_text(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written ({error})") from error
    return results


def _key(result: Mapping[str, Any]) -> str:
    return json.dumps([result["text"], result["settings"]], sort_keys=True)
