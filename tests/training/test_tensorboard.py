from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlstm_training.reporting import TensorBoard


def _losses(folder, tag="train/loss"):
    events = EventAccumulator(str(folder))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def _run(folder, after, records):
    with TensorBoard(folder) as board:
        board.started(after, 100)
        for record in records:
            board.recorded(record)


def test_records_become_curves(tmp_path):
    """Every number has its curve; validation a curve a text."""
    _run(tmp_path, 0, [{"step": 1, "loss": 2.5, "rate": 0.5}, {"step": 1, "valid": {"a/lf": 3.0}}])
    assert _losses(tmp_path) == [(1, 2.5)]
    assert _losses(tmp_path, "train/rate") == [(1, 0.5)]
    assert _losses(tmp_path, "valid/a/lf") == [(1, 3.0)]


def test_a_resumed_run_replaces_what_it_repeats(tmp_path):
    """Points after the checkpoint that a run resumes from are dropped, not doubled."""
    _run(tmp_path, 0, [{"step": step, "loss": 1.0} for step in (1, 2, 3)])
    _run(tmp_path, 2, [{"step": 3, "loss": 0.5}])
    assert _losses(tmp_path) == [(1, 1.0), (2, 1.0), (3, 0.5)]


def test_a_run_that_never_begins_leaves_nothing(tmp_path):
    """An error before the first step makes no event file."""
    with TensorBoard(tmp_path / "board"):
        pass
    assert not (tmp_path / "board").exists()
