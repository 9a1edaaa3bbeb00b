"""Compressed files: byte for byte what it was, in the bits that were scored; whatever is wrong is refused."""

import io
import shutil
import struct
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rlstm_model
from rlstm_model import checkpoint as checkpoints
from rlstm_model import native
from rlstm_model.adaptation.calibration_file import load_calibration, save_calibration
from rlstm_model.checkpoint import CheckpointError
from rlstm_model.compression import KINDS, CompressionError, compress
from rlstm_model.compression import header as headers
from rlstm_model.compression.reading import Reading
from rlstm_model.config import ModelConfig
from rlstm_model.parameters import Parameters, shapes
from rlstm_model.vocab import SubwordVocab, WordVocab
from rlstm_training.corpora import corpora_folder
from rlstm_training.corpora.reading import load_stream, stream_names

TEXT = b"the sea was calm and cold; the ship sailed.\n" * 12
CONTENTS = {
    "nothing": b"",
    "a byte": b"\xff",
    "random bytes": np.random.default_rng(1).bytes(700),
    "text": TEXT,
    "characters": "Ünïcödé, 世界 🙂\n".encode() * 9,
    "cut characters": "世界".encode()[1:-1] + b"\xed\xa0\x80 \xc0\x80\x00" + "🙂".encode()[:3],
    "one byte for ever": b"a" * 900,
}


def saved(folder, vocab):
    """A random model of a vocabulary; nothing says how it may learn."""
    config = ModelConfig(vocab_size=vocab.size, hidden_size=8, num_layers=1)
    generator = np.random.default_rng(2)
    arrays = {name: generator.normal(size=shape).astype(np.float32) for name, shape in shapes(config).items()}
    checkpoints.save(folder, Parameters(config, arrays), vocab)
    return folder


@pytest.mark.parametrize("adapt", KINDS)
@pytest.mark.parametrize("name", CONTENTS)
def test_everything_comes_back(pack, unpack, name, adapt):
    assert unpack(pack(CONTENTS[name], adapt)[0]) == CONTENTS[name]


@given(st.binary(max_size=60), st.sampled_from(KINDS))
def test_any_bytes_come_back(pack, unpack, content, adapt):
    assert unpack(pack(content, adapt)[0]) == content


@pytest.mark.skipif(not (corpora_folder() / "streams.json").is_file(), reason="no streams in RLSTM_CORPORA")
@pytest.mark.parametrize("adapt", KINDS)
def test_pieces_of_streams_come_back(pack, unpack, adapt):
    """The ends of segments of each, so that some are cut inside a character."""
    content = b"".join(load_stream(name)[-1][1][-301:] for name in stream_names())
    assert unpack(pack(content, adapt)[0]) == content


def test_the_shipped_model_needs_no_folder(pack, unpack):
    packed, summary = pack(TEXT, model="bytes-small")
    assert unpack(packed, model=None) == TEXT
    assert summary.bits < 8 * len(TEXT) / 2


@pytest.mark.parametrize("adapt", KINDS)
def test_a_file_has_the_bits_that_were_scored(pack, tiny_checkpoint, adapt):
    """To 0.1 %, beside the header and the last word; and these are the bits of the library's own scoring."""
    content = np.random.default_rng(3).choice(np.frombuffer(TEXT, np.uint8), 6_000).tobytes()
    packed, summary = pack(content, adapt)
    assert (summary.bytes, summary.packed) == (len(content), len(packed))
    header, coded = headers.read(io.BytesIO(packed))
    assert 8 * len(coded) == pytest.approx(summary.bits, rel=1e-3, abs=64)
    assert len(packed) - len(coded) < 80
    assert (header.size, header.tokens) == (len(content), len(content))

    model = rlstm_model.load(tiny_checkpoint)
    if adapt == "frozen":
        assert summary.bits == pytest.approx(model.score(content.decode()).bits_per_byte * len(content))
    else:
        experts = 1 if adapt == "memory" else 2
        start = model.evaluator.start(experts=experts, adapt=adapt)
        observed = model.evaluator.observe(start, list(content))
        nats = -sum(chunk.scores.total for chunk in observed)
        assert summary.bits == pytest.approx(nats / np.log(2))


def test_what_adapts_saves_bits(pack):
    sizes = {adapt: len(pack(TEXT, adapt)[0]) for adapt in KINDS}
    assert sizes["both"] < sizes["weights"] < sizes["frozen"]
    assert sizes["memory"] < sizes["frozen"]


def test_little_is_held_of_a_long_file(tiny_checkpoint):
    """It is read in pieces, and what was read is told."""

    class Watched(io.BytesIO):
        def read(self, size=-1):
            assert 0 < size <= 1 << 16
            return super().read(size)

    told = []
    compress(
        Watched(TEXT * 100),
        io.BytesIO(),
        model=tiny_checkpoint,
        adapt="frozen",
        progress=lambda done, of: told.append(done),
    )
    assert len(told) > 3
    assert told == sorted(told)
    assert told[-1] == len(TEXT) * 100


# ---- files that are not whole, and other models' ----------------------------------------------------------


def test_every_byte_of_a_file_counts(pack, unpack):
    """One that is changed, or lacking, or too many, is found before anything is decoded."""
    packed, _ = pack(TEXT[:60])
    for place in range(len(packed)):
        changed = bytearray(packed)
        changed[place] ^= 1 << place % 8
        with pytest.raises(CompressionError):
            unpack(bytes(changed))
        with pytest.raises(CompressionError):
            unpack(packed[:place])
    with pytest.raises(CompressionError, match="damaged"):
        unpack(packed + b"\0\0\0\0")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "the file is empty"),
        (b"P", "no file of `rlstm compress`"),
        (b"PK\x03\x04 and so on", "no file of `rlstm compress`"),
        (headers.MAGIC[:3], "cut short"),
        (headers.MAGIC + bytes([1]) + bytes(40), "version 1 of the format"),
    ],
)
def test_what_is_no_file_of_ours(unpack, data, said):
    with pytest.raises(CompressionError, match=said):
        unpack(data)


def forged(packed, fields=None, **changed):
    """The file with other fields, whose checksum is right."""
    header, coded = headers.read(io.BytesIO(packed))
    sink = io.BytesIO()
    if fields is None:
        headers.write(sink, replace(header, **changed), coded)
        return sink.getvalue()
    rest = fields(header.packed())
    return (
        struct.pack("<4sBHL", headers.MAGIC, headers.VERSION, len(rest), zlib.crc32(rest + coded))
        + rest
        + coded
    )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"kind": 4}, "damaged"),
        ({"fingerprint": bytes(8)}, "by another model, of the name 'tiny'"),
        ({"calibration": bytes(8)}, "another calibration"),
        ({"numerics": "other-r9"}, "where numbers are 'other-r9'; here"),
        ({"content": bytes(8)}, "is not what was compressed"),
        ({"tokens": 40}, "is not what was compressed"),
        ({"size": 40}, "damaged"),
        ({"tokens": 2**50}, "damaged"),
        ({"tokens": 2**64, "size": 2**64}, "damaged"),
        ({"fields": lambda fields: fields[:-1]}, "damaged"),
        ({"fields": lambda fields: fields[:20]}, "damaged"),
        ({"fields": lambda fields: fields + b"x"}, "damaged"),
        ({"fields": lambda fields: fields[:-1] + b"\xff"}, "damaged"),
    ],
)
def test_what_does_not_fit_is_refused(pack, unpack, changed, said):
    """In a sentence; and no number of tokens keeps it busy for ever."""
    packed, _ = pack(TEXT[:60])
    with pytest.raises(CompressionError, match=said):
        unpack(forged(packed, **changed))


def test_another_machine_is_refused(pack, unpack, monkeypatch):
    packed, _ = pack(TEXT[:60])
    monkeypatch.setattr(native, "identity", lambda: "plain-r1")
    with pytest.raises(CompressionError, match="here: 'plain-r1'"):
        unpack(packed)


def test_another_calibration_is_refused_where_it_counts(pack, unpack, tiny_checkpoint, tmp_path):
    """A frozen model does not care."""
    other = tmp_path / "tiny"
    shutil.copytree(tiny_checkpoint, other)
    path = other / checkpoints.ADAPTATION
    calibrated = load_calibration(path, rlstm_model.load(other).checkpoint.parameters.config)
    save_calibration(path, replace(calibrated, choices=calibrated.choices[::-1]))
    assert unpack(pack(TEXT, "frozen")[0], model=other) == TEXT
    with pytest.raises(CompressionError, match="another calibration"):
        unpack(pack(TEXT, "weights")[0], model=other)


def test_a_file_names_no_folder(pack, unpack):
    """A model that is not shipped has to be told: what a file says is not looked for."""
    with pytest.raises(CompressionError, match=r"by the model 'tiny': say where that is"):
        unpack(pack(TEXT[:9])[0], model=None)


# ---- other models -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def subwords(tmp_path_factory):
    pytest.importorskip("tokenizers", reason="it comes with the extra training")
    vocab = SubwordVocab.build(TEXT.decode() + "Ünïcödé 世界 " * 9, 300)
    return saved(tmp_path_factory.mktemp("models") / "subwords", vocab)


@pytest.mark.parametrize("name", CONTENTS)
def test_a_model_of_subwords_takes_any_bytes(pack, unpack, subwords, name):
    """What is no text goes by the tokens of single bytes."""
    packed, _ = pack(CONTENTS[name], "frozen", model=subwords)
    assert unpack(packed, model=subwords) == CONTENTS[name]


@given(st.lists(st.sampled_from([*CONTENTS.values(), b" ", b"\n", b"x" * 70, "é".encode()[:1]]), max_size=3))
def test_subwords_of_any_mixture(pack, unpack, subwords, parts):
    content = b"".join(part[:80] for part in parts)
    assert unpack(pack(content, "frozen", model=subwords)[0], model=subwords) == content


def test_subwords_are_not_cut_by_the_pieces_that_are_read(pack, subwords):
    packed, _ = pack(b"the sea was calm " * 3_000, "frozen", model=subwords)
    whole = rlstm_model.load(subwords).vocab.encode_ids("the sea was calm " * 3_000)
    assert headers.read(io.BytesIO(packed))[0].tokens == len(whole)


@pytest.mark.parametrize(
    "vocab", [WordVocab.of_characters("\nab"), WordVocab(("<unk>", "<eos>"))], ids=lambda v: v.kind
)
def test_a_model_that_lacks_some_bytes_is_refused(pack, tmp_path, vocab):
    with pytest.raises(CompressionError, match=f"subwords; this is one of {vocab.kind}"):
        pack(b"ab", "frozen", model=saved(tmp_path / "other", vocab))


def test_a_model_without_a_calibration_is_frozen(pack, unpack, subwords):
    with pytest.raises(CheckpointError, match="run rlstm calibrate"):
        pack(b"ab", "both", model=subwords)


def test_a_model_that_computes_no_numbers_codes_none(tiny_checkpoint):
    """Fast weights that broke would be told from by how the text is cut."""
    model = rlstm_model.load(tiny_checkpoint)
    broken = Reading(model, "weights")
    list(broken.read(list(TEXT[:8])))
    broken._place = replace(broken._place, delta_KP=np.full_like(broken._place.delta_KP, np.nan))
    with pytest.raises(ArithmeticError, match="fast weights are not finite"):
        list(broken.read(list(TEXT[8:16])))
