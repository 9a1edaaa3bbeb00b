"""compose.yaml without containers: each of its services as a process, with the files that it mounts.

What differs is what containers bring: addresses, ports and folders. Of Grafana there is no process here.
"""

import subprocess
import sysconfig
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import yaml
from tests import servers
from tests.deploy import monitoring, proxy
from tests.deploy.monitoring import DEPLOY
from tests.servers import free_ports

from rlstm_server.store.embedded import find_binary

COMPOSE = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())
START_SECONDS = 120
SCRAPE_SECONDS = 1


def until(condition, process=None, within=START_SECONDS):
    """Wait for a condition and give its value, as long as a process runs; what httpx raises is not yet."""

    def met():
        return (process is None or process.check()) and condition()

    return servers.until(met, within=within, passing=(httpx.HTTPError,))


class Stack:
    """All of it. `url` is where callers go, `servers` are its processes by name, with their addresses."""

    def __init__(self, folder, model):
        self.folder, self.model = folder, model
        self.secrets = folder / "secrets"
        names = [name for name in COMPOSE["services"] if name.startswith("replica-")]
        ports = free_ports(len(names) + 3)
        self.store_port, self.prometheus_port, self.probe_port, *rest = ports
        self.addresses = {name: f"127.0.0.1:{port}" for name, port in zip(names, rest, strict=True)}
        self.servers = {}

    @property
    def key(self):
        """The key for people."""
        return (self.secrets / "api_key").read_text()

    def client(self, key="api_key", url=None):
        """A client of the service, or of one server."""
        headers = {"authorization": f"Bearer {(self.secrets / key).read_text()}"}
        return httpx.Client(base_url=url or self.url, headers=headers, timeout=60, trust_env=False)

    def query(self, expression):
        """What Prometheus answers: the value of each series, by its labels."""
        answer = httpx.get(
            f"{self.prometheus}/api/v1/query", params={"query": expression}, trust_env=False, timeout=30
        )
        assert answer.status_code == 200, (expression, answer.text)
        return [(each["metric"], float(each["value"][1])) for each in answer.json()["data"]["result"]]

    def start(self, stack):
        """Start everything in the order that compose has."""
        subprocess.run([DEPLOY / "secrets.sh", self.secrets], check=True, capture_output=True)
        for user in ("admin", "rlstm"):
            path = self.secrets / f"{user}_redis_url"
            path.chmod(0o644)
            path.write_text(path.read_text().replace("store:6379", f"127.0.0.1:{self.store_port}"))
        self._run(stack, self._store())
        install = self._ours("install", "store", "install")
        for _ in range(50):  # until the store listens
            install.start()
            if (code := install.process.wait(START_SECONDS)) == 0:
                break
        assert code == 0, install.errors()
        for name, address in self.addresses.items():
            self.servers[name] = self._run(stack, self._ours(name, *self._command(name), address=address))
        for name, address in self.addresses.items():
            ready = f"http://{address}/health/ready"
            until(lambda ready=ready: httpx.get(ready, trust_env=False).is_success, self.servers[name])
        front = proxy.Nginx(self.folder / "nginx", list(self.addresses.values()))
        self.url = front.url
        self._run(stack, front)
        until(lambda: httpx.get(f"{self.url}/health/ready", trust_env=False).is_success, front)
        self._run(stack, self._ours("probe", *self._command("probe")))
        self.prometheus = f"http://127.0.0.1:{self.prometheus_port}"
        until(
            lambda: httpx.get(f"{self.prometheus}/-/ready", trust_env=False).is_success,
            self._run(stack, self._prometheus()),
        )

    def _run(self, stack, process):
        process.start()
        stack.callback(process.close)
        return process

    def _command(self, name):
        """A service's command, with addresses and places of here."""
        places = {
            "http://nginx": getattr(self, "url", ""),
            "/run/secrets/probe_key": str(self.secrets / "probe_key"),
            "9101": str(self.probe_port),
        }
        return [places.get(word, word) for word in COMPOSE["services"][name]["command"]]

    def _ours(self, name, *command, address="127.0.0.1:0"):
        """A process of our own program, with the service's variables and its folder of secrets."""
        service, mounted = COMPOSE["services"][name], self.folder / f"secrets-of-{name}"
        mounted.mkdir()
        for secret in service["secrets"]:
            source, target = (
                (secret, secret) if isinstance(secret, str) else (secret["source"], secret["target"])
            )
            (mounted / target).write_bytes((self.secrets / source).read_bytes())
        host, port = address.split(":")
        given = {
            key: value.replace("/run/secrets", str(mounted))
            for key, value in service.get("environment", {}).items()
        }
        given |= {"RLSTM_HOST": host, "RLSTM_PORT": port, "RLSTM_MODEL": str(self.model)}
        program = Path(sysconfig.get_path("scripts")) / "rlstm"
        return self._process(name, [program, *command], **given)

    def _process(self, name, command, **variables):
        log, environment = self.folder / f"{name}.log", servers.clean_environment(**variables)
        return servers.Process(command, log, environment, cwd=self.folder)

    def _store(self):
        """redis.conf and users.acl as they are, with compose's own options over them."""
        data, [_, conf, *options] = self.folder / "data", COMPOSE["services"]["store"]["command"]
        data.mkdir()
        mounted = DEPLOY / "redis" / Path(conf).name
        here = {"* -::*": "127.0.0.1", "/data": str(data)}
        options = [here.get(word, word) for word in options]
        options += ["--port", self.store_port, "--aclfile", self.secrets / "users.acl"]
        return self._process("store", [find_binary(), mounted, *options])

    def _prometheus(self):
        """prometheus.yaml with other addresses, and looking more often."""
        text = (DEPLOY / "prometheus" / "prometheus.yaml").read_text()
        here = {f"{name}:8000": address for name, address in self.addresses.items()}
        here |= {
            "probe:9101": f"127.0.0.1:{self.probe_port}",
            "/run/secrets/metrics_key": str(self.secrets / "metrics_key"),
            "/etc/prometheus/rules.yaml": str(DEPLOY / "prometheus" / "rules.yaml"),
            "/etc/prometheus/alerts.yaml": str(DEPLOY / "prometheus" / "alerts.yaml"),
        }
        for old, new in here.items():
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        text = text.replace("15s", f"{SCRAPE_SECONDS}s")
        (self.folder / "prometheus.yaml").write_text(text)
        command = [monitoring.program("prometheus"), f"--config.file={self.folder}/prometheus.yaml"]
        command += [f"--storage.tsdb.path={self.folder}/tsdb"]
        address = f"--web.listen-address=127.0.0.1:{self.prometheus_port}"
        return self._process("prometheus", [*command, address])


@contextmanager
def running(folder, model):
    """Give all of it, and end it."""
    with ExitStack() as stack:
        whole = Stack(folder, model)
        whole.start(stack)
        yield whole
