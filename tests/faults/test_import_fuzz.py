"""The importer under a fuzzer: whatever comes, it is refused or taken, and nothing else happens."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rlstm_model.checkpoint import load
from rlstm_server.engine.description import SessionCopy, SessionFacts
from rlstm_server.engine.envelope import ExportKeys
from rlstm_server.engine.exports import write_export
from rlstm_server.engine.served import ServedModel
from rlstm_server.engine.snapshot import SessionState
from rlstm_server.schemas import AdaptationRequest
from rlstm_server.store.base import SessionKey, first_position

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]

RUNS = 20_000 if os.environ.get("RLSTM_FAULTS") == "short" else 500_000
KEY = SessionKey("acme", "s1")


def seeds(checkpoint):
    """Files without signatures: a new session, one amid a segment, one without a static row."""
    served = ServedModel.of(load(checkpoint, torch.device("cpu")))
    facts = SessionFacts(name=None, created_at_ms=0, ttl_ms=1, metadata={"n": 1, "é": None})
    for asked, text in (({}, b""), ({}, b"a text that was read"), ({"static": False, "experts": 1}, b"ab")):
        choice = served.choose(AdaptationRequest(**asked))
        evaluator = served.evaluator(choice.kind, choice.num_fast_weights)
        state = SessionState.before_text(served, choice)
        for observed in evaluator.observe(state.adapted, list(text)):
            state = replace(state, adapted=observed.state)
        copy = SessionCopy(key=KEY, position=first_position(KEY), state=state, facts=facts)
        yield b"".join(write_export(copy, ExportKeys((b"any",))).pieces)[:-32]


def test_the_importer_raises_nothing_but_its_refusal(tiny_checkpoint, tmp_path, capfd):
    """Files mutated by atheris, with right signatures and wrong ones; memory stays what it was."""
    pytest.importorskip("atheris")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds(tiny_checkpoint)):
        (corpus / f"{number}").write_bytes(seed)
    script = Path(__file__).with_name("fuzz_import.py")
    ended = subprocess.run(
        [sys.executable, script, tiny_checkpoint, str(RUNS), corpus],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4_000:]
    line = ended.stdout.strip().splitlines()[-1]
    with capfd.disabled():
        print(f"\n{line}")
    assert line.startswith(f"{RUNS:,} inputs")
