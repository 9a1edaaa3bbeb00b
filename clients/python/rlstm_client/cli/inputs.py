"""What the commands are given: options, each written once, and text from an argument, a file or a pipe."""

import codecs
import inspect
import io
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, TypedDict, get_args, get_type_hints

import typer

from rlstm_client import Client
from rlstm_client._http import DEFAULT_URL
from rlstm_client.cli import output
from rlstm_client.cli.exits import CommandError
from rlstm_client.models import Kind, Unit

_READ_BYTES = 65_536

Text = Annotated[str | None, typer.Argument(help="The text. Without it, --file or standard input is read.")]
TextFile = Annotated[Path | None, typer.Option("--file", "-f", help="Read the text from this file (UTF-8).")]
UnitOption = Annotated[Unit, typer.Option("--unit", help="Of every log-probability.")]
Local = Annotated[
    str | None, typer.Option("--local", metavar="MODEL", help="Use this model here, without a server.")
]
SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")]
SnapshotName = Annotated[str, typer.Argument(metavar="NAME", help="The snapshot's name.")]
TTL = Annotated[float, typer.Option("--ttl", metavar="SECONDS", help="Expire when unused so long.")]
Metadata = Annotated[
    list[str] | None, typer.Option("--metadata", metavar="NAME=VALUE", help="A note of yours.")
]
Url = Annotated[str, typer.Option("--url", envvar="RLSTM_URL", help="Where the server is.")]
ApiKey = Annotated[
    str | None,
    typer.Option("--api-key", envvar="RLSTM_API_KEY", help="The key; better in the environment than here."),
]


class Server(TypedDict):
    """Of every command that asks a server: which one, and in what form its answer is printed."""

    url: Url
    api_key: ApiKey
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as one JSON object.")]


class Once(TypedDict, total=False):
    """Of a command that makes or changes a session."""

    idempotency_key: Annotated[
        str, typer.Option("--key", help="Repeated with the same key, the command takes effect once.")
    ]


class Change(Once, total=False):
    """Of a command that changes a session."""

    if_match: Annotated[
        int, typer.Option("--if-match", metavar="VERSION", help="Refuse if the session is not at it.")
    ]


class Update(Change, total=False):
    """Of a session's settings."""

    ttl_seconds: TTL
    learning: Annotated[bool, typer.Option("--learning/--no-learning", help="Whether appends may learn.")]


class NewSession(Once, total=False):
    """Of a command that makes a session."""

    name: Annotated[str, typer.Option("--name", help="A name of your own, unique among your sessions.")]
    ttl_seconds: TTL


class Fork(NewSession, total=False):
    """Of a copy."""

    snapshot: Annotated[str, typer.Option("--snapshot", metavar="NAME", help="As it was then, not as it is.")]


class Sampling(TypedDict, total=False):
    """Of generation."""

    max_tokens: Annotated[int, typer.Option("--max-tokens", "-n", help="At most so many new tokens.")]
    temperature: Annotated[float, typer.Option("--temperature", "-t", help="0 is greedy.")]
    top_k: Annotated[int, typer.Option("--top-k", help="Keep the k most probable tokens.")]
    top_p: Annotated[float, typer.Option("--top-p", help="Keep the fewest tokens of this probability.")]
    min_p: Annotated[float, typer.Option("--min-p", help="Keep tokens this probable next to the best.")]
    repetition_penalty: Annotated[float, typer.Option("--repetition-penalty", help="On tokens seen before.")]
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same text.")]
    stop: Annotated[list[str], typer.Option("--stop", help="End before this text; may be repeated.")]


class SessionSampling(Sampling, Once, total=False):
    """Of a session's generation."""


class Learning(TypedDict, total=False):
    """How a text is learned from."""

    kind: Annotated[Kind, typer.Option("--kind", help="What may change; default: the model's first.")]
    num_fast_weights: Annotated[
        int,
        typer.Option("--fast-weights", metavar="P", help="The number of fast weights, of those there are."),
    ]
    experts: Annotated[
        int,
        typer.Option("--experts", metavar="1|2|4", help="Learning rates to mix, the frozen one included."),
    ]
    rate_scale: Annotated[
        float, typer.Option("--rate-scale", help="Multiplies the calibrated learning rate; 0 never learns.")
    ]
    no_static: Annotated[
        bool, typer.Option("--no-static", help="Without frozen baseline: cheaper, and no gain is known.")
    ]


class OfModel(TypedDict, total=False):
    """Of what is asked of one of the server's models."""

    model: Annotated[str, typer.Option("--model", help="Of those that the server has; default: its first.")]


class Scoring(Learning, OfModel, total=False):
    """Of a text that is scored."""


class Generating(Sampling, OfModel, total=False):
    """Of a text that is continued."""


class Create(NewSession, Scoring, total=False):
    """Of a new session."""


_DEFAULTS: Final[Mapping[str, Any]] = {"url": DEFAULT_URL, "as_json": False, "no_static": False}


def adaptation(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with those of learning in one member, if there are any; what a session is asked."""
    asked = {name: value for name, value in options.items() if name in Learning.__annotations__}
    rest = {name: value for name, value in options.items() if name not in asked}
    if asked.pop("no_static", False):
        asked["static"] = False
    return rest | {"adaptation": asked} if asked else rest


def notes(entries: list[str] | None) -> dict[str, Any]:
    """Return the option ``metadata`` for what was given as NAME=VALUE, if anything was."""
    parts = [entry.partition("=") for entry in entries or ()]
    for name, equals, value in parts:
        if not (name and equals):
            raise CommandError(f"--metadata takes NAME=VALUE, not {name + equals + value!r}")
    return {"metadata": {name: value for name, _, value in parts}} if parts else {}


def command(app: typer.Typer, name: str | None = None) -> Callable[[Callable[..., object]], None]:
    """Make a function a command of an app: its parameters, those of `Server`, and its answer printed.

    A parameter ``client``, ``session`` or ``server`` gets what `Server` and the session's id say. A TypedDict
    that it takes as keywords is a group of options, of which it gets those that were given.
    """

    def add(function: Callable[..., object]) -> None:
        parameters = list(_parameters(function))
        taken = inspect.signature(function).parameters.keys() & {"client", "session", "server"}

        @wraps(function)
        def run(**given: Any) -> None:
            server = {name: given.pop(name) for name in Server.__annotations__}
            with Client(server["url"], api_key=server["api_key"]) as client:
                there: dict[str, Any] = {"client": client, "server": server}
                if "session" in taken:
                    there["session"] = client.sessions.get(given.pop("session_id"))
                options = {name: value for name, value in given.items() if value not in (None, [])}
                answer = function(**{name: there[name] for name in taken}, **options)
                output.show(answer, as_json=server["as_json"])

        run.__annotations__ = {}
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        app.command(name)(run)

    return add


def _parameters(function: Callable[..., object]) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(function, include_extras=True)
    for own in inspect.signature(function).parameters.values():
        if own.kind is own.VAR_KEYWORD:
            yield from _members(*get_args(hints[own.name]))
        elif own.name == "session":
            yield inspect.Parameter("session_id", own.POSITIONAL_OR_KEYWORD, annotation=SessionId)
        elif own.name not in ("client", "server"):
            yield own.replace(annotation=hints[own.name])
    yield from _members(Server)


def _members(group: Any) -> Iterator[inspect.Parameter]:
    for name, hint in get_type_hints(group, include_extras=True).items():
        default = _DEFAULTS.get(name)
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def whole_text(argument: str | None, file: Path | None) -> str:
    """Return the text; line ends stay as they are.

    Raises:
        CommandError: none or two were given, the file cannot be read, or it is not UTF-8.
    """
    return "".join(text_as_it_comes(argument, file))


def text_as_it_comes(argument: str | None, file: Path | None) -> Iterator[str]:
    """Yield the text in parts; from standard input as soon as something is there."""
    if argument is not None and file is not None:
        raise CommandError("give either a text or --file, not both")
    if argument is not None:
        return iter((argument,))
    if file is not None and not is_standard_input(argument, file):
        return _file_parts(file)
    if nothing_piped():
        raise CommandError("give a text, --file FILE, or pipe a text in")
    return _standard_input()


def lines_as_they_come(file: Path | None) -> Iterator[str]:
    """Yield lines with their ends as soon as each is whole; the last one may have none."""
    rest = ""
    for part in text_as_it_comes(None, file):
        *lines, rest = (rest + part).split("\n")
        yield from (f"{line}\n" for line in lines)
    if rest:
        yield rest


def is_standard_input(argument: str | None, file: Path | None) -> bool:
    """Whether a command that was given these reads its text from standard input."""
    return argument is None and (file is None or str(file) == "-")


def nothing_piped() -> bool:
    """Whether standard input is a terminal, or closed."""
    return sys.stdin is None or sys.stdin.isatty()


def decoded(stream: io.BufferedReader, name: str) -> Iterator[str]:
    """Yield a stream of bytes as text, cut where it happens to pause but never inside a character."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = 0
    while True:
        chunk = stream.read1(_READ_BYTES)
        held = len(decoder.getstate()[0])
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            at = offset - held + error.start
            raise CommandError(f"{name} is not UTF-8 text (byte {at:,})") from error
        offset += len(chunk)
        if text:
            yield text
        if not chunk:
            return


def _file_parts(file: Path) -> Iterator[str]:
    try:
        with file.open("rb") as stream:
            yield from decoded(stream, str(file))
    except OSError as error:
        raise CommandError(f"{file}: {error.strerror or error}") from error


def _standard_input() -> Iterator[str]:
    with open(sys.stdin.fileno(), "rb", closefd=False) as stream:
        yield from decoded(stream, "standard input")
