"""The manifests as kustomize builds them: valid by the schemas of Kubernetes, and true to the server."""

import re
import shutil
import subprocess
from base64 import b64decode

import kubernetes_validate
import promql_parser
import pytest
import yaml
from tests.deploy import monitoring
from tests.deploy.monitoring import DEPLOY

from rlstm_server.settings import Limits

OVERLAYS = {"cpu": "1.30", "cuda": "1.34"}
"""And the version of Kubernetes by which each is seen: the oldest that they are for, in which a pause before
the end is an action, and a newer one. Most objects are the same in both."""

CUSTOM = {"PrometheusRule", "ServiceMonitor"}
DRAIN_SECONDS = 10


class Built:
    """What `kubectl apply -k` would apply."""

    def __init__(self, text):
        self.objects = list(yaml.safe_load_all(text))

    def all(self, kind):
        """All of a kind, by name."""
        return {each["metadata"]["name"]: each for each in self.objects if each["kind"] == kind}

    def pods(self):
        """The pod template of everything that runs, by name."""
        workloads = self.all("Deployment") | self.all("Job")
        return {name: workload["spec"]["template"] for name, workload in workloads.items()}

    def one(self, kind):
        """The only one of a kind whose name has a suffix of its own or not."""
        (found,) = self.all(kind).values()
        return found


@pytest.fixture(scope="module", params=OVERLAYS)
def built(request, tmp_path_factory):
    """An overlay, built from a copy that has secrets."""
    kubectl = shutil.which("kubectl") or shutil.which("kustomize")
    if kubectl is None:
        pytest.skip("there is no kubectl here, nor kustomize: install one of them")
    copy = tmp_path_factory.mktemp(request.param) / "deploy"
    shutil.copytree(DEPLOY, copy, ignore=shutil.ignore_patterns("secrets"))
    overlay = copy / "kubernetes" / "overlays" / request.param
    draw = [copy / "secrets.sh", overlay / "secrets", "valkey.valkey.svc"]
    subprocess.run(draw, check=True, capture_output=True)
    command = [kubectl, *(["kustomize"] if kubectl.endswith("kubectl") else ["build"]), overlay]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = Built(done.stdout)
    made.overlay, made.secrets = request.param, overlay / "secrets"
    return made


def container(pod):
    (only,) = pod["spec"]["containers"]
    return only


def test_every_object_is_valid(built):
    """By Kubernetes' own schemas, in which an unknown field is an error; custom resources are seen below."""
    known = [each for each in built.objects if each["kind"] not in CUSTOM]
    for each in known:
        kubernetes_validate.validate(each, OVERLAYS[built.overlay], strict=True)
    assert len(known) >= 18


def test_everything_lies_in_one_namespace(built):
    """Which admits restricted pods only."""
    (namespace,) = built.all("Namespace").values()
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for each in built.objects:
        assert each["kind"] == "Namespace" or each["metadata"]["namespace"] == "rlstm", each["metadata"]


def test_pods_are_restricted(built):
    """As the standard of that name asks, and more: no token, a file system that is read, bounded memory."""
    for name, pod in built.pods().items():
        spec, one = pod["spec"], container(pod)
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] >= 10_000
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        }
        assert spec["automountServiceAccountToken"] is False
        assert {"cpu", "memory"} <= set(one["resources"]["requests"]), name
        assert "memory" in one["resources"]["limits"]


def test_no_service_shadows_a_setting(built):
    """A service named rlstm would make RLSTM_PORT an address: pods get no such variables."""
    assert "rlstm" in built.all("Service")
    assert all(pod["spec"]["enableServiceLinks"] is False for pod in built.pods().values())


def test_variables_are_settings(built):
    """Each RLSTM_ variable is one; commands are ours; the image is the overlay's."""
    ours = {name: container(pod) for name, pod in built.pods().items() if name != "rlstm-proxy"}
    assert set(ours) == {"rlstm", "rlstm-install", "rlstm-probe"}
    for one in ours.values():
        assert {each["name"] for each in one.get("env", [])} <= monitoring.VARIABLES
        assert one["args"][0] in monitoring.WORDS
        assert re.fullmatch(rf"registry\.example/rlstm:\d+\.\d+\.\d+-{built.overlay}", one["image"])
    proxy = container(built.pods()["rlstm-proxy"])
    assert re.search(r":[a-z-]*v\d+\.\d+\.\d+$", proxy["image"])


def test_probes_ask_routes_that_are_open(built, tiny_checkpoint):
    """Live for whether it must be started again, ready for whether it gets requests; neither needs a key."""
    one = container(built.pods()["rlstm"])
    paths = {kind: one[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    assert paths == {"startup": "/health/live", "liveness": "/health/live", "readiness": "/health/ready"}
    series = monitoring.exposed(tiny_checkpoint)["rlstm_requests_total"]
    assert {f"GET {path}" for path in paths.values()} <= {each["endpoint"] for each in series}
    start = one["startupProbe"]
    assert start["periodSeconds"] * start["failureThreshold"] >= 120


def test_a_server_ends_in_peace(built):
    """It is sent nothing any more, drains, and is killed only after both; there is always another."""
    workload = built.all("Deployment")["rlstm"]["spec"]
    spec = workload["template"]["spec"]
    pause = container(workload["template"])["lifecycle"]["preStop"]["sleep"]["seconds"]
    ready = container(workload["template"])["readinessProbe"]
    assert Limits().drain_seconds < DRAIN_SECONDS
    assert spec["terminationGracePeriodSeconds"] >= pause + DRAIN_SECONDS + 5
    assert pause >= ready["periodSeconds"] * ready["failureThreshold"]
    assert workload["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert built.all("PodDisruptionBudget")["rlstm"]["spec"]["maxUnavailable"] == 1
    keys = {each["topologyKey"] for each in spec["topologySpreadConstraints"]}
    assert keys == {"kubernetes.io/hostname", "topology.kubernetes.io/zone"}


def test_selectors_select(built):
    """Every service, budget, policy and monitor means something that is there."""
    pods = [pod["metadata"]["labels"] for pod in built.pods().values()]
    services = [service["metadata"]["labels"] for service in built.all("Service").values()]

    def selected(labels, among):
        return [each for each in among if labels.items() <= each.items()]

    for service in built.all("Service").values():
        assert selected(service["spec"]["selector"], pods)
    for budget in built.all("PodDisruptionBudget").values():
        assert selected(budget["spec"]["selector"]["matchLabels"], pods)
    for policy in built.all("NetworkPolicy").values():
        assert selected(policy["spec"]["podSelector"].get("matchLabels", {}), pods)
    for monitor in built.all("ServiceMonitor").values():
        (labels,) = selected(monitor["spec"]["selector"]["matchLabels"], services)
        assert monitor["spec"]["jobLabel"] in labels


def test_ports_are_where_services_send(built):
    """By name; the proxy's configuration names the headless service and its port."""
    listens = {
        name: {port["name"]: port["containerPort"] for port in container(pod).get("ports", [])}
        for name, pod in built.pods().items()
    }
    assert listens == {
        "rlstm": {"http": 8000},
        "rlstm-install": {},
        "rlstm-probe": {"metrics": 9101},
        "rlstm-proxy": {"http": 80},
    }
    for service in built.all("Service").values():
        (port,) = service["spec"]["ports"]
        assert port["targetPort"] in listens[service["spec"]["selector"]["app.kubernetes.io/name"]]
    headless = built.all("Service")["rlstm-servers"]["spec"]
    (port,) = headless["ports"]
    maps = {name.rsplit("-", 1)[0]: each for name, each in built.all("ConfigMap").items()}
    envoy = yaml.safe_load(maps["rlstm-envoy"]["data"]["envoy.yaml"])
    (cluster,) = envoy["static_resources"]["clusters"]
    (end,) = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    address = end["endpoint"]["address"]["socket_address"]
    assert headless["clusterIP"] == "None"
    assert address == {"address": "rlstm-servers", "port_value": port["port"]}
    assert cluster["type"] == "STRICT_DNS"
    (listener,) = envoy["static_resources"]["listeners"]
    ports = container(built.pods()["rlstm-proxy"])["ports"]
    assert listener["address"]["socket_address"]["port_value"] == ports[0]["containerPort"]
    volume = next(each for each in built.pods()["rlstm-proxy"]["spec"]["volumes"] if "configMap" in each)
    assert volume["configMap"]["name"] in built.all("ConfigMap")


def test_only_what_is_named_may_talk(built):
    """All is denied to all; servers are reached by proxies and Prometheus, and reach the store alone."""
    policies = built.all("NetworkPolicy")
    everybody = policies["rlstm-nobody"]["spec"]
    labels = everybody["podSelector"]["matchLabels"]
    assert everybody["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in everybody
    assert all(labels.items() <= pod["metadata"]["labels"].items() for pod in built.pods().values())
    (into,) = policies["rlstm-servers"]["spec"]["ingress"]
    assert [sorted(each) for each in into["from"]] == [["podSelector"], ["namespaceSelector"]]
    out = [
        rule
        for policy in policies.values()
        if policy["spec"]["podSelector"].get("matchLabels", {}).get("app.kubernetes.io/name") == "rlstm"
        for rule in policy["spec"].get("egress", [])
    ]
    assert not out
    (store,) = policies["rlstm-store"]["spec"]["egress"]
    assert store["ports"] == [{"protocol": "TCP", "port": 6379}]


def test_secrets_are_those_that_are_drawn(built):
    """Each that a pod or a monitor names is in the generated secret, under its generated name."""
    (secret,) = built.all("Secret").values()
    name, data = secret["metadata"]["name"], secret["data"]
    assert re.fullmatch(r"rlstm-secrets-[a-z0-9]{10}", name)
    for key, value in data.items():
        assert b64decode(value) == (built.secrets / key).read_bytes()
    used = set()
    for pod in built.pods().values():
        for volume in pod["spec"].get("volumes", []):
            if "secret" in volume:
                assert volume["secret"]["secretName"] == name
                used |= {each["key"] for each in volume["secret"]["items"]}
    monitor = built.all("ServiceMonitor")["rlstm"]["spec"]["endpoints"][0]
    credentials = monitor["authorization"]["credentials"]
    assert credentials["name"] == name
    assert used | {credentials["key"]} == set(data)
    assert "admin_redis_url" not in {
        each["key"] for each in built.pods()["rlstm"]["spec"]["volumes"][0]["secret"]["items"]
    }


def test_servers_are_scaled_by_what_they_expose(built, tiny_checkpoint):
    """The autoscaler's metric is the adapter's, which is made of series that a server has."""
    scaler = built.one("HorizontalPodAutoscaler")["spec"]
    (metric,) = scaler["metrics"]
    (rule,) = monitoring.load("kubernetes/components/autoscaling/prometheus-adapter.yaml")["rules"]["custom"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
    assert scaler["scaleTargetRef"]["name"] in built.all("Deployment")
    assert scaler["minReplicas"] == built.all("Deployment")["rlstm"]["spec"]["replicas"] == 2
    names = {name for name, _ in monitoring.selectors(monitoring.expressions()["adapter"])}
    assert names <= set(monitoring.exposed(tiny_checkpoint))
    assert promql_parser.parse(rule["seriesQuery"]).name == "rlstm_rows_wanted"
    down = scaler["behavior"]["scaleDown"]
    assert down["stabilizationWindowSeconds"] > scaler["behavior"]["scaleUp"]["stabilizationWindowSeconds"]


def test_the_dashboard_comes_along(built):
    """As a ConfigMap with the label that Grafana's sidecar looks for."""
    (found,) = [each for each in built.all("ConfigMap").values() if "rlstm.json" in each["data"]]
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["data"]["rlstm.json"] == (DEPLOY / "grafana" / "rlstm.json").read_text()


def test_a_gpu_is_asked_for_where_there_is_one(built):
    """One for each server of that overlay, and none of the other."""
    spec = built.pods()["rlstm"]["spec"]
    limits = container(built.pods()["rlstm"])["resources"]["limits"]
    assert limits.get("nvidia.com/gpu") == {"cpu": None, "cuda": 1}[built.overlay]
    assert bool(spec.get("tolerations")) == (built.overlay == "cuda")
