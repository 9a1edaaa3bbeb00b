"""Rules, alerts and the dashboard: that they hold, and that what they ask for is there."""

import re
import subprocess
from itertools import pairwise

import pytest
from tests.deploy import monitoring
from tests.deploy.monitoring import DEPLOY, OF_PROMETHEUS, OF_TARGETS, PROMETHEUS

ALERTS = {rule["alert"]: rule for rule in monitoring.rules("prometheus/alerts.yaml")}
RECORDED = {rule["record"]: rule["expr"] for rule in monitoring.rules("prometheus/rules.yaml")}


@pytest.fixture(scope="module")
def promtool():
    """Give promtool; skip where there is none."""
    found = monitoring.program("promtool")
    if found is None:
        pytest.skip("there is no promtool here: install prometheus")
    return lambda *arguments: subprocess.run(
        [found, *arguments], capture_output=True, text=True, check=False, cwd=PROMETHEUS
    )


@pytest.fixture(scope="module")
def series(tiny_checkpoint):
    """All series of a server and of a probe."""
    return monitoring.exposed(tiny_checkpoint)


def test_the_rules_are_without_fault(promtool):
    """Prometheus reads them; its own linter has nothing against them."""
    said = promtool("check", "rules", "--lint=all", "--lint-fatal", "rules.yaml", "alerts.yaml")
    assert said.returncode == 0, said.stdout + said.stderr


def test_every_alert_fires_when_it_should_and_not_otherwise(promtool):
    """By promtool's own tests, of which each alert has one of either kind."""
    said = promtool("test", "rules", "tests.yaml")
    assert said.returncode == 0, said.stdout + said.stderr


def test_each_alert_says_what_to_do():
    """What it means, how urgent it is, and where an operator reads on."""
    text = (DEPLOY / "README.md").read_text()
    for name, rule in ALERTS.items():
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}
        assert rule["annotations"]["runbook"] == f"deploy/README.md#{name.lower()}"
        assert re.search(rf"^### {name}$", text, re.MULTILINE), name


@pytest.mark.parametrize("place", monitoring.expressions())
def test_what_is_asked_for_is_there(series, place):
    """Names of metrics, values of labels and labels to sum by are those of the exposition, or recorded."""
    expression = monitoring.expressions()[place]
    known = set(OF_TARGETS) | {"alertname", "alertstate"}
    for name, matchers in monitoring.selectors(expression):
        if name in OF_PROMETHEUS:
            continue
        if name in RECORDED:
            known |= monitoring.grouped(RECORDED[name])
            continue
        assert name in series, f"nothing exposes {name}"
        assert any(monitoring.fits(labels, matchers) for labels in series[name]), (name, matchers)
        known |= {label for labels in series[name] for label in labels}
    assert monitoring.grouped(expression) <= known


def test_every_value_that_is_named_exists(series):
    """Also one that is excluded: a value that nobody has would exclude nothing."""
    for expression in monitoring.expressions().values():
        for name, matchers in monitoring.selectors(expression):
            for label, operator, value in matchers:
                if name in series and label not in OF_TARGETS:
                    named = (label, "Re" if operator.endswith("Re") else "Equal", value)
                    assert any(monitoring.fits(labels, [named]) for labels in series[name]), (name, value)


def test_every_metric_is_shown_somewhere(series):
    """On the dashboard, in a rule or for the autoscaler: what nobody looks at need not be counted."""
    ends = re.compile(r"_(bucket|sum|count|created|total)$")
    asked = {
        ends.sub("", name)
        for expression in monitoring.expressions().values()
        for name, _ in monitoring.selectors(expression)
    }
    ours = {ends.sub("", name) for name in series if name.startswith("rlstm_")}
    assert ours - asked == set()


def test_the_panels_lie_side_by_side():
    """Each has a place of its own on the page, an id of its own, and the chosen data source."""
    panels = monitoring.dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (panel["gridPos"]["y"] + row, panel["gridPos"]["x"] + column)
        for panel in panels
        for row in range(panel["gridPos"]["h"])
        for column in range(panel["gridPos"]["w"])
    ]
    assert len(cells) == len(set(cells))
    assert all(column < 24 for _, column in cells)
    tops = [panel["gridPos"]["y"] for panel in panels]
    assert all(before <= after for before, after in pairwise(tops))
    sources = {str(panel.get("datasource", {}).get("uid")) for panel in panels if panel["type"] != "row"}
    assert sources == {"${datasource}"}


def test_grafana_finds_prometheus_and_the_dashboard():
    """The provisioned source is the default one, and the folder of dashboards the one that compose fills."""
    (source,) = monitoring.load("grafana/datasources.yaml")["datasources"]
    (provider,) = monitoring.load("grafana/dashboards.yaml")["providers"]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    assert provider["options"]["path"] == "/etc/grafana/dashboards"
    assert monitoring.dashboard()["uid"] == "rlstm"


def test_the_operators_rules_are_the_same():
    """Word for word: the custom resource holds the groups of both files."""
    resource = monitoring.load("kubernetes/components/monitoring/rules.yaml")
    files = [monitoring.load(f"prometheus/{name}.yaml") for name in ("rules", "alerts")]
    assert resource["kind"] == "PrometheusRule"
    assert resource["spec"]["groups"] == [group for file in files for group in file["groups"]]
