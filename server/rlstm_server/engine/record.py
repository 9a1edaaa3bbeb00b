"""What a commit writes into the log: enough to do the operation again, and to see that it came out the same.

    op         what it was called
    readings   texts that were read, one after the other: ids, whether they were learned from, and what the
               guards did, by the number of the part
    scope      of a reset
    place, totals   of the session afterwards
    numerics   the identity of the numbers it was computed by
    state      the digest of the state afterwards

Whoever does it again decides nothing: the guards' decisions and tokens that were drawn are all in here.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, get_args

import orjson

from rlstm_model.adaptation.evaluator import Decisions
from rlstm_server.engine.text import Place
from rlstm_server.errors import StateCorrupt
from rlstm_server.schemas import ResetScope, SessionTotals


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """What guards did in one part: the evaluator's, and the loss guard's, which may have reset all."""

    decisions: Decisions = field(default_factory=Decisions)
    reset: bool = False


@dataclass(frozen=True, kw_only=True)
class ReadingRecord:
    """A text that was read. `guarded` has the parts in which a guard did anything, by their number."""

    ids: tuple[int, ...]
    learn: bool
    guarded: Mapping[int, Guarded] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """A JSON object that `read_record` reads back."""
        guarded = [[number, _short(own)] for number, own in self.guarded.items()]
        return {"ids": self.ids, "learn": self.learn, "guarded": guarded}


@dataclass(frozen=True, kw_only=True)
class Record:
    """An operation of the log; see the module's table."""

    op: str
    readings: tuple[ReadingRecord, ...]
    scope: ResetScope | None
    place: Place
    totals: SessionTotals
    numerics: str
    state: str


def write_record(
    said: Mapping[str, Any], place: Place, totals: SessionTotals, *, numerics: str, state: str
) -> bytes:
    """Write what an operation says of itself (`op`, and `readings` or `scope`), and what came of it."""
    came = {"place": asdict(place), "totals": asdict(totals), "numerics": numerics, "state": state}
    return orjson.dumps({**said, **came})


def read_record(stored: bytes) -> Record:
    """Read what was written. Raises StateCorrupt."""
    try:
        content = orjson.loads(stored)
        scope, place = content.get("scope"), content["place"]
        if scope not in (None, *get_args(ResetScope)):
            raise ValueError("scope")
        return Record(
            op=content["op"],
            readings=tuple(_reading(reading) for reading in content.get("readings", ())),
            scope=scope,
            place=replace(Place(**place), unfinished=tuple(place["unfinished"])),
            totals=SessionTotals(**content["totals"]),
            numerics=content["numerics"],
            state=content["state"],
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateCorrupt("a record of the log cannot be read") from error


def _reading(content: Mapping[str, Any]) -> ReadingRecord:
    return ReadingRecord(
        ids=tuple(content["ids"]),
        learn=content["learn"],
        guarded={number: _guarded(own) for number, own in content["guarded"]},
    )


def _short(guarded: Guarded) -> dict[str, Any]:
    """Only what guards did."""
    written = {**asdict(guarded.decisions), "reset": guarded.reset}
    return {name: value for name, value in written.items() if value}


def _guarded(content: Mapping[str, Any]) -> Guarded:
    own = {name: tuple(value) for name, value in content.items() if name != "reset"}
    return Guarded(decisions=Decisions(**own), reset=content.get("reset", False))
