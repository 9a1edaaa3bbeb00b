"""The deployment as real processes: store, two servers, nginx, probe and Prometheus, by compose's files."""

import re

import httpx
import pytest
from tests.deploy import monitoring, proxy, stack

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]

TEXT = "the quick brown fox jumps over the lazy dog. "


@pytest.fixture(scope="module")
def deployed(tiny_checkpoint, tmp_path_factory):
    """All of it, once for all tests here."""
    for program, found in (("nginx", proxy.binary()), ("prometheus", monitoring.program("prometheus"))):
        if found is None:
            pytest.skip(f"there is no {program} here: install {program}")
    with stack.running(tmp_path_factory.mktemp("stack"), tiny_checkpoint) as whole:
        yield whole


def total(deployed, expression):
    return sum(value for _, value in deployed.query(expression))


def test_a_caller_is_served_by_key_and_through_the_proxy(deployed):
    """A session that learns; without a key nothing, and no server's metrics through the proxy."""
    with deployed.client() as client:
        made = client.post("/sessions", json={"text": TEXT})
        assert made.status_code == 201, made.text
        again = client.post(f"/sessions/{made.json()['id']}/append", json={"text": TEXT})
        assert again.json()["version"] == 2
        assert client.get("/metrics").status_code == 404
    assert httpx.post(f"{deployed.url}/score", json={"text": TEXT}, trust_env=False).status_code == 401


def test_prometheus_sees_everybody(deployed):
    """Both servers by their own addresses, with the key that is theirs, and the probe."""
    up = dict.fromkeys(deployed.addresses.values(), 1.0) | {f"127.0.0.1:{deployed.probe_port}": 1.0}
    stack.until(lambda: {each["instance"]: value for each, value in deployed.query("up")} == up, within=30)
    with deployed.client("api_key", f"http://{next(iter(deployed.addresses.values()))}") as client:
        assert client.get("/metrics").status_code == 403


def test_every_rule_and_every_panel_is_answered(deployed):
    """Rules evaluate without an error, expressions of the dashboard too; what they name is in Prometheus."""
    expressions = monitoring.expressions()
    for expression in expressions.values():
        deployed.query(expression)
    address = f"{deployed.prometheus}/api/v1"
    stack.until(lambda: all(rule["lastEvaluation"][:2] == "20" for rule in rules(address)), within=30)
    assert not [rule for rule in rules(address) if rule["health"] != "ok"]
    names = set(httpx.get(f"{address}/label/__name__/values", trust_env=False).json()["data"])
    asked = {name for each in expressions.values() for name, _ in monitoring.selectors(each)}
    recorded = {rule["name"] for rule in rules(address) if rule["type"] == "recording"}
    print(
        f"{len(expressions)} expressions answered, {len(asked - recorded)} names scraped, "
        f"{len(recorded)} recorded"
    )
    assert asked - recorded - {"ALERTS"} <= names


def rules(address):
    groups = httpx.get(f"{address}/rules", trust_env=False).json()["data"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_the_store_is_known_from_every_server(deployed):
    """The same figures of one store: its limit as in redis.conf, nothing dropped."""
    limit = re.search(
        r"^maxmemory (\d+)gb$", (monitoring.DEPLOY / "redis" / "redis.conf").read_text(), re.MULTILINE
    )[1]
    found = deployed.query("rlstm_store_max_bytes")
    assert [value for _, value in found] == 2 * [int(limit) * 2**30]
    assert total(deployed, "rlstm_store_evicted_keys") == 0
    assert 0 < deployed.query("rlstm:store_fill:ratio")[0][1] < 0.1


def test_the_probe_sees_what_callers_see(deployed):
    """Its texts come whole, and with the gaps that the servers made them with."""
    stack.until(lambda: total(deployed, 'rlstm_probe_requests_total{outcome="ok"}') >= 1, within=60)
    assert total(deployed, 'rlstm_probe_requests_total{outcome!="ok"}') == 0
    stack.until(lambda: deployed.query("rlstm:probe_first_token_seconds:p50_5m"), within=60)
    assert not deployed.query('ALERTS{alertname="RlstmProxyBuffers"}')


def test_a_server_that_drains_is_away_for_prometheus_too(deployed):
    """It refuses scrapes as it refuses all, ends in time, and comes back; meanwhile the other serves."""
    name, address = next(iter(deployed.addresses.items()))
    server, down = deployed.servers[name], f'up{{instance="{address}"}}'
    code, drained = server.end()
    assert code == 0
    stack.until(lambda: deployed.query(down)[0][1] == 0, within=30)
    pending = f'ALERTS{{alertname="RlstmDown", instance="{address}"}}'
    (alert,) = stack.until(lambda: deployed.query(pending), within=30)
    with deployed.client() as client:
        assert all(client.post("/score", json={"text": TEXT}).status_code == 200 for _ in range(4))
    server.start()
    stack.until(lambda: deployed.query(down)[0][1] == 1, server)
    stack.until(lambda: not deployed.query(pending), within=30)
    print(f"drained in {drained:.1f} s")
    assert drained <= 10
    assert alert[0]["alertstate"] == "pending"
