"""Files beside xz and PPMd: sizes of the same bytes."""

import json
import lzma

import pytest

from benchmarks import compress as module
from rlstm_model.compression import KINDS

CONTENT = b"the sea was calm and cold; the ship sailed.\n" * 6


@pytest.fixture
def streams(monkeypatch):
    """Two streams of the same text."""
    monkeypatch.setattr(module, "stream_names", lambda: ["one", "two"])
    monkeypatch.setattr(module, "load_stream", lambda name, prefix: [("", CONTENT[:prefix]), ("", CONTENT)])


def test_the_command(streams, type_command, tiny_checkpoint):
    """Every stream by every kind, which give it back; xz and PPMd beside."""
    done = type_command(module.main, tiny_checkpoint, "--prefix", 40, "--back", "--json", "--processes", 1)
    told = json.loads(done.stdout)
    content = CONTENT[:40] + CONTENT
    xz = len(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
    assert [(each["stream"], each["bytes"], each["xz"]) for each in told["others"]] == [
        (name, len(content), xz) for name in ("one", "two")
    ]
    assert {(each["stream"], each["kind"]) for each in told["ours"]} == {
        (name, kind) for name in ("one", "two") for kind in KINDS
    }
    for each in told["ours"]:
        assert each["bits"] / 8 < each["bytes"] < each["bits"] / 8 + 128

    shown = type_command(
        module.main, tiny_checkpoint, "--whole", "--kind", "memory", "--stream", "one"
    ).stdout
    assert "xz -9e" in shown
    assert "frozen" not in shown
    assert type_command(module.main, tiny_checkpoint, "--kind", "all").exit_code == 2
