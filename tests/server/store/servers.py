"""Real servers on free ports: alone, with a replica, watched by Sentinels, as a cluster, over TLS."""

import os
import shutil
import subprocess
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import RedisError
from tests.servers import Process, free_ports, until

from rlstm_server.store.embedded import find_binary

DEPLOY = Path(__file__).parents[3] / "deploy" / "redis"
DURABLE = {
    "save": "",
    "appendonly": "yes",
    "appendfsync": "always",
    "maxmemory": 256 << 20,
    "maxmemory-policy": "noeviction",
    "repl-diskless-sync-delay": 0,
}
PASSWORDS = {
    "ADMIN": "admin-secret",
    "RLSTM": "app-secret",
    "REPLICA": "replica-secret",
    "SENTINEL": "s-secret",
}


def program(kind):
    """Give the packaged Valkey, or the system's Redis; a test without it is skipped."""
    if kind == "valkey":
        return find_binary()
    found = shutil.which("redis-server")
    if found is None:
        pytest.skip("no redis-server on PATH (Debian: apt-get install redis-server)")
    return Path(found)


until = partial(until, passing=(RedisError, OSError))


class Server(Process):
    """One server process on a port of its own. Options stand over those of `DURABLE`, or over a file's.

    limit_bytes     of each file that it writes, as a full disk
    environment     of the process, beside ours
    """

    def __init__(
        self,
        binary,
        folder,
        *,
        conf=None,
        client=None,
        arguments=(),
        limit_bytes=None,
        environment=None,
        **options,
    ):
        self.folder = folder
        self._client = client or {}
        self.port = options.get("tls-port") or options.setdefault("port", free_ports(1)[0])
        self.options = ({} if conf else DURABLE) | options | {"dir": folder}
        folder.mkdir(parents=True, exist_ok=True)
        limit = () if limit_bytes is None else ("prlimit", f"--fsize={limit_bytes}")
        given = [part for name, value in self.options.items() for part in (f"--{name}", value)]
        command = [*limit, binary, *([conf] if conf else []), *given, *arguments]
        super().__init__(command, folder / "log", os.environ | (environment or {}))

    @property
    def url(self):
        """Where it listens."""
        return f"redis://127.0.0.1:{self.port}"

    def admin(self):
        """Give an administrator's client."""
        return Redis(host="127.0.0.1", port=self.port, protocol=2, socket_timeout=5, **self._client)

    def start(self):
        """Start it, also after an end, and wait until it answers."""
        super().start()
        until(lambda: self.check() and self._answers())
        return self

    def _answers(self):
        with self.admin() as admin:
            return admin.ping()


@contextmanager
def running(*servers):
    """Start servers, and end them whatever happens."""
    try:
        yield [server if server.alive else server.start() for server in servers]
    finally:
        for server in servers:
            server.close()


def follow(replica, primary):
    """Make `replica` one of `primary`, and wait until it has all and says so."""
    with replica.admin() as admin:
        admin.replicaof("127.0.0.1", primary.port)
    with primary.admin() as admin:
        until(lambda: admin.set("mark", 1) and admin.wait(1, 200) >= 1)
        admin.delete("mark")


def promote(replica):
    with replica.admin() as admin:
        admin.replicaof("NO", "ONE")


def sentinel(binary, folder, primary, *, quorum=1, **more):
    """Give a Sentinel, not started, that watches `primary` under the name `rlstm` and acts fast."""
    folder.mkdir(parents=True, exist_ok=True)
    conf = folder / "sentinel.conf"
    conf.write_text(
        f"sentinel monitor rlstm 127.0.0.1 {primary.port} {quorum}\n"
        "sentinel down-after-milliseconds rlstm 300\n"
        "sentinel failover-timeout rlstm 3000\n"
    )
    return Server(binary, folder, conf=conf, arguments=("--sentinel",), **more)


@contextmanager
def cluster(binary, folder, size=3):
    """Run a cluster of primaries that share the slots evenly."""
    servers = []
    for number in range(size):
        options = {"cluster-enabled": "yes", "cluster-port": free_ports(1)[0], "cluster-node-timeout": 1000}
        servers.append(Server(binary, folder / str(number), **options))
    with running(*servers):
        first, *others = servers
        edges = [16_384 * number // size for number in range(size + 1)]
        for number, server in enumerate(servers):
            with server.admin() as admin:
                admin.execute_command("CLUSTER", "ADDSLOTSRANGE", edges[number], edges[number + 1] - 1)
                admin.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        with first.admin() as admin:
            for other in others:
                bus = other.options["cluster-port"]
                admin.execute_command("CLUSTER", "MEET", "127.0.0.1", other.port, bus)
        for server in servers:
            until(lambda server=server: _knows(server, size))
        yield servers


def _knows(server, size):
    with server.admin() as admin:
        info = admin.execute_command("CLUSTER", "INFO")
        text = info if isinstance(info, dict) else dict(line.split(":") for line in info.decode().split())
    return text["cluster_state"] == "ok" and int(text["cluster_known_nodes"]) == size


def move_slot(slot, source, target, *, finish=True):
    """Move a slot between primaries of a cluster; unfinished, it stays on its way without any key."""
    with source.admin() as old, target.admin() as new:
        old_id, new_id = (admin.execute_command("CLUSTER", "MYID").decode() for admin in (old, new))
        new.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", old_id)
        old.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", new_id)
        for key in old.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 100):
            old.execute_command("MIGRATE", "127.0.0.1", target.port, key, 0, 5_000)
        if finish:
            for admin in (new, old):
                admin.execute_command("CLUSTER", "SETSLOT", slot, "NODE", new_id)


def certificates(folder):
    """Make an authority, a certificate of the server and one of the client; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)

    def openssl(*arguments):
        subprocess.run(["openssl", *map(str, arguments)], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=test", "-days", 2)
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost")
    for name in ("server", "client"):
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", 2, "-extfile", "names")
        openssl("x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.crt")
    return folder


def tls_options(folder):
    """Return a server's options for TLS alone, with a client's certificate asked for."""
    return {
        "port": 0,
        "tls-port": free_ports(1)[0],
        "tls-cert-file": folder / "server.crt",
        "tls-key-file": folder / "server.key",
        "tls-ca-cert-file": folder / "ca.crt",
    }


def tls_client(folder):
    """Return what redis-py needs to reach such a server."""
    return {
        "ssl": True,
        "ssl_ca_certs": str(folder / "ca.crt"),
        "ssl_certfile": str(folder / "client.crt"),
        "ssl_keyfile": str(folder / "client.key"),
    }


def tls_query(folder):
    """Return the same for an address."""
    return f"?ssl_ca_certs={folder}/ca.crt&ssl_certfile={folder}/client.crt&ssl_keyfile={folder}/client.key"


def deployed(binary, folder, **options):
    """Give a server, not started, as `deploy/redis` sets it up, with passwords of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    users = (DEPLOY / "users.acl").read_text()
    conf = (DEPLOY / "redis.conf").read_text()
    for name, password in PASSWORDS.items():
        users = users.replace(f"{name}-PASSWORD", password)
        conf = conf.replace(f"{name}-PASSWORD", password)
    (folder / "users.acl").write_text(users)
    (folder / "redis.conf").write_text(conf)
    client = {"username": "admin", "password": PASSWORDS["ADMIN"]}
    return Server(
        binary, folder, conf=folder / "redis.conf", client=client, aclfile=folder / "users.acl", **options
    )
