import io
import json

from rich.console import Console

from rlstm_training.reporting import JsonLines, ProgressBar, Reporter, Several

LOSS = {"step": 50, "loss": 2.5, "rate": 0.1, "tokens_per_second": 1234.5}
VALID = {"step": 50, "valid": {"novels/as_is": 2.25}, "lengths": {"reported": 1}}
AVERAGED = {"step": 60, "valid": {"novels/as_is": 2.2}, "lengths": {"reported": 20}}
RESET = {"step": 61, "reset": {"to_step": 60, "rate_scale": 0.9, "why": "step 61: loss nan"}}


def _told(*, terminal):
    """What a progress bar shows of a whole run."""
    file = io.StringIO()
    with ProgressBar(Console(file=file, force_terminal=terminal, width=120), "toy") as bar:
        bar.started(10, 60)
        bar.advanced(11, 3.0)
        bar.recorded(LOSS)
        for record in (VALID, AVERAGED, RESET):
            bar.recorded(record)
        bar.noticed("[odd] thing")
    return file.getvalue()


def test_without_a_terminal_there_is_a_line_a_record():
    """A log file gets plain lines and no bar."""
    assert _told(terminal=False).splitlines() == [
        "toy: going on after step 10 of 60",
        "step 50: loss 2.5000 nats, 1,234 tokens/s",
        "step 50: bits a token on novels/as_is 2.2500",
        "step 60: bits a token on novels/as_is 2.2000 (average of 20)",
        "[odd] thing",
    ]


def test_on_a_terminal_there_is_a_bar():
    """The bar shows how far the run is and its last figures."""
    told = _told(terminal=True)
    assert "11/60" in told
    assert "loss 2.5000 nats" in told
    assert "step 50: bits a token on novels/as_is 2.2500" in told


def test_json_lines_hold_every_record():
    """One object a line, as in the metrics."""
    file = io.StringIO()
    for record in (LOSS, VALID):
        JsonLines(file).recorded(record)
    assert [json.loads(line) for line in file.getvalue().splitlines()] == [LOSS, VALID]


def test_several_hear_the_same():
    """Every reporter hears everything, in order."""
    heard = []

    class Listener(Reporter):
        def started(self, step, steps):
            heard.append(("started", step, steps))

        def advanced(self, step, loss):
            heard.append(("advanced", step, loss))

        def recorded(self, record):
            heard.append(record)

        def noticed(self, message):
            heard.append(message)

    several = Several([Listener(), Reporter(), Listener()])
    several.started(0, 5)
    several.advanced(1, 2.0)
    several.recorded(LOSS)
    several.noticed("said")
    expected = [("started", 0, 5), ("advanced", 1, 2.0), LOSS, "said"]
    assert heard == [event for event in expected for _ in range(2)]
