"""compose.yaml: valid by the specification, and saying what servers, store and proxy need."""

import re

import pytest
import yaml
from compose_spec import PyCompose
from tests.deploy import monitoring
from tests.deploy.monitoring import DEPLOY

from rlstm_server.settings import Limits

HOME = DEPLOY / "compose"
COMPOSE = yaml.safe_load((HOME / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"] == "rlstm:cpu"}
REPLICAS = {name: service for name, service in OURS.items() if service["command"] == ["serve"]}
SCRAPES = {job["job_name"]: job for job in monitoring.load("prometheus/prometheus.yaml")["scrape_configs"]}
DRAIN_SECONDS = 10


def seconds(text):
    return int(text.removesuffix("s"))


def sources(service, kind):
    """Names and places of the files that a service is given."""
    given = [{"source": each} if isinstance(each, str) else each for each in service.get(kind, [])]
    return {each["source"]: each.get("target", f"/run/secrets/{each['source']}") for each in given}


def test_the_file_is_valid():
    """By a parser of the compose specification, after YAML's own merges."""
    parsed = PyCompose.from_yaml(yaml.safe_dump(COMPOSE))
    assert set(parsed.service_names()) == set(SERVICES)
    assert set(SERVICES) == {
        "replica-1", "replica-2", "install", "store", "nginx", "probe", "prometheus", "grafana",
    }  # fmt: skip


def test_every_file_that_is_mounted_is_there():
    """Settings are those of deploy, secrets what secrets.sh draws; each is used."""
    drawn = set(re.findall(r"\$folder/([a-z_.]+)", (DEPLOY / "secrets.sh").read_text()))
    drawn |= {"api_key", "metrics_key", "probe_key", "grafana_password"}
    used = {
        kind: {name for each in SERVICES.values() for name in sources(each, kind)}
        for kind in ("configs", "secrets")
    }
    for name, config in COMPOSE["configs"].items():
        assert (HOME / config["file"]).is_file(), name
    for name, secret in COMPOSE["secrets"].items():
        assert secret["file"] == f"secrets/{name}"
        assert name in drawn
    assert used == {kind: set(COMPOSE[kind]) for kind in used}


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_contained(name):
    """A pinned image, no rights, a file system that is read, bounds, and a look at its health."""
    service = SERVICES[name]
    assert service["image"] == "rlstm:cpu" or re.search(r":v?\d+\.\d+\.\d+(-[a-z]+)?$", service["image"])
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory"}
    assert "healthcheck" in service or name in REPLICAS  # the image has one
    assert not any("PASSWORD" in key and not key.endswith("__FILE") for key in service.get("environment", {}))


@pytest.mark.parametrize("name", OURS)
def test_our_variables_are_settings(name):
    """Each RLSTM_ variable is one, with a value that it takes; commands are ours."""
    assert set(OURS[name].get("environment", {})) <= monitoring.VARIABLES
    assert OURS[name]["command"][0] in monitoring.WORDS


def test_servers_are_two_of_a_kind():
    """Equal in everything, at the names that the proxy and Prometheus have; the file's settings are valid."""
    assert len(REPLICAS) == 2
    one, other = REPLICAS.values()
    assert one == other
    assert one["ulimits"]["nofile"] > Limits().connections
    nginx = (DEPLOY / "proxy" / "rlstm.conf").read_text()
    assert set(re.findall(r"^\s+server (\S+):8000 ", nginx, re.MULTILINE)) == set(REPLICAS)
    (targets,) = SCRAPES["rlstm"]["static_configs"]
    assert targets["targets"] == [f"{name}:8000" for name in REPLICAS]


def test_a_server_gets_the_time_it_needs():
    """To end its drain, before it is killed; the proxy as much, the store until its log is written."""
    drain = Limits().drain_seconds
    assert drain < DRAIN_SECONDS
    assert all(seconds(each["stop_grace_period"]) > DRAIN_SECONDS for each in REPLICAS.values())
    assert seconds(SERVICES["nginx"]["stop_grace_period"]) > DRAIN_SECONDS
    assert seconds(SERVICES["store"]["stop_grace_period"]) >= 60


def test_only_the_proxy_is_reached_from_outside():
    """And Grafana, from this machine; other networks have no way out, and the store's has but servers."""
    ports = {name: each["ports"] for name, each in SERVICES.items() if "ports" in each}
    assert ports == {"nginx": ["8000:80"], "grafana": ["127.0.0.1:3000:3000"]}
    inner = {name for name, network in COMPOSE["networks"].items() if network.get("internal")}
    assert inner == set(COMPOSE["networks"]) - {"outside"}
    on = {
        net: {name for name, each in SERVICES.items() if net in each["networks"]}
        for net in COMPOSE["networks"]
    }
    assert on["outside"] == set(ports)
    assert on["store"] == {"store", "install", *REPLICAS}


def test_everybody_who_is_waited_for_can_be_waited_for():
    """What must be healthy has a health check, what must have ended ends."""
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            condition = how["condition"]
            if condition == "service_completed_successfully":
                assert SERVICES[other]["restart"] == "on-failure", name
            else:
                assert condition == "service_healthy"
                assert other in REPLICAS or SERVICES[other]["healthcheck"].get("test"), name
            shared = set(service["networks"]) & set(SERVICES[other]["networks"])
            assert shared or condition == "service_completed_successfully", (name, other)


def test_prometheus_reaches_what_it_scrapes():
    """On a network of its own, with the key that it is given, and with the rules where it looks for them."""
    service, config = SERVICES["prometheus"], monitoring.load("prometheus/prometheus.yaml")
    mounted = sources(service, "configs")
    assert f"--config.file={mounted['prometheus.yaml']}" in service["command"]
    assert {mounted[name] for name in ("rules.yaml", "alerts.yaml")} == set(config["rule_files"])
    for job in config["scrape_configs"]:
        for target in job["static_configs"][0]["targets"]:
            assert "watch" in SERVICES[target.split(":")[0]]["networks"]
        if "authorization" in job:
            key = job["authorization"]["credentials_file"]
            assert key in sources(service, "secrets").values()
    (source,) = monitoring.load("grafana/datasources.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert sources(SERVICES["grafana"], "configs")["rlstm.json"].startswith("/etc/grafana/dashboards/")
