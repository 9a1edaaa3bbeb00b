"""`rlstm watch` on all kinds of logs at once, told to a real Alertmanager and to a real Prometheus."""

import json
import shutil
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from tests import servers
from tests.client.cli.test_feeds import exported
from tests.servers import free_ports

pytest.importorskip("opentelemetry.proto.collector.logs.v1.logs_service_pb2", reason="the extra `watch`")

PROGRAMS = ("prometheus-alertmanager", "prometheus")
UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "rlstm-watch.service"

pytestmark = [
    pytest.mark.jobs,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not all(map(shutil.which, PROGRAMS)), reason="apt-get install " + " ".join(PROGRAMS)),
]

STRANGE = "~~~ ÄÖÜ ### kernel oops in lib%%% ~~~"


def until(found, what):
    """Wait for what is not empty."""
    return servers.until(found, within=100, passing=(httpx.HTTPError, LookupError, ValueError), said=what)


@pytest.fixture
def run(tmp_path, rlstm):
    """Give what starts a program, whose output is a file; all of them end with the test."""
    with ExitStack() as stack:

        def start(name, *command):
            with (
                (tmp_path / f"{name}.out").open("wb") as out,
                (tmp_path / f"{name}.err").open("wb") as err,
            ):
                process = subprocess.Popen(
                    [*map(str, command)], stdout=out, stderr=err, cwd=tmp_path, env=rlstm.environment
                )
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        yield start


@pytest.fixture
def alertmanager(run, tmp_path):
    """Where one listens."""
    (tmp_path / "am.yml").write_text("{route: {receiver: none}, receivers: [{name: none}]}")
    (port,) = free_ports(1)
    run(
        *("alertmanager", PROGRAMS[0], "--config.file=am.yml", f"--storage.path={tmp_path / 'am'}"),
        *(f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="),
    )
    return f"http://127.0.0.1:{port}"


def entry(number, message):
    """A line of `journalctl -o json`."""
    told = {"__CURSOR": f"c{number}", "_HOSTNAME": "web1", "_SYSTEMD_UNIT": "ssh.service"}
    return json.dumps(told | {"SYSLOG_IDENTIFIER": "sshd", "MESSAGE": message}) + "\n"


def start_prometheus(run, folder, watched, port):
    """Run Prometheus, which asks a port for metrics every second."""
    (folder / "prometheus.yml").write_text(
        "{scrape_configs: [{job_name: watch, scrape_interval: 1s,"
        f" static_configs: [{{targets: ['127.0.0.1:{watched}']}}]}}]}}"
    )
    options = ("--config.file=prometheus.yml", f"--storage.tsdb.path={folder / 'db'}")
    run("prometheus", PROGRAMS[1], *options, f"--web.listen-address=127.0.0.1:{port}")


def test_all_kinds_of_logs_at_once(run, rlstm, alertmanager, tmp_path):
    """A journal's export, a file that rotates and an OTLP stream; after a kill it goes on behind them."""
    otlp, metrics, port = free_ports(3)
    journal, app = tmp_path / "export.json", tmp_path / "app.log"
    journal.write_text("".join(entry(n, f"session {n} opened for user root") for n in range(70)))
    app.write_text("".join(f"12:00:{n % 60:02} GET /items/{n} 200 in {n % 9} ms\n" for n in range(70)))
    start_prometheus(run, tmp_path, metrics, port)
    words = [
        *(rlstm.path, "watch", app, "--journal", journal, "--otlp", otlp, "--follow", "--local"),
        *(part for name in "abc" for part in ("--state", tmp_path / f"{name}.rlstm")),
        *("--threshold", "0.6", "--alertmanager", alertmanager, "--metrics", metrics),
    ]
    with httpx.Client(trust_env=False, timeout=60) as client:

        def said():
            return "\n".join(path.read_text()[-2_000:] for path in tmp_path.glob("*.err"))

        def alerts(count):
            found = client.get(f"{alertmanager}/api/v2/alerts").json()
            return found if len(found) == count else None

        def counted(query, value):
            asked = client.get(f"http://127.0.0.1:{port}/api/v1/query", params={"query": query})
            return asked.json()["data"]["result"][0]["value"][1] == value

        def sent(*texts):
            place, headers = f"http://127.0.0.1:{otlp}/v1/logs", {"content-type": "application/x-protobuf"}
            return client.post(place, content=exported(*texts), headers=headers).status_code == 200

        first = run("watch", *words)
        until(lambda: sent(*(f"order {n} paid" for n in range(70)), STRANGE), said)
        app.rename(tmp_path / "app.log.1")
        app.write_text(f"12:01:00 GET /items/1 200 in 3 ms\n{STRANGE}\n")
        with journal.open("a") as file:
            file.write(entry(70, STRANGE))
        until(lambda: alerts(3), said)
        until(lambda: counted("sum(rlstm_watch_alarms_total)", "3"), said)
        until(lambda: counted("sum(rlstm_watch_lines_total)", "214"), said)
        first.kill()
        first.wait()

        second = run("again", *words)
        with journal.open("a") as file:
            file.write(entry(71, "session 71 opened for user root"))
            file.write(entry(72, "opened session 72 for user root"))
        found = until(lambda: alerts(4), said)
        until(lambda: counted('rlstm_watch_lines_total{log=~"journal.*"}', "73"), said)
        second.send_signal(signal.SIGTERM)
        assert second.wait(60) == 130

    told = {(alert["labels"]["log"].split(":")[0], alert["labels"]["reason"]): alert for alert in found}
    assert {*told} == {(str(app), "score"), ("journal", "score"), ("otlp", "score"), ("journal", "order")}
    strange = told["journal", "score"]
    assert strange["annotations"]["text"] == f"sshd: {STRANGE}"
    assert {*strange["annotations"]["words"].split(" … ")} <= {*STRANGE.split(), "sshd:"}
    assert (strange["labels"]["unit"], strange["labels"]["host"]) == ("ssh.service", "web1")
    assert told["otlp", "score"]["labels"]["service"] == "shop"
    assert told["journal", "order"]["annotations"]["words"] == "opened … session … 72"


def test_the_unit_runs_what_there_is(rlstm):
    """Its command is one of ours, with options that there are."""
    (line,) = [line for line in UNIT.read_text().splitlines() if line.startswith("ExecStart=")]
    program, *words = line.removeprefix("ExecStart=").split()
    assert Path(program).name == "rlstm"
    asked = subprocess.run(
        [rlstm.path, *words, "--help"], capture_output=True, text=True, env=rlstm.environment, check=False
    )
    assert (asked.returncode, asked.stderr) == (0, "")
