"""What the library and the commands compute: scores, learning and generation, of each model."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from tests.golden.checkpoints import Commands

import rlstm_model

ENGLISH = (
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of"
    " foolishness, it was the epoch of belief, it was the epoch of incredulity.\n"
)
MIXED = "Zoë — 世界 🎈\tx=1;\r\nthe sea was calm, the sea was cold. The sea, the sea!\n"
SEA = "the sea was calm and cold, ship sailed on toward a grey coast while old men sang of home. "
TEXTS = {"english": ENGLISH * 2, "mixed": MIXED * 3, "sea": SEA * 4}

RULES = ["subspace", "full", "output_bias"]


def library(models: dict[str, str]) -> dict[str, Any]:
    """Scores, learning and generation of each model, by name, in this process."""
    return {name: _of_model(place) for name, place in models.items()}


def _of_model(place: str) -> dict[str, Any]:
    model = rlstm_model.load(place)
    found: dict[str, Any] = {}
    for name, text in TEXTS.items():
        found[f"score {name}"] = plain(model.score(text, top=3))
    for scale in (1.0, 2.5, 0.0):
        try:
            stream = model.stream(rate_scale=scale)
        except Exception as error:
            found["stream"] = type(error).__name__
            break
        parts = [stream.observe(ENGLISH), stream.observe(MIXED, learn=False), stream.observe(SEA * 3)]
        found[f"stream at {scale}"] = [plain(part) for part in parts]
        found[f"continued at {scale}"] = "".join(stream.generate(40, seed=5))
    found["generate"] = "".join(model.generate("the sea ", 60, seed=3))
    found["generate from nothing"] = "".join(model.generate("", 30, seed=4))
    return found


def plain(value: Any) -> Any:
    """Numbers and texts of any nest of records and tensors."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        own = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {name: plain(part) for name, part in own.items()}
    if hasattr(value, "_asdict"):
        return {name: plain(part) for name, part in value._asdict().items()}
    if isinstance(value, dict):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value if isinstance(value, str | int | float | bool | None) else repr(type(value).__name__)


def commands(rlstm: Commands, models: dict[str, str], work: Path) -> dict[str, Any]:
    """What `rlstm evaluate`, `score --local` and `generate --local` print as JSON."""
    text = work / "text.txt"
    text.write_text(ENGLISH + SEA * 12)
    found: dict[str, Any] = {}
    for name in ("bytes-small", "tiny"):
        place = models[name]
        plans = {"static": [], "dynamic": ["--dynamic"], "experts": ["--dynamic", "--experts", 4]}
        plans |= {f"dynamic {rule}": ["--dynamic", "--rule", rule] for rule in RULES}
        plans |= {"scaled": ["--dynamic", "--rate-scale", 3], "warm": ["--temperature", 0.9]}
        for plan, options in plans.items():
            said = rlstm.run("evaluate", place, text, *options, "--threads", 1, "--json")
            found[f"evaluate {name} {plan}"] = _without_times([json.loads(x) for x in _objects(said)])
        for plan, options in {
            "plain": [],
            "adapt": ["--adapt", "both", "--words"],
            "top": ["--top", 2],
        }.items():
            said = rlstm.run("score", "--local", "--model", place, SEA * 2, "--tokens", *options, "--json")
            found[f"score {name} {plan}"] = _without_times(json.loads(said))
        said = rlstm.run("generate", "--local", "--model", place, "the sea", "-n", 30, "--seed", 7, "--json")
        found[f"generate {name}"] = _without_times(json.loads(said))
    found["recipes"] = json.loads(rlstm.run("train", "--list", "--json"))
    return found


def _objects(said: str) -> list[str]:
    lines = [line for line in said.splitlines() if line.startswith("{")]
    return lines or [said]


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        dropped = {"seconds", "tokens_per_second", "bytes_per_second", "file", "model", "checkpoint", "date"}
        return {name: _without_times(part) for name, part in value.items() if name not in dropped}
    return [_without_times(part) for part in value] if isinstance(value, list) else value
