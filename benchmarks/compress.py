"""Files of `rlstm compress` beside xz and PPMd: ``python -m benchmarks.compress``.

Each stream is one file of its segments, by each kind of adaptation; beside a file's bytes stand the bits that
its text was scored with. ``--beside`` adds another program, as lstm-compress with its dictionary:

    python -m benchmarks.compress --whole --kind both --beside "lstm-compress -c dictionary/english.dic"
"""

import importlib.util
import io
import lzma
import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import click

from rlstm_client.cli import inputs
from rlstm_model import native
from rlstm_model.compression import KINDS, compress, decompress
from rlstm_training.commands import console
from rlstm_training.commands.console import progress_bar, show_json, show_table, warn
from rlstm_training.corpora.reading import load_stream, stream_names

PREFIX = 5_000
PPMD = "pyppmd"
ORDERS = (4, 6, 8, 12, 16)


@dataclass(frozen=True, kw_only=True)
class Packed:
    """A stream's file by one kind: its bytes, and the bits that were scored."""

    stream: str
    kind: str
    bytes: int
    bits: float

    @property
    def excess(self) -> float:
        """What of the file was not scored, header and all, as a part of what was."""
        return 8 * self.bytes / self.bits - 1 if self.bits else 0.0


@dataclass(frozen=True, kw_only=True)
class Others:
    """A stream's own bytes, and those that others make of it; None of one that is not there."""

    stream: str
    bytes: int
    xz: int
    ppmd: int | None
    beside: int | None


def packed(stream: str, content: bytes, model: str, kind: str, back: bool) -> Packed:
    """Compress, on one thread; with ``back`` decompress too. Raises AssertionError where that differs."""
    native.set_threads(1)
    sink = io.BytesIO()
    done = compress(io.BytesIO(content), sink, model=model, adapt=kind)  # type: ignore[arg-type]
    if back:
        again = io.BytesIO()
        decompress(io.BytesIO(sink.getvalue()), again, model=model)
        if again.getvalue() != content:
            raise AssertionError(f"{stream}, {kind}: what came back is something else")
    return Packed(stream=stream, kind=kind, bytes=done.packed, bits=done.bits)


def others(stream: str, content: bytes, command: str | None) -> Others:
    """By ``xz -9e``, by PPMd of the order that does best, and by ``command FILE COMPRESSED``."""
    xz = len(lzma.compress(content, preset=9 | lzma.PRESET_EXTREME))
    beside = None if command is None else _by(command, content)
    return Others(stream=stream, bytes=len(content), xz=xz, ppmd=_ppmd(content), beside=beside)


def _by(command: str, content: bytes) -> int:
    with tempfile.TemporaryDirectory() as folder:
        text, compressed = Path(folder) / "text", Path(folder) / "compressed"
        text.write_bytes(content)
        subprocess.run([*shlex.split(command), text, compressed], check=True, stdout=subprocess.DEVNULL)  # noqa: S603
        return compressed.stat().st_size


def _ppmd(content: bytes) -> int | None:
    if importlib.util.find_spec(PPMD) is None:
        return None
    import pyppmd

    return min(len(pyppmd.compress(content, max_order=order, mem_size=256 << 20)) for order in ORDERS)


def show(others: Sequence[Others], done: Iterable[Packed], kinds: Sequence[str]) -> None:
    """Bytes of all, and how near ours are to what was scored."""
    ours = {(each.stream, each.kind): each for each in done}
    rows, scored = [], []
    for each in others:
        mine = [ours[each.stream, kind] for kind in kinds]
        sizes = each.bytes, each.xz, each.ppmd, each.beside, *(one.bytes for one in mine)
        rows.append([each.stream, *("" if size is None else f"{size:,}" for size in sizes)])
        scored.append([each.stream, *(f"{one.bits:,.0f} + {100 * one.excess:.2f} %" for one in mine)])
    show_table(("bytes", "original", "xz -9e", "PPMd", "beside", *kinds), rows)
    show_table(("bits scored, and more in the file", *kinds), scored)


@console.command()
@console.model(default="bytes-small")
@console.streams
@click.option("--prefix", type=click.IntRange(1), default=PREFIX, help="Bytes of each segment.")
@click.option("--whole", is_flag=True, help="All bytes.")
@click.option("--kind", multiple=True, type=click.Choice(KINDS), help="(all)")
@click.option("--back", is_flag=True, help="Decompress too, and compare.")
@click.option("--beside", metavar="COMMAND", help="Another program: COMMAND FILE COMPRESSED.")
@click.option("--processes", type=click.IntRange(1), help="Of one thread each (one a core).")
@inputs.as_json
def main(
    model: str,
    stream: Sequence[str],
    prefix: int,
    whole: bool,
    kind: Sequence[str],
    back: bool,
    beside: str | None,
    processes: int | None,
    as_json: bool,
) -> None:
    """Say how many bytes streams take, by each kind of adaptation, beside xz and PPMd."""
    kinds = list(dict.fromkeys(kind or KINDS))
    if importlib.util.find_spec(PPMD) is None:
        warn("PPMd is left out: pip install 'mogrifier-rlstm[peers]'")
    names = list(dict.fromkeys(stream or stream_names()))
    texts = {
        name: b"".join(text for _, text in load_stream(name, prefix=None if whole else prefix))
        for name in names
    }
    pool = ProcessPoolExecutor(processes or os.cpu_count(), mp_context=get_context("spawn"))
    with pool, progress_bar("files", len(texts) * len(kinds)) as advance:
        theirs = [pool.submit(others, name, text, beside) for name, text in texts.items()]
        ours = [
            pool.submit(packed, name, text, model, each, back)
            for name, text in sorted(texts.items(), key=lambda item: -len(item[1]))
            for each in kinds
        ]
        for _ in as_completed(ours):
            advance(1)
        told, done = [each.result() for each in theirs], [each.result() for each in ours]
    if as_json:
        show_json(
            {
                "model": model,
                "prefix": None if whole else prefix,
                "others": list(map(asdict, told)),
                "ours": list(map(asdict, done)),
            }
        )
    else:
        show(told, done, kinds)


if __name__ == "__main__":
    main()
