"""The checker: what clients were told, held against what the store applied and what replicas remember.

The store's own account (:mod:`storage`) is the history; every state of it follows from the operations by the
fold, wherever a failover made it branch. Acknowledged is applied once, at the version told, with the scores
told. Unknown is applied once or not at all. What was said not to be applied is not.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from rlstm_model.adaptation.watch import Watch
from rlstm_server.engine.snapshot import SessionState, Snapshots
from rlstm_server.errors import NotFound, ServerError
from rlstm_server.store.base import Commit, SessionKey, SnapshotRef, next_position
from simulated.clients import ENDS, MAKES, READS, TENANT
from simulated.device import VOCAB, fold_of, served
from simulated.fold import Fold
from simulated.storage import Applied
from simulated.told import Attempt, Intent


@dataclass
class Verdict:
    """What is wrong with a run, in sentences; empty when nothing is."""

    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """All of it."""
        return [
            f"{kind}: {sentence}"
            for kind in ("lost", "twice", "stuck", "wrong")
            for sentence in getattr(self, kind)
        ]


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


class Checker:
    """See the module."""

    def __init__(self, world: Any) -> None:
        self.verdict = Verdict()
        self._snapshots = Snapshots(served())
        self._world = world
        self._folds: dict[bytes, Fold] = {}
        self._effects: dict[Intent, list[Effect]] = {}
        self._made: dict[Intent, list[Applied]] = {}
        self._before: dict[bytes, bytes] = {}
        self._named: dict[tuple[str, str | None], list[Applied]] = {}
        self._versions: dict[tuple[str, int], list[Fold]] = {}

    # ---- the history ------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check everything that is known when the world has come to rest."""
        verdict = self.verdict
        verdict.wrong += self._world.wrong
        verdict.wrong += self._world.loop.faults
        for replica in self._world.replicas:
            verdict.stuck += [f"{attempt} got no outcome" for attempt in replica.stuck]
            verdict.wrong += replica.unforeseen
        self._follow()
        for intent in self._world.intents:
            self._check_intent(intent)
        self._check_copies()
        self._check_store()

    def check_end(self) -> None:
        """Check that stopping left nothing behind."""
        for replica in self._world.replicas:
            if replica.engine.sessions._operations or replica.engine.sessions._actors:
                self.verdict.stuck.append(f"{replica.name} stopped with operations under way")
        self.verdict.wrong += self._world.loop.faults

    def _follow(self) -> None:
        """The state after every change, along every branch."""
        gone: set[SessionKey] = set()
        for change in self._world.storage.applied:
            intent = change.attempt.intent if change.attempt is not None else None
            if change.call == "delete":
                gone |= set() if change.lost else {change.key}
                continue
            if change.key in gone and not change.lost:
                self.verdict.wrong.append(f"{change.attempt} changed a session after its end")
            if change.call in ("name", "unname"):
                self._named.setdefault((change.key.session_id, change.name), []).append(change)
                continue
            if change.call == "create":
                effect = self._created(change)
                self._made.setdefault(intent, []).append(change)
            else:
                effect = self._committed(change)
                self._effects.setdefault(intent, []).append(effect)
            self._folds[change.after.chain] = effect.fold
            if change.before is not None:
                self._before[change.after.chain] = change.before.chain
            self._versions.setdefault((change.key.session_id, effect.version), []).append(effect.fold)

    def _created(self, change: Applied) -> Effect:
        info = orjson.loads(change.change.info)
        if (source := info["forked_from"]) is not None:
            return Effect(change, self._of(change, source["session"], source["version"]), (), ())
        adaptation = info["adaptation"]
        watched = adaptation["experts"] == 1 and adaptation["static"]
        return Effect(change, Fold(last=VOCAB.bos_id, watch=Watch() if watched else None), (), ())

    def _of(self, change: Applied, session: str, version: int) -> Fold:
        """The fold that a change took over, which must be the one that it says."""
        branches = self._versions.get((session, version), [])
        if change.state is not None:
            at = change.after.version
            state = self._snapshots.open(change.key, at, change.state)
            for fold in branches:
                if _is(state, fold):
                    return fold
        self.verdict.wrong.append(f"{change.attempt} took over what is not version {version}")
        return branches[0] if branches else Fold(last=VOCAB.bos_id)

    def _committed(self, change: Applied) -> Effect:
        commit: Commit = change.change
        if change.after != next_position(change.before, commit.record):
            self.verdict.wrong.append(f"{change.attempt} is not where its record leads to")
        fold, record = self._folds[change.before.chain], orjson.loads(commit.record)
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

    # ---- what clients were told -------------------------------------------------------------------------

    def _check_intent(self, intent: Intent) -> None:
        effects = self._effects.get(intent, [])
        self._check_once(intent, effects)
        for attempt in intent.attempts:
            own = [effect for effect in effects if effect.change.attempt is attempt]
            if attempt.outcome == "open":
                self.verdict.stuck.append(f"{attempt} is still open")
            elif attempt.outcome == "refused" and attempt.error is not None:
                self._check_refusal(attempt, attempt.error, own, effects)
            elif attempt.outcome == "answered" and intent.kind in READS:
                self._check_read(attempt)
            elif attempt.outcome == "answered":
                self._check_answer(attempt, effects)
            if intent.kind == "generate":
                self._check_stream(attempt, effects)

    def _check_once(self, intent: Intent, effects: Sequence[Effect]) -> None:
        lasting = [effect for effect in effects if not effect.change.lost]
        ids = [effect.change.change.operation_id for effect in lasting]
        if intent.kind in ("generate", *MAKES):
            if len(set(ids)) != len(ids):
                self.verdict.twice.append(f"{intent.name}: {sorted(ids)}")
        elif len(lasting) > 1:
            self.verdict.twice.append(f"{intent.name} at {[effect.version for effect in lasting]}")
        made = [change for change in self._made.get(intent, []) if not change.lost]
        if len(made) > 1:
            self.verdict.twice.append(f"{intent.name} made {len(made)} sessions")

    def _check_refusal(
        self, attempt: Attempt, error: ServerError, own: Sequence[Effect], effects: Sequence[Effect]
    ) -> None:
        code = error.code
        own = [*own, *(change for change in self._made.get(attempt.intent, []) if change.attempt is attempt)]
        if error.applied == "no" and own:
            self.verdict.wrong.append(f"{attempt}: {code} said it was not applied, and it was")
        if error.applied == "yes" and not effects and attempt.intent.kind not in (*MAKES, *ENDS, "name"):
            self.verdict.lost.append(f"{attempt}: {code} said it was applied")
        if code in ("internal", "internal_error", "state_corrupt", "model_mismatch"):
            self.verdict.wrong.append(f"{attempt}: {error!r} after {error.__cause__!r}")
        if isinstance(error, NotFound) and error.detail == NotFound().detail:
            self._check_absence(attempt)

    def _check_absence(self, attempt: Attempt) -> None:
        """A session that was there is not unknown: it says for a day that it has ended."""
        made = [change for change in self._world.storage.applied if change.call == "create"]
        if any(change.key.session_id == attempt.intent.session and not change.lost for change in made):
            self.verdict.wrong.append(f"{attempt}: a session that ended says nothing of it")

    def _check_answer(self, attempt: Attempt, effects: Sequence[Effect]) -> None:
        intent, answer = attempt.intent, attempt.answer
        match intent.kind:
            case "misuse":
                self.verdict.wrong.append(f"{attempt}: another body was taken under the same key")
            case "create":
                self._check_creation(attempt, effects)
            case "append":
                self._check_append(attempt, answer, effects)
            case "generate" | "delete" | "unname":
                pass
            case "name":
                self._check_name(attempt)
            case "fork" | "import":
                self._check_creation(attempt, effects)
            case _:
                self._found(attempt, answer.info.version, effects)

    def _found(self, attempt: Attempt, version: int, effects: Sequence[Effect]) -> list[Effect]:
        """The effects that an answer may speak of: several, where a failover took one back."""
        found = [effect for effect in effects if effect.version == version]
        if not found and not any(effect.change.lost for effect in effects):
            known = [effect.version for effect in effects]
            self.verdict.lost.append(f"{attempt} was told version {version}, applied at {known}")
        return found

    def _check_append(self, attempt: Attempt, answer: Any, effects: Sequence[Effect]) -> None:
        found = self._found(attempt, answer.version, effects)
        differences = [list(_differences(attempt, answer, effect)) for effect in found]
        if differences and all(differences):
            self.verdict.wrong.append(f"{attempt} was told {', '.join(differences[-1])}")

    def _check_creation(self, attempt: Attempt, effects: Sequence[Effect]) -> None:
        info, made = attempt.answer.info, self._made.get(attempt.intent, [])
        if info.id not in [change.key.session_id for change in made]:
            self.verdict.lost.append(f"{attempt} was told of a session that was not made")
        if attempt.answer.append is not None and attempt.intent.kind == "create":
            self._check_append(attempt, attempt.answer.append, effects)

    def _check_name(self, attempt: Attempt) -> None:
        told = attempt.answer.snapshot
        named = self._named.get((attempt.intent.session, told.name), [])
        if not any(change.call == "name" and change.after.version == told.version for change in named):
            self.verdict.lost.append(
                f"{attempt} was told that version {told.version} has the name {told.name}"
            )

    def _check_read(self, attempt: Attempt) -> None:
        answer, session = attempt.answer, attempt.intent.session
        if attempt.intent.kind in ("names", "export"):
            return
        if answer.version < attempt.floor and not self._world.storage.failovers:
            self.verdict.wrong.append(f"{attempt} read version {answer.version} after {attempt.floor}")
        branches = self._versions.get((session, answer.version), [])
        if attempt.intent.kind == "info":
            fits = any(fold.position == answer.position for fold in branches)
        else:
            ids = VOCAB.encode("abc").ids
            told = answer.candidates[0].logprob
            fits = any(_rank(fold, ids) == told for fold in branches)
        if not fits:
            self.verdict.wrong.append(f"{attempt} read what is not version {answer.version}")

    def _check_stream(self, attempt: Attempt, effects: Sequence[Effect]) -> None:
        """Every token that was seen is part of the session, in its order."""
        kept = sorted(effects, key=lambda effect: effect.version)
        text = [token for effect in kept for token in effect.ids]
        seen = {event.index: event.id for event in attempt.events if hasattr(event, "index")}
        if any(effect.change.lost for effect in effects):
            return
        for index, token in seen.items():
            if index >= len(text) or text[index] != token:
                self.verdict.lost.append(f"{attempt} saw token {index}, which is not part of the session")
                return
        if attempt.outcome == "answered":
            limit = attempt.intent.request.settings.max_tokens
            had = {e.index for one in attempt.intent.attempts for e in one.events if hasattr(e, "index")}
            if len(had if attempt.request.after else seen) != limit or len(text) != limit:
                self.verdict.lost.append(f"{attempt} saw {len(seen)} and kept {len(text)} of {limit} tokens")

    # ---- what is remembered -----------------------------------------------------------------------------

    def _check_copies(self) -> None:
        """Every copy in memory is the state of its place in the history."""
        for replica in self._world.replicas:
            for key, copy in replica.engine.sessions.cache._copies.items():
                where = f"{replica.name} has a copy of {key.session_id[:6]} at {copy.position.version}"
                fold = self._folds.get(copy.position.chain)
                if fold is None:
                    self.verdict.wrong.append(f"{where}, which was never committed")
                elif not _is(copy.state, fold):
                    self.verdict.wrong.append(f"{where} that is another state")

    def _check_store(self) -> None:
        """Each stored state is the fold of the log, and what was deleted left nothing."""
        store = self._world.storage.store
        gone = {
            change.key
            for change in self._world.storage.applied
            if change.call == "delete" and not change.lost
        }
        for key in gone:
            if key in store._sessions:
                self.verdict.wrong.append(f"session {key.session_id[:6]} was deleted and is there")
        for key, _ in store._snapshots:
            if key in gone and store._snapshots[key, _].until_ms is None:
                self.verdict.wrong.append("a snapshot of a deleted session is there")
        for (session, name), changes in self._named.items():
            self._check_named(store, session, name, changes)
        for key, history in store._sessions.items():
            head = history.whole_head
            if head.position.chain not in self._folds:
                self.verdict.wrong.append(f"session {key.session_id[:6]} is at a place nobody led it to")
                continue
            self._check_base(key, head)

    def _check_named(self, store: Any, session: str, name: str | None, changes: Sequence[Applied]) -> None:
        """The last that was done with a name is what is stored, and its state is the one of its version."""
        lasting = [change for change in changes if not change.lost]
        history = store._sessions.get(SessionKey(TENANT, session))
        if history is None or not lasting:
            return
        named = history.named.get(name)
        if (named is None) != (lasting[-1].call == "unname"):
            self.verdict.lost.append(f"the snapshot {name} of {session[:6]}")
        elif named is not None:
            key = SessionKey(TENANT, session)
            stored = store._snapshots[key, named.state.generation].state
            state = self._snapshots.open(key, named.version, stored)
            if not _is(state, self._folds[lasting[-1].after.chain]):
                self.verdict.wrong.append(f"the snapshot {name} of {session[:6]} is not its version")

    def _check_base(self, key: SessionKey, head: Any) -> None:
        base = head.base
        if isinstance(base.state, SnapshotRef):
            stored = self._world.storage.store._snapshots[key, base.state.generation].state
        else:
            stored = base.state
        state, chain = self._snapshots.open(key, base.version, stored), head.position.chain
        for _ in range(head.version - base.version):
            chain = self._before[chain]
        if not _is(state, self._folds[chain]):
            self.verdict.wrong.append(f"the state of {key.session_id[:6]} is not the fold of its log")


def _differences(attempt: Attempt, answer: Any, effect: Effect) -> Iterator[str]:
    """What an append's answer says that is not so."""
    if answer.columns is not None and tuple(answer.columns.logprobs) != effect.scores:
        yield f"other scores than those of version {effect.version}"
    if answer.totals is not None and answer.totals.logprob != sum(effect.scores):
        yield f"another sum than that of version {effect.version}"
    if answer.position != effect.fold.position:
        yield f"position {answer.position}, not {effect.fold.position}"
    expires_at = effect.change.expires_at_ms / 1000
    if not answer.replayed and not attempt.blind and answer.expires_at != expires_at:
        yield f"that it expires at {answer.expires_at}, not {expires_at}"


def _is(state: SessionState, fold: Fold) -> bool:
    watched = fold.watch is None or state.watch == fold.watch
    return watched and fold_of(state.adapted) == replace(fold, watch=None)


def _rank(fold: Fold, ids: Sequence[int]) -> float:
    return sum(fold.scores(ids))
