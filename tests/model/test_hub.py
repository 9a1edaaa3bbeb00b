"""Models of Hugging Face's hub: from a server that speaks as it does, and from its cache."""

import contextlib
import json
import shutil
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.model import drawn

from rlstm_model import checkpoint as checkpoints
from rlstm_model import hub, local
from rlstm_model.checkpoint import CheckpointError
from rlstm_model.vocab import WordVocab

library = pytest.importorskip("huggingface_hub")
constants = pytest.importorskip("huggingface_hub.constants")
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def checkpoint(tmp_path):
    words = ("<unk>", "<eos>", *(f"w{index}" for index in range(17)))
    checkpoints.save(tmp_path / "saved", drawn.parameters_of(), WordVocab(words))
    return tmp_path / "saved"


@pytest.fixture
def cached(checkpoint, tmp_path, monkeypatch):
    """The checkpoint as one revision in the cache, where nothing else is asked."""
    cache = tmp_path / "hub"
    snapshot = cache / "models--somebody--mine" / "snapshots" / COMMIT
    shutil.copytree(checkpoint, snapshot)
    (cache / "models--somebody--mine" / "refs").mkdir()
    (cache / "models--somebody--mine" / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return cache


@pytest.mark.parametrize("said", ["hf://somebody/mine", f"hf://somebody/mine@{COMMIT}", "folder"])
def test_a_model_of_the_cache_is_loaded(cached, checkpoint, said):
    """By its name on the hub, or by its folder there; it is called as on the hub."""
    place = cached / "models--somebody--mine" if said == "folder" else said
    loaded, saved = checkpoints.load(place), checkpoints.load(checkpoint)
    assert (loaded.name, loaded.fingerprint) == ("mine", saved.fingerprint)
    assert local.load(place).score("w1 w2").logprob == local.load(checkpoint).score("w1 w2").logprob


@pytest.mark.parametrize(
    "said", ["hf://somebody/none", "hf://somebody/mine@other", "hf://", "hf://a/b/c", "hf://no spaces/here"]
)
def test_what_is_not_there_is_named_in_one_line(cached, said):
    with pytest.raises(CheckpointError, match=f"^{said}: ") as caught:
        checkpoints.load(said)
    assert "\n" not in str(caught.value)


def test_without_the_library_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(CheckpointError, match=r"install mogrifier-rlstm\[hub\]"):
        checkpoints.load("hf://somebody/mine")


@contextlib.contextmanager
def serving(folder):
    """A hub of one model: what the library asks of the real one, and what was asked."""
    asked = []

    class Hub(SimpleHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            if self.path.startswith("/api/"):
                names = [{"rfilename": path.name} for path in folder.iterdir()]
                entries = [
                    {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": path.name}
                    for path in folder.iterdir()
                ]
                whole = {"id": "somebody/mine", "sha": COMMIT, "siblings": names}
                self._answer(json.dumps(entries if "/tree/" in self.path else whole).encode())
            else:
                self._answer((folder / self.path.rpartition("/")[2]).read_bytes())

        do_HEAD = do_GET

        def _answer(self, data):
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Content-Type", "application/json")
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("ETag", '"' + self.path.rpartition("/")[2] + '"')
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()


def test_a_model_is_downloaded_once(checkpoint, tmp_path, monkeypatch):
    """Its own files alone, into the cache; from there it is loaded when the hub is gone."""
    (checkpoint / "malware.py").write_text("raise SystemExit")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with serving(checkpoint) as (url, asked):
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        first = checkpoints.load("hf://somebody/mine")
    assert not any("malware" in path for path in asked)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert checkpoints.load("hf://somebody/mine").fingerprint == first.fingerprint


def test_what_the_hub_reads_of_a_checkpoint(checkpoint):
    """config.json says what it is, the weights how they are stored, the card what it is for."""
    assert json.loads((checkpoint / "config.json").read_text())["model_type"] == "rlstm"
    data = (checkpoint / "model.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert header["__metadata__"] == {"format": "pt"}
    told = library.ModelCard.load(checkpoint / "README.md").data
    assert (told.library_name, told.pipeline_tag) == ("mogrifier-rlstm", "text-generation")


def test_only_names_and_cached_models_are_the_hubs(checkpoint):
    assert not hub.is_of_hub(checkpoint)
    assert not hub.is_of_hub("bytes-small")
