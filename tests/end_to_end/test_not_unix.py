"""What is meant to work on Windows works without what only Unix has (`make not-unix` runs more)."""

import subprocess
from pathlib import Path

import pytest
from tests.servers import clean_environment

HIDDEN = str(Path(__file__).parents[1] / "not_unix")


@pytest.fixture
def run(rlstm, tmp_path):
    """Give a run of the command without these modules."""

    def ran(*arguments: object, **options):
        environment = clean_environment(PYTHONPATH=HIDDEN, RLSTM_DATA_DIR=str(tmp_path / "data"))
        command = [str(rlstm.path), *map(str, arguments)]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, **options
        )

    return ran


def test_a_job_in_this_process(run, tiny_checkpoint):
    """A session that learns, without a server: its store is in the process."""
    log = "".join(f"line {number}\n" for number in range(60))
    ran = run("watch", "-", "--local", "--model", tiny_checkpoint, input=log)
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
    assert "60 lines" in ran.stderr


def test_no_store_to_embed(run, start, tiny_checkpoint):
    """A server says what it can use instead, and serves with it."""
    ran = run("serve", tiny_checkpoint, "--port", "0")
    assert ran.returncode == 1
    assert "RLSTM_REDIS_URL" in ran.stderr
    assert "--durability memory" in ran.stderr
    assert "Traceback" not in ran.stderr

    with start("--durability", "memory", PYTHONPATH=HIDDEN) as server, server.client() as client:
        made = client.post("/sessions", json={"text": "a text"}).json()
        assert client.get(f"/sessions/{made['id']}").json()["position"] == 6
        assert server.end()[0] == 0
