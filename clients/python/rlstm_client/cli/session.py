"""`rlstm session …`: streams of text with a memory of their own."""

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Unpack

import click

from rlstm_client import Client, EventStream, Session, options
from rlstm_client._appends import FRAME_BYTES, cut
from rlstm_client.cli import inputs, output
from rlstm_client.cli.commands import Group
from rlstm_client.cli.exits import CommandError, interruption_told
from rlstm_client.cli.kept import LASTING
from rlstm_client.models import AppendResult, Generation, SessionInfo, SessionPage, SnapshotList
from rlstm_client.texts import lines

app = Group(help="Sessions: streams of text that the model learns from as it reads.")
_name = click.argument("name", help="The snapshot's name.")


@app.command()
@inputs.options(options.CreateOptions, "unit")
@inputs.client
def create(client: Client, **given: Unpack[options.CreateOptions]) -> Session:
    """Create a session and print its id.

    Example: rlstm session create --name diary --ttl 86400
    """
    return client.sessions.create(**given)


@app.command("list")
@click.option("--name", help="Only the session of this name.")
@inputs.client
def list_sessions(client: Client, name: str | None) -> SessionPage:
    """List your sessions, oldest first.

    Example: rlstm session list --json
    """
    if name is not None:
        return client.sessions.page(name=name)
    return SessionPage(sessions=list(client.sessions.list()))


@app.command()
@inputs.session
def info(session: Session) -> SessionInfo:
    """Show where a session stands and what learning has saved.

    Example: rlstm session info "$SESSION"
    """
    return session.info()


@app.command()
@inputs.each_token
@inputs.options(options.AppendOptions)
@inputs.source
@inputs.session
@inputs.text
def append(
    session: Session,
    source: inputs.Source,
    text: str | None,
    each_token: bool,
    **given: Unpack[options.AppendOptions],
) -> AppendResult:
    """Append a text: it is scored first, then learned.

    Nothing is sent of a text that is none to its end. What goes on and on is for `stream`.

    Example: rlstm session append "$SESSION" --file novel.txt
    """
    asked: options.AppendOptions = {**given, "scores": "tokens" if each_token else "totals"}
    whole = source.whole(text)
    if not whole:
        raise CommandError("the text is empty")
    with interruption_told():
        return session.append(whole, **asked)


@app.command()
@inputs.options(options.StreamAppendOptions)
@inputs.source
@inputs.session_id
@inputs.server
@inputs.as_json
def stream(
    session_id: str,
    server: inputs.Server,
    source: inputs.Source,
    as_json: bool,
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

    with Client(server.url, api_key=server.api_key) as client:
        known = inputs.session_of(client, session_id)
        known.info()  # what is wrong from the start is told at once
    lasting = Client(server.url, api_key=server.api_key, retries=LASTING)
    with lasting, interruption_told():
        session = lasting.sessions.get(known.id)
        asked: options.StreamAppendOptions = {**given, "scores": "totals"}
        for answer in session.stream(pieces(), **asked):
            output.print_line(answer, under_way.popleft(), as_json=as_json)


@app.command()
@click.option("--lm", default=1.0, help="Weight of the log-probability.")
@click.option("--length", default=0.0, help="Weight of the number of tokens.")
@inputs.source
@inputs.session
@click.argument("candidates", nargs=-1, help="The texts to rank.")
def score(
    session: Session, source: inputs.Source, candidates: tuple[str, ...], lm: float, length: float
) -> output.Ranked:
    """Rank candidates for what comes next; the session does not change. A file has one candidate a line.

    Example: rlstm session score "$SESSION" "recognise speech" "wreck a nice beach"
    """
    texts = candidates or [line.removesuffix("\n") for line in lines(source.parts())]
    return output.Ranked(session.score(texts, weights={"lm": lm, "length": length}), texts)


@app.command()
@inputs.options(options.SessionGenerateOptions, "unit")
@inputs.session
def generate(session: Session, **given: Unpack[options.SessionGenerateOptions]) -> Generation | EventStream:
    """Continue the session's text with what it has learned.

    Example: rlstm session generate "$SESSION" --max-tokens 40
    """
    whole = click.get_current_context().params["as_json"]
    return session.generate(**given) if whole else session.generate_stream(**given)


@app.command()
@inputs.options(options.ResetOptions)
@inputs.session
def reset(session: Session, **given: Unpack[options.ResetOptions]) -> SessionInfo:
    """Forget what was learned, what was read, or both; totals and position go on.

    Example: rlstm session reset "$SESSION" --what fast_weights
    """
    return session.reset(**given)


@app.command("set")
@inputs.options(options.UpdateOptions)
@inputs.session
def update(session: Session, **given: Unpack[options.UpdateOptions]) -> SessionInfo:
    """Change how long a session lives unused, its notes, or whether it learns.

    Example: rlstm session set "$SESSION" --no-learning
    """
    return session.update(**given)


@app.command()
@click.option("--drop", is_flag=True, help="Remove the snapshot of this name instead.")
@inputs.options(options.ChangeOptions)
@inputs.session
@_name
def snapshot(
    session: Session, name: str, drop: bool, **given: Unpack[options.ChangeOptions]
) -> SnapshotList | str:
    """Give the present version a name to go back to.

    Example: rlstm session snapshot "$SESSION" before-the-storm
    """
    if drop:
        session.drop_snapshot(name)
        return f"dropped {name}"
    return SnapshotList(snapshots=[session.snapshot(name, **given)])


@app.command()
@inputs.session
def snapshots(session: Session) -> SnapshotList:
    """List a session's named snapshots, oldest version first.

    Example: rlstm session snapshots "$SESSION"
    """
    return SnapshotList(snapshots=session.snapshots())


@app.command()
@inputs.options(options.ChangeOptions)
@inputs.session
@_name
def restore(session: Session, name: str, **given: Unpack[options.ChangeOptions]) -> SessionInfo:
    """Go back to a named snapshot: all is as it was then, under a new version.

    Example: rlstm session restore "$SESSION" before-the-storm
    """
    return session.restore(name, **given)


@app.command()
@inputs.options(options.ForkOptions)
@inputs.session
def fork(session: Session, **given: Unpack[options.ForkOptions]) -> Session:
    """Make an independent copy of a session and print its id.

    Example: rlstm session fork "$SESSION" --name twin
    """
    return session.fork(**given)


@app.command()
@inputs.session
@click.argument("file", type=inputs.FILE, help="Where to.")
@inputs.force
def export(session: Session, file: Path, force: bool) -> str:
    """Write a session to a file, which `import` reads.

    Example: rlstm session export "$SESSION" diary.rlstm
    """
    output.check_free(file, force=force)
    session.export(file)
    return f"exported {session.id} to {file}"


@app.command("import")
@inputs.options(options.ImportOptions)
@inputs.client
@click.argument(
    "file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="What `export` wrote."
)
def import_session(client: Client, file: Path, **given: Unpack[options.ImportOptions]) -> Session:
    """Make a session of an exported file and print its id.

    Example: rlstm session import diary.rlstm --name diary-2
    """
    return client.sessions.import_session(file, **given)


@app.command()
@inputs.client
@click.argument("session_ids", metavar="SESSION...", nargs=-1, required=True, help="Their ids or names.")
def delete(client: Client, session_ids: Sequence[str]) -> None:
    """Delete sessions for good.

    Example: rlstm session delete "$SESSION"
    """
    for session_id in session_ids:
        inputs.session_of(client, session_id).delete()
        output.write(f"deleted {session_id}\n")
