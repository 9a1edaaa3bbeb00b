"""Sessions as the store describes them: one, a page of them, their named snapshots; and the end of one."""

from collections.abc import Sequence
from dataclasses import dataclass

from rlstm_server.engine import requests
from rlstm_server.engine.description import session_info
from rlstm_server.engine.session import Sessions
from rlstm_server.engine.snapshots import NamedSnapshots
from rlstm_server.errors import Gone, NotFound, StateCorrupt, VersionMismatch
from rlstm_server.schemas import SessionInfo, SessionPage, SessionSnapshot
from rlstm_server.store.base import Listed


@dataclass(frozen=True, eq=False)
class Directory:
    """What the store says of sessions, whatever state they are in."""

    sessions: Sessions
    named: NamedSnapshots

    async def list(self, tenant: str, limit: int, cursor: str | None, name: str | None = None) -> SessionPage:
        """List a tenant's sessions, or the one of a name."""
        if name is not None:
            return SessionPage(sessions=await self._called(tenant, name), cursor=None)
        page = await self.sessions.store.list(tenant, limit=limit, cursor=cursor)
        described = (self._described(listed) for listed in page.sessions)
        sessions = tuple(info for info in described if info is not None)
        return SessionPage(sessions=sessions, cursor=page.cursor)

    async def _called(self, tenant: str, name: str) -> tuple[SessionInfo, ...]:
        try:
            session = await self.sessions.store.find(tenant, name)
            return (await self.info(tenant, session),)
        except (Gone, NotFound):
            return ()

    def _described(self, listed: Listed) -> SessionInfo | None:
        """Describe a session of a listing; None for one that is damaged: the others can be listed."""
        try:
            return session_info(listed.session_id, listed.head)
        except StateCorrupt:
            self.sessions.metrics.restore_failures.labels("schema").inc()
            return None

    async def info(self, tenant: str, session: str, min_version: int | None = None) -> SessionInfo:
        """One session. Raises NotFound, Gone, VersionMismatch below `min_version`."""
        head = await self.sessions.store.load_head(requests.session_key(tenant, session), with_state=False)
        if min_version is not None and head.version < min_version:
            raise VersionMismatch(min_version, head.version)
        return session_info(session, head)

    async def snapshots(
        self, tenant: str, session: str, min_version: int | None = None
    ) -> Sequence[SessionSnapshot]:
        """A session's named snapshots. Raises NotFound, Gone, VersionMismatch below `min_version`."""
        if min_version is not None:
            await self.info(tenant, session, min_version)
        return await self.named.list(requests.session_key(tenant, session))

    async def drop_snapshot(self, tenant: str, session: str, name: str) -> None:
        """Remove a named snapshot. Raises NotFound, Gone."""
        await self.named.drop(requests.session_key(tenant, session), name)

    async def delete(self, tenant: str, session: str) -> None:
        """End a session for good; again and again while its tombstone lives. Raises NotFound, Gone."""
        await self.sessions.delete(requests.session_key(tenant, session))
