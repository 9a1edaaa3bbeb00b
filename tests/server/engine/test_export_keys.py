"""Where the keys come from that files are signed with."""

import pytest
from rlstm_server.engine.export_keys import FILE, find_keys

from rlstm_server.errors import StartupError
from rlstm_server.settings import Settings

KEY = "k" * 32


def test_the_settings_come_first(tmp_path):
    """Nothing is drawn where keys are named; all of them, in their order."""
    keys = find_keys(Settings(export_key=f"{KEY}, {'l' * 40}", data_dir=tmp_path), kept=True)
    assert keys.keys == (KEY.encode(), b"l" * 40)
    assert list(tmp_path.iterdir()) == []


def test_a_kept_store_has_a_key_of_its_own(tmp_path):
    """Drawn once, for the owner's eyes, and the same ever after."""
    settings = Settings(data_dir=tmp_path)
    first = find_keys(settings, kept=True)
    assert find_keys(settings, kept=True) == first
    assert len(first.keys[0]) == 32
    assert [(file.name, file.stat().st_mode & 0o777) for file in tmp_path.iterdir()] == [(FILE, 0o600)]


def test_a_store_in_memory_has_one_for_its_life(tmp_path):
    """Another each time, and none is written."""
    settings = Settings(data_dir=tmp_path)
    assert find_keys(settings, kept=False) != find_keys(settings, kept=False)
    assert list(tmp_path.iterdir()) == []


def test_a_shared_store_has_none():
    """Each server would draw another."""
    assert find_keys(Settings(redis_url="redis://127.0.0.1:1"), kept=False) is None


@pytest.mark.parametrize("text", ["", "zz", "00" * 31, "é"])
def test_a_damaged_file_is_refused_by_name(tmp_path, text):
    """A new key in its place would make all older files worthless without a word."""
    (tmp_path / FILE).write_text(text, "utf-8")
    with pytest.raises(StartupError, match=FILE):
        find_keys(Settings(data_dir=tmp_path), kept=True)
    assert (tmp_path / FILE).read_text("utf-8") == text


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    """Before the server starts."""
    (tmp_path / "file").touch()
    with pytest.raises(StartupError, match=FILE):
        find_keys(Settings(data_dir=tmp_path / "file"), kept=True)
