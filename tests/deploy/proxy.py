"""The shipped nginx configuration in a real nginx: as it is, but for addresses and folders."""

import os
import re
import shutil
import socket
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path

from tests.servers import Process, free_ports, until

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "proxy"
FOLDERS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def binary():
    """Give nginx, None where there is none."""
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    return None if found is None else Path(found)


class Nginx(Process):
    """One nginx in front of `replicas` (host:port), in a folder of its own."""

    def __init__(self, folder, replicas):
        self._folder, self._replicas = folder, replicas
        (self.port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rlstm.conf").write_text(self._site())
        (folder / "nginx.conf").write_text(self._main())
        super().__init__([binary(), "-p", folder, "-c", folder / "nginx.conf"], folder / "said")

    def _site(self):
        """The shipped file with other addresses; each is replaced once."""
        text = (CONFIGURATION / "rlstm.conf").read_text()
        pairs = [(f"replica-{seat}:8000", address) for seat, address in enumerate(self._replicas, start=1)]
        for old, new in [*pairs, ("listen 80;", f"listen 127.0.0.1:{self.port};")]:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        return text

    def _main(self):
        """What a distribution's nginx.conf has around it."""
        user = "user root;" if os.geteuid() == 0 else ""
        folders = "\n".join(f"{name}_temp_path {self._folder}/{name};" for name in FOLDERS)
        return f"""{user}
daemon off;
worker_processes 2;
pid {self._folder}/nginx.pid;
error_log {self._folder}/error.log warn;
events {{ worker_connections 4096; }}
http {{
    log_format where '$request_method $uri $status $upstream_addr';
    access_log {self._folder}/access.log where;
    {folders}
    include {self._folder}/rlstm.conf;
}}
"""

    def tested(self):
        """Give what `nginx -t` says."""
        done = subprocess.run([*self.command, "-t"], capture_output=True, text=True)
        return done.returncode, done.stderr

    def start(self):
        """Start it and wait until it listens."""
        super().start()
        until(lambda: self.check() and self._listens())
        return self

    def _listens(self):
        with socket.create_connection(("127.0.0.1", self.port)):
            return True

    def served(self):
        """Each request so far as (method, path, status, addresses that were asked)."""
        lines = (self._folder / "access.log").read_text().splitlines()
        parts = [re.fullmatch(r"(\S+) (\S+) (\d+) (.*)", line).groups() for line in lines]
        return [(method, path, int(status), asked.split(", ")) for method, path, status, asked in parts]


@asynccontextmanager
async def running(folder, replicas):
    """Give a running nginx."""
    nginx = Nginx(folder, replicas)
    try:
        yield nginx.start()
    finally:
        nginx.end()
