"""The Envoy configuration, as far as it can be checked without Envoy: that it says what nginx is told."""

import re

import pytest
import yaml
from tests.deploy.proxy import CONFIGURATION

SESSION = "/sessions/0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def envoy():
    """Give the configuration: the connection manager, its routes, and the cluster."""

    class Envoy:
        whole = yaml.safe_load((CONFIGURATION / "envoy.yaml").read_text())
        (listener,) = whole["static_resources"]["listeners"]
        (cluster,) = whole["static_resources"]["clusters"]
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        (host,) = manager["route_config"]["virtual_hosts"]

    return Envoy


@pytest.fixture(scope="module")
def nginx_value():
    """Give what reads one directive of the nginx configuration; it must be there once."""
    text = (CONFIGURATION / "rlstm.conf").read_text()

    def value(directive, section=""):
        part = text[text.index(section) :] if section else text
        return re.findall(rf"^\s*{directive} ([^;]+);", part, re.MULTILINE)[0]

    return value


def test_sessions_are_hashed_on_their_id(envoy):
    """The same paths as in nginx have the same key; all others have none."""
    (hashed,) = [route for route in envoy.host["routes"] if "safe_regex" in route["match"]]
    rewrite = hashed["route"]["hash_policy"][0]["header"]["regex_rewrite"]
    nginx = re.search(r'"~(\^/sessions/.*)" \$rlstm', (CONFIGURATION / "rlstm.conf").read_text())[1]
    nginx = nginx.replace("?<", "?P<")
    assert envoy.cluster["lb_policy"] == "RING_HASH"
    for path in (SESSION, f"{SESSION}/append", f"{SESSION}/append?x=1"):
        assert re.sub(rewrite["pattern"]["regex"], rewrite["substitution"], path) == SESSION[10:]
        assert re.search(nginx, path.split("?")[0])["rlstm_session"] == SESSION[10:]
        assert re.fullmatch(hashed["match"]["safe_regex"]["regex"], path.split("?")[0])
    for path in ("/sessions", "/sessions/import", f"{SESSION}0/append", "/generate", f"/x{SESSION}"):
        assert not re.fullmatch(hashed["match"]["safe_regex"]["regex"], path)
        assert not re.search(nginx, path)


def test_the_figures_are_those_of_nginx(envoy, nginx_value):
    """Deadlines, limits and how long a server is passed over."""
    manager, cluster = envoy.manager, envoy.cluster
    upstream = cluster["typed_extension_protocol_options"][
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    ]
    (limit,) = [each["typed_config"]["max_request_bytes"] for each in manager["http_filters"][:-1]]
    assert manager["request_headers_timeout"] == nginx_value("client_header_timeout")
    assert manager["request_timeout"] == nginx_value("client_body_timeout")
    assert manager["stream_idle_timeout"] == nginx_value("proxy_read_timeout")
    assert manager["common_http_protocol_options"]["idle_timeout"] == nginx_value(
        "keepalive_timeout", "listen"
    )
    assert upstream["common_http_protocol_options"]["idle_timeout"] == nginx_value("keepalive_timeout")
    assert cluster["connect_timeout"] == nginx_value("proxy_connect_timeout")
    assert f"{limit >> 20}m" == nginx_value("client_max_body_size")
    outlier = cluster["outlier_detection"]
    server = nginx_value("server", "hash $rlstm_key")
    assert f"max_fails={outlier['consecutive_local_origin_failure']} " in server
    assert server.endswith(f"fail_timeout={outlier['base_ejection_time']}")
    assert {route["route"]["timeout"] for route in envoy.host["routes"] if "route" in route} == {"0s"}
