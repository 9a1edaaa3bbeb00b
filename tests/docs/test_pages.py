"""Whatever a page tells people to type is typed, and does what it says."""

import importlib.util
import re
import shutil
import subprocess
import sys
import time

import pytest
from tests.docs.terminal import ROOT, Terminal, blocks, headed, type_all

pytestmark = [pytest.mark.docs, pytest.mark.timeout(1800)]

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
RUN = {"sh", "python"}
TYPED = [
    page for page in PAGES if RUN & {block.language for block in blocks(page)} and page.stem != "tutorial"
]


@pytest.fixture
def terminal(tmp_path):
    """A terminal in an empty folder, beside what a checkout has."""
    for name in ("clients", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    with Terminal(tmp_path) as terminal:
        yield terminal


@pytest.mark.parametrize("page", TYPED, ids=lambda page: page.stem)
def test_what_a_page_says_works(page, terminal):
    """Every block of shell and Python, in order, in one terminal; a server runs where the page uses one."""
    given = blocks(page)
    if any("from openai" in block.text for block in given):
        pytest.importorskip("openai", reason="it comes with the extra harness")
    serve = type(given[0])("sh", "", "rlstm serve --durability memory > served.txt &\n")
    if "127.0.0.1:8000" in page.read_text() or "running server" in page.read_text():
        terminal.type(serve)
    assert type_all(terminal, given)


def test_blocks_that_nobody_runs_are_few():
    """Whatever is not run names programs that no test machine has, and files of ours that are there."""
    for page in PAGES:
        for block in blocks(page):
            assert block.language in {*RUN, "text", "console", "r"}, (page, block)
            if block.language == "console":
                for line in block.text.splitlines():
                    assert re.match(r"(docker|kubectl|deploy/|rlstm store )", line), line
                    for file in re.findall(r"deploy/[\w./-]+", line):
                        assert (ROOT / file.removesuffix("/secrets")).exists(), file


def test_the_newcomers_path(tmp_path):
    """The tutorial, from a first score to an own model, in a fresh folder, timed step by step."""
    steps = headed(DOCS / "tutorial.md")
    seconds, said = {}, {}
    with Terminal(tmp_path) as terminal:
        for heading, given in steps.items():
            began = time.monotonic()
            said[heading] = "\n".join(type_all(terminal, given))
            name = "rlstm probe" if heading == "Install" else heading  # the rest of it is timed below
            seconds[name] = time.monotonic() - began
    print("\n" + "; ".join(f"{heading}: {value:.0f} s" for heading, value in seconds.items()))

    score = float(re.search(r"bits per byte +([\d.]+)", said["A first score"])[1])
    static, adapted = _rates(said["A first session that learns"])
    assert 0.5 < score < 4
    assert adapted < 0.8 * static
    assert "tiny" in said["A model of your own"]


def _rates(said):
    """Bits per byte of the first append, static and adapted."""
    static = re.search(r"static bits per byte +([\d.]+)", said)[1]
    adapted = re.search(r"^bits per byte +([\d.]+)", said, re.MULTILINE)[1]
    return float(static), float(adapted)


@pytest.mark.slow
def test_the_installation(tmp_path):
    """What the tutorial says, on a copy of the checkout: the seconds to `rlstm --version` are printed."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    ).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tmp_path / name)
    (install,) = [block for block in blocks(DOCS / "tutorial.md") if "install" in block.title]
    began = time.monotonic()
    with Terminal(tmp_path, binaries=tmp_path) as terminal:
        terminal.type(install, patience=1800)
        said = terminal.type(type(install)("sh", "", "rlstm --version; command -v rlstm\n"))
    print(f"\ninstallation: {time.monotonic() - began:.0f} s")

    assert str(tmp_path) in said


def test_the_site_is_built_without_a_warning(tmp_path):
    """Links, anchors, docstrings, the HTTP interface and the commands; nothing is asked of the network."""
    for name in ("material", "mkdocstrings"):
        if importlib.util.find_spec(name) is None:
            pytest.skip("the extra docs is not installed: pip install 'mogrifier-rlstm[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr

    http = (tmp_path / "reference" / "http" / "index.html").read_text()
    assert "POST /sessions/{session_id}/append" in http
    assert "rlstm probe" in (tmp_path / "reference" / "commands" / "index.html").read_text()
    assert "RLSTM_LIMITS__NOTE_BYTES" in (tmp_path / "reference" / "settings" / "index.html").read_text()
    client = (tmp_path / "reference" / "client" / "index.html").read_text()
    assert "Append texts as they come over one connection" in client
    for page in tmp_path.rglob("*.html"):
        loaded = re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?:[^"]+)"', page.read_text())
        assert loaded == [], page
