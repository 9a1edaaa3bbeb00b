"""``rlstm corpora``: the corpora that papers report on, and how to get them."""

from collections.abc import Sequence
from pathlib import Path

import click
import httpx

from rlstm_client.cli import inputs
from rlstm_training.commands import console
from rlstm_training.commands.console import show_json, show_table
from rlstm_training.corpora import corpora_folder
from rlstm_training.corpora.published import PUBLISHED, PublishedCorpus, download
from rlstm_training.corpora.reading import missing_files

TIMEOUT = httpx.Timeout(30.0)


@console.command()
@click.argument(
    "names", nargs=-1, type=click.Choice(PUBLISHED), metavar="[NAME]...", help=f"Of {', '.join(PUBLISHED)}."
)
@click.option("fetch", "--download", is_flag=True, help="Get those named that are not here.")
@inputs.as_json
def corpora(names: Sequence[str], fetch: bool, as_json: bool) -> None:
    """Which published corpora are in the folder of RLSTM_CORPORA, and how to get the others.

    enwik8 and text8 can be downloaded. What is here is checked when it is read.
    """
    chosen = [PUBLISHED[name] for name in names or PUBLISHED]
    folder = corpora_folder()
    if fetch:
        if not names:
            raise click.BadParameter("name what to download", param_hint="NAMES")
        for corpus in chosen:
            _download(corpus, folder)
    if as_json:
        show_json({"folder": str(folder), "corpora": [_row(corpus) for corpus in chosen]})
    else:
        _show(chosen, folder)


def _download(corpus: PublishedCorpus, folder: Path) -> None:
    if not missing_files(corpus.name):
        return
    if corpus.address:
        click.echo(f"downloading {corpus.address}", err=True)
    try:
        client = httpx.Client(timeout=TIMEOUT)
    except (ImportError, OSError, ValueError) as error:
        raise click.BadParameter(f"a proxy variable cannot be used: {error}") from None
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
            click.echo(f"\n{corpus.how_to_get(folder)}")
