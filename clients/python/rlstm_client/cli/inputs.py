"""What the commands are given: options that several share, and text from an argument, a file or a pipe."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import wraps
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

import click

from rlstm_client import Client, Session, texts
from rlstm_client._http import DEFAULT_URL
from rlstm_client.cli import output
from rlstm_client.cli.exits import CommandError
from rlstm_client.options import AdaptationOptions

Function = Callable[..., Any]
Decorator = Callable[[Function], Function]

FILE: Final = click.Path(path_type=Path)

_SESSION_ID: Final = re.compile(r"[0-9a-f]{32}")

text = click.argument("text", required=False, help="The text. Without it, --file or standard input is read.")
each_token = click.option(
    "each_token", "--tokens", is_flag=True, help="Every token; of an append, with --json."
)
session_id = click.argument("session_id", metavar="SESSION", help="The session's id, or its name.")
as_json = click.option("as_json", "--json", is_flag=True, help="Print the answer as one JSON object.")
force = click.option("--force", is_flag=True, help="Replace what is there.")


def option(about: str, *flags: str, default: Any = None, **more: Any) -> Any:
    """A field of a dataclass that is an option of its name and kind, where no flags and no type are given."""
    return field(default=default, metadata={"flags": flags, "help": about, **more})


def argument(about: str, **more: Any) -> Any:
    """A field of a dataclass that is an argument; it may be left out where the field may be None."""
    return field(metadata={"flags": None, "help": about, **more})


def given(name: str, group: type[Any], **defaults: Any) -> Decorator:
    """Give a command what a dataclass asks for, some with other defaults; it gets it as one object."""
    hints, asked = get_type_hints(group), dict[str, Decorator]()
    for each in fields(group):
        more: dict[str, Any] = {**_kind(hints[each.name]), **each.metadata}
        flags = more.pop("flags")
        if flags is None:
            many = more.pop("multiple", False)
            optional = {"nargs": -1} if many else {"required": type(None) not in get_args(hints[each.name])}
            asked[each.name] = click.argument(each.name, **optional | more)
        else:
            more["default"] = defaults.get(each.name, each.default)
            asked[each.name] = click.option(each.name, *flags or _flag(each.name), **more)

    return _taking(asked, lambda own: {name: group(**own)})


def _flag(name: str) -> tuple[str]:
    return (f"--{name.replace('_', '-')}",)


def _kind(hint: Any) -> dict[str, Any]:
    """Say what the command line reads of a field: of several values a list, of numbers one."""
    if type(None) in get_args(hint):
        (hint,) = (each for each in get_args(hint) if each is not type(None))
    if hint is bool:
        return {"is_flag": True}
    if bool in get_args(hint):  # whether at all, or which kind: the kind is asked for
        hint = next(each for each in get_args(hint) if each is not bool)
    if get_origin(hint) is Literal:
        return {"type": click.Choice(get_args(hint))}
    if hint is Path:
        return {"type": FILE}
    if isinstance(hint, type):
        return {"type": hint}
    inner = get_args(hint)[0] if get_origin(hint) is Sequence else str
    return {**_kind(inner), "multiple": True}


def _taking(asked: dict[str, Decorator], make: Callable[[dict[str, Any]], dict[str, Any]]) -> Decorator:
    """Give a command options, of whose values it gets what is made of them."""

    def decorate(function: Function) -> Function:
        @wraps(function)
        def run(**values: Any) -> Any:
            own = {name: values.pop(name) for name in asked}
            return function(**values, **make(own))

        command: Function = run
        for option in reversed(asked.values()):
            command = option(command)
        return command

    return decorate


@dataclass(frozen=True, kw_only=True)
class How:
    """How text is read."""

    encoding: str | None = option("Of text that is read; else its mark tells, or it is UTF-8.")
    invalid: texts.Invalid = option("What to do about bytes that are no text.", default="refuse")

    def read(self, file: Path) -> Iterator[str]:
        """Yield a file as text; - is standard input. Raises as `texts.read`."""
        return texts.read(file, self.encoding, self.invalid)


@dataclass(frozen=True, kw_only=True)
class Source(How):
    """Where a command's text is read from, where no argument is the text, and how."""

    file: Path | None = option("Read the text from this file; - is standard input.", "--file", "-f")

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

    url: str = option("Where the server is.", default=DEFAULT_URL, envvar="RLSTM_URL", show_envvar=True)
    api_key: str | None = option(
        "The key; better in the environment than here.", envvar="RLSTM_API_KEY", show_envvar=True
    )


how, source, server = given("how", How), given("source", Source), given("server", Server)


def answers(function: Function) -> Function:
    """Print what a command returns, as JSON where that is asked for."""

    @as_json
    @wraps(function)
    def run(as_json: bool, **given: Any) -> None:
        output.show(function(**given), as_json=as_json)

    return run


def client(function: Function) -> Function:
    """Give a command a client of the server that is asked, until its answer is printed."""

    @server
    @wraps(function)
    def run(server: Server, **given: Any) -> Any:
        opened = Client(server.url, api_key=server.api_key)
        return function(client=click.get_current_context().with_resource(opened), **given)

    return answers(run)


def session(function: Function) -> Function:
    """Give a command the session that its argument names; its answer is printed."""

    @session_id
    @client
    @wraps(function)
    def run(client: Client, session_id: str, **given: Any) -> Any:
        return function(session=session_of(client, session_id), **given)

    return run


def session_of(client: Client, given: str) -> Session:
    """Return the session of an id; whatever is none is a name."""
    session = client.sessions.get(given)  # which refuses what could be neither
    found = None if _SESSION_ID.fullmatch(given) else client.sessions.find(given)
    return found or session


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
_DEFAULTS: Final = {"unit": "bits"}
_ELSEWHERE: Final = {"items", "tokens", "text", "context_tokens", "scores", "logprobs", "n"}
"""What the commands take in another way, or not at all."""


def options(group: Any, *without: str) -> Decorator:
    """Give a command options for the clients' own, a TypedDict; of these it gets what was given."""
    return _taking(dict(_options(group, {*_ELSEWHERE, *without})), _as_options)


def _options(group: Any, without: set[str]) -> Iterator[tuple[str, Decorator]]:
    for name, hint in get_type_hints(group, include_extras=True).items():
        if name == "adaptation":
            yield from _options(AdaptationOptions, without)
        elif name not in without:
            (said,) = hint.__metadata__
            flags = _FLAGS.get(name, _flag(name))
            more: Any = {"metavar": _METAVARS.get(name), "default": _DEFAULTS.get(name)}
            yield name, click.option(name, *flags, help=said, **more, **_kind(hint.__origin__))


def _as_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was given as the clients take it: what is about learning in one, notes by their names."""
    options = {name: value for name, value in given.items() if value not in (None, ())}
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
