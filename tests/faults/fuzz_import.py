"""A fuzzer of the importer: `fuzz_import.py MODEL RUNS CORPUS` mutates exported sessions, guided by coverage.

Every input is tried as it stands, and once more with the right signature, without which nothing would get
beyond the first check. The process ends well after RUNS inputs, with one line; anything but ImportRejected
ends it badly, and leaves the input in the working directory.
"""

import os
import sys

import atheris

with atheris.instrument_imports(
    include=[
        "rlstm_server.engine.envelope",
        "rlstm_server.engine.exports",
        "rlstm_model.adaptation.adapted_state",
    ]
):
    from rlstm_server.engine.envelope import ExportKeys, open_envelope
    from rlstm_server.engine.exports import ExportSpec, read_session

import resource
from pathlib import Path

import torch

from rlstm_model.checkpoint import load
from rlstm_server.engine.models import Models, ServedModel
from rlstm_server.errors import ImportRejected

KEYS = ExportKeys((b"the key of the fuzzer",))


def peak_kib():
    """The most memory that this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class Target:
    """Counts what was tried and what was taken."""

    def __init__(self, spec, runs):
        self.spec, self.runs = spec, runs
        self.tried = self.taken = 0
        self.began_kib = peak_kib()

    def __call__(self, data):
        """Try one input."""
        signature = KEYS.sign()
        signature.update(data)
        for file in (data, data + signature.digest()):
            try:
                read_session(open_envelope(file, KEYS), self.spec)
                self.taken += 1
            except ImportRejected:
                pass
            self.tried += 1
        if self.tried >= self.runs:
            grown = (peak_kib() - self.began_kib) / 1024
            print(
                f"{self.tried:,} inputs to the importer: {self.taken:,} taken, the rest ImportRejected,"
                f" 0 other errors, peak memory grew {grown:.0f} MiB",
                flush=True,
            )
            os._exit(0)


def main():
    """Fuzz; `os._exit` ends it, for the fuzzer's own exit would print a report of its own."""
    model, runs, corpus = sys.argv[1:]
    torch.set_num_threads(1)
    served = ServedModel.of(load(Path(model), torch.device("cpu")))
    target = Target(ExportSpec(tenant="acme", models=Models(served)), int(runs))
    atheris.Setup([sys.argv[0], "-max_len=65536", "-seed=1", "-rss_limit_mb=4096", corpus], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
