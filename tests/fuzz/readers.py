"""All that reads what came from outside, or what lies in a store: what it reads well, and its errors."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass

from tests.fuzz.mutations import change_tree, scrambled
from tests.fuzz.nasties import BODIES, HEADER_VALUES, QUERY_VALUES, VALUES
from tests.fuzz.worlds import KEY

from rlstm_model.adaptation.batch_items import Decisions
from rlstm_server.api import bodies, dependencies
from rlstm_server.engine.answers import append_answer, encode, encode_session, session_info
from rlstm_server.engine.marks import Mark, read_mark
from rlstm_server.engine.models import Models
from rlstm_server.engine.record import Guarded, ReadingRecord, read_record, write_record
from rlstm_server.engine.snapshot import Snapshots
from rlstm_server.engine.text import START
from rlstm_server.errors import InvalidField, InvalidText, ModelMismatch, StateCorrupt
from rlstm_server.schemas import AppendAnswer, Columns, SessionInfo, SessionTotals, Timings, Totals
from rlstm_server.store.cursor import read_cursor, write_cursor
from rlstm_server.store.sealing import MAGIC, Seal, seal, unseal

CHECKSUM_BYTES = 32
LENGTH_BYTES = 4
REFUSED = (StateCorrupt, ModelMismatch)


@dataclass(frozen=True, kw_only=True)
class Reader:
    """One reader: what it reads well, and the errors that it may refuse with.

    tree  whether it reads JSON, in which something else can be put anywhere
    """

    name: str
    seeds: tuple[bytes, ...]
    read: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]
    tree: bool = False

    def draw(self, draw):
        """Something that is right, or nearly, or nothing of the kind."""
        if draw.random() < 0.05:
            return draw.choice(list(VALUES.values()))
        seed = draw.choice(self.seeds)
        if self.tree and draw.random() < 0.7:
            around = [json.loads(seed)]
            for _ in range(draw.randint(1, 3)):
                change_tree(around, draw)
            return json.dumps(around[0] if around else None).encode()
        return seed if draw.random() < 0.02 else scrambled(seed, draw)


def of_requests():
    """Readers of headers, parameters and bodies."""
    mark = Mark(index=5, chunk=1, first=3).write(KEY.session_id, "k")
    cursor = write_cursor(1_700_000_000_000, KEY.session_id)
    values, queries = tuple(HEADER_VALUES.values()), tuple(text.encode() for text in QUERY_VALUES.values())
    kinds = tuple(kind for _, kind in BODIES.values() if kind)
    continued = (
        b"application/json; charset*=utf-8''%ff",
        b"application/json; charset*0*=x'y'z; charset*99999999999999999999*=a",
        b'application/json; charset="\\"; boundary*1=a; boundary*=b',
    )
    written = tuple(VALUES.values()) + tuple(body for body, _ in BODIES.values())
    plain = b'{"text": "a", "tokens": [1, 2.5, null, true, {"a": "\\u00e9"}]}'
    named = (InvalidField,)
    return [
        Reader(
            name="cursor",
            seeds=(cursor.encode(), *queries),
            read=lambda data: read_cursor(_header(data)),
            refusals=named,
        ),
        Reader(
            name="if-match",
            seeds=(b'"7"', b"*", *values),
            read=lambda data: _result(dependencies._if_match(_header(data))),
            refusals=named,
        ),
        Reader(
            name="idempotency-key",
            seeds=(b"a-key", *values),
            read=lambda data: _result(dependencies._idempotency_key(_header(data))),
            refusals=named,
        ),
        Reader(
            name="last-event-id",
            seeds=(mark.encode(), *values),
            read=lambda data: read_mark(_header(data), KEY.session_id, "k"),
            refusals=named,
        ),
        Reader(
            name="content-type of JSON",
            seeds=(b"application/json; charset=utf-8", *kinds, *continued),
            read=lambda data: bodies._check_media_type([_header(data)]),
            refusals=(bodies.UnsupportedMediaType,),
        ),
        Reader(
            name="content-type of a file",
            seeds=(b"application/octet-stream", *kinds, *continued),
            read=lambda data: bodies.check_octets([_header(data)]),
            refusals=(bodies.UnsupportedMediaType,),
        ),
        Reader(
            name="body",
            seeds=(plain, *written),
            read=bodies.parse_strictly,
            refusals=(bodies.InvalidJson, InvalidText),
        ),
    ]


def of_a_store(world):
    """Readers of what lies in a store, where something else may have been put."""
    snapshots, states = Snapshots(Models(world.served)), world.states
    own = Seal.of(KEY, 7, fingerprint="f", adaptation_fingerprint="c", numerics=world.served.numerics)
    packed = tuple(snapshots.pack(KEY, 7, state) for state in states)
    payloads = tuple(unseal(value, KEY, 7).payload for value in packed)
    head = _front(payloads[-1])
    tensors = payloads[-1][LENGTH_BYTES + len(head) :]
    return [
        Reader(
            name="sealed value",
            seeds=packed,
            read=lambda data: unseal(_resealed(data), KEY, 7),
            refusals=REFUSED,
        ),
        Reader(
            name="seal",
            seeds=(_front(packed[0][len(MAGIC) :]),),
            read=lambda data: unseal(
                _resealed(_fronted(MAGIC, data, bytes(CHECKSUM_BYTES) + payloads[0])), KEY, 7
            ),
            refusals=REFUSED,
            tree=True,
        ),
        Reader(
            name="state",
            seeds=payloads,
            read=lambda data: snapshots.open(KEY, 7, seal(own, data)),
            refusals=REFUSED,
        ),
        Reader(
            name="state's header",
            seeds=(head,),
            read=lambda data: snapshots.open(KEY, 7, seal(own, _fronted(b"", data, tensors))),
            refusals=REFUSED,
            tree=True,
        ),
        Reader(name="record", seeds=_records(), read=read_record, refusals=(StateCorrupt,), tree=True),
        Reader(
            name="answer to an append",
            seeds=(encode(_append_answer()),),
            read=append_answer,
            refusals=(StateCorrupt,),
            tree=True,
        ),
        Reader(
            name="answer to a change",
            seeds=(encode_session(_info(world)),),
            read=lambda data: session_info(data, _info(world)),
            refusals=(StateCorrupt,),
            tree=True,
        ),
    ]


def _result(coroutine):
    """What a coroutine gives that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    raise AssertionError("it waits")


def _header(data):
    """A header as frameworks give it: bytes of latin-1."""
    return data.decode("latin-1")


def _front(data):
    """What a length stands before."""
    length = int.from_bytes(data[:LENGTH_BYTES], "little")
    return data[LENGTH_BYTES : LENGTH_BYTES + length]


def _fronted(before, data, after):
    return b"".join((before, len(data).to_bytes(LENGTH_BYTES, "little"), data, after))


def _resealed(data):
    """A sealed value whose checksum is right again, if it still has a place for one."""
    start = len(MAGIC) + LENGTH_BYTES + int.from_bytes(data[len(MAGIC) :][:LENGTH_BYTES], "little")
    if len(data) < start + CHECKSUM_BYTES:
        return data
    front, payload = data[:start], data[start + CHECKSUM_BYTES :]
    return front + hashlib.blake2b(front + payload, digest_size=CHECKSUM_BYTES).digest() + payload


def _records():
    guarded = Guarded(decisions=Decisions(restarted=(True,), scales=(0.5,)), reset=True)
    reading = ReadingRecord(ids=(1, 2, 3), learn=True, guarded={0: guarded})
    said = (
        {"op": "append", "readings": [reading.to_json()]},
        {"op": "reset", "scope": "both"},
        {"op": "patch"},
    )
    return tuple(write_record(one, START, SessionTotals(), numerics="n", state="0" * 64) for one in said)


def _append_answer():
    columns = Columns(
        ids=(1,),
        logprobs=(-1.0,),
        static_logprobs=(-1.5,),
        ranks=(1,),
        entropies=(1.0,),
        starts=(0,),
        ends=(1,),
    )
    return AppendAnswer(
        version=1,
        position=1,
        durability="fsync",
        replayed=False,
        expires_at=1.0,
        columns=columns,
        totals=Totals(logprob=-1.0, static_logprob=None, tokens=1, bytes=1, words=1, unknown=0),
        updates=0,
        guards={"projected": 1},
        weights=(1.0,),
        norm_ratio=0.0,
        pending=0,
        timings=Timings(),
    )


def _info(world):
    return SessionInfo(
        id=KEY.session_id,
        name=None,
        version=1,
        position=1,
        created_at=1.0,
        expires_at=2.0,
        state_bytes=1,
        adaptation=world.states[0].choice,
        weights=(1.0,),
        norm_ratio=0.0,
        totals=SessionTotals(),
        pending=0,
        metadata={"a": 1},
    )
