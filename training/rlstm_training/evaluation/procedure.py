"""Procedures: everything that decides what a text costs, in one value; and its results, as they are kept.

``evaluation.json`` beside a checkpoint holds what it reached on which text. A result belongs to weights and
settings: those of other weights are dropped when the file is written again, and one for the same text under
the same settings replaces the last one.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.adaptation.state import ExpertConfig
from rlstm_model.checkpoint import EVALUATION, Checkpoint, CheckpointError
from rlstm_model.files import replace_file
from rlstm_model.network.language_model import LanguageModel
from rlstm_model.vocab import VocabKind
from rlstm_training.corpora.texts import Passage
from rlstm_training.evaluation.evaluation import (
    PUBLISHED,
    Advance,
    Evaluation,
    Stream,
    evaluator_of,
    no_advance,
    read_adapting,
    read_static,
)
from rlstm_training.evaluation.monte_carlo import (
    MonteCarlo,
    Text,
    sampled_adapted_log_probs,
    sampled_log_probs,
)

FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Procedure:
    """How texts are read: static always, learning as well where there is a calibration.

    Each text is the beginning of all text, and a new session of the weights as loaded: what was learned
    from one, or from validation, is gone before the next.
    """

    model: LanguageModel
    bos_id: int
    temperature: float = 1.0
    calibration: Calibration | None = None
    experts: int = 1
    rate_scale: float = 1.0
    monte_carlo: MonteCarlo | None = None

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ValueError(f"temperature must be above 0, not {self.temperature}")
        sampling = self.monte_carlo
        if sampling is not None and sampling.averaging == "geometric" and self.calibration is not None:
            raise ValueError("the geometric mean has one state for all samples, so it cannot learn")
        if sampling is not None and self.experts > 1:
            raise ValueError("samples of dropout are averaged for one expert, not for several")
        ExpertConfig(experts=self.experts)

    def settings(self, prefix: int | None = None) -> dict[str, Any]:
        """All that a result depends on beside weights and text, as JSON.

        ``prefix`` is the bytes of each text or segment that were read, None for all of them.
        """
        return {
            "temperature": self.temperature,
            "adaptation": None if self.calibration is None else self.calibration.config.to_json(),
            "experts": self.experts,
            "rate_scale": self.rate_scale,
            "monte_carlo": None if self.monte_carlo is None else asdict(self.monte_carlo),
            "prefix": prefix,
        }

    @property
    def readings(self) -> int:
        """How often each token is read."""
        readings, sampling = 1 if self.calibration is None else 2, self.monte_carlo
        if sampling is None or sampling.averaging == "geometric":
            return readings
        return readings * sampling.samples

    def read(self, passages: Sequence[Passage], advance: Advance = no_advance) -> list[Evaluation]:
        """Evaluations of the parts of one text, each of which continues the last one."""
        if self.monte_carlo is not None:
            return self._sample(passages, self.monte_carlo, advance)
        bos_id, temperature = self.bos_id, self.temperature
        results = read_static(self.model, passages, bos_id=bos_id, temperature=temperature, advance=advance)
        if self.calibration is None:
            return results
        evaluator = evaluator_of(self.model, self.calibration, bos_id=bos_id, temperature=temperature)
        start = evaluator.start(static=self.experts > 1, experts=self.experts, rate_scale=self.rate_scale)
        (adapted,) = read_adapting(evaluator, [Stream(passages, start)], advance)
        return [
            replace(own, static_nats=result.static_nats) for own, result in zip(adapted, results, strict=True)
        ]

    def _sample(
        self, passages: Sequence[Passage], sampling: MonteCarlo, advance: Advance
    ) -> list[Evaluation]:
        ids = [token for part in passages for token in part.ids]
        text, rule = Text(self.model, ids, self.bos_id, self.temperature), self.calibration
        static_N, adapted_N = sampled_log_probs(text, sampling, advance), None
        if rule is not None:
            adapted_N = sampled_adapted_log_probs(text, rule, sampling, self.rate_scale, advance)
        results = []
        for part, end in zip(passages, accumulate(len(part.ids) for part in passages), strict=True):
            place = slice(end - len(part.ids), end)
            adapted = None if adapted_N is None else -float(adapted_N[place].sum())
            results.append(Evaluation.of(part, -float(static_N[place].sum()), adapted_nats=adapted))
        return results


def record(
    evaluation: Evaluation, settings: Mapping[str, Any], kind: VocabKind, *, now: datetime | None = None
) -> dict[str, Any]:
    """A result as it is kept. ``published`` names the measure that is published for such tokens."""
    return {
        **evaluation.to_json(),
        "published": PUBLISHED[kind],
        "settings": dict(settings),
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
    kept = {
        json.dumps([result["text"], result["settings"]], sort_keys=True): dict(result)
        for result in (*load_results(checkpoint), *new)
    }
    results = sorted(kept.values(), key=lambda result: str(result["text"]))
    data = {"format_version": FORMAT_VERSION, "fingerprint": checkpoint.fingerprint, "results": results}
    path = checkpoint.folder / EVALUATION
    try:
        replace_file(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written ({error})") from error
    return results
