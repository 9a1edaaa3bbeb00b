"""`rlstm compress` and `rlstm decompress`: a file in as many bits as it costs a model, and back."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import click
from tqdm import tqdm

from rlstm_client._http import ArrivingFile
from rlstm_client.cli import commands, inputs, output
from rlstm_client.cli.exits import CommandError, Exit

SUFFIX: Final = ".rlz"
_PIPE: Final = Path("-")

_source = click.argument("file", type=inputs.FILE, help="The file; - is standard input.")
_out = click.option("--out", "-o", type=inputs.FILE, help="Where to; - is standard output.")


@click.command()
@_source
@_out
@click.option("--model", default=commands.DEFAULT_MODEL, help="A shipped model, or the folder of one.")
@click.option(
    "--adapt",
    type=click.Choice(("frozen", "weights", "memory", "both")),
    default="both",
    help="What adapts to the file: nothing, fast weights, a memory, or both.",
)
@inputs.force
def compress(file: Path, out: Path | None, model: str, adapt: str, force: bool) -> None:
    """Compress a file to as many bits as it costs the model; FILE.rlz is written beside it.

    Only the same model gives it back. The file itself stays.

    Example: rlstm compress novel.txt
    """
    place = out or (_PIPE if file == _PIPE else Path(f"{file}{SUFFIX}"))
    if place == _PIPE and sys.stdout.isatty():
        raise CommandError("what is compressed is no text for a terminal: give --out FILE")
    done = _run("compress", file, place, force=force, model=model, adapt=adapt)
    if place != _PIPE:
        rate = f", {8 * done.packed / done.bytes:.3f} bits a byte" if done.bytes else ""
        output.write(f"{place}: {done.bytes:,} bytes in {done.packed:,}{rate}\n")


@click.command()
@_source
@_out
@click.option("--model", help="The folder of the model, where it is no shipped one.")
@inputs.force
def decompress(file: Path, out: Path | None, model: str | None, force: bool) -> None:
    """Give back what `rlstm compress` was given, byte for byte; FILE.rlz becomes FILE.

    Nothing is written of a file that is damaged, or that another model made.

    Example: rlstm decompress novel.txt.rlz
    """
    if out is None and file != _PIPE and file.suffix != SUFFIX:
        raise CommandError(f"{file}: the name does not end in {SUFFIX}: give --out FILE")
    place = out or (_PIPE if file == _PIPE else file.with_suffix(""))
    size = _run("decompress", file, place, force=force, model=model)
    if place != _PIPE:
        output.write(f"{place}: {size:,} bytes\n")


def _run(name: str, file: Path, place: Path, *, force: bool, **given: Any) -> Any:
    """Have the library read a file and write another, of which all is there in the end, or nothing."""
    act = commands.load(commands.LOCAL_GROUP, name, "compress")
    _refuse(place, force)
    with _opened(file) as source, ArrivingFile(sys.stdout.buffer if place == _PIPE else place) as arriving:
        with _progress(name, os.fstat(source.fileno()).st_size) as progress:
            try:
                done = act(source, arriving.partial, progress=progress, **given)
            except (ValueError, ArithmeticError, ImportError) as error:
                raise CommandError(str(error), _code(error)) from error
        _refuse(place, force)
        if _PIPE not in (file, place):
            shutil.copymode(file, arriving.partial.name)
        arriving.keep()
        sys.stdout.flush()
    return done


def _refuse(place: Path, force: bool) -> None:
    if place == _PIPE:
        return
    if os.path.lexists(place) and not place.is_file():
        raise CommandError(f"{place}: is there already, and no file")
    output.check_free(place, force=force)


def _opened(file: Path) -> IO[bytes]:
    if file != _PIPE:
        return file.open("rb")
    if inputs.nothing_piped():
        raise CommandError("give a FILE, or pipe one in")
    return open(sys.stdin.fileno(), "rb", closefd=False)


def _code(error: Exception) -> Exit:
    """Input that is wrong, a part that is missing, or a model that computes no numbers."""
    if isinstance(error, ValueError):
        return Exit.USAGE
    return Exit.MISSING if isinstance(error, ImportError) else Exit.REFUSED


@contextmanager
def _progress(label: str, size: int) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on standard error, on terminals only; ``size`` is of a file, or 0 where that is not known."""
    with tqdm(total=size or None, desc=label, unit="B", unit_scale=True, disable=None) as bar:

        def told(done: int, of: int | None) -> None:
            bar.total = of or bar.total
            bar.update(done - bar.n)

        yield told
