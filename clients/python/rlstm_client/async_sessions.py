"""Sessions of the asyncio client. `sessions` has the same shape, word for word."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from rlstm_client import _files, _wire
from rlstm_client._files import ArrivingFile, PathOrFile
from rlstm_client._pieces import PIECE_BYTES, AppendPlan, PieceBuffer, telling
from rlstm_client.async_connection import AsyncConnection, AsyncEventStream, each
from rlstm_client.models import AppendResult, Generation, Ranking, SessionInfo, SessionPage, Snapshot, Unit
from rlstm_client.options import (
    AppendOptions,
    ChangeOptions,
    CreateOptions,
    ForkOptions,
    ImportOptions,
    ResetOptions,
    SessionGenerateOptions,
    StreamAppendOptions,
    UpdateOptions,
)

if TYPE_CHECKING:
    from rlstm_client.async_streaming import AsyncTextStream


class AsyncSession:
    """A handle on one session. It holds the id and remembers nothing else.

    ``created`` is the server's answer at create (with the first append, if a text was given), else None.
    """

    def __init__(
        self, connection: AsyncConnection, session_id: str, *, created: SessionInfo | None = None
    ) -> None:
        self._path = _wire.session_path(session_id)  # refuses what is no id
        self._connection = connection
        self.id = session_id
        self.created = created

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    async def info(self, *, min_version: int | None = None) -> SessionInfo:
        """Return version, position, totals and the like; ``min_version`` refuses an older session."""
        return await self._connection.send(_wire.get_session(self.id, min_version=min_version))

    async def update(self, **options: Unpack[UpdateOptions]) -> SessionInfo:
        """Change the time to live, the metadata, or whether appends may learn."""
        return await self._connection.send(_wire.update_session(self.id, **options))

    async def append(self, text: str | Sequence[int], **options: Unpack[AppendOptions]) -> AppendResult:
        """Score a text, or ids, then learn from it. What is long travels in pieces and comes back as one.

        Whatever is raised has a ``progress``, which says what of the text is in the session already.
        """
        plan = AppendPlan(self.id, text, **options)
        with telling(plan.progress):
            return await self._send(plan)

    async def append_stream(
        self,
        texts: Iterable[str] | AsyncIterable[str],
        *,
        gather_bytes: int = PIECE_BYTES,
        final: bool = False,
        **options: Unpack[StreamAppendOptions],
    ) -> AsyncIterator[AppendResult]:
        """Append texts as they come and yield an answer for each piece.

        Texts are gathered until there are ``gather_bytes`` of them; 1 sends each at once.
        ``final`` flushes the word in progress at the end; the newest piece then waits for the next.

        Whatever is raised, by the texts too, has a ``progress`` that says what of them is in the session.
        """
        buffer = PieceBuffer(gather_bytes, hold_last=final)
        with telling(buffer.progress):
            async for text in each(texts):
                for piece in buffer.feed(text):
                    yield await self._send(buffer.plan(self.id, piece, **options))
            for piece, last in buffer.finish():
                yield await self._send(buffer.plan(self.id, piece, final=final and last, **options))

    async def _send(self, plan: AppendPlan) -> AppendResult:
        for call in plan:
            plan.add(await self._connection.send(call))
        return plan.result

    def stream(
        self,
        texts: Iterable[str] | AsyncIterable[str],
        *,
        final: bool = False,
        **options: Unpack[StreamAppendOptions],
    ) -> "AsyncTextStream":
        """Append texts as they come over one connection, without waiting, and iterate over the answers.

        A lost connection is made again, and every text takes effect once. ``final`` flushes the word in
        progress at the end; the newest piece then waits for the next.

        Whatever is raised, by the texts too, has a ``progress`` that says what of them is in the session.
        """
        from rlstm_client.async_streaming import (
            AsyncTextStream,  # and with it a library that nothing else needs
        )

        return AsyncTextStream(self._connection, self.id, texts, final=final, **options)

    async def score(
        self,
        candidates: Sequence[str | Mapping[str, Any]],
        *,
        weights: Mapping[str, float] | None = None,
        unit: Unit | None = None,
        min_version: int | None = None,
    ) -> Ranking:
        """Rank up to 256 candidates against the session as it is; nothing changes.

        ``weights`` holds ``lm``, ``length`` and ``given``, the factors of a candidate's log-probability in
        ``unit``, of its number of tokens, and of its own ``given``; ``score`` is the sum, and
        ``static_score`` the same by the weights as loaded, where the session has a static row.
        """
        call = _wire.score_candidates(
            self.id, candidates, weights=weights, unit=unit, min_version=min_version
        )
        return await self._connection.send(call)

    @overload
    async def generate(
        self, *, stream: Literal[False] = False, **options: Unpack[SessionGenerateOptions]
    ) -> Generation: ...
    @overload
    async def generate(
        self, *, stream: Literal[True], **options: Unpack[SessionGenerateOptions]
    ) -> AsyncEventStream: ...
    async def generate(
        self, *, stream: bool = False, **options: Unpack[SessionGenerateOptions]
    ) -> Generation | AsyncEventStream:
        """Continue the session's text; ``commit=True`` keeps what was generated.

        A stream of text that is kept goes on by itself where it broke off; nothing comes twice.
        """
        call = _wire.generate_in_session(self.id, stream=stream, **options)
        if stream:
            return await self._connection.stream(call)
        return await self._connection.send(call)

    async def reset(self, **options: Unpack[ResetOptions]) -> SessionInfo:
        """Forget the fast weights, the recurrent state, or both."""
        return await self._connection.send(_wire.reset_session(self.id, **options))

    async def snapshot(self, name: str, **options: Unpack[ChangeOptions]) -> Snapshot:
        """Give the present version a name to go back to; no version is made."""
        return await self._connection.send(_wire.take_snapshot(self.id, name, **options))

    async def snapshots(self, *, min_version: int | None = None) -> Sequence[Snapshot]:
        """Return all named snapshots, oldest version first."""
        return await self._connection.send(_wire.list_snapshots(self.id, min_version=min_version))

    async def drop_snapshot(self, name: str) -> None:
        """Remove a named snapshot; removing twice is no error."""
        return await self._connection.send(_wire.drop_snapshot(self.id, name))

    async def restore(self, snapshot: str, **options: Unpack[ChangeOptions]) -> SessionInfo:
        """Go back to a named snapshot: state, position and totals are as then, the version is a new one."""
        return await self._connection.send(_wire.restore_session(self.id, snapshot, **options))

    async def fork(self, **options: Unpack[ForkOptions]) -> "AsyncSession":
        """Make an independent copy of the session, as it is or as it was at a named snapshot."""
        info = await self._connection.send(_wire.fork_session(self.id, **options))
        return AsyncSession(self._connection, info.id, created=info)

    async def export(self, to: PathOrFile, *, min_version: int | None = None) -> None:
        """Write the session to a file, which `Sessions.import_session` reads.

        What was at a path stays there until the whole session has arrived.
        """
        call = _wire.export_session(self.id, min_version=min_version)
        with ArrivingFile(to) as file:
            await self._connection.download(call, file.partial)
            await asyncio.to_thread(file.keep)

    async def delete(self) -> None:
        """Delete the session for good; deleting twice is no error."""
        return await self._connection.send(_wire.delete_session(self.id))


class AsyncSessions:
    """The sessions of one server: ``client.sessions``."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def create(self, **options: Unpack[CreateOptions]) -> AsyncSession:
        """Create a session."""
        info = await self._connection.send(_wire.create_session(**options))
        return AsyncSession(self._connection, info.id, created=info)

    async def import_session(self, source: PathOrFile, **options: Unpack[ImportOptions]) -> AsyncSession:
        """Make a session of a file that `Session.export` wrote; it gets an id of its own."""
        data = await asyncio.to_thread(_files.read, source)
        info = await self._connection.send(_wire.import_session(data, **options))
        return AsyncSession(self._connection, info.id, created=info)

    def get(self, session_id: str) -> AsyncSession:
        """Return a handle on a session that exists, without asking the server."""
        return AsyncSession(self._connection, session_id)

    async def page(
        self, *, cursor: str | None = None, limit: int | None = None, name: str | None = None
    ) -> SessionPage:
        """Return one page of your sessions, oldest first; or the session of a name, if there is one."""
        call = _wire.list_sessions(cursor=cursor, limit=limit, name=name)
        return await self._connection.send(call)

    async def find(self, name: str) -> AsyncSession | None:
        """Return the handle on the session of a name; None where there is none."""
        found = (await self.page(name=name)).sessions
        # A server that does not know the question lists all.
        return next((self.get(info.id) for info in found if info.name == name), None)

    async def list(self) -> AsyncIterator[SessionInfo]:
        """Yield your sessions, oldest first."""
        page = await self.page()
        while True:
            for info in page.sessions:
                yield info
            if page.cursor is None:
                return
            page = await self.page(cursor=page.cursor)
