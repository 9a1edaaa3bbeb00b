"""`deploy/secrets.sh`: what it draws is what the servers, the store and Prometheus can use."""

import hashlib
import re
import stat
import subprocess
from pathlib import Path

from tests.deploy.monitoring import DEPLOY

from rlstm_server.api.auth import load_keys
from rlstm_server.settings import Settings


def draw(folder, *arguments):
    command = [DEPLOY / "secrets.sh", folder, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_keys_do_what_they_are_for_and_no_more(tmp_path):
    """One for people, one that reads metrics, one that only asks for texts; servers know their digests."""
    folder = tmp_path / "secrets"
    assert draw(folder).returncode == 0
    ring = load_keys(Settings(api_keys_file=folder / "api_keys.json"))
    scopes = {
        name: ring[hashlib.sha256((folder / name).read_bytes()).digest()].scopes
        for name in ("api_key", "metrics_key", "probe_key")
    }
    assert scopes == {
        "api_key": {"score", "generate", "sessions"},
        "metrics_key": {"admin"},
        "probe_key": {"generate"},
    }


def test_the_store_knows_passwords_by_digest_only(tmp_path):
    """Users and rights are those of deploy/redis; no password stands in the file."""
    folder = tmp_path / "secrets"
    draw(folder, "store.example")
    users = (folder / "users.acl").read_text()
    shipped = (DEPLOY / "redis" / "users.acl").read_text()
    assert "PASSWORD" not in users
    assert re.sub(r"#[0-9a-f]{64}", ">X", users) == re.sub(r">\S+-PASSWORD", ">X", shipped)
    for user in ("admin", "rlstm"):
        url = (folder / f"{user}_redis_url").read_text()
        password = re.fullmatch(rf"redis://{user}:([0-9a-f]{{64}})@store\.example:6379", url)[1]
        assert f"user {user} on #{hashlib.sha256(password.encode()).hexdigest()} " in users
        assert password not in users


def test_all_are_different_each_time_and_shut_away(tmp_path):
    """Containers of other users may read a file that is mounted; nobody else comes into the folder."""
    one, other = tmp_path / "one", tmp_path / "other"
    draw(one)
    draw(other)
    contents = [path.read_text() for folder in (one, other) for path in folder.iterdir()]
    assert len(set(contents)) == len(contents)
    assert stat.S_IMODE(one.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in one.iterdir()} == {0o444}


def test_secrets_in_use_are_not_drawn_again(tmp_path):
    """A second time is an error that says why, and changes nothing."""
    folder = tmp_path / "secrets"
    said = draw(folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    again = draw(folder)
    assert (said.returncode, again.returncode) == (0, 1)
    assert "not drawn again" in again.stderr
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert not [value for value in before.values() if value.decode() in said.stdout + again.stderr]


def test_no_secret_is_part_of_the_repository():
    """Their folders are ignored by git, and nothing of them reaches a builder of images."""
    root = Path(DEPLOY).parent
    assert "secrets/" in (root / ".gitignore").read_text().split()
    ignored = (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text().split("\n")
    assert ignored.index("**/secrets") > ignored.index("!server")
