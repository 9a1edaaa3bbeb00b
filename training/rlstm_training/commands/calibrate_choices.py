"""What ``rlstm calibrate`` is to find: forms of fast weights, on which statistics and texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, get_args

import typer

from rlstm_model.adaptation.calibration import CalibrationSet
from rlstm_model.adaptation.config import Kind
from rlstm_model.checkpoint import Checkpoint
from rlstm_training.config import Recipe
from rlstm_training.corpora.streams import held_out
from rlstm_training.corpora.texts import Passage, excerpt
from rlstm_training.evaluation.measurements import Cores, Form, Statistics, most_fast_weights

ON = ("wikitext-2", "tinyshakespeare", "canterbury/alice29", "domains/foldoc", "languages/bgwiki")
CHANGING = "all in one session"
KINDS: tuple[Kind, ...] = ("subspace", "full")
SERVED_RANK = 128
AXES, EMBEDDING_AXES, UNITS = 160, 256, 64

On = Annotated[
    list[str] | None, typer.Option(help=f"Held-out texts beside the recipe's (default: {', '.join(ON)}).")
]
Kinds = Annotated[
    list[str] | None,
    typer.Option(
        "--kind",
        help=f"A kind of fast weights: {', '.join(get_args(Kind))}. The first is the default. "
        f"Others than {' and '.join(KINDS)} are found only when asked for.",
    ),
]
NumFastWeights = Annotated[
    list[int] | None,
    typer.Option(
        "--fast-weights",
        min=1,
        help="A size of subspaces, the default first. Others than the usual, the embedding and the softmax "
        f"within {SERVED_RANK} axes, are found only when asked for.",
    ),
]
Axes = Annotated[
    int | None, typer.Option("--axes", min=1, help="Leading axes of a side that subspaces may use (all).")
]
Rank = Annotated[
    int | None, typer.Option("--rank", min=1, help=f"Axes a side of a cell's matrix, at most ({AXES}).")
]
EmbeddingRank = Annotated[
    int | None,
    typer.Option(
        "--embedding-rank",
        min=1,
        help=f"Axes a side of the embedding and the softmax, at most ({EMBEDDING_AXES}).",
    ),
]
Units = Annotated[
    int | None,
    typer.Option(
        "--units",
        min=1,
        help=f"Of the kind sparse: hidden units of a layer that may add to each other, at most ({UNITS}).",
    ),
]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """How large the statistics are to be, as it was asked for; None for the usual."""

    rank: int | None = None
    embedding_rank: int | None = None
    units: int | None = None

    def check(self, kinds: Sequence[Kind], known: CalibrationSet | None) -> None:
        """Wrong usage where it is not needed, or where the statistics are those that are known."""
        if self.units is not None and "sparse" not in kinds:
            raise typer.BadParameter("units belong to --kind sparse", param_hint="--units")
        if known is None:
            return
        given = {"--rank": self.rank, "--embedding-rank": self.embedding_rank}
        if known.statistics.sparse is not None:
            given["--units"] = self.units
        for option, value in given.items():
            if value is not None:
                raise typer.BadParameter(
                    "--add goes by the statistics that the model has: they were measured before",
                    param_hint=option,
                )

    def statistics(self, kinds: Sequence[Kind], *, heads: int, segments: int) -> Statistics:
        """What the kinds need."""
        return Statistics(
            heads=heads,
            segments=segments,
            rank=self.rank or AXES,
            embedding_rank=self.embedding_rank or EMBEDDING_AXES,
            units=(self.units or UNITS) if "sparse" in kinds else 0,
        )


def kinds_chosen(named: Sequence[str] | None) -> list[Kind]:
    """The kinds named, each once, or the usual ones."""
    known: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}
    for name in named or ():
        if name not in known:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(known)}", param_hint="--kind")
    return [known[name] for name in dict.fromkeys(named or KINDS)]


def forms_chosen(kinds: Sequence[Kind], subspaces: Sequence[Form]) -> list[Form]:
    """Each kind in its order, a subspace once in each size."""
    forms: list[Form] = []
    for kind in kinds:
        forms += subspaces if kind == "subspace" else [Form(kind)]
    return list({(form.kind, form.num_fast_weights): form for form in forms}.values())


def subspaces_chosen(cores: Cores, sizes: Sequence[int] | None, axes: int | None) -> list[Form]:
    """Subspaces of the sizes asked for, or that which is served, between the cores' axes."""
    if sizes is None and axes is None:
        return [Form("subspace", most_fast_weights(cores, SERVED_RANK, cells=False), SERVED_RANK)]
    most = most_fast_weights(cores, axes or 0)
    wanted = sizes or [most_fast_weights(cores, axes or 0, cells=False)]
    if max(wanted) > most:
        message = f"the axes make a subspace of {most:,} fast weights at most, not {max(wanted):,}"
        raise typer.BadParameter(message, param_hint="--fast-weights")
    return [Form("subspace", size, axes or 0) for size in wanted]


def passages_held_out(
    checkpoint: Checkpoint, recipe: Recipe, others: Sequence[str], length: int
) -> list[Passage]:
    """An excerpt of each corpus's validation text, once whatever the forms it is trained in.

    And all of them in one session, where there are several: how well a rule follows a text that changes, and
    what it forgets, shows in no text alone.
    """
    names = list(dict.fromkeys([*(source.corpus for source in recipe.sources), *others]))
    raw = {name: held_out(name, "valid", length) for name in names}
    if len(raw) > 1:
        raw[CHANGING] = b"".join(raw.values())
    return [excerpt(checkpoint.vocab, text, name) for name, text in raw.items()]
