"""`deploy/redis` as it is: its settings pass the check, its user can do what sessions need and no more."""

import re
from importlib.resources import files

import pytest
from click.testing import CliRunner
from redis import Redis
from redis.exceptions import NoPermissionError

from rlstm_client.cli.commands import build
from rlstm_server.errors import StartupError
from rlstm_server.store.redis_check import find_concerns
from rlstm_server.store.redis_client import RedisLink
from rlstm_server.store.redis_store import RedisStore

from . import servers
from .servers import DEPLOY, PASSWORDS

FORBIDDEN = {
    "FLUSHALL": ("FLUSHALL",),
    "KEYS": ("KEYS", "*"),
    "CONFIG SET": ("CONFIG", "SET", "appendfsync", "no"),
    "EVAL": ("EVAL", "return 1", 0),
    "RESTORE": ("RESTORE", "rlstm:{a/b}:head", 0, b"payload"),
    "another's key": ("GET", "session:1"),
    "FUNCTION LOAD": ("FUNCTION", "LOAD", "REPLACE", "#!lua name=rlstm_v9\n"),
}


@pytest.fixture(scope="module", params=["valkey", "redis"])
def deployed(request, tmp_path_factory):
    """A server as `deploy/redis` sets it up."""
    folder = tmp_path_factory.mktemp(f"deployed-{request.param}")
    with servers.running(servers.deployed(servers.program(request.param), folder)) as [server]:
        yield server


def address(server, user):
    return f"redis://{user}:{PASSWORDS[user.upper()]}@127.0.0.1:{server.port}"


def as_admin(server):
    return address(server, "admin")


def as_server(server):
    return address(server, "rlstm")


def rlstm(*arguments):
    return CliRunner().invoke(build(), arguments)


@pytest.fixture(scope="module")
def installed(deployed):
    """The server after an administrator's `rlstm store install`."""
    assert rlstm("store", "install", as_admin(deployed)).exit_code == 0
    return deployed


def test_an_administrator_must_install_the_functions_first(deployed):
    """Before that a server refuses to start and names the command, whether it may install or not."""
    with deployed.admin() as admin:
        admin.function_flush()

    said = rlstm("store", "check", as_server(deployed))

    assert said.exit_code == 1
    assert "rlstm store install" in said.stdout


async def test_the_check_passes_as_the_servers_user(installed):
    """Settings, version, library: all is as promised, and the user has no right too many."""
    store = RedisStore(as_server(installed), install=True)
    await store.check()
    link = RedisLink(as_server(installed))

    assert store.durability == "fsync"
    assert await find_concerns(link) == []
    await link.aclose()
    await store.close()


def test_the_command_says_what_it_found(installed):
    """`rlstm store check` names server and version; what an administrator could do is a warning."""
    said = rlstm("store", "check", as_server(installed))
    warned = rlstm("store", "check", as_admin(installed))

    assert said.exit_code == warned.exit_code == 0
    assert re.search(r"127\.0\.0\.1:\d+: (Valkey 9|Redis 7)", said.stdout)
    assert "a change survives: fsync" in said.stdout
    assert "warn " not in said.stdout
    assert "FLUSHALL, CONFIG SET, EVAL, FUNCTION LOAD, RESTORE, keys of others" in warned.stdout


def test_the_address_may_come_from_where_servers_have_it(installed, monkeypatch, tmp_path):
    """The environment, or the folder of secrets; without any the command says what to set."""
    for name in ("RLSTM_REDIS_URL", "RLSTM_SECRETS_DIR"):
        monkeypatch.delenv(name, raising=False)
    lost = rlstm("store", "check")
    (tmp_path / "rlstm_redis_url").write_text(as_server(installed))
    monkeypatch.setenv("RLSTM_SECRETS_DIR", str(tmp_path))
    found = rlstm("store", "check")

    assert (lost.exit_code, found.exit_code) == (2, 0)
    assert "RLSTM_REDIS_URL" in lost.stderr


def test_a_command_that_fails_repeats_no_password(deployed):
    """The exit code says that it failed, and the sentence says why."""
    said = rlstm("store", "check", f"redis://rlstm:canary@127.0.0.1:{deployed.port}")

    assert said.exit_code == 1
    assert "user or password" in said.stdout
    assert "canary" not in said.stderr + said.stdout


def test_seven_things_are_denied(installed):
    """Who takes over a server cannot end, read or fill more of the store than sessions."""
    denied = []
    with Redis.from_url(as_server(installed), protocol=2) as client:
        for name, command in FORBIDDEN.items():
            with pytest.raises(NoPermissionError):
                client.execute_command(*command)
            denied.append(name)

    print(f"{len(denied)}/{len(FORBIDDEN)} denied")
    assert len(denied) == 7


async def test_nobody_comes_in_without_a_name(installed):
    """The user that every connection starts as is off."""
    with pytest.raises(StartupError, match="user or password"):
        await RedisStore(f"redis://127.0.0.1:{installed.port}").check()


def test_the_users_rights_are_those_that_the_code_needs():
    """Every command of the functions, and none that nothing uses, stands in the file."""
    code = (files("rlstm_server.store") / "functions.lua").read_text()
    store = "".join(
        path.read_text() for path in files("rlstm_server.store").iterdir() if path.name.endswith(".py")
    )
    used = set(re.findall(r"redis\.call\('([A-Z]+)'", code))
    used |= set(re.findall(r'link\.call\(\s*"([A-Z]+)"', store)) | {
        "FCALL",
        "WAIT",
        "ROLE",
        "ASKING",
        "SELECT",
    }
    used |= {"INFO", "PING", "CONFIG|GET", "FUNCTION|LIST", "CLUSTER|SLOTS"}
    [line] = re.findall(r"^user rlstm .*$", (DEPLOY / "users.acl").read_text(), re.MULTILINE)

    assert {right.upper() for right in re.findall(r"\+(\S+)", line)} == used
