"""`python -m tests.golden.record OUT`: record what this commit answers and computes, for later commits.

OUT gets a JSON file a part: `openapi`, `exchanges` (requests and answers of real servers), `library` and
`commands` (scores, learning, generation), `training` and `calibration`. The code is reached only through
`rlstm`, HTTP and `rlstm_model.load`, so that the same script records other commits: run it with the Python
of the commit's environment.
"""

import argparse
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tests.golden import checkpoints, exchanges, numbers
from tests.golden.compare import save
from tests.servers import RLSTM, clean_environment

PARTS = ("training", "library", "commands", "openapi", "exchanges")
SERVED = ("tiny", "words-small", "subwords")


def identity() -> dict[str, str]:
    """What two recordings must share to be equal to the last bit: torch trains, the core does the rest."""
    import torch

    try:
        from rlstm_model import native
    except ImportError:  # a commit before the core
        core = "none"
    else:
        core = native.identity()
    return {
        "core": core,
        "torch": torch.__version__,
        "vector_units": torch.backends.cpu.get_cpu_capability(),
        "switches": " ".join(
            f"{name}={os.environ[name]}"
            for name in ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")
            if name in os.environ
        ),
    }


def main() -> None:
    """Record the chosen parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="a folder, or one compact file, .json.xz")
    parser.add_argument("--part", action="append", choices=PARTS, help="only these (default: all)")
    parser.add_argument(
        "--models", type=Path, help="folder of checkpoints of an earlier recording, in place of new ones"
    )
    parser.add_argument("--keep-models", type=Path, help="leave the checkpoints made in this folder")
    chosen = parser.parse_args()
    parts, recorded = chosen.part or PARTS, dict[str, Any]()

    def write(name: str, value: Any) -> None:
        # Where it was recorded tells nothing about the commit.
        recorded[name] = json.loads(json.dumps(value).replace(str(work), "<work>"))
        save(chosen.out, recorded)
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
