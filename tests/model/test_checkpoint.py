"""Checkpoint folders: what comes back, and every kind of damage."""

import json
import math
import os
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from tests.model import drawn

from rlstm_model import checkpoint, files, local, stored
from rlstm_model.adaptation.evaluator import frozen_reader
from rlstm_model.checkpoint import CheckpointError, fingerprint, load, save
from rlstm_model.vocab import ByteVocab, WordVocab

WEIGHTS, CONFIG, VOCAB = "model.safetensors", "config.json", "vocab.json"
TENSOR = "stack.layers.1.u"
CHARS = WordVocab.of_characters("\nabcdefghi")


def small(seed=0, **shape):
    """A model of a few hundred weights."""
    return drawn.parameters_of(
        seed, **{"vocab_size": CHARS.size, "hidden_size": 5, "mogrifier_rank": 0, **shape}
    )


@pytest.fixture
def model():
    return small()


@pytest.fixture
def folder(tmp_path, model):
    save(tmp_path / "tiny", model, CHARS, card="# a card\n")
    return tmp_path / "tiny"


def _rewrite(folder, change):
    """The weights file again, after ``change`` on its tensors."""
    weights = load_file(folder / WEIGHTS)
    change(weights)
    save_file({name: np.ascontiguousarray(weight) for name, weight in weights.items()}, folder / WEIGHTS)


def _rewrite_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_a_checkpoint_comes_back(tmp_path, model, dtype):
    """Config, vocabulary, card and name; every weight rounded to the stored precision."""
    save(tmp_path / "some-name", model, CHARS, dtype=dtype, card="# ein Kärtchen\n")
    loaded = load(tmp_path / "some-name")
    assert loaded.parameters.config == model.config
    assert loaded.vocab == CHARS
    assert (loaded.name, loaded.card) == ("some-name", "# ein Kärtchen\n")
    assert [*loaded.parameters.arrays] == [*model.arrays]
    for name, weight in loaded.parameters.arrays.items():
        assert weight.dtype == (np.float16 if dtype == "F16" else np.float32)
        assert (weight == stored.rounded(model.arrays[name], dtype)).all()


@pytest.mark.parametrize(
    "shape",
    [
        {"cell": "lstm", "cap_input_gate": False},
        {"tie_embeddings": True},
        {"mogrifier_rounds": 0},
        {"mogrifier_rank": 2, "mogrifier_bias": False},
        {"softmax_components": 2},
    ],
    ids=str,
)
def test_every_shape_of_model_comes_back(tmp_path, shape):
    """Absent and empty tensors too; and it scores as before."""
    model = small(vocab_size=256, **shape)
    save(tmp_path / "m", model, ByteVocab())
    readers = [frozen_reader(each, 10) for each in (model, load(tmp_path / "m").parameters)]
    before, after = (reader.score(reader.cursor, [1, 2, 3])[0].logprobs for reader in readers)
    assert before.tobytes() == after.tobytes()


def test_the_card_is_optional_and_the_calibration_is_found(folder):
    """A missing card is empty; adaptation.safetensors is offered when it lies there."""
    (folder / "README.md").unlink()
    assert load(folder).card == ""
    assert load(folder).adaptation_file is None
    (folder / "adaptation.safetensors").write_bytes(b"")
    assert load(folder).adaptation_file == folder / "adaptation.safetensors"


# ------------------------------------------------------------------------------------------ fingerprint


def test_the_fingerprint_depends_on_values_only(folder, model):
    """Neither a file's order, nor a stored precision that rounds nothing, matters."""
    original = load(folder).fingerprint
    _rewrite(folder, lambda weights: weights.update(dict(reversed(list(weights.items())))))
    assert load(folder).fingerprint == original == fingerprint(model, CHARS)
    save(folder, model, CHARS, dtype="F16")
    rounded = load(folder)
    assert rounded.fingerprint != original
    save(folder, rounded.parameters, CHARS, dtype="F32")
    assert load(folder).fingerprint == rounded.fingerprint


def test_the_fingerprint_sees_one_bit_of_weights_vocabulary_and_config(model):
    """Whatever could change a score changes it."""
    before = fingerprint(model, CHARS)
    assert fingerprint(model, WordVocab.of_characters("\nabcdefghj")) != before
    bias = model.arrays["embedding.bias"]
    bias[0] = np.nextafter(bias[0], np.float32(9.0))
    assert fingerprint(model, CHARS) != before
    capped, uncapped = (small(cell="lstm", cap_input_gate=capped) for capped in (True, False))
    assert fingerprint(capped, CHARS) != fingerprint(uncapped, CHARS)


# ------------------------------------------------------------------------------------------------ saving


def test_saving_replaces_the_whole_checkpoint(folder):
    """The old calibration belongs to the old weights and goes with them; nothing is left beside."""
    (folder / "adaptation.safetensors").write_bytes(b"old")
    other = small(seed=1)
    save(folder, other, CHARS)
    assert load(folder).fingerprint == fingerprint(other, CHARS)
    assert load(folder).adaptation_file is None
    assert list(folder.parent.iterdir()) == [folder]


def test_a_weight_that_overflows_or_is_nan_is_not_saved(folder, model):
    """The error names the tensor, and the old checkpoint stays."""
    original = load(folder).fingerprint
    model.arrays[TENSOR][0, 0] = 1e5
    with pytest.raises(CheckpointError, match=rf"{TENSOR} as F16"):
        save(folder, model, CHARS, dtype="F16")
    model.arrays[TENSOR][0, 0] = math.nan
    with pytest.raises(CheckpointError, match=TENSOR):
        save(folder, model, CHARS)
    assert load(folder).fingerprint == original
    assert list(folder.parent.iterdir()) == [folder]


def test_a_folder_of_somebody_else_is_never_replaced(tmp_path, model):
    """Saving over a folder deletes it, so other files in it stop the save; so does a plain file."""
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(CheckpointError, match=r"thesis\.tex"):
        save(tmp_path, model, CHARS)
    with pytest.raises(CheckpointError, match="not a folder"):
        save(tmp_path / "thesis.tex", model, CHARS)
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_a_failed_rename_puts_the_old_checkpoint_back(folder, model, monkeypatch):
    """A disk error at the last moment loses nothing and leaves nothing beside."""
    original, rename = load(folder).fingerprint, Path.rename

    def failing(self, target):
        if target == folder and not self.name.endswith(".old"):
            raise OSError("no space left")
        return rename(self, target)

    model.arrays["embedding.bias"][:] += 1
    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(CheckpointError, match="no space left"):
        save(folder, model, CHARS)
    assert load(folder).fingerprint == original
    assert list(folder.parent.iterdir()) == [folder]


def test_files_are_on_disk_before_the_folder_has_its_name(folder, model, monkeypatch):
    """Every file and the new folder are synced before the rename, the parent after it."""
    synced, sync, old = [], files.sync, folder.stat().st_ino

    def recording(path):
        synced.append((path.name, folder.stat().st_ino == old))
        sync(path)

    monkeypatch.setattr(files, "sync", recording)
    save(folder, model, CHARS)
    *before, last = synced
    assert {WEIGHTS, CONFIG, VOCAB, "README.md"} < {name for name, _ in before}
    assert all(old_in_place for _, old_in_place in before)
    assert last == (folder.parent.name, False)


def test_a_device_is_written_into_and_a_link_leads_to_what_is_replaced(tmp_path):
    """Neither gives its place to a file of ours."""
    device, link = tmp_path / "device", tmp_path / "link"
    os.mkfifo(device)
    link.symlink_to("file")
    reading = os.open(device, os.O_RDONLY | os.O_NONBLOCK)
    for place in (device, link):
        files.replace_file(place, "whole")
    assert os.read(reading, 9) == (tmp_path / "file").read_bytes() == b"whole"
    os.close(reading)
    assert (device.is_fifo(), link.is_symlink()) == (True, True)


def test_model_and_vocabulary_must_fit(tmp_path, model):
    """Sizes are compared before anything is written."""
    with pytest.raises(CheckpointError, match="256 tokens, the model 11"):
        save(tmp_path / "m", model, ByteVocab())
    assert not list(tmp_path.iterdir())


# -------------------------------------------------------------------------------------------- bad folders


def test_an_unknown_name_lists_the_shipped_models(tmp_path, monkeypatch, folder):
    """A name is a folder, or one of the models in the package; else the error says which there are."""
    monkeypatch.setattr(checkpoint, "_shipped_folder", lambda: folder.parent)
    assert load("tiny").fingerprint == load(folder).fingerprint
    with pytest.raises(CheckpointError, match=r"tinny: .*shipped: tiny"):
        load("tinny")
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        load("../" + tmp_path.name)
    for name in ("tinier", "small", "large"):
        shutil.copytree(folder, folder.parent / name)
    with pytest.raises(CheckpointError, match=r"shipped: tiny, tinier, \w+ and 1 more"):
        load("tinny")


def test_every_shipped_model_loads():
    """Whatever lies in the package can be used by name."""
    for name in checkpoint.shipped_names():
        assert local.load(name).score("The quick brown fox").bits_per_byte < 8


@pytest.mark.parametrize("name", [WEIGHTS, CONFIG, VOCAB])
def test_a_missing_file_is_named(folder, name):
    """Each of the three that a checkpoint needs."""
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=f"{name}: is missing"):
        load(folder)


@pytest.mark.parametrize("name", [CONFIG, VOCAB])
@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[" * 100_000], ids=["empty", "cut", "binary", "deep"]
)
def test_a_file_that_is_no_json_is_named(folder, name, content):
    """Empty, cut off, binary, or nested too deep."""
    (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{name}: is not valid JSON"):
        load(folder)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (CONFIG, {"hidden_size": "5"}, "hidden_size must be an integer"),
        (CONFIG, {"format_version": 2}, "format_version"),
        (CONFIG, {"dropout": 0.1}, "dropout"),
        (VOCAB, {"characters": "aa"}, "distinct"),
        (VOCAB, {"characters": "\nabc"}, "holds 5 tokens, but vocab_size in config.json is 11"),
        (VOCAB, {"kind": "bytes"}, "characters"),
    ],
)
def test_a_wrong_field_is_named_with_its_file(folder, name, changes, message):
    """Config and vocabulary check themselves and each other."""
    _rewrite_json(folder / name, **changes)
    with pytest.raises(CheckpointError, match=f"{name}: .*{message}"):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 1}, r"tensor stack\.layers\.1\.\w+ is not part"),
        ({"cell": "lstm"}, r"tensor stack\.layers\.0\.[cu] is not part"),
        ({"tie_embeddings": True}, r"tensor embedding\.output is not part"),
        ({"mogrifier_rank": 1}, r"tensor stack\.layers\.0\.mogrifier_down is missing"),
        (
            {"mogrifier_rounds": 3},
            r"tensor stack\.layers\.0\.mogrifier_up has shape \[4, 5, 5\], not \[3, 5, 5\]",
        ),
        ({"hidden_size": 4}, r"has shape .*, not "),
        ({"num_layers": 10**9}, "too few for the"),
        ({"hidden_size": 10**9}, "too few for the"),
    ],
)
def test_a_config_of_another_model_is_refused(folder, changes, message):
    """By tensor where the sizes are plausible; before anything is allocated where they are not."""
    _rewrite_json(folder / CONFIG, **changes)
    with pytest.raises(CheckpointError, match=f"{WEIGHTS}: .*{message}"):
        load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop(TENSOR), f"tensor {TENSOR} is missing"),
        (lambda w: w.update(extra=np.zeros(1)), "tensor extra is not part"),
        (lambda w: w.update({TENSOR: w[TENSOR][:4]}), rf"tensor {TENSOR} has shape \[4, 5\], not \[5, 5\]"),
        (lambda w: w.update({TENSOR: w[TENSOR].flatten()}), rf"tensor {TENSOR} has shape \[25\]"),
        (lambda w: w.update({TENSOR: w[TENSOR].astype(np.float64)}), f"tensor {TENSOR} has dtype F64"),
        (lambda w: w.update({TENSOR: w[TENSOR].astype(np.int64)}), f"tensor {TENSOR} has dtype I64"),
        (
            lambda w: w[TENSOR].put(7, math.nan),
            f"tensor {TENSOR} holds a value that is not finite",
        ),
        (
            lambda w: w[TENSOR].put(7, -math.inf),
            f"tensor {TENSOR} holds a value that is not finite",
        ),
    ],
    ids=["missing", "extra", "misshaped", "flat", "float64", "int64", "nan", "inf"],
)
def test_a_wrong_tensor_is_named_with_its_file(folder, change, message):
    """Missing, extra, misshaped, of a wrong dtype, or not finite."""
    _rewrite(folder, change)
    with pytest.raises(CheckpointError, match=f"{WEIGHTS}: {message}"):
        load(folder)


@given(st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_is_an_error_wherever_it_ends(tmp_path_factory, share):
    """No cut gives a model."""
    folder = tmp_path_factory.mktemp("cut") / "m"
    save(folder, small(), CHARS)
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[: int(share * len(data))])
    with pytest.raises(CheckpointError, match=WEIGHTS):
        load(folder)


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04\x95" + b"\0" * 20_000,
        struct.pack("<Q", 2**63) + b"\0" * 20_000,
        struct.pack("<Q", 2) + b"{}" + b"\0" * 20_000,
    ],
    ids=["pickle", "huge-header", "empty-header"],
)
def test_a_file_of_another_kind_is_an_error(folder, content):
    """A pickle, a header that claims more than there is, a header that claims nothing."""
    (folder / WEIGHTS).write_bytes(content)
    with pytest.raises(CheckpointError, match=WEIGHTS):
        load(folder)


def test_word_vocabularies_travel_too(tmp_path):
    """Non-ASCII words are written as they are."""
    vocab = WordVocab.build("Straße straße 東京")
    model = small(vocab_size=vocab.size)
    save(tmp_path / "w", model, vocab)
    assert load(tmp_path / "w").vocab == vocab
    assert "東京" in (tmp_path / "w" / VOCAB).read_text("utf-8")


def test_everybody_may_read_a_checkpoint(folder):
    """A server that runs as another user can load what a person saved."""
    modes = {path.stat().st_mode & 0o777 for path in folder.iterdir()}

    assert modes == {0o644}
