"""What a store should do, in plain lists: a history is kept whole, what a store has of it is worked out."""

from rlstm_server.errors import Gone, NotFound, SessionExists, SnapshotExists, TooLarge
from rlstm_server.store.base import (
    Committed,
    Created,
    CreationReplayed,
    Limits,
    Mismatch,
    Moved,
    NamedSnapshot,
    Replayed,
    Stale,
)


class ModelSession:
    """One session: every position it was at, and every operation that led there."""

    def __init__(self, creation):
        self.key, self.name, self.answer = creation.key, creation.name, creation.answer
        self.ended = None
        self.positions = [creation.position]
        self.states = [creation.state]
        self.done = []  # commits, in order
        self.named = {}  # name: (version, info)

    @property
    def head(self):
        """Where it stands."""
        return self.positions[-1]

    def has_details(self, version, limits):
        """Whether a store still has them: the newest always, the others while all since fit the bound."""
        first = max(1, self.head.version + 1 - limits.operations)
        for newest in range(version + 1, self.head.version + 1):  # each commit since looked at those before
            older = [len(self.done[v - 1].details) for v in range(version, newest)]
            if sum(older) > limits.details_bytes:
                return False
        return version >= first


class Model:
    """All sessions of one tenant."""

    def __init__(self, limits: Limits):
        self.limits = limits
        self.sessions = []
        self.creations = []  # creations and their sessions, in order

    def create(self, creation):
        """Say what a creation gives."""
        known = self.recall_creation(creation.operation_id, creation.body_hash)
        if known is not None:
            return known
        if creation.name and any(s.name == creation.name and not s.ended for s in self.sessions):
            return SessionExists("")
        session = ModelSession(creation)
        self.sessions.append(session)
        self.creations.append((creation, session))
        return Created

    def recall_creation(self, operation_id, body_hash):
        """Say what is known of a creation."""
        for made, session in self.creations[-self.limits.operations :]:
            if made.operation_id == operation_id:
                if made.body_hash != body_hash:
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
                kept = not done.details or session.has_details(version, limits)
                details = done.details if kept else None
                return Replayed(version=version, summary=done.summary, details=details, current=head)
        return None

    def commit(self, session, commit):
        """Say what a commit gives."""
        if session.ended:
            return Gone(session.ended)
        head = session.head
        known = self.recall(session, commit.operation_id, commit.body_hash)
        if known is not None:
            return known
        if commit.if_match not in (None, head.version):
            return Moved(current=head.version)
        if commit.expects != head:
            return Stale(current=head)
        session.positions.append(commit.position)
        session.states.append(commit.state)
        session.done.append(commit)
        return Committed

    def name_snapshot(self, session, name, position, info):
        """Say what naming a snapshot gives."""
        if session.ended:
            return Gone(session.ended)
        version, _ = session.named.get(name, (None, None))
        if version is None or session.positions[version] != position:
            if position != session.head:
                return Stale(current=session.head)
            if version is not None:
                return SnapshotExists("")
            if len(session.named) >= self.limits.named_snapshots:
                return TooLarge("", 0, 0)
        session.named.setdefault(name, (position.version, info))
        return NamedSnapshot

    def read_snapshot(self, session, name):
        """Say what reading a named snapshot gives: its version, info and state."""
        if session.ended:
            return Gone(session.ended)
        if name not in session.named:
            return NotFound("")
        version, info = session.named[name]
        return version, info, session.states[version]

    def drop(self, session, name):
        """Say what dropping a named snapshot gives."""
        if session.ended:
            return Gone(session.ended)
        session.named.pop(name, None)
        return None

    def end(self, session, reason):
        """End a session."""
        session.ended = session.ended or reason
