"""The shipped nginx configuration in a real nginx: as it is, but for addresses and folders."""

import asyncio
import os
import re
import shutil
from contextlib import asynccontextmanager
from pathlib import Path

from tests.servers import free_ports

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "proxy"
FOLDERS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
START_SECONDS = 10


def binary():
    """Give nginx, None where there is none."""
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    return None if found is None else Path(found)


class Nginx:
    """One nginx in front of `replicas` (host:port), in a folder of its own."""

    def __init__(self, folder, replicas):
        self._folder, self._replicas = folder, replicas
        (self.port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rlstm.conf").write_text(self._site())
        (folder / "nginx.conf").write_text(self._main())

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

    async def check(self):
        """Give what `nginx -t` says."""
        process = await self._run("-t")
        _, errors = await process.communicate()
        return process.returncode, errors.decode()

    async def start(self):
        """Start it and wait until it listens."""
        self._process = await self._run()
        for _ in range(START_SECONDS * 100):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError:
                await asyncio.sleep(0.01)
                continue
            writer.close()
            return
        raise AssertionError((self._folder / "error.log").read_text())

    async def close(self):
        """End it."""
        self._process.terminate()
        await self._process.communicate()

    def served(self):
        """Each request so far as (method, path, status, addresses that were asked)."""
        lines = (self._folder / "access.log").read_text().splitlines()
        parts = [re.fullmatch(r"(\S+) (\S+) (\d+) (.*)", line).groups() for line in lines]
        return [(method, path, int(status), asked.split(", ")) for method, path, status, asked in parts]

    async def _run(self, *arguments):
        return await asyncio.create_subprocess_exec(
            str(binary()),
            *("-p", str(self._folder), "-c", str(self._folder / "nginx.conf"), *arguments),
            stderr=asyncio.subprocess.PIPE,
        )


@asynccontextmanager
async def running(folder, replicas):
    """Give a running nginx."""
    nginx = Nginx(folder, replicas)
    await nginx.start()
    try:
        yield nginx
    finally:
        await nginx.close()
