"""A model in this process: what goes without a server goes without torch, installed or not."""

import subprocess
import sys
from pathlib import Path

import pytest

BLOCKED = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoTorch())
"""
COMMAND = """
import sys
from rlstm_client.cli import main
sys.argv = ["rlstm", *sys.argv[1:]]
try:
    main()
finally:
    assert "torch" not in sys.modules
"""
LIBRARY = """
import sys
import rlstm_model
model = rlstm_model.load("bytes-small")
print(model.score("It was the best of times.").bits_per_byte < 3, model.stream().observe("a" * 60).updates)
print(len("".join(model.generate("It was", 8))))
assert "torch" not in sys.modules
"""


def run(code: str, *arguments: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="a GPU is here, which torch is asked for")
@pytest.mark.parametrize("torch", [BLOCKED, ""], ids=["without torch", "with torch"])
def test_nothing_local_imports_torch(torch: str, tmp_path: Path) -> None:
    """Scoring, learning, generating and compressing by the shipped model, by command and by library."""
    assert '"updates": 2' in run(torch + COMMAND, "score", "--local", "--adapt", "both", "--json", "ab" * 20)
    assert run(torch + COMMAND, "generate", "--local", "It was", "-n", "4", "--seed", "1").strip()
    assert run(torch + LIBRARY) == "True 3\n8\n"
    packed, back = tmp_path / "tale.rlz", tmp_path / "back"
    run(torch + COMMAND, "compress", __file__, "--out", str(packed), "--adapt", "memory")
    run(torch + COMMAND, "decompress", str(packed), "--out", str(back))
    assert back.read_bytes() == Path(__file__).read_bytes()


def test_nothing_that_asks_for_no_network_imports_torch() -> None:
    """The list of corpora, and all that a start of the server does."""
    for arguments in (
        ["corpora"],
        ["serve", "--check", "--device", "cpu", "--port", "0", "--durability", "memory"],
    ):
        assert run(BLOCKED + COMMAND, *arguments)
