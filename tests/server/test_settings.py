import os

import pytest

from rlstm_server.engine.engine import CACHE_BYTES
from rlstm_server.engine.scheduler import SHARE
from rlstm_server.engine.worker import ROWS
from rlstm_server.errors import StartupError
from rlstm_server.settings import Settings, load_settings


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("RLSTM_")]:
        monkeypatch.delenv(name)


def test_environment_names_are_the_fields_with_the_prefix(monkeypatch):
    """RLSTM_<FIELD> sets a field, RLSTM_LIMITS__<NAME> a limit, and a blank variable is not set at all."""
    monkeypatch.setenv("RLSTM_MODEL", "mine")
    monkeypatch.setenv("RLSTM_PORT", "0")
    monkeypatch.setenv("RLSTM_LIMITS__BODY_BYTES", "2048")
    monkeypatch.setenv("RLSTM_REDIS_URL", "")
    settings = load_settings()
    assert (settings.model, settings.port, settings.limits.body_bytes) == (("mine",), 0, 2048)
    assert settings.redis_url is None


def test_an_option_wins_over_the_environment(monkeypatch):
    """What is typed wins; an option that is None leaves the environment as it is."""
    monkeypatch.setenv("RLSTM_PORT", "1234")
    assert load_settings(port=99).port == 99
    assert load_settings(port=None).port == 1234


def test_files_of_a_folder_are_settings_too(monkeypatch, tmp_path):
    """Named like variables, which win over them; what else lies there is nobody's business."""
    (tmp_path / "rlstm_redis_url").write_text("redis://rlstm:secret@store:6379")
    (tmp_path / "rlstm_model").write_text("of-the-file")
    (tmp_path / "grafana_password").write_text("canary")
    monkeypatch.setenv("RLSTM_SECRETS_DIR", str(tmp_path))
    monkeypatch.setenv("RLSTM_MODEL", "of-the-environment")
    settings = load_settings()
    assert settings.redis_url.get_secret_value() == "redis://rlstm:secret@store:6379"
    assert settings.model == ("of-the-environment",)


def test_a_file_that_is_wrong_is_named_without_its_content(monkeypatch, tmp_path):
    """As a variable is; and a folder that is not there is no folder without secrets."""
    (tmp_path / "rlstm_api_keys").write_text("canary")
    monkeypatch.setenv("RLSTM_SECRETS_DIR", str(tmp_path))
    with pytest.raises(StartupError, match="RLSTM_API_KEYS") as refused:
        load_settings()
    assert "canary" not in refused.value.detail
    monkeypatch.setenv("RLSTM_SECRETS_DIR", str(tmp_path / "nowhere"))
    with pytest.raises(StartupError, match="RLSTM_SECRETS_DIR"):
        load_settings()


def test_what_looks_like_a_setting_and_is_none_is_named(monkeypatch, tmp_path):
    """A variable or a file, with the nearest that there is; those that others of ours read are none."""
    (tmp_path / "rlstm_redis_ulr").write_text("canary")
    for name, value in (("RLSTM_PROT", "1"), ("RLSTM_SECRETS_DIR", str(tmp_path)), ("RLSTM_URL", "http://x")):
        monkeypatch.setenv(name, value)
    with pytest.raises(StartupError) as refused:
        load_settings()
    assert refused.value.detail == (
        "RLSTM_PROT: there is no such setting; RLSTM_PORT may be meant;"
        " rlstm_redis_ulr: there is no such setting; RLSTM_REDIS_URL may be meant"
    )


def test_keys_are_split_at_commas(monkeypatch):
    """White space and empty parts between commas are no keys."""
    monkeypatch.setenv("RLSTM_API_KEYS", "first-key, second-key,,")
    assert [key.get_secret_value() for key in load_settings().api_keys] == ["first-key", "second-key"]


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "::", "example.org", "127.0.0.1.example.org"])
def test_without_keys_only_loopback_is_bound(host):
    """Any other address is refused, in a sentence that names what to set."""
    with pytest.raises(StartupError, match="RLSTM_API_KEYS"):
        load_settings(host=host)
    assert load_settings(host=host, api_keys="a-long-key").host == host
    assert not any(load_settings(host=own).has_keys for own in ("127.8.8.8", "::1", "localhost"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RLSTM_PORT", "canary-70000"),
        ("RLSTM_PORT", "70000"),
        ("RLSTM_DEVICE", "canary-tpu"),
        ("RLSTM_DURABILITY", "canary"),
        ("RLSTM_THREADS", "0"),
        ("RLSTM_ROWS", "0"),
        ("RLSTM_CACHE_BYTES", "-1"),
        ("RLSTM_LIMITS__BODY_BYTES", "canary"),
        ("RLSTM_LIMITS__CONNECTIONS", "0"),
        ("RLSTM_API_KEYS", "canary!"),
    ],
)
def test_a_wrong_value_names_its_variable_and_is_not_repeated(monkeypatch, name, value):
    """The sentence starts with the variable; the value may be a secret."""
    monkeypatch.setenv(name, value)
    with pytest.raises(StartupError) as caught:
        load_settings()
    assert caught.value.detail.startswith(name)
    assert "canary" not in caught.value.detail


def test_secrets_do_not_show_in_a_printout():
    """Neither keys nor the store's URL, which may hold a password."""
    settings = load_settings(api_keys="canary-key", redis_url="redis://:canary@host")
    assert "canary" not in repr(settings)


def test_a_server_has_the_engines_own_defaults():
    """What an engine does when it is told nothing is what a server tells it."""
    settings = Settings()
    assert (settings.rows, settings.cache_bytes) == (ROWS, CACHE_BYTES)


def test_a_thousand_sessions_of_one_tenant_may_ask_at_once():
    """They fit into the part of the queue that a tenant may fill."""
    assert SHARE * Settings().limits.queued_jobs >= 1_024


def test_replica_needs_a_store_that_can_have_one():
    """The embedded store has no replica, so that durability is refused without an address."""
    with pytest.raises(StartupError, match="RLSTM_REDIS_URL"):
        load_settings(durability="replica")

    assert load_settings(durability="replica", redis_url="redis://h").durability == "replica"


def test_a_request_that_is_allowed_fits_into_the_memory_for_requests(monkeypatch):
    """Two settings that contradict each other are refused, by the names of both."""
    monkeypatch.setenv("RLSTM_LIMITS__REQUESTS_BYTES", "10000000")
    with pytest.raises(StartupError, match=r"^RLSTM_LIMITS: REQUESTS_BYTES .* IMPORT_BYTES \(33,554,432\)"):
        load_settings()


def test_proxies_are_addresses_and_networks(monkeypatch):
    """Separated by commas; what is neither is refused, and so is a network with an address in it."""
    assert load_settings().trusted_proxies == ()
    monkeypatch.setenv("RLSTM_TRUSTED_PROXIES", "10.0.0.1, 2001:db8::/32")
    assert [str(network) for network in load_settings().trusted_proxies] == ["10.0.0.1/32", "2001:db8::/32"]
    for wrong in ("canary", "*", "10.0.0.1/8", "10.0.0.1;10.0.0.2"):
        monkeypatch.setenv("RLSTM_TRUSTED_PROXIES", wrong)
        with pytest.raises(StartupError, match="RLSTM_TRUSTED_PROXIES") as refused:
            load_settings()
        assert wrong not in refused.value.detail


@pytest.mark.parametrize(
    ("said", "name", "place"),
    [
        ("mine=runs/x", "mine", "runs/x"),
        ("bytes-small", None, "bytes-small"),
        ("runs/a=b/x", None, "runs/a=b/x"),
        ("seed=3", None, "seed=3"),
        ("seed=4", "seed", "4"),
        ("mine=", None, "mine="),
    ],
)
def test_a_model_is_a_place_and_perhaps_a_name(monkeypatch, tmp_path, said, name, place):
    """A folder that is there is a place, though its name looks like name and place."""
    (tmp_path / "seed=3").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_settings(model=(said,)).models == ((name, place),)
