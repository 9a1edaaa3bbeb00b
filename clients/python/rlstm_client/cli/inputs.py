"""What the commands are given: the clients' own options, and text from an argument, a file or a pipe."""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

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
Local = Annotated[bool, typer.Option("--local", help="Compute here, without a server.")]
Model = Annotated[
    str | None,
    typer.Option(
        "--model", help="Of the server's; with --local a shipped one, or a folder [for prose subwords-base]."
    ),
]
SessionId = Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")]
SnapshotName = Annotated[str, typer.Argument(metavar="NAME", help="The snapshot's name.")]
Url = Annotated[str, typer.Option("--url", envvar="RLSTM_URL", help="Where the server is.")]
ApiKey = Annotated[
    str | None,
    typer.Option("--api-key", envvar="RLSTM_API_KEY", help="The key; better in the environment than here."),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as one JSON object.")]


@dataclass(frozen=True, kw_only=True)
class How:
    """How text is read."""

    encoding: Encoding = None
    invalid: Invalid = "refuse"

    def read(self, file: Path) -> Iterator[str]:
        """Yield a file as text; - is standard input. Raises as `texts.read`."""
        return texts.read(file, self.encoding, self.invalid)


@dataclass(frozen=True, kw_only=True)
class Source(How):
    """Where a command's text is read from, where no argument is the text, and how."""

    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Read the text from this file; - is standard input.")
    ] = None

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
        return self.read(self.file or Path("-"))

    def whole(self, argument: str | None = None) -> str:
        """Return the text; line ends stay as they are. Raises as `parts`."""
        return "".join(self.parts(argument))


@dataclass(frozen=True, kw_only=True)
class Server:
    """Which server is asked."""

    url: Url = DEFAULT_URL
    api_key: ApiKey = None


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


Function = Callable[..., object]


def command(app: typer.Typer | None = None, name: str | None = None) -> Callable[[Function], Function]:
    """Make a function a command, of an app or alone: its parameters are the command's, its answer is printed.

    A parameter that is a group, a dataclass of options such as `Source`, stands for all of them; ``client``
    or ``session`` for those of `Server` and the session's id. Of the clients' options, a TypedDict that it
    takes as keywords, the function gets what was given.
    """

    def add(function: Function) -> Function:
        hints = get_type_hints(function, include_extras=True)
        own = inspect.signature(function).parameters
        groups: dict[str, Any] = {each: hints[each] for each in own if is_dataclass(hints[each])}
        if asks := bool(own.keys() & {"client", "session"}):
            groups["server"] = Server
        told = asks or hints["return"] is not type(None)

        @wraps(function)
        def run(**given: Any) -> None:
            as_json = given["as_json"] if "as_json" in own else given.pop("as_json", False)
            there = {
                each: group(**{member.name: given.pop(member.name) for member in fields(group)})
                for each, group in groups.items()
            }
            with ExitStack() as stack:
                if asks:
                    server = there["server"]
                    there["client"] = stack.enter_context(Client(server.url, api_key=server.api_key))
                if "session" in own:
                    there["session"] = there["client"].sessions.get(given.pop("session_id"))
                taken = {each: value for each, value in there.items() if each in own}
                output.show(function(**taken, **_as_options(given)), as_json=as_json)

        parameters = {each.name: each for each in _parameters(own, hints, groups)}
        if told:
            parameters.setdefault("as_json", _option("as_json", AsJson, False))
        in_order = sorted(parameters.values(), key=lambda each: each.kind)
        run.__annotations__ = {}
        run.__signature__ = inspect.Signature(in_order)  # type: ignore[attr-defined]
        return run if app is None else app.command(name)(run)

    return add


def _parameters(
    own: Mapping[str, inspect.Parameter], hints: Mapping[str, Any], groups: Mapping[str, Any]
) -> Iterator[inspect.Parameter]:
    members = [member for group in groups.values() for member in fields(group)]
    annotations: dict[str, Any] = {}
    for group in groups.values():
        annotations |= get_type_hints(group, include_extras=True)
    for name, parameter in own.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            without = {*own, *_ELSEWHERE, *(member.name for member in members)}
            yield from _options(*get_args(hints[name]), without=without)
        elif name == "session":
            yield parameter.replace(name="session_id", annotation=SessionId)
        elif name != "client" and name not in groups:
            yield parameter.replace(annotation=hints[name])
    for member in members:
        yield _option(member.name, annotations[member.name], member.default)


def _option(name: str, hint: Any, default: object = None) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


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
            yield _option(name, annotation)


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
