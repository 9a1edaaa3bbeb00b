"""All that reads what came from outside, or what lies in a store: what it reads well, and its errors."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass

from tests.fuzz.mutations import change_tree, scrambled
from tests.fuzz.nasties import BODIES, HEADER_VALUES, QUERY_VALUES, VALUES
from tests.fuzz.worlds import KEY

from rlstm_server.api import bodies, dependencies
from rlstm_server.engine.answers import read_append, read_session, store_append, write_session
from rlstm_server.engine.models import Models
from rlstm_server.engine.state import MAGIC, States
from rlstm_server.engine.stream import EventId, read_event_id
from rlstm_server.errors import InvalidField, InvalidText, ModelMismatch, StateCorrupt
from rlstm_server.schemas import AppendAnswer, Columns, SessionInfo, SessionTotals, Timings, Totals
from rlstm_server.store.base import read_cursor, write_cursor

FRONT_BYTES = len(MAGIC) + 32
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
    mark = EventId(index=5, chunk=1, first=3).write(KEY.session_id, "k")
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
            read=lambda data: read_event_id(_header(data), KEY.session_id, "k"),
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
    states = States(Models(world.served), 1 << 24)
    sealed = tuple(states.seal(KEY, 7, state) for state in world.states)
    summary, details = store_append(_append_answer())
    return [
        Reader(
            name="state",
            seeds=sealed,
            read=lambda data: states.open(KEY, 7, _resealed(data)),
            refusals=REFUSED,
        ),
        Reader(
            name="state's header",
            seeds=(_header_of(sealed[-1]),),
            read=lambda data: states.open(KEY, 7, _with_header(sealed[-1], data)),
            refusals=REFUSED,
            tree=True,
        ),
        Reader(
            name="answer to an append",
            seeds=(summary,),
            read=lambda data: read_append(data, details),
            refusals=(StateCorrupt,),
            tree=True,
        ),
        Reader(
            name="columns",
            seeds=(details,),
            read=lambda data: read_append(summary, data),
            refusals=(StateCorrupt,),
        ),
        Reader(
            name="answer to a change",
            seeds=(write_session(_info(world)),),
            read=read_session,
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


def _resealed(data):
    """A sealed value whose checksum is right again, if it still has a place for one."""
    content = data[FRONT_BYTES:]
    return MAGIC + hashlib.blake2b(content, digest_size=32).digest() + content


def _header_of(value):
    """What a sealed value says of itself, as JSON."""
    end = FRONT_BYTES + 8 + int.from_bytes(value[FRONT_BYTES:][:8], "little")
    return json.loads(value[FRONT_BYTES + 8 : end])["__metadata__"]["rlstm"].encode()


def _with_header(value, header):
    """A sealed value that says something else of itself."""
    end = FRONT_BYTES + 8 + int.from_bytes(value[FRONT_BYTES:][:8], "little")
    named = json.loads(value[FRONT_BYTES + 8 : end])
    named["__metadata__"]["rlstm"] = header.decode("latin-1")
    text = json.dumps(named).encode()
    return _resealed(bytes(FRONT_BYTES) + len(text).to_bytes(8, "little") + text + value[end:])


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
