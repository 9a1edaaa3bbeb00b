"""``rlstm evaluate``: score texts exactly."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rlstm_model.adaptation.adapter import Adapter
from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.checkpoint import Checkpoint, CheckpointError, load
from rlstm_model.vocab import Vocab
from rlstm_training.commands.console import (
    AsJson,
    Device,
    Model,
    Threads,
    command,
    prepare_device,
    progress_bar,
    show_json,
    show_table,
)
from rlstm_training.corpora import CorpusError, Split, load_corpus
from rlstm_training.evaluation import DynamicReading, Evaluation, Reading, StaticReading, total
from rlstm_training.streams import load_stream
from rlstm_training.texts import Passage, excerpt, passage

Prefix = Annotated[int | None, typer.Option(min=1, help="Only the first bytes of each text or segment.")]


@command
def evaluate(
    model: Model,
    files: Annotated[list[str] | None, typer.Argument(help="Text files; - is standard input.")] = None,
    corpus: Annotated[list[str] | None, typer.Option(help="A corpus by name, or a folder.")] = None,
    split: Annotated[Literal["train", "valid", "test"], typer.Option(help="Of the corpora.")] = "test",
    stream: Annotated[list[str] | None, typer.Option(help="A stream, read in one session.")] = None,
    prefix: Prefix = None,
    dynamic: Annotated[bool, typer.Option("--dynamic", help="Learn while reading, as a session.")] = False,
    rate_scale: Annotated[float, typer.Option(min=0, help="Multiplies the calibrated rate.")] = 1.0,
    threads: Threads = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Score texts exactly, token after token: static or learning."""
    target = prepare_device(device, threads)
    checkpoint = load(model, target)
    vocab = checkpoint.vocab
    texts = [
        *(_file(vocab, path, prefix) for path in files or ()),
        *(_corpus(vocab, name, split, prefix) for name in corpus or ()),
        *(_stream(vocab, name, prefix) for name in stream or ()),
    ]
    if not texts:
        raise typer.BadParameter("name files, a --corpus or a --stream", param_hint="FILES")
    adapter = load_adapter(checkpoint) if dynamic else None
    results = []
    for name, passages in texts:
        reading: Reading = StaticReading(checkpoint.model, bos_id=vocab.bos_id)
        if adapter is not None:
            reading = DynamicReading(adapter, rate_scale=rate_scale)
        with progress_bar(name, sum(len(part.ids) for part in passages)) as advance:
            results.append((name, [reading.read(part, advance) for part in passages]))
    if as_json:
        show_json(_report(checkpoint, results))
    else:
        _show(results)


def load_adapter(checkpoint: Checkpoint) -> Adapter:
    """The adapter of a calibrated checkpoint. Raises CheckpointError, CalibrationError."""
    file = checkpoint.adaptation_file
    if file is None:
        raise CheckpointError(f"{checkpoint.folder}: has no calibration; run rlstm calibrate")
    calibration = Calibration.load(file, checkpoint.model)
    return Adapter(checkpoint.model, calibration, bos_id=checkpoint.vocab.bos_id)


def _file(vocab: Vocab, path: str, prefix: int | None) -> tuple[str, list[Passage]]:
    try:
        raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise CorpusError(f"{path}: {error.strerror}") from error
    return _whole(vocab, raw, path, prefix)


def _corpus(vocab: Vocab, name: str, split: Split, prefix: int | None) -> tuple[str, list[Passage]]:
    return _whole(vocab, load_corpus(name, split), f"{name} {split}", prefix)


def _whole(vocab: Vocab, raw: bytes, name: str, prefix: int | None) -> tuple[str, list[Passage]]:
    if prefix is None:
        return name, [passage(vocab, raw, name)]
    return name, [excerpt(vocab, raw[:prefix], name)]


def _stream(vocab: Vocab, name: str, prefix: int | None) -> tuple[str, list[Passage]]:
    segments = load_stream(name, prefix=prefix)
    return name, [excerpt(vocab, raw, label) for label, raw in segments]


def _report(checkpoint: Checkpoint, results: Sequence[tuple[str, list[Evaluation]]]) -> dict[str, Any]:
    texts = [
        {**total(name, parts).to_json(), "segments": [part.to_json() for part in parts]}
        for name, parts in results
    ]
    return {"model": checkpoint.name, "fingerprint": checkpoint.fingerprint, "texts": texts}


def _show(results: Sequence[tuple[str, list[Evaluation]]]) -> None:
    rows = []
    for name, parts in results:
        if len(parts) > 1:
            rows += [_row(part) for part in parts]
        rows.append(_row(total(name, parts)))
    show_table(("text", "tokens", "unknown", "perplexity", "static", "adapted", "gain"), rows)
    typer.echo("static, adapted and gain in bits per byte; perplexity per token")


def _row(result: Evaluation) -> tuple[str, ...]:
    static, adapted = result.static_nats, result.adapted_nats
    reference = static if adapted is None else adapted
    return (
        result.text,
        f"{result.tokens:,}",
        f"{result.unknown:,}",
        "" if reference is None else f"{result.perplexity(reference):.3f}",
        "" if static is None else f"{result.bits_per_byte(static):.4f}",
        "" if adapted is None else f"{result.bits_per_byte(adapted):.4f}",
        "" if static is None or adapted is None else f"{result.bits_per_byte(static - adapted):+.4f}",
    )
