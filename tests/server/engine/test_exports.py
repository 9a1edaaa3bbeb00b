"""The file of an exported session, and the parser that must survive anything."""

import json
import random
import tracemalloc

import pytest
import torch
from safetensors.torch import load, save

from rlstm_model.vocab import ByteVocab
from rlstm_server.engine.description import SessionCopy, SessionFacts
from rlstm_server.engine.envelope import MAGIC, MAX_HEADER_BYTES, ExportKeys, open_envelope
from rlstm_server.engine.exports import PIECE_BYTES, ExportSpec, read_session, write_export
from rlstm_server.engine.models import Models
from rlstm_server.engine.requests import MAX_METADATA_BYTES, MAX_PENDING, check_metadata
from rlstm_server.errors import ImportRejected, TooLarge
from rlstm_server.store.base import SessionKey, first_position

KEYS = ExportKeys((b"the first key", b"an old key"))
KEY = SessionKey("acme", "s1")
SIGNATURE = 32


@pytest.fixture(scope="module")
def served(tools):
    return tools.serve(ByteVocab())


@pytest.fixture(scope="module")
def spec(served):
    return ExportSpec(tenant="acme", models=Models(served))


@pytest.fixture(scope="module")
def copy(served, tools):
    """A session in the middle of a segment, with notes."""
    state = tools.before_text(served)
    evaluator = served.evaluator()
    *_, observed = evaluator.observe(state.adapted, list(b"the text that was read"))
    facts = SessionFacts(
        name=None, created_at_ms=0, ttl_ms=1, metadata={"n": 1, "é": "ü", "x": None, "f": 1.5}
    )
    state = tools.replace(state, adapted=observed.state)
    return SessionCopy(key=KEY, position=first_position(KEY), state=state, facts=facts)


@pytest.fixture(scope="module")
def data(copy, served):
    return b"".join(write_export(copy, KEYS).pieces)


def read(data, spec, keys=KEYS):
    """The session in a file."""
    return read_session(open_envelope(data, keys), spec)


def signed(body):
    """A file that says anything, with the right signature."""
    signature = KEYS.sign()
    signature.update(body)
    return body + signature.digest()


def parts(data):
    """The header and the tensors of a file."""
    start = len(MAGIC) + 4
    length = int.from_bytes(data[len(MAGIC) : start], "little")
    return json.loads(data[start : start + length]), data[start + length : -SIGNATURE]


def joined(header, tensors):
    text = json.dumps(header).encode()
    return signed(MAGIC + len(text).to_bytes(4, "little") + text + tensors)


def test_a_file_holds_the_whole_session(copy, data, spec):
    """Tensors to the bit, and everything else that is no number of a version."""
    exported = read(data, spec)
    assert exported.state.adapted.header() == copy.state.adapted.header()
    theirs = exported.state.adapted.tensors()
    for name, tensor in copy.state.adapted.tensors().items():
        assert theirs[name].equal(tensor)
    for name in ("choice", "totals", "place", "watch", "approx"):
        assert getattr(exported.state, name) == getattr(copy.state, name), name
    assert exported.metadata == copy.facts.metadata
    assert (exported.ancestor.session, exported.ancestor.version, exported.learning) == ("s1", 0, True)


def test_the_size_is_known_before_it_is_written(copy, served, data):
    """A reader is told how long the file will be."""
    assert write_export(copy, KEYS).size == len(data)


def test_an_old_key_is_accepted_and_an_unknown_one_not(data, spec):
    """Keys can be replaced without losing what was exported before."""
    rotated = ExportKeys((b"the next key", b"the first key"))
    assert read(data, spec, rotated).learning
    with pytest.raises(ImportRejected):
        read(data, spec, ExportKeys((b"a stranger's",)))


def test_every_byte_is_signed(data, spec):
    """One flipped bit anywhere, one byte more or less: refused."""
    for place in range(len(data)):
        broken = bytearray(data)
        broken[place] ^= 1 << place % 8
        with pytest.raises(ImportRejected):
            read(bytes(broken), spec)
    for cut in (data[:-1], data + b"\0", data[1:], b"", data[:40]):
        with pytest.raises(ImportRejected):
            read(cut, spec)


def test_another_tenant_model_or_calibration_is_refused(data, served, tools):
    """Although we signed it."""
    for spec in (
        ExportSpec(tenant="other", models=Models(served)),
        ExportSpec(tenant="acme", models=Models(tools.serve(ByteVocab(), seed=1))),
        ExportSpec(tenant="acme", models=Models(tools.serve(ByteVocab(), calibrated=False))),
        ExportSpec(tenant="acme", models=Models(tools.serve(ByteVocab(), hidden=7))),
    ):
        with pytest.raises(ImportRejected):
            read(data, spec)


def _set(path, value):
    def change(header):
        *way, last = path
        for name in way:
            header = header[name]
        header[last] = value

    return change


HEADERS = {
    "no object": lambda header: header.clear(),
    "an unknown field": _set(["novel"], 1),
    "a version that is no number": _set(["version"], "1"),
    "a version beyond 63 bits": _set(["version"], 1 << 63),
    "an infinite sum": _set(["state", "totals", "adapted_nats"], float("inf")),
    "a sum that is no number": _set(["state", "totals", "adapted_nats"], float("nan")),
    "no static sum": _set(["state", "totals", "static_nats"], None),
    "a kind there is not": _set(["state", "kind"], "output_bias"),
    "more num_fast_weights": _set(["state", "num_fast_weights"], 10**12),
    "more experts": _set(["state", "adapted", "experts"], 4),
    "a rate beyond bounds": _set(["state", "adapted", "rate_scale"], 1e9),
    "weights that sum to 2": _set(["state", "adapted", "weights"], [1.0, 1.0]),
    "a token beyond the vocabulary": _set(["state", "adapted", "last"], 256),
    "an unfinished id beyond it": _set(["state", "place", "unfinished"], [999]),
    "a pending list that is none": _set(["state", "adapted", "pending"], 7),
    "metadata too long": _set(["metadata"], {"n": "x" * 20_000}),
    "metadata of an object": _set(["metadata"], {"n": {}}),
    "another length": _set(["bytes"], 1),
    "a tenant that is not ASCII": _set(["tenant"], "é"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_signed_header_is_not_believed(data, spec, name):
    """Whoever had the key could write it: each field is checked all the same."""
    header, tensors = parts(data)
    HEADERS[name](header)
    with pytest.raises(ImportRejected):
        read(joined(header, tensors), spec)


def test_tensors_are_those_of_the_model(data, spec):
    """Another name, shape or type, one missing, values that are no numbers or too large: refused."""
    header, tensors = parts(data)
    named = load(tensors)
    wrong = [
        {name: tensor for name, tensor in named.items() if name != "now.h"},
        {**named, "novel": named["now.h"].clone()},
        {**named, "now.h": named["now.h"].double()},
        {**named, "now.h": named["now.h"][..., :-1].contiguous()},
        {**named, "now.h": named["now.h"] * float("nan")},
        {**named, "delta": named["delta"] + 1e6},
    ]
    for changed in wrong:
        stored = save(changed)
        with pytest.raises(ImportRejected):
            read(joined(header | {"bytes": len(stored)}, stored), spec)


def test_nothing_is_allocated_for_a_tensor_that_is_not_the_models(data, spec):
    """E4: a header that claims 10**12 numbers, or to lie elsewhere, is refused as it stands."""
    header, tensors = parts(data)
    length = int.from_bytes(tensors[:8], "little")
    listed = json.loads(tensors[8 : 8 + length])
    claims = [("shape", [10**12]), ("data_offsets", [0, 10**12]), ("data_offsets", [8, 4]), ("dtype", "F64")]
    for name, value in claims:
        changed = json.dumps(listed | {"now.h": listed["now.h"] | {name: value}}).encode()
        stored = len(changed).to_bytes(8, "little") + changed + tensors[8 + length :]
        with pytest.raises(ImportRejected):
            read(joined(header | {"bytes": len(stored)}, stored), spec)
    for size in (0, 1 << 40, (1 << 64) - 1):
        stored = size.to_bytes(8, "little") + tensors[8:]
        with pytest.raises(ImportRejected):
            read(joined(header | {"bytes": len(stored)}, stored), spec)


def test_more_pending_text_than_a_header_holds_is_not_exported(copy, served, tools):
    """413 names both numbers; the session is as it was."""
    held = tools.replace(copy.state, place=tools.replace(copy.state.place, pending="x" * MAX_HEADER_BYTES))
    with pytest.raises(TooLarge):
        write_export(tools.replace(copy, state=held), KEYS)


def test_all_that_a_session_may_hold_is_exported(copy, served, spec, tools):
    """The longest text held back and the longest metadata, in the characters that JSON makes most of."""
    place = tools.replace(copy.state.place, pending="\0" * MAX_PENDING)
    metadata = {"n": "\0" * ((MAX_METADATA_BYTES - len('{"n":""}')) // len(r"\u0000"))}
    check_metadata(metadata)
    most = tools.replace(
        copy, state=tools.replace(copy.state, place=place), facts=tools.replace(copy.facts, metadata=metadata)
    )
    exported = read(b"".join(write_export(most, KEYS).pieces), spec)
    assert (exported.state.place, exported.metadata) == (place, metadata)


def test_more_pending_text_than_a_session_may_hold_is_refused(data, spec):
    """Though it is signed: each record of the session's log would have it."""
    header, tensors = parts(data)
    header["state"]["place"]["pending"] = "x" * (MAX_PENDING + 1)
    with pytest.raises(ImportRejected, match="holds back more text"):
        read(joined(header, tensors), spec)


def test_a_file_is_written_from_the_tensors(copy, served, tools):
    """A piece at a time: however large the state, and however slowly it is read."""
    delta = torch.zeros(4, 4 * PIECE_BYTES)
    large = tools.replace(copy.state, adapted=tools.replace(copy.state.adapted, delta_KP=delta))
    tracemalloc.start()
    try:
        export = write_export(tools.replace(copy, state=large), KEYS)
        assert sum(map(len, export.pieces)) == export.size > 16 * PIECE_BYTES
        assert tracemalloc.get_traced_memory()[1] < 4 * PIECE_BYTES
    finally:
        tracemalloc.stop()


JUNK = (b"null", b"1e99", b'{"":', b"[[[[", b"\xff\xff\xff\xff", b"-0", b"9" * 5_000)


def broken(body, draw):
    """The same, changed in a few places."""
    changed = bytearray(body)
    for _ in range(draw.randint(1, 4)):
        place, kind = draw.randrange(len(changed)), draw.randrange(4)
        if kind == 0:
            changed[place] = draw.randrange(256)
        elif kind == 1:
            del changed[place : place + draw.randint(1, 20)]
        elif kind == 2:
            changed[place:place] = draw.randbytes(draw.randint(1, 20))
        else:
            changed[place : place + 4] = draw.choice(JUNK)
    return bytes(changed)


def test_no_bytes_raise_anything_but_the_refusal(data, spec):
    """2,000 broken files with right signatures; the long form is among the faults."""
    draw, refused = random.Random(1), 0
    for _ in range(2_000):
        try:
            read(signed(broken(data[:-SIGNATURE], draw)), spec)
        except ImportRejected:
            refused += 1
    assert refused > 1_000
