"""`python -m tests.golden.record OUT`: record what this commit answers and computes, for later commits.

OUT gets one JSON file a part: `openapi`, `exchanges` (requests and answers of real servers), `library` and
`commands` (scores, learning, generation), `training` and `calibration`. The code is reached only through
`rlstm`, HTTP and `rlstm_model.load`, so that the same script records other commits: run it with the Python
of the commit's environment.
"""

import argparse
import json
import os
import platform
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tests.golden import checkpoints, exchanges, numbers
from tests.golden.compare import compact
from tests.servers import RLSTM, clean_environment

PARTS = ("training", "library", "commands", "openapi", "exchanges")
SERVED = ("tiny", "words-small", "subwords")


def identity() -> dict[str, str]:
    """What two recordings must share to be equal to the last bit."""
    import torch

    return {
        "machine": platform.machine(),
        "torch": torch.__version__,
        "vector_units": torch.backends.cpu.get_cpu_capability(),
        "processor": _processor(),
        "switches": " ".join(
            f"{name}={os.environ[name]}"
            for name in ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
            if name in os.environ
        ),
    }


def _processor() -> str:
    told = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    flags = next((line for line in told.splitlines() if line.startswith("flags")), "")
    vendor = next((line.split(":")[1].strip() for line in told.splitlines() if line.startswith("vendor")), "")
    return f"{vendor} avx512" if "avx512f" in flags else f"{vendor} avx2" if "avx2" in flags else vendor


def main() -> None:
    """Record the chosen parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--part", action="append", choices=PARTS, help="only these (default: all)")
    parser.add_argument(
        "--models", type=Path, help="folder of checkpoints of an earlier recording, in place of new ones"
    )
    parser.add_argument("--keep-models", type=Path, help="leave the checkpoints made in this folder")
    parser.add_argument("--compact", action="store_true", help="digests and sums for long lists")
    chosen = parser.parse_args()
    parts = chosen.part or PARTS
    chosen.out.mkdir(parents=True, exist_ok=True)

    def write(name: str, value: Any) -> None:
        value = compact(value) if chosen.compact else value
        text = json.dumps(value, ensure_ascii=not chosen.compact, indent=None if chosen.compact else 1)
        (chosen.out / f"{name}.json").write_text(text + "\n")
        print(name, "recorded", flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        work = chosen.keep_models or Path(scratch)
        work.mkdir(parents=True, exist_ok=True)
        rlstm = checkpoints.Commands(RLSTM, clean_environment())
        write("identity", identity())
        folder = chosen.models
        if folder is None or "training" in parts:
            corpus, run = checkpoints.write_corpus(work / "corpus"), work / "runs"
            shutil.rmtree(run, ignore_errors=True)  # a run that is there would go on
            write("training", checkpoints.train(rlstm, corpus, run))
            write("calibration", checkpoints.calibrate(rlstm, corpus, run / "models"))
            folder = folder or run / "models"
        models = {"bytes-small": "bytes-small"} | {name: str(folder / name) for name in SERVED}
        if "library" in parts:
            write("library", numbers.library(models))
        if "commands" in parts:
            write("commands", numbers.commands(rlstm, models, work))
        if "openapi" in parts:
            write("openapi", exchanges.document(models, Path(scratch)))
        if "exchanges" in parts:
            write("exchanges", exchanges.record(models, Path(scratch)))


if __name__ == "__main__":
    main()
