"""The asyncio client and its sessions: a method an operation of the server."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from rlstm_client import _calls, _http, models, options
from rlstm_client._appends import AppendPlan, telling
from rlstm_client._async.connection import AsyncConnection, AsyncEventStream
from rlstm_client._calls import Call
from rlstm_client._http import ArrivingFile, PathOrFile
from rlstm_client.models import AppendResult, Generation, Health, Ranking, ScoreResult, SessionInfo, Snapshot

T = TypeVar("T")

if TYPE_CHECKING:
    from rlstm_client._async.streaming import AsyncTextStream


class AsyncClient(AsyncConnection):
    """Talks to one server, which `url` names; `AsyncConnection` says what the other arguments are.

        async with AsyncClient("http://127.0.0.1:8000") as client:
            print((await client.score("a text")).items[0].totals.bits_per_byte)

    Every method raises an `RLSTMError`.
    """

    @property
    def sessions(self) -> "AsyncSessions":
        """The server's sessions."""
        return AsyncSessions(self)

    async def score(self, text: str | None = None, **given: Unpack[options.ScoreOptions]) -> ScoreResult:
        """Return the log-probability of every token of a text, of ids, or of up to 256 items."""
        return await self._send(_calls.score(text, given))

    async def generate(
        self, prompt: str | None = None, **given: Unpack[options.GenerateOptions]
    ) -> Generation:
        """Continue a prompt."""
        return await self._send(_calls.generate(prompt, given))

    def generate_stream(
        self, prompt: str | None = None, **given: Unpack[options.GenerateOptions]
    ) -> AsyncEventStream:
        """Continue a prompt, and iterate over the events as they come."""
        return AsyncEventStream(self, _calls.generate(prompt, given, stream=True))

    async def tokenize(
        self, prompt: str, *, model: str | None = None, add_special_tokens: bool | None = None
    ) -> Sequence[int]:
        """Return a text's ids."""
        body = {"prompt": prompt, "model": model, "add_special_tokens": add_special_tokens}
        call = _calls.post("/tokenize", partial(models.decode_member, "tokens", Sequence[int]), body)
        return await self._send(call)

    async def detokenize(self, tokens: Sequence[int], *, model: str | None = None) -> str:
        """Return the text of ids; those that are no whole text are an `UnprocessableError`."""
        body = {"tokens": tokens, "model": model}
        call = _calls.post("/detokenize", partial(models.decode_member, "prompt", str), body)
        return str(await self._send(call))

    async def tokenizer_info(self, *, model: str | None = None) -> models.TokenizerInfo:
        """Return what is to be known of the vocabulary."""
        return await self._send(_calls.get("/tokenizer_info", models.TokenizerInfo, model=model))

    async def info(self) -> models.ServerInfo:
        """Return the model card, limits and defaults."""
        return await self._send(_calls.get("/info", models.ServerInfo))

    async def live(self) -> Health:
        """Return if the process answers."""
        return await self._send(_calls.get("/health/live", Health))

    async def ready(self) -> Health:
        """Return if the server takes work; one that does not is an `UnavailableError`."""
        return await self._send(_calls.get("/health/ready", Health))

    async def metrics(self) -> str:
        """Return the metrics in Prometheus' text format."""
        return await self._send(_calls.Call(method="GET", path="/metrics", read=str))


class AsyncSession:
    """A handle on one session. It holds the id and remembers nothing else.

    ``created`` is the server's answer at create (with the first append, if a text was given), else None.
    """

    def __init__(
        self, connection: AsyncConnection, session_id: str, *, created: SessionInfo | None = None
    ) -> None:
        _calls.session_path(session_id)  # refuses what is no id
        self._connection = connection
        self.id = session_id
        self.created = created

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    def _path(self, *verb: str) -> str:
        return _calls.session_path(self.id, *verb)

    async def _send(self, call: Call[T]) -> T:
        return await self._connection._send(call)

    async def info(self, *, min_version: int | None = None) -> SessionInfo:
        """Return version, position, totals and the like; ``min_version`` refuses an older session."""
        return await self._send(_calls.get(self._path(), SessionInfo, min_version=min_version))

    async def note(self, *, min_version: int | None = None) -> models.SessionNote:
        """Return the newest note; ``min_version`` refuses an older session."""
        return await self._send(_calls.get(self._path("note"), models.SessionNote, min_version=min_version))

    async def update(self, **given: Unpack[options.UpdateOptions]) -> SessionInfo:
        """Change the time to live, the metadata, or whether appends may learn."""
        call = _calls.change(self._path(), SessionInfo, given, options.UpdateOptions, method="PATCH")
        return await self._send(call)

    async def append(self, text: str | Sequence[int], **given: Unpack[options.AppendOptions]) -> AppendResult:
        """Score a text, or ids, then learn from it. What is long travels in pieces and comes back as one.

        Whatever is raised has a ``progress``, which says what of the text is in the session already.
        """
        plan = AppendPlan(self.id, text, given)
        with telling(plan.progress):
            for call in plan:
                plan.add(await self._send(call))
            return plan.result

    def stream(
        self,
        texts: Iterable[str] | AsyncIterable[str],
        *,
        final: bool = False,
        **given: Unpack[options.StreamAppendOptions],
    ) -> "AsyncTextStream":
        """Append texts as they come over one connection, without waiting, and iterate over the answers.

        A lost connection is made again, and every text takes effect once. ``final`` flushes the word in
        progress at the end; the newest piece then waits for the next.

        Whatever is raised, by the texts too, has a ``progress`` that says what of them is in the session.
        """
        from rlstm_client._async.streaming import AsyncTextStream  # with a library that nothing else needs

        return AsyncTextStream(self._connection, self.id, texts, final=final, **given)

    async def score(
        self,
        candidates: Sequence[str | Mapping[str, Any]],
        *,
        weights: Mapping[str, float] | None = None,
        unit: models.Unit | None = None,
        min_version: int | None = None,
    ) -> Ranking:
        """Rank up to 256 candidates against the session as it is; nothing changes.

        ``weights`` holds ``lm``, ``length`` and ``given``, the factors of a candidate's log-probability in
        ``unit``, of its number of tokens, and of its own ``given``; ``score`` is the sum, and
        ``static_score`` the same by the weights as loaded, where the session has a frozen baseline.
        """
        given = {"weights": weights, "unit": unit, "min_version": min_version}
        return await self._send(_calls.score_candidates(self.id, candidates, given))

    async def generate(self, **given: Unpack[options.SessionGenerateOptions]) -> Generation:
        """Continue the session's text; ``commit=True`` keeps what was generated."""
        return await self._send(_calls.generate_in_session(self.id, given))

    def generate_stream(self, **given: Unpack[options.SessionGenerateOptions]) -> AsyncEventStream:
        """Continue the session's text, and iterate over the events as they come.

        A stream of text that is kept goes on by itself where it broke off; nothing comes twice.
        """
        return AsyncEventStream(self._connection, _calls.generate_in_session(self.id, given, stream=True))

    async def reset(self, **given: Unpack[options.ResetOptions]) -> SessionInfo:
        """Forget the fast weights, the recurrent state, or both."""
        return await self._send(_calls.change(self._path("reset"), SessionInfo, given, options.ResetOptions))

    async def snapshot(self, name: str, **given: Unpack[options.ChangeOptions]) -> Snapshot:
        """Give the present version a name to go back to; no version is made."""
        call = _calls.change(self._path("snapshots"), Snapshot, given, options.ChangeOptions, name=name)
        return await self._send(call)

    async def snapshots(self, *, min_version: int | None = None) -> Sequence[Snapshot]:
        """Return all named snapshots, oldest version first."""
        call = _calls.get(self._path("snapshots"), models.SnapshotList, min_version=min_version)
        return (await self._send(call)).snapshots

    async def drop_snapshot(self, name: str) -> None:
        """Remove a named snapshot; removing twice is no error."""
        return await self._send(_calls.delete(_calls.snapshot_path(self.id, name)))

    async def restore(self, snapshot: str, **given: Unpack[options.ChangeOptions]) -> SessionInfo:
        """Go back to a named snapshot: state, position and totals are as then, the version is a new one."""
        path = self._path("restore")
        return await self._send(
            _calls.change(path, SessionInfo, given, options.ChangeOptions, snapshot=snapshot)
        )

    async def fork(self, **given: Unpack[options.ForkOptions]) -> "AsyncSession":
        """Make an independent copy of the session, as it is or as it was at a named snapshot."""
        call = _calls.change(self._path("fork"), SessionInfo, given, options.ForkOptions)
        info = await self._send(call)
        return AsyncSession(self._connection, info.id, created=info)

    async def export(self, to: PathOrFile, *, min_version: int | None = None) -> None:
        """Write the session to a file, which `Sessions.import_session` reads.

        What was at a path stays there until the whole session has arrived.
        """
        call = _calls.get(self._path("export"), Health, min_version=min_version)
        with ArrivingFile(to) as file:
            await self._connection._download(call, file)
            await asyncio.to_thread(file.keep)

    async def delete(self) -> None:
        """Delete the session for good; deleting twice is no error."""
        return await self._send(_calls.delete(self._path()))


class AsyncSessions:
    """The sessions of one server: ``client.sessions``."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def create(self, **given: Unpack[options.CreateOptions]) -> AsyncSession:
        """Create a session."""
        info = await self._connection._send(_calls.create(given))
        return AsyncSession(self._connection, info.id, created=info)

    async def import_session(
        self, source: PathOrFile, **given: Unpack[options.ImportOptions]
    ) -> AsyncSession:
        """Make a session of a file that `Session.export` wrote; it gets an id of its own."""
        data = await asyncio.to_thread(_http.read_file, source)
        info = await self._connection._send(_calls.import_session(data, given))
        return AsyncSession(self._connection, info.id, created=info)

    def get(self, session_id: str) -> AsyncSession:
        """Return a handle on a session that exists, without asking the server."""
        return AsyncSession(self._connection, session_id)

    async def page(
        self, *, cursor: str | None = None, limit: int | None = None, name: str | None = None
    ) -> models.SessionPage:
        """Return one page of your sessions, oldest first; or the session of a name, if there is one."""
        call = _calls.get("/sessions", models.SessionPage, cursor=cursor, limit=limit, name=name)
        return await self._connection._send(call)

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
