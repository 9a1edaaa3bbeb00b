"""`rlstm session …`: streams of text with a memory of their own."""

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Unpack

import typer

from rlstm_client import Client, EventStream, Session, options
from rlstm_client._appends import FRAME_BYTES, cut
from rlstm_client.cli import inputs, output
from rlstm_client.cli.exits import CommandError, interruption_told
from rlstm_client.cli.inputs import command
from rlstm_client.cli.kept import LASTING
from rlstm_client.models import AppendResult, Generation, SessionInfo, SessionPage, SnapshotList
from rlstm_client.texts import lines

app = typer.Typer(
    help="Sessions: streams of text that the model learns from as it reads.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


@command(app)
def create(client: Client, **given: Unpack[options.CreateOptions]) -> Session:
    """Create a session and print its id.

    Example: rlstm session create --name diary --ttl 86400
    """
    return client.sessions.create(**given)


@command(app, "list")
def list_sessions(
    client: Client,
    *,
    name: Annotated[str | None, typer.Option("--name", help="Only the session of this name.")] = None,
) -> SessionPage:
    """List your sessions, oldest first.

    Example: rlstm session list --json
    """
    if name is not None:
        return client.sessions.page(name=name)
    return SessionPage(sessions=list(client.sessions.list()))


@command(app)
def info(session: Session) -> SessionInfo:
    """Show where a session stands and what learning has saved.

    Example: rlstm session info "$SESSION"
    """
    return session.info()


@command(app)
def append(
    session: Session,
    source: inputs.Source,
    text: inputs.Text = None,
    *,
    each_token: inputs.EachToken = False,
    in_unit: inputs.UnitOption = "bits",
    **given: Unpack[options.AppendOptions],
) -> AppendResult:
    """Append a text: it is scored first, then learned.

    Nothing is sent of a text that is none to its end. What goes on and on is for `stream`.

    Example: rlstm session append "$SESSION" --file novel.txt
    """
    asked: options.AppendOptions = {**given, "scores": "tokens" if each_token else "totals", "unit": in_unit}
    whole = source.whole(text)
    if not whole:
        raise CommandError("the text is empty")
    with interruption_told():
        return session.append(whole, **asked)


@command(app)
def stream(
    session: Session,
    server: inputs.Server,
    source: inputs.Source,
    *,
    in_unit: inputs.UnitOption = "bits",
    as_json: inputs.AsJson = False,
    **given: Unpack[options.StreamAppendOptions],
) -> None:
    """Append lines as they come, over one connection, and print what each costs: adapted, static, the line.

    A connection that is lost is made again, also when the server restarts meanwhile; every line takes
    effect once.

    Example: tail -F app.log | rlstm session stream "$SESSION"
    """
    under_way: deque[str] = deque()

    def pieces() -> Iterator[str]:
        for line in lines(source.parts()):
            if not as_json:
                output.check(line)
            for piece in cut(line, FRAME_BYTES):
                under_way.append(piece)
                yield piece

    session.info()  # what is wrong from the start is told at once
    lasting = Client(server.url, api_key=server.api_key, retries=LASTING)
    with lasting, interruption_told():
        same = lasting.sessions.get(session.id)
        asked: options.StreamAppendOptions = {**given, "scores": "totals", "unit": in_unit}
        for answer in same.stream(pieces(), **asked):
            output.print_line(answer, under_way.popleft(), as_json=as_json)


@command(app)
def score(
    session: Session,
    source: inputs.Source,
    candidates: Annotated[list[str] | None, typer.Argument(help="The texts to rank.")] = None,
    *,
    lm: Annotated[float, typer.Option(help="Weight of the log-probability.")] = 1.0,
    length: Annotated[float, typer.Option(help="Weight of the number of tokens.")] = 0.0,
) -> output.Ranked:
    """Rank candidates for what comes next; the session does not change. A file has one candidate a line.

    Example: rlstm session score "$SESSION" "recognise speech" "wreck a nice beach"
    """
    texts = candidates or [line.removesuffix("\n") for line in lines(source.parts())]
    return output.Ranked(session.score(texts, weights={"lm": lm, "length": length}), texts)


@command(app)
def generate(
    session: Session, *, as_json: inputs.AsJson = False, **given: Unpack[options.SessionGenerateOptions]
) -> Generation | EventStream:
    """Continue the session's text with what it has learned.

    Example: rlstm session generate "$SESSION" --max-tokens 40
    """
    return session.generate(**given) if as_json else session.generate_stream(**given)


@command(app)
def reset(session: Session, **given: Unpack[options.ResetOptions]) -> SessionInfo:
    """Forget what was learned, what was read, or both; totals and position go on.

    Example: rlstm session reset "$SESSION" --what fast_weights
    """
    return session.reset(**given)


@command(app, "set")
def update(session: Session, **given: Unpack[options.UpdateOptions]) -> SessionInfo:
    """Change how long a session lives unused, its notes, or whether it learns.

    Example: rlstm session set "$SESSION" --no-learning
    """
    return session.update(**given)


@command(app)
def snapshot(
    session: Session,
    name: inputs.SnapshotName,
    *,
    drop: Annotated[bool, typer.Option("--drop", help="Remove the snapshot of this name instead.")] = False,
    **given: Unpack[options.ChangeOptions],
) -> SnapshotList | str:
    """Give the present version a name to go back to.

    Example: rlstm session snapshot "$SESSION" before-the-storm
    """
    if drop:
        session.drop_snapshot(name)
        return f"dropped {name}"
    return SnapshotList(snapshots=[session.snapshot(name, **given)])


@command(app)
def snapshots(session: Session) -> SnapshotList:
    """List a session's named snapshots, oldest version first.

    Example: rlstm session snapshots "$SESSION"
    """
    return SnapshotList(snapshots=session.snapshots())


@command(app)
def restore(
    session: Session, name: inputs.SnapshotName, **given: Unpack[options.ChangeOptions]
) -> SessionInfo:
    """Go back to a named snapshot: all is as it was then, under a new version.

    Example: rlstm session restore "$SESSION" before-the-storm
    """
    return session.restore(name, **given)


@command(app)
def fork(session: Session, **given: Unpack[options.ForkOptions]) -> Session:
    """Make an independent copy of a session and print its id.

    Example: rlstm session fork "$SESSION" --name twin
    """
    return session.fork(**given)


@command(app)
def export(
    session: Session,
    file: Annotated[Path, typer.Argument(help="Where to; what is there is replaced.")],
) -> str:
    """Write a session to a file, which `import` reads.

    Example: rlstm session export "$SESSION" diary.rlstm
    """
    session.export(file)
    return f"exported {session.id} to {file}"


@command(app, "import")
def import_session(
    client: Client,
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="What `export` wrote.")],
    **given: Unpack[options.ImportOptions],
) -> Session:
    """Make a session of an exported file and print its id.

    Example: rlstm session import diary.rlstm --name diary-2
    """
    return client.sessions.import_session(file, **given)


@command(app)
def delete(
    client: Client,
    session_ids: Annotated[list[str], typer.Argument(metavar="SESSION", help="The sessions' ids.")],
) -> None:
    """Delete sessions for good.

    Example: rlstm session delete "$SESSION"
    """
    for session_id in session_ids:
        client.sessions.get(session_id).delete()
        output.write(f"deleted {session_id}\n")
