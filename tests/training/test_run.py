import pytest
import torch

from rlstm_training.run import RunDirectory, RunError


def _tensors(value):
    return {"model.w": torch.full((4, 3), float(value)), "positions": torch.arange(3)}


@pytest.fixture
def run(tmp_path, toy_recipe):
    with RunDirectory.open(tmp_path / "run", toy_recipe()) as run:
        yield run


def _saved(run, *steps):
    for step in steps:
        run.save(step, _tensors(step), {"losses": [step / 3]})


def test_a_run_can_be_opened_again(tmp_path, toy_recipe):
    """The same recipe finds its run; what was recorded is there."""
    with RunDirectory.open(tmp_path / "a" / "run", toy_recipe()) as first:
        first.log({"step": 1, "loss": 0.1})
    with RunDirectory.open(tmp_path / "a" / "run", toy_recipe()) as second:
        assert second.recipe() == toy_recipe()
        assert second.metrics() == [{"step": 1, "loss": 0.1}]


def test_another_recipe_is_refused(run, toy_recipe):
    """A run belongs to one recipe; the error names what differs and changes nothing."""
    run.close()
    with pytest.raises(RunError, match=r"recipe of another run: seed, steps differ"):
        RunDirectory.open(run.folder, toy_recipe(steps=41, seed=2))
    with RunDirectory.open(run.folder, toy_recipe()):
        pass


def test_somebody_elses_folder_is_refused(tmp_path, toy_recipe):
    """A folder with other files is not taken over; a file is no folder."""
    (tmp_path / "diary.txt").write_text("dear")
    with pytest.raises(RunError, match="is no run directory"):
        RunDirectory.open(tmp_path, toy_recipe())
    with pytest.raises(RunError, match="is not a folder"):
        RunDirectory.open(tmp_path / "diary.txt", toy_recipe())
    assert [path.name for path in tmp_path.iterdir()] == ["diary.txt"]


def test_a_kill_at_the_very_beginning_leaves_a_usable_folder(tmp_path, toy_recipe):
    """A lock and half a recipe are all that a run killed at once has written."""
    (tmp_path / "lock").touch()
    (tmp_path / "recipe.json.partial").write_text("{")
    with RunDirectory.open(tmp_path, toy_recipe()) as run:
        assert run.recipe() == toy_recipe()


def test_whether_a_run_is_open_can_be_seen(run, toy_recipe):
    """From outside, by any number who look; and nobody else can open it until it is closed."""
    looking = RunDirectory(run.folder)
    assert looking.in_use
    with pytest.raises(RunError, match="being trained by another process"):
        RunDirectory.open(run.folder, toy_recipe())
    run.close()
    assert not looking.in_use
    assert not RunDirectory(run.folder / "nothing").in_use
    RunDirectory.open(run.folder, toy_recipe()).close()


def _cut(path):
    path.write_bytes(path.read_bytes()[:-5])


def _flip(path):
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1
    path.write_bytes(raw)


def _delete(path):
    path.unlink()


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        (_cut, "run.safetensors"),
        (_flip, "run.safetensors"),
        (_delete, "run.safetensors"),
        (_cut, "run.json"),
        (_delete, "run.json"),
    ],
)
def test_a_damaged_newest_checkpoint_is_passed_over(run, damage, name):
    """Cut, changed or missing: the one before is used, and what is wrong is said."""
    _saved(run, 1, 2)
    damage(run.folder / "checkpoints" / "2" / name)
    saved = run.newest()
    assert saved.step == 1
    assert len(saved.damaged) == 1
    assert "checkpoints/2: is damaged" in saved.damaged[0]


def test_damaged_checkpoints_alone_are_an_error(run):
    """A run is not silently begun again when nothing can be read."""
    _saved(run, 1, 2)
    for step in (1, 2):
        _cut(run.folder / "checkpoints" / str(step) / "run.safetensors")
    with pytest.raises(RunError, match=r"checkpoints/2: is damaged.*checkpoints/1: is damaged"):
        run.newest()


def test_tensors_of_any_layout_can_be_saved(run):
    """A transposed or strided tensor comes back with its values in order."""
    whole = torch.arange(24.0).view(4, 6)
    run.save(1, {"t": whole.t(), "s": whole[:, ::2]}, {})
    tensors = run.newest().tensors
    assert torch.equal(tensors["t"], whole.t())
    assert torch.equal(tensors["s"], whole[:, ::2])


def _saved_with_best(run, *pairs):
    for step, best in pairs:
        run.save(step, _tensors(step), {}, best_step=best)


def test_the_best_of_both_newest_checkpoints_stays(run):
    """Each knows the best of its own time; older ones go as soon as neither needs them."""
    _saved_with_best(run, (2, 2), (4, 2), (6, 2))
    assert run.saved_steps() == [2, 4, 6]
    _saved_with_best(run, (7, 7))
    assert run.saved_steps() == [2, 6, 7]
    assert run.best().step == 7
    run.forget_after(6)
    assert run.best().step == 2
    _saved_with_best(run, (8, 2), (9, 9), (10, 9))
    assert run.saved_steps() == [9, 10]


def test_the_best_is_the_newest_in_a_run_without_evaluation(run):
    """And there is none in a run without a checkpoint; one that is damaged is named."""
    assert run.best() is None
    _saved(run, 3)
    assert run.best().step == 3
    _saved_with_best(run, (4, 4), (5, 4))
    assert torch.equal(run.best().tensors["model.w"], _tensors(4)["model.w"])
    _cut(run.folder / "checkpoints" / "4" / "run.safetensors")
    with pytest.raises(RunError, match="checkpoints/4: is damaged"):
        run.best()


def test_a_half_written_line_is_ignored(run):
    """A kill may cut the last line of the metrics."""
    run.log({"step": 1})
    with (run.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')
    assert run.metrics() == [{"step": 1}]


def test_damaged_metrics_are_named(run):
    """A whole line that is no JSON is damage, not the trace of a kill."""
    (run.folder / "metrics.jsonl").write_text("{\n")
    with pytest.raises(RunError, match=r"metrics.jsonl: is damaged"):
        run.metrics()
