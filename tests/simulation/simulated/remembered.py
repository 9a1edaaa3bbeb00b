"""What is remembered when a run is over, in memory and in the store: all of it is the history's."""

from collections.abc import Iterator, Sequence

from rlstm_server.store.base import SessionKey
from rlstm_server.store.memory_store import MemoryStore
from simulated.account import Account, is_state
from simulated.replica import Replica
from simulated.storage import Applied


def copies(account: Account, replicas: Sequence[Replica]) -> Iterator[str]:
    """Every copy in memory is the state of its place in the history."""
    for replica in replicas:
        for key, copy in replica.engine.sessions.cache._copies.items():
            where = f"{replica.name} has a copy of {key.session_id[:6]} at {copy.revision.version}"
            fold = account.folds.get(copy.revision.chain)
            if fold is None:
                yield f"{where}, which was never committed"
            elif not is_state(copy.state, fold):
                yield f"{where} that is another state"


def stored(account: Account, store: MemoryStore) -> Iterator[str]:
    """Each stored state is the fold of its history, and what has ended left nothing."""
    gone = {change.key for change in account.applied if change.call == "delete" and not change.lost}
    for key in gone & store._sessions.keys():
        yield f"session {key.session_id[:6]} was deleted and is there"
    for (session, name), changes in account.named.items():
        yield from _named(account, store, session, name, changes)
    for key, history in store._sessions.items():
        if history.head.revision.chain not in account.folds:
            yield f"session {key.session_id[:6]} is at a place nobody led it to"
        else:
            state = account.states.deserialize(key, history.head.version, history.head.state)
            if not is_state(state, account.folds[history.head.revision.chain]):
                yield f"the state of {key.session_id[:6]} is not the fold of its history"


def _named(
    account: Account, store: MemoryStore, session: str, name: str | None, changes: Sequence[Applied]
) -> Iterator[str]:
    """The last that was done with a name is what is stored, and its state is the one of its version."""
    key = SessionKey(changes[0].key.tenant, session)
    lasting, history = [change for change in changes if not change.lost], store._sessions.get(key)
    if history is None or not lasting:
        return
    named = history.named.get(name)
    if (named is None) != (lasting[-1].call == "unname"):
        yield f"the snapshot {name} of {session[:6]} is not what was done with it"
    elif named is not None:
        state = account.states.deserialize(key, named[0].version, named[2])
        if not is_state(state, account.folds[lasting[-1].after.chain]):
            yield f"the snapshot {name} of {session[:6]} is not its version"
