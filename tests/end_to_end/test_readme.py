"""The README's Python is run as it stands there."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


def snippets():
    """The fenced Python blocks."""
    return re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)


def printed(code, capsys):
    """The numbers that a snippet prints."""
    exec(compile(code, "README.md", "exec"), {})
    return [float(word) for word in capsys.readouterr().out.split()]


def test_the_library_in_three_lines(capsys):
    """Load, score, observe: English costs under 4 bits a byte, and a refrain is learned."""
    (code,) = [code for code in snippets() if "rlstm_model" in code]

    bits_per_byte, gain_bits = printed(code, capsys)

    assert 0.5 < bits_per_byte < 4
    assert gain_bits > 100


def test_the_client_snippet(capsys, start):
    """A session scores its first text, adapted and static."""
    (code,) = [code for code in snippets() if "rlstm_client" in code]

    with start("--durability", "memory", model="bytes-small") as server:
        adapted, static = printed(code.replace("http://127.0.0.1:8000", server.url), capsys)

    assert 0.5 < static < 5
    assert adapted == pytest.approx(static, abs=1)
