"""Writes the blocking client, `rlstm_client/_sync`, from the asyncio one, `rlstm_client/_async`.

    python clients/python/unasync.py            writes what is not as it should be
    python clients/python/unasync.py --check    says so, and exits with 1

Each rule replaces a pattern; ruff then sorts and drops imports and breaks lines.
"""

import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent / "rlstm_client"
HEAD = "# Written by unasync.py from _async/{name}. Do not edit.\n"
RULES = [
    # What only the asyncio client has: either kind of iterable, and a task that is cancelled.
    (r"\n\n\nasync def each\(.*?(?=\n\n\n|\Z)", ""),
    (r"\beach\(([\w.]+)\)", r"\1"),
    (r"Iterable\[str\] \| AsyncIterable\[str\]", "Iterable[str]"),
    (r" +except asyncio\.CancelledError:\n +raise\n", ""),
    # Names that differ by more than their first word.
    (r"AsyncGenerator\[(\w+), None\]", r"Generator[\1, None, None]"),
    (r"Awaitable\[(\w+)\]", r"\1"),
    (r"asyncio\.to_thread\(([\w.]+)(?:, )?", r"\1("),
    (r"asyncio\.wait_for\(([\w.]+)\(\), (\w+)\)", r"\1(\2)"),
    (r"asyncio\.(Lock|Semaphore)", r"threading.\1"),
    (r"asyncio\.sleep", "time.sleep"),
    (r"import asyncio\n", "import threading\nimport time\n"),
    (r"the asyncio client", "the blocking client"),
    (r"The asyncio client", "The blocking client"),
    (r"import AsyncGenerator", "import Generator, AsyncGenerator"),
    (r"`_sync`, the blocking one, is written from it by", "It is written from `_async` by"),
    # Words.
    (r"\b(?:await|async) ", ""),
    (r"\baclosing\b", "closing"),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\banext\b", "next"),
    (r"\ba(close|read|iter_bytes|iter_sse)\b", r"\1"),
    (r"__a(next|iter|enter|exit)__", r"__\1__"),
    (r"StopAsyncIteration", "StopIteration"),
    (r"Async([A-Z])", r"\1"),
    (r"_async\b", "_sync"),
]


def blocking(source: str, name: str) -> str:
    """Return the blocking form of a module."""
    for pattern, replacement in RULES:
        source = re.sub(pattern, replacement, source, flags=re.DOTALL)
    target = PACKAGE / "_sync" / name
    for command in (["check", "--quiet", "--fix", "--unsafe-fixes", "--select", "F401,I,UP028"], ["format"]):
        done = subprocess.run(  # noqa: S603 - the project's own formatter
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(target), "-"],
            input=source,
            capture_output=True,
            text=True,
            check=True,
        )
        source = done.stdout
    return HEAD.format(name=name) + source


def main() -> int:
    """Write the modules, or say which are not fresh."""
    check, stale = "--check" in sys.argv[1:], 0
    for path in sorted((PACKAGE / "_async").glob("*.py")):
        target = PACKAGE / "_sync" / path.name
        fresh = blocking(path.read_text(encoding="utf-8"), path.name)
        if target.exists() and target.read_text(encoding="utf-8") == fresh:
            continue
        stale += 1
        sys.stdout.write(f"{target}: not what {Path(__file__).name} writes\n")
        if not check:
            target.write_text(fresh, encoding="utf-8")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
