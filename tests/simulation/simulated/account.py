"""The store's account of a run, followed change by change: what each did, and the state that must come of it.

Every state follows from what clients asked for, by the fold, wherever a failover made the history branch;
each state that was committed is held against it. A place in a history is known by its chain.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import orjson

from rlstm_model.adaptation.loss_guard import LossGuard
from rlstm_server.engine.models import Models
from rlstm_server.engine.state import SessionState, States
from rlstm_server.engine.stream import Chunk
from rlstm_server.schemas.sessions import AppendRequest
from rlstm_server.settings import MAX_STATE_BYTES
from rlstm_server.store.base import Commit, SessionKey
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
    states: States = field(default_factory=lambda: States(Models(served()), MAX_STATE_BYTES))
    _learning: dict[bytes, bool] = field(default_factory=dict)

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
            if not is_state(self.state_of(change), effect.fold):
                self.wrong.append(f"{change.attempt} committed another state than it should")
            self.versions.setdefault((change.key.session_id, effect.version), []).append(effect.fold)

    def state_of(self, change: Applied) -> SessionState:
        """The state that a change brought."""
        return self.states.deserialize(change.key, change.after.version, change.change.state)

    def _created(self, change: Applied) -> Effect:
        info = orjson.loads(change.change.info)
        self._learning[change.after.chain] = info["learning"]
        if (source := info["forked_from"]) is not None:
            branches = self.versions.get((source["session"], source["version"]), [])
            return Effect(change, self._one_of(change, branches), (), ())
        adaptation = info["adaptation"]
        watched = adaptation["experts"] == 1 and adaptation["static"]
        return Effect(change, Fold(last=VOCAB.bos_id, watch=LossGuard() if watched else None), (), ())

    def _one_of(self, change: Applied, folds: Sequence[Fold]) -> Fold:
        """The fold that a change took over, which must be one of these."""
        state = self.state_of(change)
        for fold in folds:
            if is_state(state, fold):
                return fold
        self.wrong.append(f"{change.attempt} took over what was never there")
        return folds[0] if folds else Fold(last=VOCAB.bos_id)

    def _committed(self, change: Applied) -> Effect:
        """What was asked for, done to the state before it."""
        commit: Commit = change.change
        if change.after != change.before.after(commit.operation_id, commit.body_hash):
            self.wrong.append(f"{change.attempt} is not where its operation leads to")
        fold, learning = self.folds[change.before.chain], self._learning[change.before.chain]
        request, ids, scores = change.attempt.intent.request, (), []
        match change.attempt.intent.kind:
            case "create":
                ids = VOCAB.encode(request.first).ids
                fold, scores = fold.after(ids, learn=learning)
            case "append" | "misuse":
                assert isinstance(request, AppendRequest)
                ids = VOCAB.encode(request.text).ids
                fold, scores = fold.after(ids, learn=learning and request.learn)
            case "generate":
                ids = [token.id for token in Chunk.read(commit.summary).tokens]
                fold, scores = fold.after(ids, learn=learning and request.learn_from_output)
            case "reset":
                fold = fold.reset(
                    VOCAB.bos_id,
                    fast_weights=request.what in ("fast_weights", "both"),
                    recurrent=request.what in ("recurrent", "both"),
                )
            case "update":
                learning = learning if request.learning is None else request.learning
            case "restore":
                named = self.named.get((change.key.session_id, request.snapshot), [])
                fold = self._one_of(change, [self.folds[one.after.chain] for one in named if one.after])
            case kind:
                self.wrong.append(f"{change.attempt}: a {kind} committed")
        self._learning[change.after.chain] = learning
        return Effect(change, fold, tuple(ids), tuple(scores))


def is_state(state: SessionState, fold: Fold) -> bool:
    """Whether a state is a fold, to the last value."""
    watched = fold.watch is None or state.loss_guard == fold.watch
    return watched and fold_of(state.adapted) == replace(fold, watch=None)
