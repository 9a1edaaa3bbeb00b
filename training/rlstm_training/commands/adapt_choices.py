"""What ``rlstm bench adapt`` is to read: rules of a checkpoint, numbers of experts, and texts."""

from collections.abc import Sequence
from typing import Annotated, get_args

import typer

from rlstm_model.adaptation.adapted_state import EXPERTS
from rlstm_model.adaptation.calibration import Calibrated, NotCalibrated
from rlstm_model.adaptation.calibration_file import load_calibration
from rlstm_model.adaptation.config import AdaptationConfig, Kind
from rlstm_model.checkpoint import Checkpoint, CheckpointError
from rlstm_model.vocab import Vocab
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


def calibrated_of(checkpoint: Checkpoint) -> Calibrated:
    """What a checkpoint knows about learning. Raises CheckpointError when it is not calibrated."""
    file = checkpoint.adaptation_file
    if file is None:
        raise CheckpointError(f"{checkpoint.folder}: has no calibration; run rlstm calibrate")
    return load_calibration(file, checkpoint.model)


def rules_chosen(calibrated: Calibrated, named: Sequence[str] | None) -> list[AdaptationConfig]:
    """The rules named, each once; where none is, all but that of full fast weights, which take hours."""
    if not named:
        return [choice for choice in calibrated.choices if choice.kind != "full"]
    return list(dict.fromkeys(rule_named(calibrated, name) for name in named))


def rule_named(calibrated: Calibrated, name: str) -> AdaptationConfig:
    """The rule ``KIND[:COORDINATES]``. Wrong usage when there is none."""
    kinds: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}
    kind, _, size = name.partition(":")
    if kind not in kinds or (size and not size.isdecimal()):
        raise typer.BadParameter(
            f"{name!r} is no KIND[:COORDINATES] of {', '.join(kinds)}", param_hint="--rule"
        )
    try:
        return calibrated.find(kinds[kind], int(size) if size else None)
    except NotCalibrated as error:
        raise typer.BadParameter(str(error), param_hint="--rule") from error


def experts_chosen(counts: Sequence[int] | None) -> list[int]:
    """The numbers of experts named, each once; where none is, all that there are."""
    for count in counts or ():
        if count not in EXPERTS:
            known = ", ".join(map(str, EXPERTS))
            raise typer.BadParameter(f"{count} is none of {known}", param_hint="--experts")
    return list(dict.fromkeys(counts or EXPERTS))


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
