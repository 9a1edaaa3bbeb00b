"""`clients/editor/rlstm.vim`, in Vim: a file is learned, and a line goes on."""

import shutil
import subprocess
from pathlib import Path

import pytest

from rlstm_client import Client

pytestmark = [pytest.mark.jobs, pytest.mark.skipif(shutil.which("vim") is None, reason="no Vim")]

SCRIPT = Path(__file__).parents[3] / "clients" / "editor" / "rlstm.vim"
KEYS = r"""
RlstmLearn
call feedkeys("Gothe qu\<C-L>\<Esc>:w! out\<CR>:qa!\<CR>", 'tx')
"""


def test_vim(shipped, tmp_path):
    """What the session has read is the file, and nothing of what was proposed; no mapping waits for ever."""
    (tmp_path / "text").write_text("the quick brown fox\njumps — over\n")
    settings = (
        f"let g:rlstm_url = '{shipped.url}'\nlet g:rlstm_model = 'bytes-small@editor'\nsource {SCRIPT}\n"
    )
    (tmp_path / "keys.vim").write_text(settings + KEYS)
    vim = ["vim", "-u", "NONE", "-es", "-N", "--cmd", "set encoding=utf-8", "-S", "keys.vim", "text"]
    with Client(shipped.url) as client:
        session = client.sessions.create(name="editor")
        subprocess.run(vim, cwd=tmp_path, timeout=60, check=True, stdin=subprocess.DEVNULL)
        position = session.info().position
    *kept, last = (tmp_path / "out").read_text(errors="replace").removesuffix("\n").split("\n")

    assert kept == ["the quick brown fox", "jumps — over"]
    assert last.startswith("the qu")
    assert len(last) > len("the qu")
    assert position == len("the quick brown fox\njumps — over\n".encode())
