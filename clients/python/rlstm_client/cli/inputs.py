"""What the commands are given: the clients' own options, and text from an argument, a file or a pipe."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypedDict, get_args, get_origin, get_type_hints

import typer

from rlstm_client import Client, texts
from rlstm_client._http import DEFAULT_URL
from rlstm_client.cli import output
from rlstm_client.cli.exits import CommandError
from rlstm_client.models import Unit
from rlstm_client.options import AdaptationOptions

Text = Annotated[str | None, typer.Argument(help="The text. Without it, --file or standard input is read.")]
Encoding = Annotated[
    str | None, typer.Option(help="Of text that is read; else its mark tells, or it is UTF-8.")
]
Invalid = Annotated[texts.Invalid, typer.Option(help="What to do about bytes that are no text.")]
EachToken = Annotated[bool, typer.Option("--tokens", help="Every token; of an append, with --json.")]
UnitOption = Annotated[Unit, typer.Option("--unit", help="Of every log-probability.")]
Local = Annotated[
    bool,
    typer.Option("--local", help="Compute here; --model is then a shipped one [bytes-small], or a folder."),
]
Model = Annotated[str | None, typer.Option("--model", help="What reads; default: the server's first.")]
SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")]
SnapshotName = Annotated[str, typer.Argument(metavar="NAME", help="The snapshot's name.")]
Url = Annotated[str, typer.Option("--url", envvar="RLSTM_URL", help="Where the server is.")]
ApiKey = Annotated[
    str | None,
    typer.Option("--api-key", envvar="RLSTM_API_KEY", help="The key; better in the environment than here."),
]


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a command's text is read from, where no argument is the text, and how."""

    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Read the text from this file; - is standard input.")
    ] = None
    encoding: Encoding = None
    invalid: Invalid = "refuse"

    def parts(self, argument: str | None = None) -> Iterator[str]:
        """Yield the text in parts; from standard input as soon as something is there.

        Raises:
            CommandError: no text was given, or two.
            TextError: it is none; all that stands before was yielded.
        """
        if argument is not None and self.file is not None:
            raise CommandError("give either a text or --file, not both")
        if argument is not None:
            return iter((argument,))
        if self.file is None and nothing_piped():
            raise CommandError("give a text, --file FILE, or pipe a text in")
        return texts.read(self.file or Path("-"), self.encoding, self.invalid)

    def whole(self, argument: str | None = None) -> str:
        """Return the text; line ends stay as they are. Raises as `parts`."""
        return "".join(self.parts(argument))

    def is_standard_input(self, argument: str | None = None) -> bool:
        """Whether the text comes through standard input."""
        return argument is None and (self.file is None or str(self.file) == "-")


class Server(TypedDict):
    """Of every command that asks a server: which one, and in what form its answer is printed."""

    url: Url
    api_key: ApiKey
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as one JSON object.")]


_FLAGS: Final = {
    "idempotency_key": ("--key",),
    "learn": ("--learn/--no-learn",),
    "learn_from_output": ("--learn",),
    "learning": ("--learning/--no-learning",),
    "max_tokens": ("--max-tokens", "-n"),
    "num_fast_weights": ("--fast-weights",),
    "static": ("--static/--no-static",),
    "temperature": ("--temperature", "-t"),
    "ttl_seconds": ("--ttl",),
}
"""Options whose names on the command line are not their own."""

_METAVARS: Final = {"metadata": "NAME=VALUE", "stop": "TEXT", "ttl_seconds": "SECONDS"}
_ELSEWHERE: Final = {"items", "tokens", "text", "context_tokens", "scores", "unit", "logprobs", "n"}
"""What the commands take in another way, or not at all."""


def command(app: typer.Typer, name: str | None = None) -> Callable[[Callable[..., object]], None]:
    """Make a function a command of an app: its parameters, those of `Server`, and its answer printed.

    A parameter ``client``, ``session``, ``server`` or ``source`` gets what `Server`, the session's id and
    `Source` say. Of the clients' options, a TypedDict that it takes as keywords, it gets what was given.
    """

    def add(function: Callable[..., object]) -> None:
        parameters = sorted(_parameters(function), key=lambda parameter: parameter.kind)
        taken = inspect.signature(function).parameters.keys() & {"client", "session", "server", "source"}

        @wraps(function)
        def run(**given: Any) -> None:
            server = {name: given.pop(name) for name in Server.__annotations__}
            with Client(server["url"], api_key=server["api_key"]) as client:
                there: dict[str, Any] = {"client": client, "server": server}
                if "source" in taken:
                    there["source"] = Source(**{each.name: given.pop(each.name) for each in fields(Source)})
                if "session" in taken:
                    there["session"] = client.sessions.get(given.pop("session_id"))
                answer = function(**{name: there[name] for name in taken}, **_as_options(given))
                output.show(answer, as_json=server["as_json"])

        run.__annotations__ = {}
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        app.command(name)(run)

    return add


def _parameters(function: Callable[..., object]) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(function, include_extras=True)
    own = inspect.signature(function).parameters
    for name, parameter in own.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            yield from _options(*get_args(hints[name]), without={*own, *_ELSEWHERE})
        elif name == "session":
            yield parameter.replace(name="session_id", annotation=SessionId)
        elif name == "source":
            defaults = {each.name: each.default for each in fields(Source)}
            yield from _expanded(Source, defaults)
        elif name not in ("client", "server"):
            yield parameter.replace(annotation=hints[name])
    yield from _expanded(Server, {"url": DEFAULT_URL, "as_json": False})


def _expanded(group: type, defaults: Mapping[str, Any]) -> Iterator[inspect.Parameter]:
    """Yield a parameter for each member of a group."""
    for name, hint in get_type_hints(group, include_extras=True).items():
        kind = inspect.Parameter.KEYWORD_ONLY
        yield inspect.Parameter(name, kind, default=defaults.get(name), annotation=hint)


def _options(group: Any, *, without: set[str]) -> Iterator[inspect.Parameter]:
    """Yield an option of the command line for each of a group of the clients' options."""
    for name, hint in get_type_hints(group, include_extras=True).items():
        if name == "adaptation":
            yield from _options(AdaptationOptions, without=without)
        elif name not in without:
            (said,) = hint.__metadata__
            flags = _FLAGS.get(name, (f"--{name.replace('_', '-')}",))
            option = typer.Option(*flags, help=said, metavar=_METAVARS.get(name))
            annotation: Any = Annotated[_kind(hint.__origin__), option]
            yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _kind(hint: Any) -> Any:
    """Return the type that the command line reads of an option: of several values a list, of numbers one."""
    if get_origin(hint) is Literal and isinstance(get_args(hint)[0], int):
        return int
    if bool in get_args(hint):  # whether at all, or which kind: the kind is asked for
        return next(each for each in get_args(hint) if each is not bool)
    return hint if isinstance(hint, type) or get_origin(hint) is Literal else list[str]


def _as_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was given as the clients take it: what is about learning in one, notes by their names."""
    options = {name: value for name, value in given.items() if value not in (None, [])}
    learning = {name: options.pop(name) for name in AdaptationOptions.__annotations__ if name in options}
    if learning:
        options["adaptation"] = learning
    if "metadata" in options:
        options["metadata"] = dict(map(_note, options["metadata"]))
    return options


def _note(entry: str) -> tuple[str, str]:
    name, equals, value = entry.partition("=")
    if not (name and equals):
        raise CommandError(f"--metadata takes NAME=VALUE, not {entry!r}")
    return name, value


def nothing_piped() -> bool:
    """Whether standard input is a terminal, or closed."""
    return sys.stdin is None or sys.stdin.isatty()
