"""`rlstm session …`: streams of text with a memory of their own."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from rlstm_client._frames import FRAME_BYTES
from rlstm_client._http import DEFAULT_URL
from rlstm_client._pieces import combine, cut
from rlstm_client._retries import DEFAULT_RETRIES, Retries
from rlstm_client.cli import arguments, output
from rlstm_client.cli.exits import CommandError, interruption_told
from rlstm_client.cli.generate import print_events, print_generation
from rlstm_client.cli.texts import is_standard_input, lines_as_they_come, text_as_it_comes, whole_text
from rlstm_client.client import Client
from rlstm_client.models import AppendResult, SessionInfo, Snapshot
from rlstm_client.sessions import Session

app = typer.Typer(
    help="Sessions: streams of text that the model learns from as it reads.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

_SEND_AT_ONCE = 1

_LASTING: Final = Retries(attempts=10)
"""For what goes on for days: a server that starts again is waited for, 45 to 90 seconds."""


@app.command()
def create(
    *,
    model: arguments.ModelOption = None,
    name: arguments.SessionName = None,
    kind: arguments.KindOption = None,
    num_fast_weights: arguments.NumFastWeights = None,
    experts: arguments.Experts = None,
    rate_scale: arguments.RateScale = None,
    no_static: arguments.NoStatic = False,
    ttl: arguments.TTL = None,
    metadata: arguments.Metadata = None,
    key: arguments.IdempotencyKey = None,
    as_json: arguments.Json = False,
    url: arguments.Url = DEFAULT_URL,
    api_key: arguments.ApiKey = None,
) -> None:
    """Create a session and print its id."""
    options: dict[str, Any] = {
        "model": model,
        "name": name,
        "adaptation": arguments.adaptation(kind, num_fast_weights, experts, rate_scale, no_static),
        "ttl_seconds": ttl,
        "metadata": _notes(metadata),
        "idempotency_key": key,
    }
    with Client(url, api_key=api_key) as client:
        _print_made(client.sessions.create(**options), as_json=as_json)


@app.command("list")
def list_sessions(
    *,
    name: Annotated[str | None, typer.Option("--name", help="Only the session of this name.")] = None,
    as_json: arguments.Json = False,
    url: arguments.Url = DEFAULT_URL,
    api_key: arguments.ApiKey = None,
) -> None:
    """List your sessions, oldest first."""
    with Client(url, api_key=api_key) as client:
        sessions = list(client.sessions.list() if name is None else client.sessions.page(name=name).sessions)
    if as_json:
        output.print_json({"sessions": sessions})
    else:
        output.print_sessions(sessions)


@app.command()
def info(
    session_id: arguments.SessionId,
    *,
    as_json: arguments.Json = False,
    url: arguments.Url = DEFAULT_URL,
    api_key: arguments.ApiKey = None,
) -> None:
    """Show where a session stands and what learning has saved."""
    with _session(url, api_key, session_id) as session:
        _print_session(session.info(), as_json=as_json)


@app.command()
def append(
    session_id: arguments.SessionId,
    text: arguments.Text = None,
    *,
    file: arguments.TextFile = None,
    learn: Annotated[bool, typer.Option(help="Learn from the text after scoring it.")] = True,
    final: Annotated[bool, typer.Option("--final", help="The text ends here: flush its last word.")] = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="With --json: every token.")] = False,
    unit: arguments.UnitOption = "bits",
    if_match: arguments.IfMatch = None,
    key: arguments.IdempotencyKey = None,
    as_json: arguments.Json = False,
    url: arguments.Url = DEFAULT_URL,
    api_key: arguments.ApiKey = None,
) -> None:
    """Append a text: it is scored first, then learned.

    Standard input is appended as it comes; with --key or --if-match, which are of a whole text, when all of
    it has come. Nothing is sent of a file that is no text to its end.
    """
    scores = "tokens" if tokens else "totals"
    options: dict[str, Any] = {"final": final, "learn": learn, "scores": scores, "unit": unit}
    if key is None and if_match is None and is_standard_input(text, file):
        parts = text_as_it_comes(text, file)
        with _session(url, api_key, session_id) as session, interruption_told():
            answers = list(session.append_stream(parts, gather_bytes=_SEND_AT_ONCE, **options))
    else:
        options |= {"idempotency_key": key, "if_match": if_match}
        whole = whole_text(text, file)
        with _session(url, api_key, session_id) as session, interruption_told():
            answers = [session.append(whole, **options)] if whole else []
    if not answers:
        raise CommandError("the text is empty")
    _print_append(combine(answers), as_json=as_json)


@app.command()
def stream(
    session_id: arguments.SessionId,
    *,
    file: arguments.TextFile = None,
    learn: Annotated[bool, typer.Option(help="Learn from each line after scoring it.")] = True,
    unit: arguments.UnitOption = "bits",
    as_json: arguments.Json = False,
    url: arguments.Url = DEFAULT_URL,
    api_key: arguments.ApiKey = None,
) -> None:
    """Append lines as they come, over one connection, and print what each costs: adapted, static, the line.

    A connection that is lost is made again, also when the server restarts meanwhile; every line takes
    effect once.
    """
    under_way: deque[str] = deque()

    def pieces() -> Iterator[str]:
        for line in lines_as_they_come(file):
            for piece in cut(line, FRAME_BYTES):
                under_way.append(piece)
                yield piece

    with _session(url, api_key, session_id) as session:
        session.info()  # what is wrong from the start is told at once
    with _session(url, api_key, session_id, _LASTING) as session, interruption_told():
        for answer in session.stream(pieces(), learn=learn, scores="totals", unit=unit):
            output.print_line(answer, under_way.popleft(), as_json=as_json)


@app.command()
def score(
    session_id: arguments.SessionId,
    candidates: Annotated[list[str] | None, typer.Argument(help="The texts to rank.")] = None,
    *,
    file: arguments.TextFile = None,
    lm: Annotated[float, typer.Option(help="Weight of the log-probability.")] = 1.0,
    length: Annotated[float, typer.Option(help="Weight of the number of tokens.")] = 0.0,
    as_json: arguments.Json = False,
    url: arguments.Url = DEFAULT_URL,
    api_key: arguments.ApiKey = None,
) -> None:
    """Rank candidates for what comes next; the session does not change. A file has one candidate a line."""
    texts = candidates or whole_text(None, file).splitlines()
    with _session(url, api_key, session_id) as session:
        ranking = session.score(texts, weights={"lm": lm, "length": length})
    if as_json:
        output.print_json(ranking)
    else:
        output.print_ranking(ranking, texts)


@app.command()
def generate(
    session_id: arguments.SessionId,
    *,
    commit: Annotated[bool, typer.Option("--commit", help="Keep the text in the session.")] = False,
    learn: Annotated[bool, typer.Option("--learn", help="With --commit: learn from it too.")] = False,
    max_tokens: arguments.MaxTokens = None,
    temperature: arguments.Temperature = None,
    top_k: arguments.TopK = None,
    top_p: arguments.TopP = None,
    min_p: arguments.MinP = None,
    repetition_penalty: arguments.Penalty = None,
    seed: arguments.Seed = None,
    stop: arguments.Stop = None,
    key: arguments.IdempotencyKey = None,
    as_json: arguments.Json = False,
    url: arguments.Url = DEFAULT_URL,
    api_key: arguments.ApiKey = None,
) -> None:
    """Continue the session's text with what it has learned."""
    options: dict[str, Any] = {
        "commit": commit or None,
        "learn_from_output": learn or None,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
        "stop": stop or None,
        "idempotency_key": key,
    }
    with _session(url, api_key, session_id) as session:
        if as_json:
            print_generation(session.generate(**options), as_json=True)
        else:
            print_events(session.generate(stream=True, **options))


@app.command()
def reset(
    session_id: arguments.SessionId,
    *,
    what: Annotated[
        Literal["fast_weights", "recurrent", "both"], typer.Option(help="What to forget.")
    ] = "both",
    if_match: arguments.IfMatch = None,
    key: arguments.IdempotencyKey = None,
    as_json: arguments.Json = False,
    url: arguments.Url = DEFAULT_URL,
    api_key: arguments.ApiKey = None,
) -> None:
    """Forget what was learned, what was read, or both; totals and position go on."""
    options: dict[str, Any] = {"what": what, "if_match": if_match, "idempotency_key": key}
    with _session(url, api_key, session_id) as session:
        _print_session(session.reset(**options), as_json=as_json)


@app.command("set")
def update(
    session_id: arguments.SessionId,
    *,
    ttl: arguments.TTL = None,
    metadata: arguments.Metadata = None,
    learning: Annotated[
        bool | None, typer.Option("--learning/--no-learning", help="Whether appends may learn.")
    ] = None,
    if_match: arguments.IfMatch = None,
    key: arguments.IdempotencyKey = None,
    as_json: arguments.Json = False,
    url: arguments.Url = DEFAULT_URL,
    api_key: arguments.ApiKey = None,
) -> None:
    """Change how long a session lives unused, its notes, or whether it learns. Notes replace the old ones."""
    options: dict[str, Any] = {
        "ttl_seconds": ttl,
        "metadata": _notes(metadata),
        "learning": learning,
        "if_match": if_match,
        "idempotency_key": key,
    }
    with _session(url, api_key, session_id) as session:
        _print_session(session.update(**options), as_json=as_json)


@app.command()
def snapshot(
    session_id: arguments.SessionId,
    name: arguments.SnapshotName,
    *,
    drop: Annotated[bool, typer.Option("--drop", help="Remove the snapshot of this name instead.")] = False,
    if_match: arguments.IfMatch = None,
    key: arguments.IdempotencyKey = None,
    as_json: arguments.Json = False,
    url: arguments.Url = DEFAULT_URL,
    api_key: arguments.ApiKey = None,
) -> None:
    """Give the present version a name to go back to."""
    options: dict[str, Any] = {"if_match": if_match, "idempotency_key": key}
    with _session(url, api_key, session_id) as session:
        if drop:
            session.drop_snapshot(name)
            output.write(f"dropped {name}\n")
        else:
            _print_snapshots([session.snapshot(name, **options)], as_json=as_json)


@app.command()
def snapshots(
    session_id: arguments.SessionId,
    *,
    as_json: arguments.Json = False,
    url: arguments.Url = DEFAULT_URL,
    api_key: arguments.ApiKey = None,
) -> None:
    """List a session's named snapshots, oldest version first."""
    with _session(url, api_key, session_id) as session:
        _print_snapshots(session.snapshots(), as_json=as_json)


@app.command()
def restore(
    session_id: arguments.SessionId,
    name: arguments.SnapshotName,
    *,
    if_match: arguments.IfMatch = None,
    key: arguments.IdempotencyKey = None,
    as_json: arguments.Json = False,
    url: arguments.Url = DEFAULT_URL,
    api_key: arguments.ApiKey = None,
) -> None:
    """Go back to a named snapshot: all is as it was then, under a new version."""
    options: dict[str, Any] = {"if_match": if_match, "idempotency_key": key}
    with _session(url, api_key, session_id) as session:
        _print_session(session.restore(name, **options), as_json=as_json)


@app.command()
def fork(
    session_id: arguments.SessionId,
    *,
    name: arguments.SessionName = None,
    snapshot: Annotated[
        str | None, typer.Option(metavar="NAME", help="As it was then, not as it is.")
    ] = None,
    ttl: arguments.TTL = None,
    metadata: arguments.Metadata = None,
    key: arguments.IdempotencyKey = None,
    as_json: arguments.Json = False,
    url: arguments.Url = DEFAULT_URL,
    api_key: arguments.ApiKey = None,
) -> None:
    """Make an independent copy of a session and print its id."""
    options: dict[str, Any] = {
        "name": name,
        "snapshot": snapshot,
        "ttl_seconds": ttl,
        "metadata": _notes(metadata),
        "idempotency_key": key,
    }
    with _session(url, api_key, session_id) as session:
        _print_made(session.fork(**options), as_json=as_json)


@app.command()
def export(
    session_id: arguments.SessionId,
    file: Annotated[Path, typer.Argument(help="Where to; what is there is replaced.")],
    *,
    url: arguments.Url = DEFAULT_URL,
    api_key: arguments.ApiKey = None,
) -> None:
    """Write a session to a signed file, which `import` reads."""
    with _session(url, api_key, session_id) as session:
        session.export(file)
    output.write(f"exported {session_id} to {file}\n")


@app.command("import")
def import_session(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="What `export` wrote.")],
    *,
    name: arguments.SessionName = None,
    ttl: arguments.TTL = None,
    key: arguments.IdempotencyKey = None,
    as_json: arguments.Json = False,
    url: arguments.Url = DEFAULT_URL,
    api_key: arguments.ApiKey = None,
) -> None:
    """Make a session of an exported file and print its id."""
    options: dict[str, Any] = {"name": name, "ttl_seconds": ttl, "idempotency_key": key}
    with Client(url, api_key=api_key) as client:
        _print_made(client.sessions.import_session(file, **options), as_json=as_json)


@app.command()
def delete(
    session_ids: Annotated[list[str], typer.Argument(metavar="SESSION", help="The sessions' ids.")],
    *,
    url: arguments.Url = DEFAULT_URL,
    api_key: arguments.ApiKey = None,
) -> None:
    """Delete sessions for good."""
    with Client(url, api_key=api_key) as client:
        for session_id in session_ids:
            client.sessions.get(session_id).delete()
            output.write(f"deleted {session_id}\n")


@contextmanager
def _session(
    url: str, api_key: str | None, session_id: str, retries: Retries = DEFAULT_RETRIES
) -> Iterator[Session]:
    with Client(url, api_key=api_key, retries=retries) as client:
        yield client.sessions.get(session_id)


def _print_append(answer: AppendResult, *, as_json: bool) -> None:
    if as_json:
        output.print_json(answer)
    else:
        output.print_append(answer, answer.unit)


def _print_made(session: Session, *, as_json: bool) -> None:
    if as_json:
        output.print_json(session.created)
    else:
        output.write(session.id + "\n")


def _print_session(info: SessionInfo, *, as_json: bool) -> None:
    if as_json:
        output.print_json(info)
    else:
        output.print_session(info)


def _print_snapshots(snapshots: Sequence[Snapshot], *, as_json: bool) -> None:
    if as_json:
        output.print_json({"snapshots": snapshots})
    else:
        output.print_snapshots(snapshots)


def _notes(entries: list[str] | None) -> dict[str, str] | None:
    return dict(_pair(entry) for entry in entries) if entries else None


def _pair(entry: str) -> tuple[str, str]:
    name, equals, value = entry.partition("=")
    if not equals or not name:
        raise CommandError(f"--metadata takes NAME=VALUE, not {entry!r}")
    return name, value
