"""What is asked of Prometheus: expressions of rules, of the dashboard and of the autoscaler, taken apart."""

import json
import re
import shutil
from functools import cache
from pathlib import Path

import promql_parser
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rlstm_client.cli.commands import COMMANDS
from rlstm_server.app import create_app
from rlstm_server.probe import Probe
from rlstm_server.settings import PREFIX, SECRETS_DIR, Limits, Settings

DEPLOY = Path(__file__).parents[2] / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
OF_PROMETHEUS = {"up", "ALERTS"}
OF_TARGETS = {"job", "instance", "namespace", "pod"}
VARIABLES = {SECRETS_DIR} | {
    f"{PREFIX}{name.upper()}"
    for name in (*Settings.model_fields, *(f"limits__{name}" for name in Limits.model_fields))
}
WORDS = {command.path.split(".")[0] for command in COMMANDS}
"""Of our program, the first after its name."""


def program(name):
    """Give Prometheus' program of that name, None where there is none."""
    found = shutil.which(name)
    return None if found is None else Path(found)


def load(path):
    """Read a YAML file of `deploy`."""
    return yaml.safe_load((DEPLOY / path).read_text())


def rules(path):
    """All rules of a file."""
    return [rule for group in load(path)["groups"] for rule in group["rules"]]


def dashboard():
    """The dashboard."""
    return json.loads((DEPLOY / "grafana" / "rlstm.json").read_text())


@cache
def expressions():
    """Every expression, by where it stands."""
    found = {
        f"{path} {rule.get('record', rule.get('alert'))}": rule["expr"]
        for path in ("prometheus/rules.yaml", "prometheus/alerts.yaml")
        for rule in rules(path)
    }
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            expr = target["expr"].replace("$__rate_interval", "5m")
            found[f"panel {panel['title']} {panel['id']} {target['refId']}"] = expr
    found["annotations"] = dashboard()["annotations"]["list"][0]["expr"]
    (scaled,) = load("kubernetes/components/autoscaling/prometheus-adapter.yaml")["rules"]["custom"]
    series, name = scaled["seriesQuery"], scaled["seriesQuery"].split("{")[0]
    query = scaled["metricsQuery"].replace("<<.Series>>", name)
    query = query.replace("<<.LabelMatchers>>", 'namespace="rlstm",pod=~"a|b"').replace("<<.GroupBy>>", "pod")
    return found | {"adapter series": series, "adapter": query}


def parsed(expression):
    """The parts of an expression, each once."""
    nodes = []
    promql_parser.walk(promql_parser.parse(expression), lambda node: nodes.append(node) or True)
    return nodes


def selectors(expression):
    """The name of each series that is asked for, and its matchers as (label, operator, value)."""
    return [
        (
            node.name,
            [(each.name, str(each.op).rpartition(".")[2], each.value) for each in node.matchers.matchers],
        )
        for node in parsed(expression)
        if isinstance(node, promql_parser.VectorSelector)
    ]


def grouped(expression):
    """All labels that an expression is summed by."""
    nodes = [node for node in parsed(expression) if isinstance(node, promql_parser.AggregateExpr)]
    return {label for node in nodes if node.modifier is not None for label in node.modifier.labels}


@cache
def exposed(model):
    """Every series of a server and of a probe, from the start: the labels of each, by its name."""
    registry = CollectorRegistry()
    Probe("http://localhost", None, registry).close()
    metrics = create_app(Settings(model=str(model))).state.metrics
    metrics.build.labels("1", "m", "f", "float32", "cpu").set(1)
    found = {}
    for text in (metrics.exposition()[0], generate_latest(registry)):
        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples:
                found.setdefault(sample.name, []).append(sample.labels)
    return found


def fits(labels, matchers):
    """Whether a series has the labels asked for; those that its target gives it are not asked."""
    for label, operator, value in matchers:
        own = labels.get(label, "")
        same = own == value if operator in ("Equal", "NotEqual") else bool(re.fullmatch(value, own))
        if label not in OF_TARGETS and same == operator.startswith("Not"):
            return False
    return True
