"""``rlstm corpora``: the corpora that papers report on, and how to get them."""

from pathlib import Path
from typing import Annotated

import httpx
import typer

from rlstm_training.commands.console import AsJson, command, show_json, show_table
from rlstm_training.corpora import corpora_folder
from rlstm_training.corpora.published import PUBLISHED, PublishedCorpus, download
from rlstm_training.corpora.reading import missing_files

TIMEOUT = httpx.Timeout(30.0)


@command
def corpora(
    names: Annotated[list[str] | None, typer.Argument(help=f"Of {', '.join(PUBLISHED)}.")] = None,
    fetch: Annotated[bool, typer.Option("--download", help="Get those named that are not here.")] = False,
    as_json: AsJson = False,
) -> None:
    """Which published corpora are in the folder of RLSTM_CORPORA, and how to get the others.

    enwik8 and text8 can be downloaded. What is here is checked when it is read.
    """
    chosen = [_published(name) for name in names or PUBLISHED]
    folder = corpora_folder()
    if fetch:
        if not names:
            raise typer.BadParameter("name what to download", param_hint="NAMES")
        for corpus in chosen:
            _download(corpus, folder)
    if as_json:
        show_json({"folder": str(folder), "corpora": [_row(corpus) for corpus in chosen]})
    else:
        _show(chosen, folder)


def _published(name: str) -> PublishedCorpus:
    if name not in PUBLISHED:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(PUBLISHED)}", param_hint="NAMES")
    return PUBLISHED[name]


def _download(corpus: PublishedCorpus, folder: Path) -> None:
    if not missing_files(corpus.name):
        return
    if corpus.address:
        typer.echo(f"downloading {corpus.address}", err=True)
    try:
        client = httpx.Client(timeout=TIMEOUT)
    except (ImportError, OSError, ValueError) as error:
        raise typer.BadParameter(f"a proxy variable cannot be used: {error}") from None
    with client:
        download(corpus, folder, client)


def _row(corpus: PublishedCorpus) -> dict[str, object]:
    return {
        "name": corpus.name,
        "about": corpus.about,
        "licence": corpus.licence,
        "missing": [str(path) for path in missing_files(corpus.name)],
        "obtain": corpus.obtain,
        "address": corpus.address,
    }


def _show(chosen: list[PublishedCorpus], folder: Path) -> None:
    missing = {corpus.name: missing_files(corpus.name) for corpus in chosen}
    show_table(
        ("corpus", "here", "about", "licence"),
        [(each.name, "no" if missing[each.name] else "yes", each.about, each.licence) for each in chosen],
    )
    for corpus in chosen:
        if missing[corpus.name]:
            typer.echo(f"\n{corpus.how_to_get(folder)}")
