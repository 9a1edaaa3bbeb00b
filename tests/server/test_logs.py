import asyncio
import gc
import io
import json
import logging
import sys
import threading

import pytest

from rlstm_server.logs import LOGGER, catch_stray_faults, configure_logs


@pytest.fixture
def lines(restored_logs):
    """Collect the server's log lines."""
    stream = io.StringIO()
    configure_logs("info", stream=stream)
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_json_object_with_the_known_fields(lines):
    """Ids, outcome and times are members; whatever else a caller adds is not written."""
    extra = {"request_id": "r1", "session_id": "s1", "status": 200, "text": "canary"}
    logging.getLogger(f"{LOGGER}.requests").info("request", extra=extra)
    (line,) = lines()
    assert line["level"] == "info"
    assert line["message"] == "request"
    assert (line["request_id"], line["session_id"], line["status"]) == ("r1", "s1", 200)
    assert "canary" not in json.dumps(line)


def test_an_exception_is_named_and_placed_but_not_quoted(lines):
    """Its message may hold a user's text, as may the source line."""
    try:
        {"a": 1}["canary"]
    except KeyError as error:
        logging.getLogger(LOGGER).error("fault", exc_info=error)
    (line,) = lines()
    assert line["exception"] == "KeyError"
    assert line["trace"][-1].startswith("test_logs.py:")
    assert "canary" not in json.dumps(line)


class Terminal(io.StringIO):
    """Where a person reads."""

    def isatty(self):
        """It is one."""
        return True


def test_a_terminal_gets_lines_to_read(restored_logs):
    """One a record, whatever is in it: time, level, message, and the known fields alone."""
    stream = Terminal()
    logger = logging.getLogger(LOGGER)
    configure_logs("info", stream=stream)
    logger.info("request", extra={"endpoint": "POST /score", "status": 200, "text": "canary"})
    try:
        {"a": 1}["canary"]
    except KeyError as error:
        logger.error("a\nfault", exc_info=error)
    told, failed = stream.getvalue().splitlines()
    assert told[9:] == "info    request endpoint=POST /score status=200"
    assert failed[9:].startswith("error   a fault KeyError at test_logs.py:")
    assert "canary" not in stream.getvalue()


def test_lines_below_the_level_are_not_written(lines):
    """Polled endpoints log at debug."""
    logging.getLogger(LOGGER).debug("quiet")
    assert lines() == []


def test_a_line_break_in_a_message_does_not_make_two_lines(lines):
    """Nobody can forge a line."""
    logging.getLogger(LOGGER).warning('a\n{"level": "info"}')
    assert len(lines()) == 1


def test_values_in_a_librarys_message_are_not_written(lines):
    """They may be a user's text; what the library wrote around them is kept."""
    logging.getLogger("some.library").warning("cannot read %s", "canary")
    logging.getLogger("some.library").warning("cannot read canary")
    logging.getLogger("some.library").info("quiet")
    told = lines()
    assert [line["logger"] for line in told] == ["some.library"] * 2
    assert told[0]["message"] == "cannot read %s"
    assert "canary" not in json.dumps(told)


class Ending:
    """Fails where nobody can wait for it."""

    def __del__(self):
        """Fail."""
        raise LookupError("canary")


async def test_faults_that_nobody_waits_for_are_logged_like_others(lines, monkeypatch, capfd):
    """Of tasks, threads and destructors: by class and place, and nothing is printed beside the log."""
    loop = asyncio.get_running_loop()
    for module, hook in ((threading, "excepthook"), (sys, "unraisablehook")):
        monkeypatch.setattr(module, hook, getattr(module, hook))
    catch_stray_faults(loop)

    async def fails():
        raise KeyError("canary")

    def fails_in_thread():
        raise ValueError("canary")

    forgotten = asyncio.ensure_future(fails())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    del forgotten
    gc.collect()
    thread = threading.Thread(target=fails_in_thread)
    thread.start()
    thread.join()
    Ending()
    told = [line for line in lines() if line["message"] == "a fault that nobody waited for"]
    assert [line["exception"] for line in told] == ["KeyError", "ValueError", "LookupError"]
    assert "canary" not in json.dumps(told) + "".join(capfd.readouterr())
