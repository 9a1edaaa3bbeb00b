"""``rlstm bench adapt``: what learning saves, by each rule of a checkpoint, beside full fast weights."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from rlstm_model.adaptation.calibration import CalibrationSet
from rlstm_model.adaptation.config import AdaptationConfig
from rlstm_model.checkpoint import Checkpoint, load
from rlstm_training.bench.adaptation import Bench, Method, Outcome
from rlstm_training.bench.shares import (
    Reference,
    ReferenceMismatch,
    Texts,
    digest,
    load_reference,
    methods_of_mixture,
    methods_of_reference,
    mixed,
)
from rlstm_training.commands.adapt_choices import (
    PREFIX,
    Experts,
    Prefix,
    Rules,
    Whole,
    experts_chosen,
    passages_chosen,
    rules_chosen,
)
from rlstm_training.commands.adapt_results import SUFFIXES, Results, name_of, save_plot, show
from rlstm_training.commands.choosing import calibrated_of
from rlstm_training.commands.console import (
    AsJson,
    Device,
    Model,
    Threads,
    command,
    prepare_crew,
    progress_bar,
    show_json,
    warn,
)
from rlstm_training.commands.given import Corpora, Streams
from rlstm_training.corpora.streams import stream_names
from rlstm_training.corpora.texts import Passage

Mixtures = Annotated[
    bool, typer.Option("--mixture", help="Hold mixtures of four against single rates in hindsight.")
]
FullFrom = Annotated[
    Path | None, typer.Option(help="Take full fast weights' figures from an earlier result in JSON.")
]
PlotFile = Annotated[
    Path | None, typer.Option("--plot", help=f"Draw shares against bytes, as {' or '.join(SUFFIXES)}.")
]


@command
def bench_adapt(
    model: Model = "bytes-small",
    stream: Streams = None,
    corpus: Corpora = None,
    prefix: Prefix = None,
    whole: Whole = False,
    rule: Rules = None,
    experts: Experts = None,
    mixture: Mixtures = False,
    full_from: FullFrom = None,
    plot: PlotFile = None,
    threads: Threads = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Say what learning saves: bits per byte, bytes a session, and the share of what full fast weights save.

    Each stream is one session over its segments; each corpus is its test text. Without either, all streams
    and wikitext-2 are read. Full fast weights of one expert are read at 1/3, 1 and 3 times their rate, one
    session after another, which takes longest; of these the best for each text counts.
    """
    if whole and prefix is not None:
        raise typer.BadParameter("--whole reads all bytes", param_hint="--prefix")
    _check_plot(plot)
    with prepare_crew(device, threads) as room:
        checkpoint = load(model, room.device)
        calibrated = calibrated_of(checkpoint)
        rules, counts = rules_chosen(calibrated, rule), experts_chosen(experts)
        shown = None if whole else prefix or PREFIX
        passages = passages_chosen(checkpoint.vocab, stream or (), corpus or (), shown)
        texts = _texts(checkpoint, calibrated, passages)
        reading = _Reading(
            Bench(calibrated, passages, bos_id=checkpoint.vocab.bos_id, thread_pool=room.thread_pool),
            known=None if full_from is None else _reference(full_from, texts),
        )
        reading.read(_methods(rules, counts, mixture))
        results = Results(
            model=checkpoint.name,
            prefix=shown,
            texts=texts,
            streams=[name for name in texts.digests if name in stream_names()],
            static=reading.static,
            reference=reading.reference(_full(calibrated)),
            outcomes=[reading.outcomes[Method(rule=each, experts=k)] for each in rules for k in counts],
            mixtures={each: mixed(each, reading.static, reading.outcomes) for each in rules if mixture},
        )
    _tell(results, plot, as_json)


class _Reading:
    """What has been read, with a bar for each rule. Nothing is read twice."""

    def __init__(self, bench: Bench, known: Reference | None) -> None:
        self._bench = bench
        self._known = known
        self.outcomes: dict[Method, Outcome] = {}
        with progress_bar("static", bench.tokens) as advance:
            self.static = bench.static(advance)

    def read(self, wanted: Mapping[AdaptationConfig, Sequence[Method]]) -> None:
        """Read methods, by their rules."""
        for rule, methods in wanted.items():
            new = [method for method in dict.fromkeys(methods) if method not in self.outcomes]
            with progress_bar(name_of(rule), self._bench.tokens * len(new)) as advance:
                for outcome in self._bench.learning(new, advance):
                    self.outcomes[outcome.method] = outcome

    def reference(self, full: AdaptationConfig | None) -> Reference | None:
        """Full fast weights under their rule: what was known of them, or is read now."""
        if self._known is not None:
            return self._known
        if full is None:
            warn("the checkpoint has no rule for full fast weights: there is nothing to take shares of")
            return None
        methods = methods_of_reference(full)
        self.read({full: methods})
        return Reference.of([self.outcomes[method] for method in methods])


def _methods(
    rules: Sequence[AdaptationConfig], experts: Sequence[int], mixture: bool
) -> dict[AdaptationConfig, list[Method]]:
    return {
        rule: [
            *(Method(rule=rule, experts=count) for count in experts),
            *(methods_of_mixture(rule) if mixture else ()),
        ]
        for rule in rules
    }


def _full(calibrated: CalibrationSet) -> AdaptationConfig | None:
    return next((choice for choice in calibrated.choices if choice.kind == "full"), None)


def _tell(results: Results, plot: Path | None, as_json: bool) -> None:
    if as_json:
        show_json(results.to_json())
    else:
        show(results)
    if plot is not None:
        save_plot(results, plot)


def _texts(checkpoint: Checkpoint, calibrated: CalibrationSet, passages: Sequence[Passage]) -> Texts:
    full = _full(calibrated)
    rule = None if full is None else calibrated.choose(full.kind, full.num_fast_weights).fingerprint
    digests = {passage.name: digest(passage) for passage in passages}
    return Texts(model=checkpoint.fingerprint, rule=rule, digests=digests)


def _reference(path: Path, texts: Texts) -> Reference:
    try:
        return load_reference(path, texts)
    except ReferenceMismatch as error:
        raise typer.BadParameter(str(error), param_hint="--full-from") from error


def _check_plot(path: Path | None) -> None:
    """Before hours of reading: whether the plot can be drawn and kept."""
    if path is None:
        return
    if path.suffix not in SUFFIXES:
        raise typer.BadParameter(f"{path} ends with none of {', '.join(SUFFIXES)}", param_hint="--plot")
    if not path.parent.is_dir():
        raise typer.BadParameter(f"{path.parent} is no folder", param_hint="--plot")
