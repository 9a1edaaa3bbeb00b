"""A newcomer at a terminal: types what a page says, block by block, in a folder of their own."""

import os
import re
import selectors
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from tests.servers import clean_environment, free_ports

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
DONE = "-- typed --"
TAIL_SECONDS = 5
"""How long a `tail -f`, which a person would end, goes on."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, what stands behind that, and its text."""

    language: str
    title: str
    text: str


def blocks(page):
    """Every fenced block of a page, in order."""
    return [Block(*found) for found in BLOCK.findall(page.read_text())]


def headed(page):
    """The blocks of a page by the heading that they stand under."""
    parts = re.split(r"^## (.*)$", page.read_text(), flags=re.MULTILINE)
    return {
        heading: [Block(*found) for found in BLOCK.findall(text)]
        for heading, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def shape(line):
    """A line without its figures and with single spaces: what stays the same from run to run."""
    return " ".join(re.sub(r"[\d.,]+", "0", line).split())


class Terminal:
    """A shell that ends at the first command that fails, with a port of its own for a server."""

    def __init__(self, folder, binaries=Path(sys.executable).parent):
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        known = {
            "PATH": f"{binaries}:{os.environ['PATH']}",
            "COLUMNS": "120",
            "RLSTM_PORT": str(port),
            "RLSTM_URL": self.url,
            "RLSTM_DATA_DIR": str(folder / ".data"),
        }
        self._folder = folder
        self._shell = subprocess.Popen(
            ["/bin/bash", "-e"],
            cwd=folder,
            env=clean_environment(**known),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
            start_new_session=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.killpg(self._shell.pid, signal.SIGTERM)
        self._shell.stdin.close()
        self._shell.wait(30)
        self._shell.stdout.close()

    def type(self, block, patience=600):
        """Type a block; gives what it printed. One that fails, or takes too long, fails the test."""
        text = block.text.replace("http://127.0.0.1:8000", self.url)
        text = re.sub(r"tail (\S+ \S+ )?-f", f"timeout {TAIL_SECONDS} tail \\1-f", text)
        if block.language == "python":
            text = text.replace("Client()", f'Client("{self.url}")')
            (self._folder / "snippet.py").write_text(text)
            text = "python snippet.py\n"
        (self._folder / "typed.sh").write_text(text)
        self._shell.stdin.write(f". ./typed.sh < /dev/null; echo; echo '{DONE}'\n")
        said = self._until_done(time.monotonic() + patience, block)
        if "rlstm serve" in text and "&" in text:
            self._wait_for_server(time.monotonic() + 120)
        return said

    def _until_done(self, deadline, block):
        said = ""
        with selectors.DefaultSelector() as selector:
            selector.register(self._shell.stdout, selectors.EVENT_READ)
            while DONE not in said:
                assert time.monotonic() < deadline, f"not done in time:\n{block.text}\n{said}"
                if selector.select(1):
                    piece = os.read(self._shell.stdout.fileno(), 65_536).decode(errors="replace")
                    assert piece, f"failed:\n{block.text}\n{said}"
                    said += piece
        return said.partition(DONE)[0]

    def _wait_for_server(self, deadline):
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/health/ready", timeout=5):
                    return
            except OSError:
                assert time.monotonic() < deadline, "no server came up"
                time.sleep(0.2)


def type_all(terminal, given):
    """Type blocks in turn. A text block is held against what the one before it printed; gives all of it."""
    said = []
    for block in given:
        if block.language == "text":
            printed = [shape(line) for line in said[-1].splitlines()]
            for line in filter(None, map(shape, block.text.splitlines())):
                assert any(line in one for one in printed), f"{line!r} is not in:\n{said[-1]}"
        elif block.language in ("sh", "python") and block.title.strip() != 'title="install"':
            said.append(terminal.type(block))
    return said
