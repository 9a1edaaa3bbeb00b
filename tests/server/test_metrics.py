import inspect

from rlstm_server.engine.reading import Reading
from rlstm_server.metrics import PHASES, STORE_OPERATIONS, Metrics
from rlstm_server.schemas.text import Columns, Totals
from rlstm_server.store.base import SessionStore


def value(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, labels)


def test_static_and_adapted_loss_are_sums_of_their_own():
    """Mean loss is rate over rate; a gain and a loss land under different signs."""
    metrics = Metrics()
    for logprobs, static in (((-1.0, -3.0, -2.0, -1.0), (-4.0, -3.0, -2.0, -1.0)), ((-2.5,), (-2.0,))):
        columns = Columns(
            **dict.fromkeys(("ids", "ranks", "entropies", "starts", "ends"), (0,) * len(logprobs)),
            logprobs=logprobs,
            static_logprobs=static,
        )
        totals = Totals.of(columns, bytes=1, words=1, unknown=0)
        Reading(state=None, columns=columns, totals=totals).count(metrics, in_session=True)
    assert value(metrics, "rlstm_loss_nats_total", part="static") == 12.0
    assert value(metrics, "rlstm_loss_nats_total", part="adapted") == 9.5
    assert value(metrics, "rlstm_loss_tokens_total", part="adapted") == 5
    assert value(metrics, "rlstm_adapt_gain_nats_total", sign="positive") == 3.0
    assert value(metrics, "rlstm_adapt_gain_nats_total", sign="negative") == 0.5


def test_every_metric_has_the_prefix_and_plain_labels():
    """No label is named after anything that clients can make up."""
    families = Metrics(endpoints=["POST /score"]).registry.collect()
    samples = [sample for family in families for sample in family.samples]
    names = {sample.name for sample in samples}
    labels = {label for sample in samples for label in sample.labels}
    assert all(name.startswith(("rlstm_", "process_")) for name in names)
    assert labels <= {
        "endpoint", "outcome", "reason", "kind", "part", "sign", "tier", "op", "result", "phase", "le",
    }  # fmt: skip


def test_a_batch_is_counted_by_what_its_rows_were_for():
    """Rows and tokens of each phase that had any; one in which rows learned is an update."""
    metrics = Metrics()
    counts = [((3, 0, 0), (60, 0, 0)), ((0, 1, 8), (0, 1, 160)), ((0, 0, 0), (0, 0, 0))]
    for seconds, (rows, tokens) in zip((0.02, 0.05, 0.01), counts, strict=True):
        metrics.batch_step_finished(
            seconds, dict(zip(PHASES, rows, strict=True)), dict(zip(PHASES, tokens, strict=True))
        )
    assert value(metrics, "rlstm_batch_step_seconds_count") == 2
    assert value(metrics, "rlstm_batch_step_seconds_sum") == 0.07
    assert value(metrics, "rlstm_adapt_update_seconds_sum") == 0.05
    assert value(metrics, "rlstm_adapt_update_seconds_count") == 1
    assert [value(metrics, "rlstm_batch_size_sum", phase=phase) for phase in PHASES] == [3, 1, 8]
    assert [value(metrics, "rlstm_batch_size_count", phase=phase) for phase in PHASES] == [1, 1, 1]
    assert [value(metrics, "rlstm_batch_tokens_sum", phase=phase) for phase in PHASES] == [60, 1, 160]


def test_every_operation_of_the_store_has_its_series():
    """One that is not in the closed set would add series when it is first called."""
    given = vars(SessionStore)
    calls = {name for name in given if inspect.iscoroutinefunction(given[name]) and name[0] != "_"}
    assert calls - {"check", "close", "load_head"} == set(STORE_OPERATIONS) - {"load"}
    assert len(STORE_OPERATIONS) > 15
