"""The checker: what clients were told, held against what the store applied and what replicas remember.

Acknowledged is applied once, at the version told, with the scores told. Unknown is applied once or not at
all. What was said not to be applied is not.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlstm_server.errors import NotFound, ServerError
from simulated import remembered
from simulated.account import Account, Effect
from simulated.clients import ENDS, MAKES, READS
from simulated.device import VOCAB
from simulated.fold import Fold, static_logprob, step
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


class Checker:
    """See the module."""

    def __init__(self, world: Any) -> None:
        self.verdict = Verdict()
        self._world = world
        self._account = Account(world.storage.applied)

    def check(self) -> None:
        """Check everything that is known when the world has come to rest."""
        verdict = self.verdict
        verdict.wrong += self._world.wrong
        verdict.wrong += self._world.loop.faults
        for replica in self._world.replicas:
            verdict.stuck += [f"{attempt} got no outcome" for attempt in replica.stuck]
            verdict.wrong += replica.unforeseen
        self._account.follow()
        verdict.wrong += self._account.wrong
        for intent in self._world.intents:
            self._check_intent(intent)
        verdict.wrong += remembered.copies(self._account, self._world.replicas)
        verdict.wrong += remembered.stored(self._account, self._world.storage.store)

    def check_end(self) -> None:
        """Check that stopping left nothing behind."""
        for replica in self._world.replicas:
            if replica.engine.sessions._tasks or replica.engine.sessions._queues:
                self.verdict.stuck.append(f"{replica.name} stopped with operations under way")
        self.verdict.wrong += self._world.loop.faults

    # ---- what clients were told -------------------------------------------------------------------------

    def _check_intent(self, intent: Intent) -> None:
        effects = self._account.effects.get(intent, [])
        self._check_once(intent, effects)
        for attempt in intent.attempts:
            lasting = [effect for effect in effects if not effect.change.lost]
            own = [effect for effect in lasting if effect.change.attempt is attempt]
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
        made = [change for change in self._account.made.get(intent, []) if not change.lost]
        if len(made) > 1:
            self.verdict.twice.append(f"{intent.name} made {len(made)} sessions")

    def _check_refusal(
        self, attempt: Attempt, error: ServerError, own: Sequence[Effect], effects: Sequence[Effect]
    ) -> None:
        code = error.code
        living = self._world.storage.store._sessions
        made = [change for change in self._account.made.get(attempt.intent, []) if change.key in living]
        changes = [effect.change for effect in own] + [one for one in made if one.attempt is attempt]
        if self._world.storage.failovers:  # it may have gone back to where a message on its way belongs
            changes = [change for change in changes if change.at_s <= (attempt.ended or 0.0)]
        earlier = [effect.change for effect in effects if not effect.change.lost] + made
        changes += [change for change in earlier if change.at_s <= attempt.began]
        if error.applied == "no" and changes:
            self.verdict.wrong.append(f"{attempt}: {code} said it was not applied, and it was")
        if error.applied == "yes" and not effects and attempt.intent.kind not in (*MAKES, *ENDS, "name"):
            self.verdict.lost.append(f"{attempt}: {code} said it was applied")
        if code in ("internal_error", "state_corrupt", "model_mismatch"):
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
            case "misuse" if self._world.storage.failovers:
                pass  # the use before may be among what was taken back
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
        differences = [
            list(_differences(attempt, answer, effect, self._expiries(effect))) for effect in found
        ]
        if differences and all(differences):
            self.verdict.wrong.append(f"{attempt} was told {', '.join(differences[-1])}")

    def _expiries(self, effect: Effect) -> set[float]:
        """When a session expires, as may be told after a change: others may have followed, or a failover."""
        least = 0 if self._world.storage.failovers else effect.version
        return {
            change.expires_at_ms / 1000
            for change in self._world.storage.applied
            if change.key == effect.change.key and change.after and change.after.version >= least
        }

    def _check_creation(self, attempt: Attempt, effects: Sequence[Effect]) -> None:
        info, made = attempt.answer.info, self._account.made.get(attempt.intent, [])
        if info.id not in [change.key.session_id for change in made]:
            self.verdict.lost.append(f"{attempt} was told of a session that was not made")
        if attempt.answer.append is not None and attempt.intent.kind == "create":
            self._check_append(attempt, attempt.answer.append, effects)

    def _check_name(self, attempt: Attempt) -> None:
        told = attempt.answer.snapshot
        named = self._account.named.get((attempt.intent.session, told.name), [])
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
        branches = self._account.versions.get((session, answer.version), [])
        if attempt.intent.kind == "info":
            fits = any(fold.position == answer.position for fold in branches)
        else:
            ids = VOCAB.encode("abc").ids
            (told,) = answer.candidates
            fits = any(_rank(fold, ids) == (told.logprob, told.static_logprob) for fold in branches)
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
            limit = attempt.intent.request.max_tokens
            had = {e.index for one in attempt.intent.attempts for e in one.events if hasattr(e, "index")}
            if len(had if attempt.request.call.after else seen) != limit or len(text) != limit:
                self.verdict.lost.append(f"{attempt} saw {len(seen)} and kept {len(text)} of {limit} tokens")


def _differences(attempt: Attempt, answer: Any, effect: Effect, expiries: set[float]) -> Iterator[str]:
    """What an append's answer says that is not so; `expiries` are those of this and of later versions."""
    if answer.columns is None and attempt.intent.request.scores == "tokens" and answer.scores_stored:
        yield "neither scores nor that they are no longer stored"
    if answer.columns is not None and tuple(answer.columns.logprobs) != effect.scores:
        yield f"other scores than those of version {effect.version}"
    if answer.totals is not None and answer.totals.logprob != sum(effect.scores):
        yield f"another sum than that of version {effect.version}"
    if answer.position != effect.fold.position:
        yield f"position {answer.position}, not {effect.fold.position}"
    if not answer.replayed and not attempt.blind and answer.expires_at not in expiries:
        yield f"that it expires at {answer.expires_at}, not at one of {sorted(expiries)}"


def _rank(at: Fold, ids: Sequence[int]) -> tuple[float, float]:
    """The log-probability of tokens that come next, and the static one."""
    value, static = at.value, 0.0
    for token in ids:
        static += static_logprob(value, token)
        value = step(value, token)
    return sum(at.scores(ids)), static
