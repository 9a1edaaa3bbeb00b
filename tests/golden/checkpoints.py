"""Small models made by the commands, from a text made here: what training gives, and what is served."""

import hashlib
import json
import random
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORDS = [
    *("the", "sea", "was", "calm", "and", "cold", "ship", "sailed", "on", "toward", "a", "grey", "far"),
    *("coast", "while", "old", "men", "sang", "of", "home"),
]
SIZES = {"train": 6000, "valid": 1500, "test": 1500}

RUNS = {
    "tiny": 60,
    "words-small": 12,
    "characters-small": 6,
    "ablation-lstm": 6,
    "ablation-tail": 6,
    "ablation-adam": 6,
    "ablation-plain": 6,
}
"""Recipes and how many steps of each are taken."""

CALIBRATED = {
    "tiny": ["--kind", "subspace", "--kind", "full", "--kind", "output_bias"],
    "words-small": ["--kind", "subspace", "--kind", "output_bias"],
}
"""The others are served as they are: they cannot learn."""

QUICK = "--length 400 --heads 4 --segments 4 --rate 0.003 --decay 0 --epsilon 1 --segment 8 --rank 4"


@dataclass(frozen=True)
class Commands:
    """The installed command and an environment for it; `run` gives what it printed."""

    path: Path
    environment: dict[str, str]

    def run(self, *arguments: object) -> str:
        """Run `rlstm` with these arguments. Raises CalledProcessError, its errors told, when it fails."""
        done = subprocess.run(
            [str(self.path), *map(str, arguments)], env=self.environment, capture_output=True, text=True
        )
        if done.returncode:
            print(done.stderr[-2000:])
        done.check_returncode()
        return done.stdout


def write_corpus(folder: Path) -> Path:
    """A corpus of few words, the same wherever it is written."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (split, count) in enumerate(SIZES.items()):
        draw, pieces = random.Random(seed), list[str]()
        for _ in range(count):
            end = "\n" if draw.random() < 0.1 else draw.choice([" ", " ", " ", ",", ". "])
            pieces.append(draw.choice(WORDS) + end)
        (folder / f"{split}.txt").write_text("".join(pieces))
    return folder


def train(rlstm: Commands, corpus: Path, work: Path) -> dict[str, Any]:
    """Train by each recipe; gives the losses, the validations and a digest of the weights that came out."""
    found: dict[str, Any] = {}
    for name, steps in RUNS.items():
        arguments = [name, "--steps", steps]
        found[name] = _trained(rlstm, corpus, work, name, arguments)
    recipe = json.loads((work / "tiny" / "recipe.json").read_text())
    recipe |= {"name": "subwords", "vocab": "subwords", "steps": 40}
    recipe["model"]["vocab_size"] = 280
    file = work / "subwords.json"
    file.write_text(json.dumps(recipe))
    found["subwords"] = _trained(rlstm, corpus, work, "subwords", ["--recipe", file])
    return found


def _trained(rlstm: Commands, corpus: Path, work: Path, name: str, arguments: list[Any]) -> dict[str, Any]:
    run, out = work / name, work / "models" / name
    printed = rlstm.run(
        "train",
        *arguments,
        "--corpus",
        corpus,
        "--run",
        run,
        "--out",
        out,
        "--full",
        "--threads",
        1,
        "--json",
    )
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    timed = {"tokens_per_second", "seconds", "run", "model"}
    told = [{key: value for key, value in line.items() if key not in timed} for line in lines]
    return {"told": [line for line in told if line], "weights": digests(out / "model.safetensors")}


def calibrate(rlstm: Commands, corpus: Path, models: Path) -> dict[str, Any]:
    """Calibrate some of the trained models; gives what the command told and digests of the file."""
    found = {}
    for name, kinds in CALIBRATED.items():
        told = rlstm.run(
            "calibrate", models / name, "--corpus", corpus, "--on", corpus, *kinds, *QUICK.split(),
            "--embedding-rank", 4, "--experts", 2, "--threads", 1, "--json",
        )  # fmt: skip
        lines = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
        found[name] = {
            "told": [{key: value for key, value in line.items() if key != "seconds"} for line in lines],
            "statistics": digests(models / name / "adaptation.safetensors"),
        }
    return found


def digests(file: Path) -> list[str]:
    """The sorted digests of a safetensors file's tensors: names may change, numbers may not."""
    raw = file.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + size])
    spans = [entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"]
    return sorted(hashlib.sha256(raw[8 + size + a : 8 + size + b]).hexdigest()[:16] for a, b in spans)
