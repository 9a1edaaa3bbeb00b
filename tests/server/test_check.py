"""`rlstm serve --check` where all is well, and where one thing after the other is not."""

import asyncio
import json
import os
import shutil
import socket
import sys
from collections import namedtuple

import pytest
from click.testing import CliRunner
from redis import Redis

from rlstm_model import native
from rlstm_model.checkpoint import ADAPTATION, WEIGHTS
from rlstm_server import check
from rlstm_server.check import Finding
from rlstm_server.cli import serve
from rlstm_server.store.embedded import EmbeddedValkey

NO_STORE = ("--durability", "memory")
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def examine(tiny_checkpoint, tmp_path, monkeypatch, restored_logs):
    """Type the command with --json; gives its exit code and what each check found, by name."""
    for name in [name for name in os.environ if name.startswith("RLSTM_")]:
        monkeypatch.delenv(name)

    def start(*words, model=tiny_checkpoint, **variables):
        usual = [str(model), "--data-dir", str(tmp_path / "data"), "--port", "0"]
        return CliRunner().invoke(serve, [*usual, *map(str, words)], env=variables)

    def run(*words, **options):
        done = start("--check", "--json", *words, **options)
        assert done.stderr == "", done.stderr
        told = json.loads(done.stdout)
        found = {each["name"]: Finding(**each) for each in told["checks"]}
        assert told["ok"] == (done.exit_code == 0) == all(one.status != "fail" for one in found.values())
        return done.exit_code, found

    run.serve = start
    return run


def test_all_is_well(examine, tmp_path):
    """Every check says what it saw; the store was started beside its folder, and nothing stays of it."""
    code, found = examine()

    assert code == 0
    assert [name for name, one in found.items() if one.status == "fail"] == []
    assert {"device", "port", "keys", "data folder", "store", "model"} <= set(found)
    assert "2 rules" in found["model"].said
    assert found["store"].said.startswith("embedded Valkey")
    assert list(tmp_path.iterdir()) == []


def test_lines_for_people(tiny_checkpoint, monkeypatch):
    """Status, name, what was seen and what to do, on one line a check; exit code 1 where one fails."""
    monkeypatch.setenv("RLSTM_MODEL", "/no/such/model")
    done = CliRunner().invoke(serve, [*NO_STORE, "--port", "0", "--check"])

    lines = {line[6:18].strip(): line for line in done.stdout.splitlines()}
    assert done.exit_code == 1
    assert lines["device"].startswith("ok ")
    assert lines["store"].startswith("warn ")
    assert lines["model"].startswith("fail ")
    assert "/no/such/model" in lines["model"]
    assert "rlstm models" in lines["model"]


def test_a_device_that_is_not_there(examine, monkeypatch):
    """CUDA that was asked for fails, as a core that was not built; too many threads are a warning."""
    monkeypatch.setitem(sys.modules, "torch", None)
    code, found = examine(*NO_STORE, "--device", "cuda")
    assert (code, found["device"].status) == (1, "fail")

    code, found = examine(*NO_STORE, "--threads", "1000")
    assert (code, found["device"].status) == (0, "warn")

    monkeypatch.setattr(native, "identity", raising(native.NativeUnavailable("it was not built")))
    code, found = examine(*NO_STORE)
    assert (code, found["device"].said) == (1, "it was not built")


@pytest.mark.parametrize(
    ("name", "named", "words", "variables"),
    [
        ("settings", "RLSTM_PORT may be meant", NO_STORE, {"RLSTM_PROT": "1"}),
        ("settings", "RLSTM_LIMITS__BODY_BYTES", NO_STORE, {"RLSTM_LIMITS__BODY_BYTE": "4096"}),
        ("settings", "RLSTM_DEVICE", [*NO_STORE, "--device", "tpu"], {}),
        ("open files", "RLSTM_LIMITS__CONNECTIONS", NO_STORE, {"RLSTM_LIMITS__CONNECTIONS": "1048576"}),
        ("audit file", "RLSTM_AUDIT_FILE", [*NO_STORE, "--audit-file", "/nowhere/at/all"], {}),
        ("tracing", "RLSTM_OTEL", NO_STORE, {"RLSTM_OTEL": "1", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "many"}),
        ("keys", "/nowhere.json", [*NO_STORE, "--api-keys-file", "/nowhere.json"], {}),
        ("port", "RLSTM_HOST", [*NO_STORE, "--host", "no.such.host.invalid"], {"RLSTM_API_KEYS": "long-key"}),
        ("store", "store", ["--redis-url", "redis://127.0.0.1:1"], {}),
        ("store", "/dev/null/here", ["--data-dir", "/dev/null/here"], {}),
    ],
)
def test_a_server_refuses_what_is_found(examine, name, named, words, variables):
    """In one line that names setting, file or address, with the words of the check."""
    code, found = examine(*words, **variables)
    refused = examine.serve(*words, **variables)
    assert (code, found[name].status, refused.exit_code, refused.stdout) == (1, "fail", 1, "")
    assert refused.stderr.startswith("rlstm serve: ")
    assert refused.stderr.count("\n") == 1
    assert found[name].said in refused.stderr
    assert named in refused.stderr


def raising(error):
    """What raises this whenever it is called."""

    def act():
        raise error

    return act


def test_a_port_in_use(examine):
    """It is named, with the way out, before the model is loaded."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = ("--port", taken.getsockname()[1])
        code, found = examine(*NO_STORE, *port)
        refused = examine.serve(*NO_STORE, *port, model="/not/even/looked/at")

    assert (code, found["port"].status) == (1, "fail")
    assert "--port" in found["port"].said
    assert refused.stderr == f"rlstm serve: {found['port'].said}\n"


async def _held(folder):
    store = EmbeddedValkey(folder, maxmemory_bytes=64 << 20)
    await store.start()
    return store


def test_beside_a_running_server(examine, tmp_path, event_loop_runner):
    """Its data folder and port are taken by it: a warning that names its process."""
    store = event_loop_runner(_held(tmp_path / "data"))
    try:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            code, found = examine("--port", taken.getsockname()[1])
    finally:
        event_loop_runner(store.stop())

    assert code == 0
    assert (found["store"].status, found["port"].status) == ("warn", "warn")
    assert f"process {os.getpid()}" in found["store"].said


@pytest.fixture
def event_loop_runner():
    """Run coroutines between the command's own loops."""
    with asyncio.Runner() as runner:
        yield runner.run


@pytest.mark.parametrize(("free", "status"), [(2**40, "ok"), (2**29, "warn"), (2**20, "fail")])
def test_how_full_the_disk_is(free, status, tmp_path, monkeypatch):
    """Little room is a warning, none a failure."""
    monkeypatch.setattr(shutil, "disk_usage", lambda place: Usage(2**41, 2**41 - free, free))
    assert check._check_folder(tmp_path / "new").status == status


def test_models_that_cannot_be_served(examine, tiny_checkpoint, tmp_path):
    """A damaged one fails with the file's name; one without calibration is served, but learns nothing."""
    copy = tmp_path / "copy"
    shutil.copytree(tiny_checkpoint, copy)
    (copy / ADAPTATION).unlink()
    code, found = examine(*NO_STORE, model=copy)
    assert (code, found["model"].status) == (0, "warn")
    assert "rlstm calibrate" in found["model"].advice

    (copy / WEIGHTS).write_bytes(b"damaged")
    code, found = examine(*NO_STORE, model=copy)
    assert (code, found["model"].status) == (1, "fail")
    assert WEIGHTS in found["model"].said


def test_a_shared_store(examine, tmp_path, event_loop_runner):
    """What `rlstm store check` would say: functions, settings, clocks. Nothing of the store is changed."""
    store = event_loop_runner(_held(tmp_path / "other"))
    try:
        code, found = examine(RLSTM_REDIS_URL=store.url)
        assert (code, found["store"].status, found["functions"].status) == (0, "ok", "warn")
        assert found["clocks"].status == "ok"
        code, found = examine(RLSTM_REDIS_URL=store.url, RLSTM_INSTALL_FUNCTIONS="no")
        assert (code, found["functions"].status) == (1, "fail")
        with Redis.from_url(store.url, protocol=2) as admin:
            assert admin.function_list() == []
            admin.config_set("appendfsync", "everysec")
        code, found = examine(RLSTM_REDIS_URL=store.url)
        assert (code, found["store"].status) == (1, "fail")
        assert "appendfsync" in found["store"].said
    finally:
        event_loop_runner(store.stop())


def test_no_secret_is_printed(examine, tmp_path):
    """Neither of an address that does not answer, nor of one that is none, nor keys."""
    secrets = {
        "RLSTM_API_KEYS": "hidden-key-1",
    }
    for url in ("redis://user:hidden-word@127.0.0.1:1", "gopher://user:hidden-word@127.0.0.1:1"):
        code, found = examine(RLSTM_REDIS_URL=url, **secrets)
        assert code == 1
        assert "hidden" not in str(found)

    code, found = examine(RLSTM_API_KEYS="hidden word")
    assert (code, found["settings"].status) == (1, "fail")
    assert "hidden word" not in str(found)
