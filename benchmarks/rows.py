"""Many rows on one device, plainly and by recorded graphs, as cases that are measured in turn.

Static: a segment of each row is read and its tokens are scored. Learning: a segment is read, gone back
through and stepped on. A batch step: the same as sessions do it, with everything that belongs to a session.
"""

from collections.abc import Sequence
from typing import Literal

import torch

from benchmarks.peers import Case, Work, scoring, sessions, sgemm
from benchmarks.train import multiply_adds
from rlstm_model.adaptation.calibration import Calibration
from rlstm_model.adaptation.evaluator import DynamicEvaluator
from rlstm_model.torch_backend.fast_weights import FrozenWeights
from rlstm_model.torch_backend.graphs import graphed_reading
from rlstm_model.network.language_model import LanguageModel

Way = Literal["plain", "graphs"]


def rows_cases(
    model: LanguageModel,
    rule: Calibration,
    *,
    bos_id: int,
    rows: Sequence[int],
    ways: Sequence[Way] = ("plain",),
) -> list[Case]:
    """A large matrix product, and each task with so many rows in each of the ways."""
    product = Case(
        name="matrix product", task="sgemm", work=sgemm(model.embedding.input.device), operations=1
    )
    forward, cases = multiply_adds(model), [product]
    for count in rows:
        for way in ways:
            loaded, graphs = FrozenWeights(model), way == "graphs"
            read = scoring(graphed_reading(loaded) if graphs else loaded, rule.config.segment, count)
            name = f"{count} rows, {way}"
            cases.append(Case(name=f"static, {name}", task="static", work=read, operations=forward))
            evaluator = DynamicEvaluator(model, rule, bos_id=bos_id, graphs=graphs)
            step = sessions(model, rule, bos_id=bos_id, count=count, graphs=graphs)
            for task, work in (("learning", learning(evaluator, count)), ("batch step", step)):
                more = {"work": work, "operations": 2 * forward}
                cases.append(Case(name=f"{task}, {name}", task="learning", **more))  # type: ignore[arg-type]
    return cases


def learning(evaluator: DynamicEvaluator, rows: int) -> Work:
    """A segment of so many rows, learned from by a step of the rule."""
    segment, state, fast = (
        evaluator.config.segment,
        evaluator.model.initial_state(rows),
        evaluator.fast_weights,
    )
    vocabulary, device = evaluator.model.config.vocab_size, evaluator.model.embedding.input.device
    ids, targets = torch.randint(vocabulary, (2, segment, rows), device=device)
    weights_TN = torch.full(ids.shape, 1 / segment, dtype=state.h.dtype, device=device)
    delta_NP = fast.zero(rows)

    @torch.no_grad()
    def work() -> int:
        nonlocal state, delta_NP
        learned = fast.learn(delta_NP, ids, targets, weights_TN, state)
        delta_NP = evaluator.rows.rule.step(delta_NP, learned.gradient_NP, [1.0] * rows).delta_NP
        state = learned.state
        return rows * segment

    return work
