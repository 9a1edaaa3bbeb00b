"""What the native core does, held against what it has to: ``python -m benchmarks.native``.

A lone stream beside one large matrix product, beside another commit (``--base``, a checkout with an
environment of its own in ``.venv``) and through HTTP; many sessions beside the product and beside eager
autograd; training beside torch.nn.LSTM; starts; and a log that is followed. All that is compared is measured
in turn, round after round. Ratios are taken within a round, and their median counts.

W are the multiply-adds of a token: one for each weight of all matrices but the input embedding.
"""

import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import httpx
import torch

from benchmarks import cases as ways
from benchmarks import lone, start, train
from benchmarks.models import Subject
from benchmarks.peers import EAGER, Conditions, cases, learning_operations
from benchmarks.serving.process import Server, environment_of, running
from rlstm_client.cli import inputs
from rlstm_model.adaptation.state import EXPERT_RATES
from rlstm_training.commands import console
from rlstm_training.commands.console import show_json, show_table

CPU = torch.device("cpu")
SIZES = {"learn": 2_000, "score": 6_000, "generate": 800}
"""Tokens of a task; another commit's library gets a quarter."""

MIN, MAX = "at least", "at most"
KILOBYTE, FOLLOWED_SECONDS = 1_000, 30.0


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A figure, what it has to be, and the absolute values that it is made of."""

    name: str
    value: float
    bound: str
    target: float
    absolute: Mapping[str, float]

    @property
    def met(self) -> bool:
        """Whether it is what it has to be."""
        return self.value >= self.target if self.bound == MIN else self.value <= self.target

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {**asdict(self), "met": self.met}


# ---- one stream -------------------------------------------------------------------------------------------

Rates = Mapping[str, float]
"""Tokens a second of a round, by what was measured; of "sgemm" multiply-adds."""


class Library:
    """The library of a commit in a process of its own, with so many threads."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._line()

    def rate(self, task: str, size: int) -> float:
        """Tokens a second."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{task} {size}\n")
        self._process.stdin.flush()
        return size / float(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a library's process ended: what it wrote stands above")
        return line


@contextmanager
def library(model: str, threads: int, python: Path = Path(sys.executable)) -> Iterator[Library]:
    """The library that a Python imports."""
    environment = environment_of({"threads": threads}) | {"OMP_NUM_THREADS": str(threads)}
    with subprocess.Popen(  # noqa: S603
        [str(python), "-P", str(Path(lone.__file__)), model],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Library(process)
        finally:
            process.terminate()


class Served:
    """The same tasks, asked of a server."""

    def __init__(self, server: Server, client: httpx.Client) -> None:
        self._client = client
        client.headers["authorization"] = f"Bearer {server.keys[0]}"
        made = self._ask("/sessions", {"text": lone.prose(200), "adapt": "weights"})
        self._path = f"/sessions/{made['id']}"

    def rate(self, task: str, size: int) -> float:
        """Tokens a second."""
        asked: dict[str, tuple[str, dict[str, object]]] = {
            "learn": (f"{self._path}/append", {"text": lone.prose(size)}),
            "score": ("/score", {"text": lone.prose(size)}),
            "generate": (f"{self._path}/generate", {"max_tokens": size, "seed": 0}),
        }
        path, body = asked[task]
        return size / train.seconds_of(lambda: self._ask(path, body), CPU)

    def _ask(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        answer: dict[str, Any] = self._client.post(path, json=body).raise_for_status().json()
        return answer


def lone_rates(model: str, base: Path | None, rounds: int, share: float) -> list[Rates]:
    """Rounds of one stream's tasks; ``share`` multiplies their sizes."""
    sizes = {task: max(1, int(share * size)) for task, size in SIZES.items()}
    product = ways.product_case(1, CPU)
    with ExitStack() as stack:
        two, one = (stack.enter_context(library(model, threads)) for threads in (2, 1))
        server = stack.enter_context(running({"model": model, "threads": 2}))
        http = Served(server, stack.enter_context(httpx.Client(base_url=server.url, timeout=None)))  # noqa: S113
        steps: dict[str, Callable[[], float]] = {"sgemm": lambda: _product_rate(product)}
        steps["learn, 1 thread"] = lambda: one.rate("learn", sizes["learn"])
        for task, size in sizes.items():
            steps[f"{task}, 2 threads"] = _bound(two, task, size)
            steps[f"{task}, HTTP"] = _bound(http, task, size)
        if base is not None:
            before = stack.enter_context(library(model, 2, base / ".venv/bin/python"))
            for task, size in sizes.items():
                steps[f"{task}, before"] = _bound(before, task, max(1, size // 4))
        for step in steps.values():
            step()
        return [{name: step() for name, step in steps.items()} for _ in range(rounds)]


def _product_rate(product: ways.Case) -> float:
    torch.set_num_threads(1)
    return ways.rate(product.work, 0.2, time.perf_counter, CPU)


def _bound(one: Library | Served, task: str, size: int) -> Callable[[], float]:
    return lambda: one.rate(task, size)


def lone_findings(rates: Sequence[Rates], operations: int) -> list[Finding]:
    """``operations``: multiply-adds of a token of a default session."""

    def finding(name: str, one: str, other: str, target: float, times: float = 1.0) -> Finding:
        value = times * statistics.median(each[one] / each[other] for each in rates)
        absolute = {part: statistics.median(each[part] for each in rates) for part in (one, other)}
        return Finding(name=name, value=value, bound=MIN, target=target, absolute=absolute)

    found = [
        finding("a lone session on one thread, of its sgemm", "learn, 1 thread", "sgemm", 0.25, operations),
        finding("a lone session, two threads over one", "learn, 2 threads", "learn, 1 thread", 1.6),
    ]
    ours = {task: f"{task}, 2 threads" for task in SIZES}
    if "learn, before" in rates[0]:
        found += [
            finding(f"{task}, over the commit before", ours[task], f"{task}, before", target)
            for task, target in (("learn", 8.0), ("score", 3.0), ("generate", 3.0))
        ]
    http = "through HTTP, of the library"
    return found + [finding(f"{task} {http}", f"{task}, HTTP", ours[task], 0.9) for task in SIZES]


# ---- many sessions, training, starts ----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Targets:
    """Of a model: shares of the matrix product by the number of experts, and of frozen rows; over eager."""

    learning: Mapping[int, float]
    static: float
    eager: float


MANY = {
    "shipped": Targets(learning={2: 0.75, 4: 0.75}, static=0.90, eager=50.0),
    "n = 192": Targets(learning={1: 0.60, 2: 0.60, 4: 0.60}, static=0.80, eager=80.0),
}


def many_findings(name: str, subject: Subject, sessions: int, rounds: int, seconds: float) -> list[Finding]:
    """Many sessions at once on two threads, beside one large product and one session in eager autograd."""
    under = Conditions(sessions=sessions, context=1, threads=2, device=CPU)
    ours = cases(subject, subject.calibrated.choose(), under)
    measured = ways.measure(ours, rounds=rounds, seconds=seconds, device=CPU)
    learning = dict(zip(EXPERT_RATES, (case for case in ours if case.task == "learning"), strict=False))
    static, targets = measured.first("static"), MANY[name]
    eager = next(case for case in ours if case.name == EAGER)
    product = measured.first("sgemm")

    def finding(what: str, value: float, target: float, one: ways.Case, other: ways.Case) -> Finding:
        absolute = {case.name: measured.speed(case) for case in (one, other)}
        return Finding(name=f"{name}: {what}", value=value, bound=MIN, target=target, absolute=absolute)

    found = [
        finding(
            f"{sessions} sessions, experts: {k}, of sgemm",
            measured.of_sgemm(learning[k]),
            target,
            learning[k],
            product,
        )
        for k, target in targets.learning.items()
    ]
    share = measured.of_sgemm(static)
    found.append(finding(f"{sessions} frozen, of sgemm", share, targets.static, static, product))
    over = measured.ratio(learning[1], eager)
    found.append(finding("one expert over eager autograd", over, targets.eager, learning[1], eager))
    return found


def training_findings(hidden: int, seconds: float) -> list[Finding]:
    """On one core, beside one large product and torch.nn.LSTM."""
    torch.set_num_threads(1)
    rows = train.measure(train.Workload(hidden=hidden), seconds, CPU, beside=False)
    ours, torchs = rows[0], rows[-1]
    absolute = {row.name: row.tokens_per_second for row in (ours, torchs)}
    pairs = (("of sgemm", ours.sgemm, 0.85), (f"of {train.TORCH}", ours.torch_lstm, 0.9))
    return [
        Finding(
            name=f"training, {hidden} units, {what}", value=value, bound=MIN, target=target, absolute=absolute
        )
        for what, value, target in pairs
    ]


def start_findings(model: str, base: Path | None, starts: int) -> list[Finding]:
    """Medians, beside those of the commit before."""
    tasks = (
        ("from rlstm serve to ready", start.ready_seconds, 2.0),
        ("rlstm score --local", start.local_seconds, 1.5),
    )
    found = []
    for name, seconds_of, target in tasks:
        absolute = {"seconds": statistics.median(seconds_of(model) for _ in range(starts))}
        if base is not None:
            python, fewer = base / ".venv/bin/python", range(1 + starts // 9)
            absolute["seconds before"] = statistics.median(seconds_of(model, python) for _ in fewer)
        found.append(
            Finding(name=name, value=absolute["seconds"], bound=MAX, target=target, absolute=absolute)
        )
    return found


def follow_findings(model: str, seconds: float) -> list[Finding]:
    """A log of 1 kB/s."""
    followed = start.follow(model, bytes_per_second=KILOBYTE, seconds=seconds)
    absolute = {"lag": followed.lag, "most": followed.most, "grows": float(followed.grows)}
    worst = followed.most if not followed.grows else float("inf")
    return [
        Finding(name="seconds behind a log of 1 kB/s", value=worst, bound=MAX, target=2.0, absolute=absolute)
    ]


PARTS = ("lone", "many", "training", "start", "follow")


@console.command()
@console.model(default="bytes-small")
@click.option(
    "--base", type=inputs.FILE, help="A checkout of another commit with its .venv, measured in turn."
)
@click.option("--part", multiple=True, type=click.Choice(PARTS), help="Only this.")
@click.option("--rounds", type=click.IntRange(1), default=5, help="Each measures all once; medians count.")
@click.option(
    "--seconds", type=click.FloatRange(0), default=0.5, help="For each of many sessions' cases in a round."
)
@click.option(
    "--share", type=click.FloatRange(0, 10), default=1.0, help="Multiplies sizes and times of the rest."
)
@click.option("--sessions", type=click.IntRange(1), default=256, help="How many are many.")
@click.option("--hidden", type=click.IntRange(1), default=512, help="Units of the model that is trained.")
@inputs.as_json
def native(
    model: str,
    base: Path | None,
    part: Sequence[str],
    rounds: int,
    seconds: float,
    share: float,
    sessions: int,
    hidden: int,
    as_json: bool,
) -> None:
    """Measure what the native core does, as ratios taken in one run on two idle cores: some five minutes."""
    if base is not None and not (base / ".venv/bin/python").is_file():
        raise click.BadParameter(f"{base}: has no .venv/bin/python", param_hint="--base")
    base = None if base is None else base.resolve()
    subject = Subject.load(model)

    def lone_part() -> list[Finding]:
        operations = learning_operations(subject.parameters.config, lone.EXPERTS)
        return lone_findings(lone_rates(model, base, rounds, share), operations)

    def many_part() -> list[Finding]:
        pairs = (("shipped", subject), ("n = 192", Subject.untrained(192)))
        return [*itertools.chain(*(many_findings(*pair, sessions, rounds, seconds) for pair in pairs))]

    parts: dict[str, Callable[[], list[Finding]]] = {
        "lone": lone_part,
        "many": many_part,
        "training": lambda: training_findings(hidden, 30 * share),
        "start": lambda: start_findings(model, base, max(1, round(9 * share))),
        "follow": lambda: follow_findings(model, max(5.0, FOLLOWED_SECONDS * share)),
    }
    found = [finding for name in part or PARTS for finding in parts[name]()]
    if as_json:
        show_json({"model": subject.name, "findings": [finding.to_json() for finding in found]})
        return
    show_table(("", "is", "", "to be", "met", "absolute values"), [_cells(finding) for finding in found])


def _cells(found: Finding) -> list[str]:
    absolute = "; ".join(f"{name}: {value:,.4g}" for name, value in found.absolute.items())
    met = "yes" if found.met else "no"
    return [found.name, f"{found.value:.3g}", found.bound, f"{found.target:g}", met, absolute]


if __name__ == "__main__":
    native()
