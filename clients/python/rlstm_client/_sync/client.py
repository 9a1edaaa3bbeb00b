# Written by unasync.py from _async/client.py. Do not edit.
"""The blocking client and its sessions: a method an operation of the server."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from rlstm_client import _calls, _http, models, options
from rlstm_client._appends import AppendPlan, telling
from rlstm_client._calls import Call
from rlstm_client._http import ArrivingFile, PathOrFile
from rlstm_client._sync.connection import Connection, EventStream
from rlstm_client.models import AppendResult, Generation, Health, Ranking, ScoreResult, SessionInfo, Snapshot

T = TypeVar("T")

if TYPE_CHECKING:
    from rlstm_client._sync.streaming import TextStream


class Client(Connection):
    """Talks to one server, which `url` names; `Connection` says what the other arguments are.

        with Client("http://127.0.0.1:8000") as client:
            print((client.score("a text")).items[0].totals.bits_per_byte)

    Every method raises an `RLSTMError`.
    """

    @property
    def sessions(self) -> "Sessions":
        """The server's sessions."""
        return Sessions(self)

    def score(self, text: str | None = None, **given: Unpack[options.ScoreOptions]) -> ScoreResult:
        """Return the log-probability of every token of a text, of ids, or of up to 256 items."""
        return self._send(_calls.score(text, given))

    def generate(self, prompt: str | None = None, **given: Unpack[options.GenerateOptions]) -> Generation:
        """Continue a prompt."""
        return self._send(_calls.generate(prompt, given))

    def generate_stream(
        self, prompt: str | None = None, **given: Unpack[options.GenerateOptions]
    ) -> EventStream:
        """Continue a prompt, and iterate over the events as they come."""
        return EventStream(self, _calls.generate(prompt, given, stream=True))

    def tokenize(
        self, prompt: str, *, model: str | None = None, add_special_tokens: bool | None = None
    ) -> Sequence[int]:
        """Return a text's ids."""
        body = {"prompt": prompt, "model": model, "add_special_tokens": add_special_tokens}
        call = _calls.post("/tokenize", partial(models.decode_member, "tokens", Sequence[int]), body)
        return self._send(call)

    def detokenize(self, tokens: Sequence[int], *, model: str | None = None) -> str:
        """Return the text of ids; those that are no whole text are an `UnprocessableError`."""
        body = {"tokens": tokens, "model": model}
        call = _calls.post("/detokenize", partial(models.decode_member, "prompt", str), body)
        return str(self._send(call))

    def tokenizer_info(self, *, model: str | None = None) -> models.TokenizerInfo:
        """Return what is to be known of the vocabulary."""
        return self._send(_calls.get("/tokenizer_info", models.TokenizerInfo, model=model))

    def info(self) -> models.ServerInfo:
        """Return the model card, limits and defaults."""
        return self._send(_calls.get("/info", models.ServerInfo))

    def live(self) -> Health:
        """Return if the process answers."""
        return self._send(_calls.get("/health/live", Health))

    def ready(self) -> Health:
        """Return if the server takes work; one that does not is an `UnavailableError`."""
        return self._send(_calls.get("/health/ready", Health))

    def metrics(self) -> str:
        """Return the metrics in Prometheus' text format."""
        return self._send(_calls.Call(method="GET", path="/metrics", read=str))


class Session:
    """A handle on one session. It holds the id and remembers nothing else.

    ``created`` is the server's answer at create (with the first append, if a text was given), else None.
    """

    def __init__(
        self, connection: Connection, session_id: str, *, created: SessionInfo | None = None
    ) -> None:
        _calls.session_path(session_id)  # refuses what is no id
        self._connection = connection
        self.id = session_id
        self.created = created

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    def _path(self, *verb: str) -> str:
        return _calls.session_path(self.id, *verb)

    def _send(self, call: Call[T]) -> T:
        return self._connection._send(call)

    def info(self, *, min_version: int | None = None) -> SessionInfo:
        """Return version, position, totals and the like; ``min_version`` refuses an older session."""
        return self._send(_calls.get(self._path(), SessionInfo, min_version=min_version))

    def note(self, *, min_version: int | None = None) -> models.SessionNote:
        """Return the newest note; ``min_version`` refuses an older session."""
        return self._send(_calls.get(self._path("note"), models.SessionNote, min_version=min_version))

    def update(self, **given: Unpack[options.UpdateOptions]) -> SessionInfo:
        """Change the time to live, the metadata, or whether appends may learn."""
        call = _calls.change(self._path(), SessionInfo, given, options.UpdateOptions, method="PATCH")
        return self._send(call)

    def append(self, text: str | Sequence[int], **given: Unpack[options.AppendOptions]) -> AppendResult:
        """Score a text, or ids, then learn from it. What is long travels in pieces and comes back as one.

        Whatever is raised has a ``progress``, which says what of the text is in the session already.
        """
        plan = AppendPlan(self.id, text, given)
        with telling(plan.progress):
            for call in plan:
                plan.add(self._send(call))
            return plan.result

    def stream(
        self,
        texts: Iterable[str],
        *,
        final: bool = False,
        **given: Unpack[options.StreamAppendOptions],
    ) -> "TextStream":
        """Append texts as they come over one connection, without waiting, and iterate over the answers.

        A lost connection is made again, and every text takes effect once. ``final`` flushes the word in
        progress at the end; the newest piece then waits for the next.

        Whatever is raised, by the texts too, has a ``progress`` that says what of them is in the session.
        """
        from rlstm_client._sync.streaming import TextStream  # with a library that nothing else needs

        return TextStream(self._connection, self.id, texts, final=final, **given)

    def score(
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
        return self._send(_calls.score_candidates(self.id, candidates, given))

    def generate(self, **given: Unpack[options.SessionGenerateOptions]) -> Generation:
        """Continue the session's text; ``commit=True`` keeps what was generated."""
        return self._send(_calls.generate_in_session(self.id, given))

    def generate_stream(self, **given: Unpack[options.SessionGenerateOptions]) -> EventStream:
        """Continue the session's text, and iterate over the events as they come.

        A stream of text that is kept goes on by itself where it broke off; nothing comes twice.
        """
        return EventStream(self._connection, _calls.generate_in_session(self.id, given, stream=True))

    def reset(self, **given: Unpack[options.ResetOptions]) -> SessionInfo:
        """Forget the fast weights, the recurrent state, or both."""
        return self._send(_calls.change(self._path("reset"), SessionInfo, given, options.ResetOptions))

    def snapshot(self, name: str, **given: Unpack[options.ChangeOptions]) -> Snapshot:
        """Give the present version a name to go back to; no version is made."""
        call = _calls.change(self._path("snapshots"), Snapshot, given, options.ChangeOptions, name=name)
        return self._send(call)

    def snapshots(self, *, min_version: int | None = None) -> Sequence[Snapshot]:
        """Return all named snapshots, oldest version first."""
        call = _calls.get(self._path("snapshots"), models.SnapshotList, min_version=min_version)
        return (self._send(call)).snapshots

    def drop_snapshot(self, name: str) -> None:
        """Remove a named snapshot; removing twice is no error."""
        return self._send(_calls.delete(_calls.snapshot_path(self.id, name)))

    def restore(self, snapshot: str, **given: Unpack[options.ChangeOptions]) -> SessionInfo:
        """Go back to a named snapshot: state, position and totals are as then, the version is a new one."""
        path = self._path("restore")
        return self._send(_calls.change(path, SessionInfo, given, options.ChangeOptions, snapshot=snapshot))

    def fork(self, **given: Unpack[options.ForkOptions]) -> "Session":
        """Make an independent copy of the session, as it is or as it was at a named snapshot."""
        call = _calls.change(self._path("fork"), SessionInfo, given, options.ForkOptions)
        info = self._send(call)
        return Session(self._connection, info.id, created=info)

    def export(self, to: PathOrFile, *, min_version: int | None = None) -> None:
        """Write the session to a file, which `Sessions.import_session` reads.

        What was at a path stays there until the whole session has arrived.
        """
        call = _calls.get(self._path("export"), Health, min_version=min_version)
        with ArrivingFile(to) as file:
            self._connection._download(call, file)
            file.keep()

    def delete(self) -> None:
        """Delete the session for good; deleting twice is no error."""
        return self._send(_calls.delete(self._path()))


class Sessions:
    """The sessions of one server: ``client.sessions``."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(self, **given: Unpack[options.CreateOptions]) -> Session:
        """Create a session."""
        info = self._connection._send(_calls.create(given))
        return Session(self._connection, info.id, created=info)

    def import_session(self, source: PathOrFile, **given: Unpack[options.ImportOptions]) -> Session:
        """Make a session of a file that `Session.export` wrote; it gets an id of its own."""
        data = _http.read_file(source)
        info = self._connection._send(_calls.import_session(data, given))
        return Session(self._connection, info.id, created=info)

    def get(self, session_id: str) -> Session:
        """Return a handle on a session that exists, without asking the server."""
        return Session(self._connection, session_id)

    def page(
        self, *, cursor: str | None = None, limit: int | None = None, name: str | None = None
    ) -> models.SessionPage:
        """Return one page of your sessions, oldest first; or the session of a name, if there is one."""
        call = _calls.get("/sessions", models.SessionPage, cursor=cursor, limit=limit, name=name)
        return self._connection._send(call)

    def find(self, name: str) -> Session | None:
        """Return the handle on the session of a name; None where there is none."""
        found = (self.page(name=name)).sessions
        # A server that does not know the question lists all.
        return next((self.get(info.id) for info in found if info.name == name), None)

    def list(self) -> Iterator[SessionInfo]:
        """Yield your sessions, oldest first."""
        page = self.page()
        while True:
            yield from page.sessions
            if page.cursor is None:
                return
            page = self.page(cursor=page.cursor)
