"""The store's account of a run, followed change by change: what each did, and the state that must come of it.

Every state follows from the operations by the fold, wherever a failover made the history branch. A place in
it is known by its chain.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import orjson

from rlstm_model.adaptation.loss_guard import LossGuard
from rlstm_server.engine.models import Models
from rlstm_server.engine.snapshot import SessionState, Snapshots, digest
from rlstm_server.store.base import Commit, SessionKey, next_position
from simulated.device import VOCAB, fold_of, served
from simulated.fold import Fold
from simulated.storage import Applied
from simulated.told import Intent


@dataclass(frozen=True)
class Effect:
    """What a commit did: the state after it, and the scores of the tokens that it read."""

    change: Applied
    fold: Fold
    ids: tuple[int, ...]
    scores: tuple[float, ...]

    @property
    def version(self) -> int:
        """The version it made."""
        return self.change.after.version if self.change.after is not None else 0


@dataclass(eq=False)
class Account:
    """See the module. `wrong` is what the changes themselves show.

    folds     the state of each place
    versions  the states that a version of a session has had
    effects   what was done for each intent, and `made` the sessions
    named     what was done with each name of a snapshot
    """

    applied: Sequence[Applied]
    wrong: list[str] = field(default_factory=list)
    folds: dict[bytes, Fold] = field(default_factory=dict)
    versions: dict[tuple[str, int], list[Fold]] = field(default_factory=dict)
    effects: dict[Intent | None, list[Effect]] = field(default_factory=dict)
    made: dict[Intent | None, list[Applied]] = field(default_factory=dict)
    named: dict[tuple[str, str | None], list[Applied]] = field(default_factory=dict)
    digests: dict[bytes, str] = field(default_factory=dict)
    snapshots: Snapshots = field(default_factory=lambda: Snapshots(Models(served())))
    _before: dict[bytes, bytes] = field(default_factory=dict)

    def follow(self) -> None:
        """The state after every change, along every branch."""
        gone: set[SessionKey] = set()
        for change in self.applied:
            intent = change.attempt.intent if change.attempt is not None else None
            if change.call == "delete":
                gone |= set() if change.lost else {change.key}
                continue
            if change.key in gone and not change.lost:
                self.wrong.append(f"{change.attempt} changed a session after its end")
            if change.call == "keep":
                self._check_keep(change)
                continue
            if change.call in ("name", "unname"):
                self.named.setdefault((change.key.session_id, change.name), []).append(change)
                continue
            if change.call == "create":
                effect = self._created(change)
                self.made.setdefault(intent, []).append(change)
            else:
                effect = self._committed(change)
                self.effects.setdefault(intent, []).append(effect)
            self.folds[change.after.chain] = effect.fold
            if change.before is not None:
                self._before[change.after.chain] = change.before.chain
                self.digests[change.after.chain] = orjson.loads(change.change.record)["state"]
            self.versions.setdefault((change.key.session_id, effect.version), []).append(effect.fold)

    def _check_keep(self, change: Applied) -> None:
        """A base is a place in the session's past, and never goes back."""
        chain = self.earlier(change.before.chain, change.before.version - change.after.version)
        if chain != change.after.chain or change.after.version < (change.base or 0):
            self.wrong.append(f"a snapshot of {change.key.session_id[:6]} became a base that it is not")

    def _created(self, change: Applied) -> Effect:
        info = orjson.loads(change.change.info)
        if (source := info["forked_from"]) is not None:
            return Effect(change, self._of(change, source["session"], source["version"]), (), ())
        adaptation = info["adaptation"]
        watched = adaptation["experts"] == 1 and adaptation["static"]
        return Effect(change, Fold(last=VOCAB.bos_id, watch=LossGuard() if watched else None), (), ())

    def _of(self, change: Applied, session: str, version: int) -> Fold:
        """The fold that a change took over, which must be the one that it says."""
        branches = self.versions.get((session, version), [])
        if change.state is not None:
            at = change.after.version
            state = self.snapshots.open(change.key, at, change.state)
            for fold in branches:
                if is_state(state, fold):
                    return fold
        self.wrong.append(f"{change.attempt} took over what is not version {version}")
        return branches[0] if branches else Fold(last=VOCAB.bos_id)

    def _committed(self, change: Applied) -> Effect:
        commit: Commit = change.change
        if change.after != next_position(change.before, commit.record):
            self.wrong.append(f"{change.attempt} is not where its record leads to")
        fold, record = self.folds[change.before.chain], orjson.loads(commit.record)
        ids: list[int] = []
        scores: list[float] = []
        for reading in record.get("readings", ()):
            fold, own = fold.after(reading["ids"], learn=reading["learn"])
            ids += reading["ids"]
            scores += own
        if record["op"] == "restore":
            fold = self._of(change, change.key.session_id, record["of"])
        if (scope := record.get("scope")) is not None:
            fold = fold.reset(
                VOCAB.bos_id,
                fast_weights=scope in ("fast_weights", "both"),
                recurrent=scope in ("recurrent", "both"),
            )
        return Effect(change, fold, tuple(ids), tuple(scores))

    def earlier(self, chain: bytes, count: int) -> bytes:
        """The place so many changes before another."""
        for _ in range(count):
            chain = self._before[chain]
        return chain


def digest_of(state: SessionState) -> str:
    """The digest that a record has of a state."""
    steps = digest(state)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return str(stop.value)


def is_state(state: SessionState, fold: Fold) -> bool:
    """Whether a state is a fold, to the last value."""
    watched = fold.watch is None or state.watch == fold.watch
    return watched and fold_of(state.adapted) == replace(fold, watch=None)
