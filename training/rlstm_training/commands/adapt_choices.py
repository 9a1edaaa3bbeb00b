"""What ``rlstm bench adapt`` is to read: rules of a checkpoint, numbers of experts, and texts."""

from collections.abc import Sequence
from typing import Annotated

import typer

from rlstm_model.adaptation.adapted_state import EXPERT_RATES
from rlstm_model.adaptation.calibration import CalibrationSet
from rlstm_model.adaptation.config import AdaptationConfig
from rlstm_model.vocab import Vocab
from rlstm_training.commands.choosing import rule_named
from rlstm_training.commands.given import SplitName, texts_given
from rlstm_training.corpora.streams import stream_names
from rlstm_training.corpora.texts import Passage

CORPUS = "wikitext-2"
PREFIX = 5_000
SEGMENTS_OF_CORPUS = 10
"""A corpus is read as far as so many segments of a stream."""

Rules = Annotated[
    list[str] | None,
    typer.Option("--rule", metavar="KIND[:COORDINATES]", help="A rule of the checkpoint (all but full)."),
]
Experts = Annotated[list[int] | None, typer.Option(help="How many experts, 1, 2 or 4 (all three).")]
Prefix = Annotated[
    int | None,
    typer.Option(
        min=1, help=f"First bytes of each segment [{PREFIX}]; of a corpus {SEGMENTS_OF_CORPUS} times as many."
    ),
]
Whole = Annotated[bool, typer.Option("--whole", help="Read all bytes.")]


def rules_chosen(calibrated: CalibrationSet, named: Sequence[str] | None) -> list[AdaptationConfig]:
    """The rules named, each once; where none is, all but that of full fast weights, which take hours."""
    if not named:
        return [choice for choice in calibrated.choices if choice.kind != "full"]
    return list(dict.fromkeys(rule_named(calibrated, name) for name in named))


def experts_chosen(counts: Sequence[int] | None) -> list[int]:
    """The numbers of experts named, each once; where none is, all that there are."""
    for count in counts or ():
        if count not in EXPERT_RATES:
            known = ", ".join(map(str, EXPERT_RATES))
            raise typer.BadParameter(f"{count} is none of {known}", param_hint="--experts")
    return list(dict.fromkeys(counts or EXPERT_RATES))


def passages_chosen(
    vocab: Vocab, streams: Sequence[str], corpora: Sequence[str], prefix: int | None
) -> list[Passage]:
    """One passage a text, with the text's name: a stream's segments are one."""
    if not streams and not corpora:
        streams, corpora = stream_names(), (CORPUS,)
    of_corpus = None if prefix is None else SEGMENTS_OF_CORPUS * prefix
    given = texts_given(vocab, (), (), (), list(dict.fromkeys(streams)), prefix) if streams else []
    if corpora:
        given += texts_given(vocab, (), list(dict.fromkeys(corpora)), [SplitName.TEST], (), of_corpus)
    return [
        Passage(
            name=name,
            ids=[token for part in parts for token in part.ids],
            bytes=sum(part.bytes for part in parts),
            unknown=sum(part.unknown for part in parts),
        )
        for name, parts in given
    ]
