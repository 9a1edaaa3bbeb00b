"""What a store should do, in plain lists: a history is kept whole, what a store has of it is worked out."""

from rlstm_server.errors import Gone, SessionExists, SnapshotExists, StoreUnavailable, TooLarge
from rlstm_server.store.base import (
    Base,
    Committed,
    Created,
    CreationReplayed,
    Limits,
    Mismatch,
    Moved,
    NamedSnapshot,
    Replayed,
    SnapshotDue,
    SnapshotRef,
    Stale,
)


class ModelSession:
    """One session: every position it was at, and every operation that led there."""

    def __init__(self, creation):
        self.key, self.name, self.answer = creation.key, creation.name, creation.answer
        self.ended = None
        self.positions = [creation.position]
        self.done = []  # commits, in order
        self.bases = [(0, creation.state)]  # newest first, two at most
        self.log_from = 1
        self.named = {}  # name: (version, info, snapshot)

    @property
    def head(self):
        """Where it stands."""
        return self.positions[-1]

    @property
    def owned(self):
        """All snapshots that something points to."""
        states = [state for _, state in self.bases] + [snapshot for _, _, snapshot in self.named.values()]
        return {state.generation for state in states if isinstance(state, SnapshotRef)}

    @property
    def base(self):
        """The base as a store tells it."""
        previous = None
        for version, state in reversed(self.bases):
            previous = Base(version=version, state=state, previous=previous)
        return previous

    @property
    def log(self):
        """Versions and commits that the log still has."""
        return [(v, commit) for v, commit in enumerate(self.done, 1) if v >= self.log_from]

    def trim(self, limits):
        """A record goes when no base needs it and it and its successors are too many or too long."""
        for version in range(self.log_from, self.head.version + 1):
            rest = self.done[version - 1 :]
            fits = len(rest) <= limits.log_records and sum(len(c.record) for c in rest) <= limits.log_bytes
            if fits or version > self.bases[-1][0]:
                return
            self.log_from = version + 1


class Model:
    """All sessions of one tenant."""

    def __init__(self, limits: Limits):
        self.limits = limits
        self.sessions = []
        self.births = []  # creations and their sessions, in order
        self.snapshots = []  # session, ref, state
        self.dropped = set()  # generations that were pointed to once

    def is_free(self, session, ref):
        """Say whether a snapshot was put beside this session, and was never pointed to."""
        put = [(s.key, r) for s, r, _ in self.snapshots]
        return (session.key, ref) in put and ref.generation not in session.owned | self.dropped

    def create(self, creation):
        """Say what a creation gives."""
        known = self.recall_creation(creation.operation_id, creation.body_hash)
        if known is not None:
            return known
        if creation.name and any(s.name == creation.name and not s.ended for s in self.sessions):
            return SessionExists("")
        session = ModelSession(creation)
        self.sessions.append(session)
        self.births.append((creation, session))
        return Created

    def recall_creation(self, operation_id, body_hash):
        """Say what is known of a creation."""
        for born, session in self.births[-self.limits.operations :]:
            if born.operation_id == operation_id:
                if born.body_hash != body_hash:
                    return Mismatch()
                if session.ended:
                    return Gone(session.ended)
                return CreationReplayed(session_id=session.key.session_id, answer=session.answer)
        return None

    def recall(self, session, operation_id, body_hash):
        """Say what is known of a commit."""
        if session.ended:
            return Gone(session.ended)
        limits, head = self.limits, session.head
        for version, done in reversed(list(enumerate(session.done, 1))[-limits.operations :]):
            if done.operation_id == operation_id:
                if done.body_hash != body_hash:
                    return Mismatch()
                kept = version > head.version - limits.answers and len(done.answer) <= limits.answer_bytes
                answer = done.answer if kept else None
                return Replayed(version=version, answer=answer, summary=done.summary, current=head)
        return None

    def commit(self, session, commit):
        """Say what a commit gives."""
        return self._over(session, commit.state, self._commit(session, commit))

    def _over(self, session, ref, outcome):
        """A call is over: what it brought and nothing points to is gone."""
        put = {r.generation for s, r, _ in self.snapshots if s is session}
        if isinstance(ref, SnapshotRef) and ref.generation in put - session.owned:
            self.dropped.add(ref.generation)
        return outcome

    def _commit(self, session, commit):
        if session.ended:
            return Gone(session.ended)
        limits, head = self.limits, session.head
        known = self.recall(session, commit.operation_id, commit.body_hash)
        if known is not None:
            return known
        if commit.if_match not in (None, head.version):
            return Moved(current=head.version)
        if commit.expects != head:
            return Stale(current=head)
        if commit.state is None and commit.position.version - session.bases[0][0] > limits.log_records:
            return SnapshotDue()
        if isinstance(commit.state, SnapshotRef) and not self.is_free(session, commit.state):
            return StoreUnavailable("")
        session.positions.append(commit.position)
        session.done.append(commit)
        if commit.state is not None:
            self._rebase(session, commit.position.version, commit.state)
        session.trim(limits)
        return Committed

    def keep(self, session, position, ref):
        """Say what keeping a snapshot gives."""
        return self._over(session, ref, self._keep(session, position, ref))

    def _keep(self, session, position, ref):
        if session.ended:
            return Gone(session.ended)
        if session.bases[0] == (position.version, ref):
            return True
        if position not in session.positions or position.version <= session.bases[0][0]:
            return False
        if not self.is_free(session, ref):
            return StoreUnavailable("")
        self._rebase(session, position.version, ref)
        session.trim(self.limits)
        return True

    def name_snapshot(self, session, name, position, info, ref):
        """Say what naming a snapshot gives."""
        return self._over(session, ref, self._name_snapshot(session, name, position, info, ref))

    def _name_snapshot(self, session, name, position, info, ref):
        if session.ended:
            return Gone(session.ended)
        version, _, named = session.named.get(name, (None, None, None))
        if (version, named) != (position.version, ref):
            if position != session.head:
                return Stale(current=session.head)
            if version not in (None, position.version):
                return SnapshotExists("")
            if version is None and len(session.named) >= self.limits.named_snapshots:
                return TooLarge("", 0, 0)
            if version is None and not self.is_free(session, ref):
                return StoreUnavailable("")
        session.named.setdefault(name, (position.version, info, ref))
        return NamedSnapshot

    def drop(self, session, name):
        """Say what dropping a named snapshot gives."""
        if session.ended:
            return Gone(session.ended)
        before = session.owned
        session.named.pop(name, None)
        self.dropped |= before - session.owned
        return None

    def end(self, session, reason):
        """End a session."""
        session.ended = session.ended or reason
        self.dropped |= {ref.generation for owner, ref, _ in self.snapshots if owner is session}

    def _rebase(self, session, version, state):
        before = session.owned
        kept = session.bases[:1] if isinstance(state, SnapshotRef) else []
        session.bases = [(version, state), *kept]
        self.dropped |= before - session.owned
